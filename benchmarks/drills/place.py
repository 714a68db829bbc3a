"""What a drill finds on a machine: processes by the run in their environment, and a corpus to train on."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import psutil
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import ENV_NODE, ENV_RUN_ID
from headway.console.run import Run
from headway.dataloader.config import DataConfig
from headway.dataloader.prepare import prepare
from headway.launch.cluster import ClusterFolder


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
    """(process, role, node) of every living process of a run; workers have the role of their zygote."""
    wanted = {run.folder.run_id, ClusterFolder(run.cluster_folder).id}
    return [
        (process, env.get("HEADWAY_ROLE", ""), int(env.get(ENV_NODE, "-1")))
        for process, env in environments()
        if env.get(ENV_RUN_ID) in wanted
    ]
