"""``headway gateway``: lets consoles on other machines watch and steer the runs of this one.

It changes no file: it reads a run's logs, records of steps, and the journal over a read-only
connection. Commands such as ``stop`` reach the driver as if they came from this machine.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from headway.common.config import to_toml
from headway.common.errors import InputError
from headway.common.wire import codec
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import Message, by_tag
from headway.common.wire.messages.driver import Accepted, Command, GetStatus, Status
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
from headway.common.wire.server import Server
from headway.common.wire.service import Service
from headway.common.wire.side_thread import ThreadPerKind
from headway.console.folder.claim import check_name
from headway.console.folder.outputs import newest_checkpoint
from headway.console.folder.shared_config import shared
from headway.console.hints import run_folders
from headway.console.run import Run
from headway.controller.client import JournalFile

ROWS_BYTES = 256 << 10
"""Most bytes of rows in one answer, by a rough count."""
PIECE_BYTES = 512 << 10
HEAD_BYTES = 4096
DRIVER_LIMIT_S = 4.0
"""How long the gateway waits for a driver; meanwhile it serves no other request."""
QUERY_LIMIT_S = 4.0
"""How long one read of a journal may take; meanwhile the gateway serves no other request."""
FILE = re.compile(r"(logs|events)/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}")
"""What may be read below a run's folder."""
ANSWERS: dict[type[Message], type[Message]] = {GetStatus: Status, Command: Accepted}
"""What a console may send to a driver, and what comes back."""
_TYPES = by_tag(ANSWERS)


def head_of(path: Path) -> str:
    """Digest of the first ``HEAD_BYTES`` of a log. Raises OSError.

    Those bytes do not change while the log grows. The digest is empty while it has fewer.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    return hashlib.blake2b(head, digest_size=16).hexdigest() if len(head) == HEAD_BYTES else ""


class Gateway:
    """Serves until it is stopped.

    Args:
        address: ``tcp://ADDRESS:PORT``; an interface's name may stand for its address.
        runs_dir: the folder of the runs.
        keys: the gateway's own.
        admitted: the console's public key.

    Raises:
        InputError: the address cannot be used.
    """

    def __init__(self, address: str, runs_dir: Path, keys: KeyPair, admitted: bytes) -> None:
        self._runs_dir = runs_dir
        self._runs: dict[str, Run] = {}
        self._fetching = ThreadPerKind()
        """Copies the records of runs from their machines."""
        self._fetched: dict[str, list[str]] = {}
        """Run -> what was in the way of its newest copy, until somebody has asked for it."""
        handlers: dict[type[Any], Callable[[Any, bytes], Message]] = {
            ListRuns: self._list,
            DescribeRun: self._describe,
            ReadJournal: self._journal,
            Forward: self._forward,
            ListFiles: self._files,
            ReadFile: self._read,
        }
        self._server = Server(address, handlers, keys=keys, allowed=[admitted])
        self.endpoint = self._server.endpoint

    def run(self) -> int:
        """Until SIGTERM or Ctrl-C; returns the exit code."""
        return Service("gateway", self._server).run()

    def _run_of(self, name: str) -> Run:
        """Raises InputError if there is no such run."""
        path = self._runs_dir / name
        check_name(name)
        if not (path / "run.json").exists():
            raise InputError(
                f"the gateway has no run {name!r}", remedy="`headway attach` lists them"
            )
        # kept, since only who has watched a run for long knows that it is dead
        return self._runs.setdefault(name, Run(path))

    # ---- handlers -----------------------------------------------------------------------------
    def _list(self, _: ListRuns, _peer: bytes) -> RunNames:
        return RunNames(names=tuple(folder.name for folder in run_folders(self._runs_dir)))

    def _describe(self, message: DescribeRun, _peer: bytes) -> RunFacts:
        run = self._run_of(message.run)
        checkpoint, config = newest_checkpoint(run), run.folder.config
        presence = run.presence
        return RunFacts(
            record=run.folder.run_json.read_text(),
            config=to_toml(shared(run.config)) if config.exists() else "",
            is_live=presence != "gone",
            checkpoint=-1 if checkpoint is None else checkpoint,
            is_silent=presence == "silent",
        )

    def _journal(self, message: ReadJournal, _peer: bytes) -> Rows:
        file = JournalFile(self._run_of(message.run).folder.database)
        values, first = tuple(message.values), message.first
        return self._page(file.page(message.read, values, first, QUERY_LIMIT_S))

    def _page(self, found: Iterable[tuple[Any, ...]]) -> Rows:
        rows: list[tuple[Any, ...]] = []
        num_bytes = 0
        for row in found:
            if any(isinstance(cell, bytes) for cell in row):
                raise InputError(
                    "the column holds binary data", remedy="read it on the run's machine"
                )
            num_bytes += sum(len(cell) if isinstance(cell, str) else 9 for cell in row)
            if rows and num_bytes > ROWS_BYTES:
                return Rows(rows=tuple(rows), has_more=True)
            rows.append(row)
        return Rows(rows=tuple(rows))

    def _forward(self, message: Forward, _peer: bytes) -> Forwarded:
        question = codec.decode(message.body, _TYPES)
        with self._run_of(message.run).driver() as driver:
            answer = driver.call(question, ANSWERS[type(question)], timeout_s=DRIVER_LIMIT_S)
        return Forwarded(body=codec.encode(answer))

    def _files(self, message: ListFiles, _peer: bytes) -> Files:
        run = self._run_of(message.run)
        self._fetching.run_callbacks()
        troubles = self._fetched.pop(message.run, None)
        if troubles is None:
            self._fetch(run, message.run)
            return Files(files=(), is_fetched=False)
        files = []
        for folder in ("logs", "events"):
            for path in sorted((run.path / folder).glob("*")):
                name = f"{folder}/{path.name}"
                if FILE.fullmatch(name) and path.is_file() and not path.is_symlink():
                    stat = path.stat()
                    head = head_of(path) if path.suffix == ".log" else ""
                    files.append(
                        FileFacts(
                            path=name, size=stat.st_size, mtime_ns=stat.st_mtime_ns, head=head
                        )
                    )
        return Files(files=tuple(files), is_fetched=True, troubles=tuple(troubles))

    def _fetch(self, run: Run, name: str) -> None:
        """Begin to copy a run's records from its machines, unless that is under way."""

        def then(troubles: list[str] | None, error: Exception | None) -> None:
            self._fetched[name] = [str(error)] if troubles is None else troubles

        if not self._fetching.is_busy(name):
            self._fetching.submit(name, run.fetch_records, then)

    def _read(self, message: ReadFile, _peer: bytes) -> Piece:
        run = self._run_of(message.run)
        if not FILE.fullmatch(message.path) or message.offset < 0:
            raise InputError(f"{message.path!r} cannot be read", remedy="only logs and events can")
        try:
            opened = os.open(run.path / message.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"{message.path}: {error.strerror}", remedy="ask again") from None
        with os.fdopen(opened, "rb") as file:
            file.seek(message.offset)
            return Piece(data=file.read(PIECE_BYTES))
