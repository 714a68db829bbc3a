"""What torch's own analyser (``torchfrtrace``) says of a folder of dumps, as one line of JSON.

``python -m benchmarks.campaign.peers.torchfrtrace FOLDER``. It reads pickles; dumps in JSON are
given to the same functions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir


def named(folder: Path, prefix: str) -> list[int]:
    """The ranks that it calls missing or culprit, in whichever collective."""
    options = JobConfig().parse_args([str(folder), "--prefix", prefix])
    found: set[int] = set()
    details, version = _details(folder, prefix, options)
    for one in build_db(details, options, version).collectives:
        found |= set(one.missing_ranks or ())
        found |= set(one.mismatch_collectives or ())
    return sorted(found)


def _details(folder: Path, prefix: str, options: Any) -> tuple[dict[str, Any], str]:
    files = [path for path in folder.iterdir() if path.name.startswith(prefix)]
    if files and files[0].read_bytes()[:1] != b"{":
        details, version = read_dir(options)
        return dict(details), version
    details = {path.name: json.loads(path.read_text()) for path in files}
    details = {name: {"host_name": name, **one} for name, one in details.items()}
    return details, next(iter(details.values()))["version"]


if __name__ == "__main__":
    try:
        line: dict[str, Any] = {"named": named(Path(sys.argv[1]), sys.argv[2])}
    except Exception as error:  # whatever ends it
        line = {"error": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(line))
