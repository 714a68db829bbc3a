"""What decisions remember over the death of a driver, as a fact of the journal."""

from __future__ import annotations

import msgspec
from headway.common.log import get_logger
from headway.controller.decisions.events import Memory
from headway.controller.journal.journal import Journal

FACT = "memory"

log = get_logger("driver")


def recall(journal: Journal) -> Memory:
    """Return what the drivers before have found out.

    Empty when it cannot be read, which costs only time.
    """
    text = journal.fact(FACT, "")
    try:
        return msgspec.json.decode(text, type=Memory) if text else Memory()
    except (msgspec.MsgspecError, ValueError) as error:
        log.warning("the memory of the former driver cannot be read", error=str(error))
        return Memory()


def remember(journal: Journal, memory: Memory) -> None:
    """Keep it for the next driver. Raises sqlite3.Error."""
    journal.set_facts(**{FACT: msgspec.json.encode(memory).decode()})


def reopen(journal: Journal) -> None:
    """Make an ended run unfinished again. Raises sqlite3.Error."""
    remember(journal, recall(journal).reopened())
    journal.reopen()
