"""A machine of its own for each test:
private roots for sockets and shared memory, a tiny corpus."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from headway.common.errors import DeadlineError
from headway.common.node.janitor import processes_of
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import ENV_SHM_ROOT, ENV_SOCK_ROOT
from headway.common.output import to_json
from headway.console.cli import main
from headway.console.machine import peak
from headway.console.run import Run
from headway.dataloader.config import DataConfig
from headway.dataloader.prepare import prepare
from headway.testkit.journal import query

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks is a folder of the repository, not a distribution
VOCABULARY = 512
LIMIT_S = 120.0
EVERY_S = 0.1
"""Between two looks: one costs some milliseconds, of the driver too."""

MODEL = (
    "model.layers=2",
    "model.hidden=64",
    "model.heads=4",
    "model.seq_len=64",
    f"model.vocab_size={VOCABULARY}",
    "train.eval_batches=1",
    "train.eval_every=0",
    "train.sample_tokens=0",
    "train.dtype=fp32",
)
TWO_RANKS = (
    "parallel.tp=1",
    "parallel.pp=1",
    "parallel.dp=2",
    "launch.nodes=1",
    "launch.ranks_per_node=2",
    "launch.spares=0",
    "launch.standbys=1",
    "train.global_batch_size=4",
)

TWO_NODES = (
    "parallel.tp=1",
    "parallel.pp=2",
    "parallel.dp=1",
    "launch.nodes=2",
    "launch.ranks_per_node=1",
    "train.global_batch_size=4",
)


def wait_until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Poll until ``condition`` gives something true and return it;
    fails, naming ``what``, after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {what}"
        time.sleep(EVERY_S)
    return found


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 100 KB of made-up words with a vocabulary of 512, prepared once."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 8))) for _ in range(300)]
    (folder / "text").mkdir()
    for number in range(40):
        lines = [" ".join(rng.choices(words, k=10)) for _ in range(50)]
        (folder / "text" / f"{number}.txt").write_text("\n".join(lines))
    prepare(
        DataConfig(path=str(folder / "data"), source=str(folder / "text"), vocab_size=VOCABULARY)
    )
    return folder / "data"


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which the machine's peak is known, so that no test measures it."""
    folder = tmp_path_factory.mktemp("cache")
    figures = {
        "device": "cpu",
        "name": "given",
        "threads": os.cpu_count(),
        "flops": {"bf16": 5e10, "fp32": 5e10},
        "waited": 0.0,
    }
    (folder / "peak.json").write_text(json.dumps({peak._key("cpu"): figures}))
    return folder


