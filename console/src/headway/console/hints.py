"""Command lines to paste: they find the run from the present working folder."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from headway.common.errors import InputError

ELSEWHERE = "gateway.json"
"""File in the folder of a run that another machine has."""
PODS = "pods.json"
"""File in the folder of a run on Kubernetes that was started from outside of it."""


def hint(verb: str, path: Path) -> str:
    """The command for the run at ``path``, with --runs-dir where it needs one."""
    return f"`{shlex.join(['headway', verb, path.name, *runs_dir_option(path)])}`"


def fork_hint(path: Path, steps: int) -> str:
    """The command that trains the ended run at ``path`` to ``steps`` in a new run."""
    words = ["headway", "fork", path.name, f"{path.name}-longer", *runs_dir_option(path)]
    return f"`{shlex.join([*words, '--set', f'train.steps={steps}'])}`"


def run_folders(runs_dir: Path) -> list[Path]:
    """The folders of the runs in a folder, the one that was started first before the others."""
    found = [path.parent for path in runs_dir.glob("*/run.json")]
    return sorted(found, key=_started_unix_s)


def _started_unix_s(run: Path) -> float:
    """0 for one that is being removed."""
    with contextlib.suppress(OSError):
        return (run / "run.json").stat().st_mtime
    return 0.0


def runs_dir_option(path: Path) -> list[str]:
    """What a command needs to find the run at ``path`` from here: nothing if it is in ``runs``."""
    folder = path.parent.resolve()
    is_default = folder == Path("runs").resolve()
    return [] if is_default else ["--runs-dir", seen_from_here(folder)]


def seen_from_here(path: Path) -> str:
    """Relative to the working folder if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def refuse_elsewhere(path: Path) -> None:
    """Raises InputError for the folder of a run that another machine has."""
    if (path / ELSEWHERE).exists():
        raise InputError(f"run {path.name} is on another machine", remedy="run the command there")
    if (path / PODS).exists():
        raise InputError(
            f"run {path.name} is on Kubernetes",
            remedy="run the command in one of its pods; see docs/howto/kubernetes.md",
        )


def resume_command(path: Path, cluster: Path) -> str:
    """The command that resumes the run at ``path`` with its present configuration.

    ``cluster`` is the folder of its nodes; one outside the run's own folder has to be named, unless
    the cluster has been removed meanwhile.
    """
    from headway.launch.cluster import ClusterFolder

    command = ["headway", "run", seen_from_here(path / "config.toml"), "--name", path.name]
    command += runs_dir_option(path)
    if path not in cluster.parents and ClusterFolder(cluster).exists:
        command += ["--cluster", seen_from_here(cluster)]
    return shlex.join(command)
