"""What an engine gives a machine that is to join a run.

It contains a secret, so it is never passed in arguments, which every user of the machine can read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headway.common.config import from_dict
from headway.common.errors import ConfigError, InputError
from headway.launch.join import tokens
from headway.launch.join.bundle import Bundle
from headway.launch.join.corpus import Corpus
from headway.launch.join.scratch import folder_of


@dataclass(frozen=True)
class Ticket:
    """Where the run is found, and as which node the machine joins it."""

    run_id: str
    node: int
    token: str = field(repr=False)
    control: str
    """Shared folder with the driver's lease, by which a node finds the driver."""
    scratch: str
    """Folder on the machine for logs, records and keys, see ``scratch``; made if it is absent."""
    bundle: str = field(default="", repr=False)
    """For the first node of a run, which no driver can answer yet."""
    epoch: int = 0
    """The epoch that `fence` passes: drivers of earlier epochs are ended."""
    start: str = ""
    """The bundle's start: what an earlier start of the run has left on the machine is ended."""
    corpus: Corpus = field(default_factory=Corpus)
    """The machine sees to it before it joins: a node that has joined must report soon."""

    @classmethod
    def of(cls, bundle: Bundle, node: int, scratch: str, *, is_first: bool = False) -> Ticket:
        """A new ticket for a node; that of the ``is_first`` one carries the bundle."""
        return cls(
            run_id=bundle.run_id,
            node=node,
            token=tokens.mint(bundle.secret, bundle.run_id, node),
            control=str(bundle.control),
            scratch=scratch,
            bundle=bundle.to_json() if is_first else "",
            start=bundle.start,
            corpus=bundle.corpus,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, source: str = "standard input") -> Ticket:
        """Return a ticket from its JSON.

        Raises:
            InputError: it is not a ticket.
        """
        try:
            return from_dict(cls, json.loads(text))
        except (ConfigError, ValueError, TypeError, AttributeError) as error:
            why = error.message if isinstance(error, ConfigError) else error
            raise InputError(
                f"{source} is not a valid ticket: {why}",
                remedy="`headway node ticket` prints one",
            ) from error

    @property
    def folder(self) -> Path:
        """Everything of this node of the run on the machine."""
        return folder_of(self.scratch, f"{self.run_id}-n{self.node}")
