"""A second copy of the little in the journal that a run cannot find again elsewhere.

What was measured is lost with a damaged journal. Commands, members, the outcome, the newest
generation and the memory of decisions must not be: ranks that restore a state apply every command
again, and a number that is used twice spoils checkpoints. They fill a few kilobytes, which are
written to a file of their own after each change.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
from headway.common.node.files import replace_file

FILE = "essentials.json"
"""In the folder of the journal."""
VERSION = "essentials"
"""The fact that counts the changes: a journal with a lower number has lost some."""
_COMPANIONS = ("-wal", "-shm", "-journal")
_COMMANDS = "sequence, id, unix_s, operation, name, value, count, tokens"


class Essentials(msgspec.Struct, frozen=True):
    """The little in the journal that cannot be found again, as its tables hold it."""

    facts: dict[str, str] = {}
    generations: tuple[tuple[int, float, str], ...] = ()
    """The newest one: number, Unix time, nodes of its ranks."""
    commands: tuple[tuple[int, str, float, str, str, float, int, str], ...] = ()

    @property
    def version(self) -> int:
        """How many changes led to it."""
        return version_of(self.facts.get(VERSION, "0"))

    def check_epoch(self, copy: Path) -> None:
        """Check that no digit of the epoch in this, of the journal, has flipped.

        It is still a number then, and a larger one would refuse every driver until their epochs
        reach it.

        A new epoch is written together with a new version, and ``of`` reads both at once. So the
        same version means the same epoch; a copy that lags, as while a driver takes over, has a
        lower version and is not compared.

        Raises:
            ValueError: the copy of the same version has another epoch.
        """
        kept, epoch = Essentials.load(copy), self.facts.get("epoch")
        if kept is None or not 0 < kept.version == self.version:
            return
        if epoch != (known := kept.facts.get("epoch", epoch)):
            raise ValueError(f"epoch {epoch}, but {known} in {copy.name}")

    @classmethod
    def load(cls, path: Path) -> Essentials | None:
        """What ``save`` wrote; None where there is none, or it is damaged."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError, ValueError):
            return None

    def save(self, path: Path) -> None:
        """Raises OSError: it cannot be written, and the copy before is still there."""
        replace_file(path, msgspec.json.encode(self))

    @classmethod
    def of(cls, database: sqlite3.Connection) -> Essentials:
        """What a journal holds. Raises sqlite3.Error."""
        newest = "SELECT * FROM generations ORDER BY generation DESC LIMIT 1"
        commands = f"SELECT {_COMMANDS} FROM commands ORDER BY sequence"
        return cls(
            facts=dict(database.execute("SELECT key, value FROM facts").fetchall()),
            generations=tuple(database.execute(newest).fetchall()),
            commands=tuple(database.execute(commands).fetchall()),
        )

    def restore(self, database: sqlite3.Connection) -> None:
        """Put it into a journal that lacks some of it, all or none. Raises sqlite3.Error."""
        database.execute("BEGIN IMMEDIATE")
        try:
            _insert(database, "INSERT OR REPLACE INTO facts", self.facts.items())
            _insert(database, "INSERT OR IGNORE INTO generations", self.generations)
            _insert(database, f"INSERT OR IGNORE INTO commands ({_COMMANDS})", self.commands)
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise


def version_of(text: str) -> int:
    """The number in the fact ``VERSION``, 0 for what is none."""
    return int(text) if text.isascii() and text.isdecimal() else 0


def kept_facts(database: Path) -> dict[str, str]:
    """The facts of the journal at ``database`` as their copy has them, for one that is damaged."""
    kept = Essentials.load(database.with_name(FILE))
    return kept.facts if kept is not None else {}


def set_aside(path: Path) -> Path:
    """Rename a damaged journal with its companions to the first free ``NAME.damaged-N``."""
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for suffix in (*_COMPANIONS, ""):  # the file last: a new one would take up the others
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(kept.with_name(kept.name + suffix))
    return kept


def damaged_of(database: Path) -> list[str]:
    """The names of the journals that were set aside beside this one."""
    found = database.parent.glob(f"{database.name}.damaged-*")
    return sorted(path.name for path in found if not path.name.endswith(_COMPANIONS))


def _insert(database: sqlite3.Connection, into: str, rows: Any) -> None:
    for row in rows:
        database.execute(f"{into} VALUES ({', '.join('?' * len(row))})", tuple(row))