class Machine:
    """Runs the ``headway`` command where nothing else can be seen, and looks at what it leaves."""

    two_ranks, two_nodes = TWO_RANKS, TWO_NODES
    wait_until = staticmethod(wait_until)

    def __init__(self, folder: Path, corpus: Path, cache: Path) -> None:
        self.folder, self.corpus = folder, corpus
        self.runs = folder / "runs"
        self.sock_root = Path(tempfile.mkdtemp(prefix="hw-", dir="/tmp"))
        self.shm_root = Path(tempfile.mkdtemp(prefix="hw-test-", dir="/dev/shm"))
        bin_dir = Path(sys.executable).parent
        self.env = {
            **os.environ,
            ENV_SOCK_ROOT: str(self.sock_root),
            ENV_SHM_ROOT: str(self.shm_root),
            "HEADWAY_CACHE": str(cache),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}",
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self._command = str(bin_dir / "headway")

    # ---- the command --------------------------------------------------------------------------
    def settings(self, *groups: Sequence[str] | str) -> list[str]:
        """``--set`` options: the tiny model on the tiny corpus, then what is given."""
        flat = [one for group in groups for one in ([group] if isinstance(group, str) else group)]
        return [
            word for one in (*MODEL, f"data.path={self.corpus}", *flat) for word in ("--set", one)
        ]

    def headway(self, *words: str | Path, code: int = 0, limit_s: float = LIMIT_S) -> str:
        """Run one command to its end; returns stdout. Fails unless it exits with ``code``."""
        done = subprocess.run(
            [self._command, *map(str, words)],
            env=self.env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        assert done.returncode == code, f"code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if not code else done.stdout + done.stderr

    def in_process(self, *words: str | Path, code: int = 0) -> str:
        """As ``headway``, but in this process: one of its own would import the console anew."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(ROOT),
            patch.dict(os.environ, self.env),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            found = main([str(word) for word in words])
        assert found == code, f"code {found}\n{out.getvalue()}\n{err.getvalue()}"
        return out.getvalue() if not code else out.getvalue() + err.getvalue()

    def start(self, *words: str | Path) -> subprocess.Popen[bytes]:
        """Start a command in the foreground; its output goes to ``output``."""
        with self.output.open("ab") as out:
            self._started.append(
                subprocess.Popen(
                    [self._command, *map(str, words)],
                    env=self.env,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )
        return self._started[-1]

    @property
    def output(self) -> Path:
        return self.folder / "output.txt"

    def launch(self, name: str, *groups: Sequence[str] | str) -> Run:
        """Start a run of very many steps in the background."""
        settings = self.settings("train.steps=1000000", *groups)
        command = ("run", "examples/tiny.toml", "--name", name, "--detach")
        self.in_process(*command, "--runs-dir", self.runs, *settings)
        return Run(self.runs / name)

    def stepping(self, name: str, beyond: int = 0, *, generation: int = 0) -> dict[str, Any]:
        """The status once this generation or a later one runs, has made more than ``beyond`` steps
        of the run, and no node is in trouble."""

        def found() -> dict[str, Any]:
            status = self.status(name)
            is_well = status.get("phase") == "running" and not status["troubles"]
            is_new = is_well and status["generation"] >= generation and status["step"] > beyond
            return status if is_new else {}

        return dict(self.wait_until(found, f"step {beyond + 1} in generation {generation}"))

    def status(self, name: str) -> dict[str, Any]:
        """The driver's part of ``headway status --json``; empty while no driver answers. A command
        for each look would take the processor from the run that it looks at."""
        with contextlib.suppress(DeadlineError):
            return dict(json.loads(to_json(Run(self.runs / name).status(2.0))))
        return {}

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Fields of the run's journalled events of one name, the oldest first."""
        sql = "SELECT fields FROM events WHERE name = ? ORDER BY id"
        return [json.loads(fields) for (fields,) in query(Run(self.runs / name), sql, (kind,))]

    def digest(self, name: str) -> str:
        """Of the parameters in the last checkpoint of a finished run."""
        from benchmarks.digest import final_digest

        return final_digest(Run(self.runs / name))

    def run_id(self, name: str) -> str:
        return str(json.loads((self.runs / name / "run.json").read_text())["run_id"])

    # ---- what is left -------------------------------------------------------------------------
    def processes(self) -> list[ProcessId]:
        """Every living process that was started with this machine's roots,
        the console's own included."""
        return [
            identity
            for identity, env in _environments()
            if f"{ENV_SOCK_ROOT}={self.sock_root}".encode() in env
        ]

    def listening(self) -> set[str]:
        """Inodes of the tcp sockets on which processes of this machine listen."""
        held = set()
        for process in self.processes():
            try:
                for fd in Path(f"/proc/{process.pid}/fd").iterdir():
                    link = str(fd.readlink())
                    if link.startswith("socket:["):
                        held.add(link[8:-1])
            except OSError:
                continue
        return held & _listening().keys()

    def ports(self) -> list[int]:
        """On which processes of this machine listen."""
        held = self.listening()
        return sorted(port for inode, port in _listening().items() if inode in held)

    def assert_clean(self, *names: str, listened: set[str] = frozenset()) -> None:
        """No process, socket, shared memory or listening port of the machine is left."""
        wait_until(lambda: not self.processes(), "all processes ended", 20.0)
        for name in names:
            assert processes_of(self.run_id(name)) == []
        left = [str(path) for root in (self.sock_root, self.shm_root) for path in root.rglob("*")]
        assert left == []
        assert not listened & _listening().keys(), "somebody still listens"
        assert str(self.sock_root) not in Path("/proc/net/unix").read_text()

    def kill_everything(self) -> int:
        """SIGKILL to all processes of this machine until none is left; returns how many fell."""
        fallen: set[ProcessId] = set()

        def none_left() -> bool:
            victims = self.processes()
            for victim in victims:
                victim.kill(signal.SIGKILL)
            fallen.update(victims)
            return not victims

        wait_until(none_left, "all processes died", 30.0)
        for child in self._started:
            child.wait(10)
        return len(fallen)

    def close(self) -> None:
        self.kill_everything()
        for root in (self.sock_root, self.shm_root):
            shutil.rmtree(root, ignore_errors=True)


def _environments() -> Iterator[tuple[ProcessId, list[bytes]]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            env = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        identity = ProcessId.of(int(entry.name))
        if identity is not None and identity.alive():
            yield identity, env


def _listening() -> dict[str, int]:
    """Inode -> port of every listening tcp socket, see proc(5)."""
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        if (file := Path("/proc/net") / table).exists()
        for line in file.read_text().splitlines()[1:]
    ]
    return {row[9]: int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


@pytest.fixture
def machine(tmp_path: Path, corpus: Path, cache: Path) -> Iterator[Machine]:
    """For commands as processes; whatever a failed test leaves is ended."""
    found = Machine(tmp_path, corpus, cache)
    yield found
    found.close()


@pytest.fixture(scope="module")
def make_machine(
    corpus: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Machine]]:
    """For what several tests of a module share."""
    made: list[Machine] = []

    def make() -> Machine:
        made.append(Machine(tmp_path_factory.mktemp("machine"), corpus, cache))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def here(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The same for runs launched from this process: its own environment is the machine's."""
    for key in (ENV_SOCK_ROOT, ENV_SHM_ROOT, "HEADWAY_CACHE", "OMP_NUM_THREADS", "PATH"):
        monkeypatch.setenv(key, machine.env[key])
    monkeypatch.chdir(ROOT)
    return machine
