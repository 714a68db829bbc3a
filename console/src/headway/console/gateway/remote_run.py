"""A run on another machine, seen through a gateway.

Its local folder holds the configuration and, once something needs them, copies of logs and records
of steps; everything else is requested from the gateway each time.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from headway.common.errors import CorruptError, DeadlineError, InputError, RemoteError
from headway.common.node.files import make_private_folder, replace_file, replace_json
from headway.common.polling import wait_until
from headway.common.wire import codec
from headway.common.wire.message import Message, by_tag
from headway.common.wire.messages.gateway import (
    DescribeRun,
    FileFacts,
    Files,
    Forward,
    Forwarded,
    ListFiles,
    ListRuns,
    Piece,
    ReadFile,
    ReadJournal,
    Rows,
    RunFacts,
    RunNames,
)
from headway.console.folder.claim import check_name
from headway.console.folder.presence import Presence
from headway.console.gateway.access import Access
from headway.console.gateway.server import FILE, head_of
from headway.console.hints import ELSEWHERE, PODS
from headway.console.pods.run import PodsRun
from headway.console.run import Run

CALL_S = 10.0
FETCH_S = 90.0
FRESH_S = 0.5
"""Facts of a run are asked for again after this long."""
MOST_FILE_BYTES = 1 << 30
T = TypeVar("T", bound=Message)


class RemoteRun(Run):
    """A ``Run`` whose records are elsewhere.

    Every method of ``Run`` may also raise DeadlineError, when the gateway does not answer.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._access = Access.load(path / ELSEWHERE)
        self._newest: tuple[float, RunFacts] | None = None

    @property
    def is_elsewhere(self) -> bool:
        return True

    @property
    def presence(self) -> Presence:
        """Whether it runs, as the machine sees that started it."""
        facts = self._described()
        if facts.is_silent:
            return "silent"
        return "led" if facts.is_live else "gone"

    @property
    def known_checkpoint(self) -> int | None:
        """Step of the newest complete checkpoint, -1 without one."""
        return self._described().checkpoint

    def _read(self, read: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        with self._access.client() as gateway:
            while True:
                question = ReadJournal(run=self.name, read=read, values=values, first=len(found))
                answer = gateway.call(question, Rows, timeout_s=CALL_S)
                found += answer.rows
                if not answer.has_more or not answer.rows:
                    return found

    def fetch_records(self) -> list[str]:
        """Have the gateway copy logs and records of steps from the machines, and copy them here."""
        with self._access.client() as gateway:
            found: list[Files] = []

            def is_there() -> bool:
                answer = gateway.call(ListFiles(run=self.name), Files, timeout_s=CALL_S)
                found.append(answer)
                return answer.is_fetched

            if not wait_until(is_there, FETCH_S, every_s=FRESH_S):
                return [f"the machines of run {self.name} did not respond within {FETCH_S:.0f} s"]
            for facts in found[-1].files:
                self._copy(facts, gateway)
        return list(found[-1].troubles)

    def driver(self) -> Any:
        """What forwards a request to the run's driver."""
        return contextlib.nullcontext(_Driver(self._access, self.name))

    def _described(self) -> RunFacts:
        now = time.monotonic()
        if self._newest is None or now - self._newest[0] > FRESH_S:
            with self._access.client() as gateway:
                facts = gateway.call(DescribeRun(run=self.name), RunFacts, timeout_s=CALL_S)
            _keep_description(self.path, facts)
            self._newest = (now, facts)
        return self._newest[1]

    def _copy(self, facts: FileFacts, gateway: Any) -> None:
        """A log that has grown is continued, any other change read anew."""
        if not FILE.fullmatch(facts.path) or not 0 <= facts.size <= MOST_FILE_BYTES:
            raise CorruptError(
                f"the gateway sent an invalid file: {facts.path[:80]!r}, {facts.size} bytes",
                remedy="use the same version of Headway on both machines",
            )
        path = self.path / facts.path
        make_private_folder(path.parent)
        known = path.stat() if path.exists() and not path.is_symlink() else None
        if known is not None and (known.st_size, known.st_mtime_ns) == (facts.size, facts.mtime_ns):
            return
        is_longer = known is not None and known.st_size <= facts.size and path.suffix == ".log"
        # after another machine has taken the node over, the log has begun anew
        is_same = is_longer and facts.head != "" and facts.head == head_of(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with temporary.open("wb") as file:
            if is_same:
                file.write(path.read_bytes())
            for data in self._pieces(facts, file.tell(), gateway):
                file.write(data)
        os.utime(temporary, ns=(facts.mtime_ns, facts.mtime_ns))
        temporary.replace(path)

    def _pieces(self, facts: FileFacts, offset: int, gateway: Any) -> Iterator[bytes]:
        while offset < facts.size:
            question = ReadFile(run=self.name, path=facts.path, offset=offset)
            data = gateway.call(question, Piece, timeout_s=CALL_S).data
            if not data:
                return
            yield data[: facts.size - offset]
            offset += len(data)


class _Driver:
    """Looks like a ``Client`` of the driver."""

    def __init__(self, access: Access, run: str) -> None:
        self._access, self._run = access, run

    def call(self, message: Message, reply: type[T], timeout_s: float = 5.0) -> T:
        """Raises as ``Client.call``."""
        question = Forward(run=self._run, body=codec.encode(message))
        with self._access.client() as gateway:
            try:
                answer = gateway.call(question, Forwarded, timeout_s=timeout_s + CALL_S, retries=0)
            except RemoteError as error:
                if error.remote_code == DeadlineError("").code:  # there as here: no driver answers
                    raise DeadlineError(error.message, remedy=error.remedy) from None
                raise
        return codec.decode(answer.body, by_tag([reply]))


def open_run(path: Path) -> Run:
    """The run at ``path``, whichever machine has its records."""
    if (path / PODS).exists():
        return PodsRun(path)
    return RemoteRun(path) if (path / ELSEWHERE).exists() else Run(path)


def attach(access: Access, runs_dir: Path, only: str | None = None) -> list[RemoteRun]:
    """Make a folder here for each run of the gateway, or for one of them.

    Raises:
        InputError: a folder of such a name holds a run of this machine, or there is no such run.
        DeadlineError: the gateway does not answer. CorruptError: it sends what is not a run.
    """
    with access.client() as gateway:
        names = gateway.call(ListRuns(), RunNames, timeout_s=CALL_S).names
        if only is not None:
            if only not in names:
                shown = ", ".join(names[-5:]) or "none"
                raise InputError(
                    f"the gateway at {access.address} has no run {only!r}",
                    remedy=f"its newest: {shown}",
                )
            names = (only,)
        for name in names:
            check_name(name)
            path = runs_dir / name
            if path.exists() and not (path / ELSEWHERE).exists():
                raise InputError(
                    f"{path} already holds a run of this machine",
                    remedy="attach into another folder with --runs-dir",
                )
            facts = gateway.call(DescribeRun(run=name), RunFacts, timeout_s=CALL_S)
            _refuse_another(path, facts)
            make_private_folder(path)
            access.save(path / ELSEWHERE)
            _keep_description(path, facts)
    return [RemoteRun(runs_dir / name) for name in names]


def newest_name(access: Access) -> str:
    """The run of the gateway that has begun last; as ``Cluster.run`` on the gateway's machine.

    Raises:
        InputError: there is none. DeadlineError: the gateway does not answer.
    """
    with access.client() as gateway:
        names = gateway.call(ListRuns(), RunNames, timeout_s=CALL_S).names
        if not names:
            raise InputError(
                f"there are no runs at the gateway {access.address}", remedy="start one"
            )
        for name in reversed(names):
            question = ReadJournal(run=name, read="has_begun")
            if gateway.call(question, Rows, timeout_s=CALL_S).rows:
                return name
    return names[-1]


def _refuse_another(path: Path, facts: RunFacts) -> None:
    """Commands for a run must not reach another one of its name, as behind a second gateway."""
    try:
        known = dict(json.loads((path / "run.json").read_text()))
    except FileNotFoundError:
        return
    except (ValueError, TypeError):  # damaged: it may be any run's
        known = {}
    if known.get("run_id") != _record(path.name, facts).get("run_id"):
        raise InputError(
            f"{path} holds another run of that name",
            remedy="attach into another folder with --runs-dir, or remove this one",
        )


def _record(name: str, facts: RunFacts) -> dict[str, Any]:
    try:
        return dict(json.loads(facts.record))
    except (ValueError, TypeError) as error:
        raise CorruptError(
            f"the gateway sent no valid record of run {name}: {error}",
            remedy="use the same version of Headway on both machines",
        ) from error


def _keep_description(path: Path, facts: RunFacts) -> None:
    record = _record(path.name, facts)
    record.pop("cluster", None)  # a folder of the other machine
    if not (path / "run.json").exists() or json.loads((path / "run.json").read_text()) != record:
        replace_json(path / "run.json", record)
    config = path / "config.toml"
    if facts.config and (not config.exists() or config.read_text() != facts.config):
        replace_file(config, facts.config)
