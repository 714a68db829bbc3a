"""Where the files, sockets and shared memory of a run are on one machine.

``RunDir`` is the durable folder that a user sees (runs/<name>); ``NodePaths`` are the sockets
and the shared memory of one (emulated) node of a run, named by run id so that two runs never
meet. Both roots can be moved by the environment: HEADWAY_SOCK_ROOT and HEADWAY_SHM_ROOT, read
here and nowhere else.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import CorruptError, InputError
from headway.common.node.files import make_private_folder, replace_json

ENV_RUN_ID = "HEADWAY_RUN_ID"
ENV_NODE = "HEADWAY_NODE"
ENV_SOCK_ROOT = "HEADWAY_SOCK_ROOT"
ENV_SHM_ROOT = "HEADWAY_SHM_ROOT"
RUN_ID = re.compile(r"[0-9a-f]{8}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def new_run_id() -> str:
    """8 hex characters, random."""
    return secrets.token_hex(4)


def check_run_id(run_id: str) -> str:
    """``run_id`` itself. Raises InputError unless it is 8 lower-case hex characters."""
    if not RUN_ID.fullmatch(run_id):
        raise InputError(
            f"run id {run_id!r} is not 8 hex characters", remedy="take it from the run's run.json"
        )
    return run_id


def sock_root(env: Mapping[str, str] | None = None) -> Path:
    """Root of socket folders, /tmp/headway-<uid> by default (paths of sockets must be short)."""
    return Path(
        (os.environ if env is None else env).get(ENV_SOCK_ROOT) or f"/tmp/headway-{os.getuid()}"
    )


def shm_root(env: Mapping[str, str] | None = None) -> Path:
    """Root of shared memory, /dev/shm/headway-<uid> by default."""
    return Path(
        (os.environ if env is None else env).get(ENV_SHM_ROOT) or f"/dev/shm/headway-{os.getuid()}"
    )


def private_folder(
    path: Path, *, up_to: Path, setting: str = f"{ENV_SOCK_ROOT} and {ENV_SHM_ROOT}"
) -> Path:
    """Create ``path`` and its parents up to ``up_to`` as 0700 folders.

    ``setting`` is what chooses another place, for the message.

    Raises:
        InputError: one of them exists and is a link, a file, or belongs to another
            user (/tmp is shared).
    """
    if path != up_to:
        private_folder(path.parent, up_to=up_to, setting=setting)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise InputError(
            f"{path} is not a folder of user {os.getuid()}",
            remedy=f"remove it, or set {setting}",
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Sockets and segments of node ``node`` of run ``run_id``. Pure until ``create``."""

    run_id: str
    node: int

    def __post_init__(self) -> None:
        check_run_id(self.run_id)
        if self.node < 0:
            raise InputError(f"node {self.node} is below 0", remedy="count nodes from 0")

    @property
    def sock_dir(self) -> Path:
        return sock_root() / self.run_id / f"n{self.node}"

    @property
    def shm_dir(self) -> Path:
        return shm_root() / self.run_id / f"n{self.node}"

    @property
    def failpoints(self) -> Path:
        """One file for all nodes of the run."""
        return shm_root() / self.run_id / "failpoints.bin"

    def socket(self, name: str) -> Path:
        """The socket file of service ``name`` (executor, zygote, dataloader, ckpt_store, agent)."""
        return self.sock_dir / f"{_check_name(name)}.sock"

    def endpoint(self, name: str) -> str:
        """ZeroMQ endpoint of service ``name``."""
        return f"ipc://{self.socket(name)}"

    def segment(self, kind: str, name: str | int) -> Path:
        """A segment's file; ``kind`` is ring, arena, flight or words."""
        return self.shm_dir / f"{_check_name(kind)}-{_check_name(str(name))}.bin"

    def segments(self, kind: str) -> list[Path]:
        """The segments of ``kind`` that exist now, by name."""
        return sorted(self.shm_dir.glob(f"{_check_name(kind)}-*.bin"))

    def create(self) -> NodePaths:
        """Make both folders, 0700. Those that exist are kept with their content."""
        private_folder(self.sock_dir, up_to=sock_root())
        private_folder(self.shm_dir, up_to=shm_root())
        return self

    def environment(self) -> dict[str, str]:
        """The environment of every process of this node, by which the janitor recognises it."""
        return {
            ENV_RUN_ID: self.run_id,
            ENV_NODE: str(self.node),
            ENV_SOCK_ROOT: str(sock_root()),
            ENV_SHM_ROOT: str(shm_root()),
        }


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be part of a file name", remedy="use letters, digits, '-', '_', '.'"
        )
    return name


