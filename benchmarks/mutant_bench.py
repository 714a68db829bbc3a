"""One mutant is tried in a fork of a process that has loaded the heavy libraries already.

The fork leads a session of its own, so that a mutant that hangs is ended with all that it started.
"""

from __future__ import annotations

import compileall
import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTROL = "services/controller/src/headway/controller"
WIRE = "libs/common/src/headway/common/wire"
FOLDERS = {CONTROL: "services/controller/tests", WIRE: "libs/common/tests/wire"}
LAST = {CONTROL: ["decisions/histories"], WIRE: []}
"""Tests of no one file, which take the longest."""
DECISIONS = "sentences state copies nodes verdicts effects scale"
GUARDIAN = "executor/guardian executor/node_run"
OWN_TESTS = (
    (
        f"{CONTROL}/decisions/",
        " ".join(f"decisions/{name}" for name in DECISIONS.split()) + " driver/driver",
    ),
    (f"{CONTROL}/executor/outbox", "executor/outbox"),
    (f"{CONTROL}/executor/election", f"executor/election {GUARDIAN}"),
    *(
        (f"{CONTROL}/executor/{name}", f"{GUARDIAN} executor/election")
        for name in ("guardian", "services", "worker_table", "node_events")
    ),
    *((f"{WIRE}/{name}", "codec fuzz") for name in ("codec", "message")),
    (f"{WIRE}/keys", "keys curve"),
    (f"{WIRE}/loop", "loop server"),
    (f"{WIRE}/client", "client server"),
    (f"{WIRE}/server", "server doomed_listener client"),
    (f"{WIRE}/endpoint", "server client curve"),
    (f"{WIRE}/", "service"),
    (f"{CONTROL}/journal/", "journal/journal driver/driver"),
    (f"{CONTROL}/faults/", "faults/faults"),
    (f"{CONTROL}/executor/", "executor/node_shell executor/node_run executor/executor"),
    (f"{CONTROL}/", "driver/driver"),
)
"""Where a mutant's path begins -> its own tests, the fast ones first; the first line that fits
counts, and mutants of the upper lines are tried first, because they cost least."""
PRELOADED = [
    "torch", "numpy", "polars", "zmq", "msgspec", "msgpack", "structlog", "hypothesis.strategies",
    "hypothesis.internal.conjecture.engine", "prometheus_client", "psutil", "sqlite3", "pytest",
    "xxhash", "_pytest.assertion.rewrite", "_pytest.fixtures",
]  # fmt: skip
"""Not ``headway``: each fork imports the copy that holds its mutant."""
LIMIT_S = 900.0
CPU_LIMIT_S = 150


def rank(file: str) -> int:
    """The line of OWN_TESTS that fits the file."""
    return next(at for at, (start, _) in enumerate(OWN_TESTS) if file.startswith(start))


def tests_of(file: str) -> tuple[list[str], list[str]]:
    """Its own tests, and the others of its folder."""
    part = next(one for one in FOLDERS if file.startswith(one))
    own = OWN_TESTS[rank(file)][1].split()
    lists = [tests for start, tests in OWN_TESTS if start.startswith(part)]
    others = sorted({*" ".join(lists).split()} - {*own})
    return _paths(part, own), _paths(part, [*others, *LAST[part]])


def _paths(part: str, names: list[str]) -> list[str]:
    found = [Path(FOLDERS[part]) / name for name in names]
    return [str(path.with_name(f"test_{path.name}.py")) for path in found]


def copy_of_source(folder: Path) -> list[Path]:
    """The ``src`` folders of all distributions, copied; returns them."""
    found = []
    for src in sorted(
        [*ROOT.glob("libs/*/src"), *ROOT.glob("services/*/src"), ROOT / "console/src"]
    ):
        target = folder / src.relative_to(ROOT)
        shutil.copytree(src, target, ignore=shutil.ignore_patterns("__pycache__"))
        found.append(target)
    return found


class Bench:
    """A copy of all sources, in which one mutant after the other is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self.sources = [str(path) for path in copy_of_source(folder)]
        compileall.compile_dir(folder, quiet=2)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)

    def killed_by(self, file: str, code: str, tests: list[str]) -> str | None:
        """The first failing test, or why the tests did not end well; None if they all passed."""
        place = self.folder / file
        place.write_text(code)
        process = self.context.Process(target=run_tests, args=(self.sources, tests, str(self.log)))
        process.start()
        process.join(LIMIT_S)
        is_over = process.exitcode is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        process.join()
        shutil.copy2(ROOT / file, place)
        if not is_over or process.exitcode == -signal.SIGXCPU:
            return "did not end"
        if process.exitcode == 0:
            return None
        lines = self.log.read_text(errors="replace").splitlines()
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return failed[0].split(" - ")[0] if failed else f"pytest ended with {process.exitcode}"


def run_tests(sources: list[str], tests: list[str], log: str) -> None:
    """In a fork: leads a session of its own, so that all it started can be ended together."""
    os.setsid()
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), number)
    os.chdir(ROOT)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 5))
    os.environ["PYTHONPATH"] = os.pathsep.join(sources)
    os.environ["PYTHONDONTWRITEBYTECODE"] = os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.path[:0] = sources
    import pytest

    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-m", "not slow"]
    code = pytest.main([*options, *tests])
    sys.stdout.flush()
    os._exit(code)  # threads that a failed test left behind hold nobody up
