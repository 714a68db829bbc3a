"""Where each setting of a run comes from: default, file, command line or the launch itself."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.common.config import diff, leaves, to_dict
from headway.common.node.files import replace_json
from headway.console.folder.records import RunRecords
from headway.trainer.config import RunConfig

FILE = "config-origins.json"
"""In the run's folder, beside config.toml: key -> origin, of every key that is not a default."""
DEFAULT, COMMAND_LINE, LAUNCH = "default", "command line", "chosen at launch"


def given(file: Path, overrides: Sequence[str] = ()) -> dict[str, str]:
    """Origin of every key that a file or an override such as ``train.steps=20`` sets."""
    found = dict.fromkeys(leaves(tomllib.loads(file.read_text())), str(file))
    for override in overrides:
        key = override.partition("=")[0].strip()
        inner = [known for known in found if known.startswith(f"{key}.")]
        found.update(dict.fromkeys(inner or [key], COMMAND_LINE))
    return found


def keep(
    run: RunRecords, origins: Mapping[str, str], asked: RunConfig, resolved: RunConfig
) -> None:
    """Remember them for a run that is about to start with ``resolved``.

    A run that resumes from its own config.toml keeps the origins from before, except for what has
    been changed now.
    """
    own = {str(run.folder.config), str(run.folder.config.resolve())}
    before = of_run(run)
    found = {
        key: before.get(key, DEFAULT) if str(Path(origin).resolve()) in own else origin
        for key, origin in origins.items()
    }
    found.update(dict.fromkeys(diff(asked, resolved), LAUNCH))
    kept = {key: origin for key, origin in found.items() if origin != DEFAULT}
    replace_json(run.path / FILE, kept)


def of_run(run: RunRecords) -> dict[str, str]:
    """Origins of a run's settings; empty for a run that an older version began."""
    try:
        found = json.loads((run.path / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): str(origin) for key, origin in found.items()}


def rows(config: RunConfig, origins: Mapping[str, str]) -> list[tuple[str, Any, str]]:
    """Key, value and origin of every setting."""
    return [
        (key, value, origins.get(key, DEFAULT)) for key, value in leaves(to_dict(config)).items()
    ]