class RunLock:
    """A shared lock on run.lock, held by every executor of a run.

    The run is live while one holds it.

    The kernel releases it however the holder ends. Programs that the holder
    starts do not inherit it.
    """

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path

    @classmethod
    def path_of(cls, run_id: str, root: Path | None = None) -> Path:
        return (root or sock_root()) / check_run_id(run_id) / "run.lock"

    @classmethod
    def hold(cls, run_id: str) -> RunLock:
        """Waits while a janitor removes a dead run with this id (milliseconds to seconds)."""
        path = cls.path_of(run_id)
        while True:
            fd = cls._open(path, sock_root())
            fcntl.flock(fd, fcntl.LOCK_SH)
            if cls._is_current(fd, path):
                return cls(fd, path)
            os.close(fd)

    def renew(self) -> None:
        """Hold the file under the name again if somebody removed it.

        Without the file, a janitor would take the run for dead.

        Raises:
            OSError: it cannot be made now.
        """
        if self._fd < 0 or self._is_current(self._fd, self.path):
            return
        fd = self._open(self.path, self.path.parent.parent)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # a janitor has it for a moment
            os.close(fd)
            return
        os.close(self._fd)
        self._fd = fd

    @classmethod
    def try_exclusive(cls, run_id: str, root: Path) -> RunLock | None:
        """The lock for the janitor; None while any process holds the run."""
        path = cls.path_of(run_id, root)
        fd = cls._open(path, root)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        if cls._is_current(fd, path):
            return cls(fd, path)
        os.close(fd)
        return None

    @staticmethod
    def _open(path: Path, root: Path) -> int:
        while True:
            private_folder(path.parent, up_to=root)
            # A janitor may remove the folder between the two lines.
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    @staticmethod
    def _is_current(fd: int, path: Path) -> bool:
        """Whether the locked file is still the one under the name."""
        try:
            there = path.lstat()
        except FileNotFoundError:
            return False
        here = os.fstat(fd)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class RunDir:
    """The durable folder of a run, ``runs/<name>``."""

    path: Path

    @classmethod
    def create(cls, path: Path, *, run_id: str) -> RunDir:
        """Create the folder with its subfolders and run.json.

        Raises:
            InputError: the folder already holds a run, or cannot be created.
        """
        run = cls(path)
        if run.run_json.exists():
            raise InputError(f"{path} already holds a run", remedy="choose another --name")
        try:
            for folder in (run.path, run.events, run.checkpoints, run.logs, run.keys):
                make_private_folder(folder)
            created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            record = {"run_id": check_run_id(run_id), "name": path.name, "created": created}
            replace_json(run.run_json, record)
        except OSError as error:
            raise InputError(
                f"cannot create {path}: {error.strerror}", remedy="check the disk and its rights"
            ) from error
        return run

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def run_id(self) -> str:
        """From run.json. Raises InputError without one, CorruptError if it is unreadable."""
        try:
            return check_run_id(json.loads(self.run_json.read_text())["run_id"])
        except FileNotFoundError as error:
            raise InputError(f"{self.path} holds no run", remedy="see `headway runs`") from error
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                f"{self.run_json} is not readable", remedy="remove the run's folder"
            ) from error

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def control(self) -> Path:
        """The folder that all machines of the run share: journal, lease, verdicts.

        Where the machines are several, ``control`` in the run's folder leads there; else it is the
        run's folder itself. A link that leads nowhere, as while the shared folder is not mounted,
        is no reason to lead alone.
        """
        shared = self.path / "control"
        return shared if shared.is_symlink() or shared.exists() else self.path

    @property
    def database(self) -> Path:
        return self.control / "run.sqlite"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def summaries(self) -> Path:
        """Where the monitor saves the summaries of steps; it makes the folder if need be."""
        return self.control / "events"

    @property
    def checkpoints(self) -> Path:
        """By the name that every machine of the run knows it by."""
        folder = self.path / "checkpoints"
        return folder.resolve() if folder.is_symlink() else folder

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def verdicts(self) -> Path:
        return self.control / "verdicts.jsonl"

    @property
    def bundle(self) -> Path:
        """What a node gets when it joins the run; absent where one machine carries it."""
        return self.path / "bundle.json"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def sinks(self) -> Path:
        return self.path / "sinks"

    @property
    def metrics_targets(self) -> Path:
        return self.path / "metrics_targets.json"
