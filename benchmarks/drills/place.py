"""What a drill finds: processes by the run in their environment, what driver and journal say,
a corpus."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from headway.common.errors import HeadwayError
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import ENV_NODE, ENV_RUN_ID
from headway.common.wire.messages.driver import Status
from headway.console.run import Run
from headway.dataloader.config import DataConfig
from headway.dataloader.prepare import prepare
from headway.launch.cluster import ClusterFolder
from headway.testkit.journal import query


def tiny_corpus(folder: Path) -> Path:
    """Some 100 KB of made-up words, prepared with a vocabulary of 512."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 8))) for _ in range(300)]
    (folder / "text").mkdir(parents=True)
    for number in range(40):
        lines = [" ".join(rng.choices(words, k=10)) for _ in range(50)]
        (folder / "text" / f"{number}.txt").write_text("\n".join(lines))
    text, data = str(folder / "text"), folder / "data"
    prepare(DataConfig(path=str(data), source=text, vocab_size=512))
    return data


def identity(pid: int) -> ProcessId:
    """The process that has this pid now."""
    found = ProcessId.of(pid)
    assert found is not None, f"process {pid} is gone"
    return found


def environments() -> Iterator[tuple[ProcessId, dict[str, str]]]:
    """Every living process of this user with its environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            env = process.environ()
            found = ProcessId.of(process.pid)
            if found is not None and found.alive():
                yield found, env


def members(run: Run) -> list[tuple[ProcessId, str, int]]:
    """(process, role, node) of every living process of a run;
    workers have the role of their zygote."""
    wanted = {run.folder.run_id, ClusterFolder(run.cluster_folder).id}
    return [
        (process, env.get("HEADWAY_ROLE", ""), int(env.get(ENV_NODE, "-1")))
        for process, env in environments()
        if env.get(ENV_RUN_ID) in wanted
    ]


def status_of(run: Run) -> Status | None:
    """What the driver says, None when none answers within a second."""
    with contextlib.suppress(HeadwayError, OSError):
        return run.status(timeout_s=1.0)
    return None


def events_of(run: Run, since_s: float = 0.0) -> list[dict[str, Any]]:
    """The journal's events since a moment of the monotonic clock, in their order."""
    sql = (
        "SELECT id, epoch, monotonic_s, name, fields FROM events WHERE monotonic_s >= ? ORDER BY id"
    )
    keys = ("id", "epoch", "at_s", "name", "fields")
    return [
        {**dict(zip(keys, row, strict=True)), "fields": json.loads(row[4])}
        for row in query(run, sql, (since_s,))
    ]


def last_generation(run: Run) -> dict[str, Any]:
    """The newest ``generation`` event's fields, such as ``source`` and ``step``."""
    rows = query(
        run, "SELECT fields FROM events WHERE name = 'generation' ORDER BY id DESC LIMIT 1"
    )
    return dict(json.loads(rows[0][0])) if rows else {}
