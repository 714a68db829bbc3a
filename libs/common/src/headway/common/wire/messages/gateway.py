"""What a gateway receives: questions of a console that does not see the folder of the runs."""

from __future__ import annotations

from headway.common.wire.about import PartOf, reply, request
from headway.common.wire.message import Message

Cell = int | float | str | None
"""What a row of the journal holds; its few columns of bytes are read at home only."""


class ListRuns(Message, tag="gateway.list_runs/1"):
    """Asks which runs there are."""

    about = request("console -> gateway over tcp: on `headway attach`")


class RunNames(Message, tag="gateway.run_names/1"):
    """The runs, the oldest first."""

    about = reply("gateway -> console over tcp: one per `ListRuns`")

    names: tuple[str, ...]


class DescribeRun(Message, tag="gateway.describe_run/1"):
    """What does not stand in the run's journal."""

    about = request(
        "console -> gateway over tcp: at most twice a second while a command looks at the run"
    )

    run: str


class RunFacts(Message, tag="gateway.run_facts/1"):
    """A run, as seen where it was started."""

    about = reply("gateway -> console over tcp: one per `DescribeRun`")

    record: str
    """Text of ``run.json``."""
    config: str
    """Text of ``config.toml``."""
    is_live: bool
    checkpoint: int
    """Step of the newest complete checkpoint, -1 without one."""
    is_silent: bool = False
    """Nobody leads it now, and another driver may take over."""


class ReadJournal(Message, tag="gateway.read_journal/1"):
    """One of the named reads of a run's journal (`controller/journal/reads.py`)."""

    about = request("console -> gateway over tcp: several per command that looks at the run")

    run: str
    read: str
    values: tuple[Cell, ...] = ()
    first: int = 0
    """Rows to leave out: those that the console has."""


class Rows(Message, tag="gateway.rows/1"):
    """The next rows of a query, as many as fit."""

    about = reply("gateway -> console over tcp: one per `ReadJournal`")

    rows: tuple[tuple[Cell, ...], ...]
    has_more: bool = False


class Forward(Message, tag="gateway.forward/1"):
    """A request for the run's driver."""

    about = request("console -> gateway over tcp: one per request of the console")

    run: str
    body: bytes
    """The encoded message, of a type that a console may send."""


class Forwarded(Message, tag="gateway.forwarded/1"):
    """What the driver answered."""

    about = reply("gateway -> console over tcp: one per `Forward`")

    body: bytes


class ListFiles(Message, tag="gateway.list_files/1"):
    """Asks for the logs and records of steps, which are fetched from the machines before."""

    about = request(
        "console -> gateway over tcp: twice a second until `Files.is_fetched`, when logs or "
        "records of steps are read",
    )

    run: str


class FileFacts(Message, tag="gateway.file_facts/1"):
    """One file of a run."""

    about = PartOf("Files")

    path: str
    """Below the run's folder."""
    size: int
    mtime_ns: int
    head: str = ""
    """Digest of the first bytes of a log: with another one it is another file. Empty for what is
    never continued."""


class Files(Message, tag="gateway.files/1"):
    """The files of a run that a console may read."""

    about = reply("gateway -> console over tcp: one per `ListFiles`")

    files: tuple[FileFacts, ...]
    is_fetched: bool
    """False while the machines are still asked."""
    troubles: tuple[str, ...] = ()
    """A sentence for each machine that could not be asked."""


class ReadFile(Message, tag="gateway.read_file/1"):
    """The next bytes of a file."""

    about = request("console -> gateway over tcp: until the file is complete")

    run: str
    path: str
    offset: int


class Piece(Message, tag="gateway.piece/1"):
    """Bytes of a file; none at its end."""

    about = reply("gateway -> console over tcp: one per `ReadFile`")

    data: bytes
