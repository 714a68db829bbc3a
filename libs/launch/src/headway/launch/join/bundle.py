"""What each machine of a run knows about it: configuration, engine, and the tokens' secret."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.common.config import from_dict
from headway.common.errors import ConfigError, InputError
from headway.common.node.files import replace_file
from headway.common.wire.addresses import Network
from headway.launch.join.corpus import Corpus


@dataclass(frozen=True)
class Bundle:
    """What each machine of a run knows about it, as JSON in ``bundle.json``.

    The file is in the run's folder on the console and on each node, 0600.
    """

    run_id: str
    name: str
    nodes: int
    """Spares included."""
    config: str
    """TOML."""
    network: Network
    engine: dict[str, Any]
    """What the engine needs to reach machines, see ``headway.launch.engines.choose``."""
    shared: str
    """The folder for this run that all machines see."""
    secret: str = field(repr=False)
    console_key: str = ""
    """Public key of the console."""
    corpus: Corpus = field(default_factory=Corpus)
    gpus: int = 0
    """GPUs that a node needs."""
    shm_bytes: int = 0
    """Bytes of /dev/shm that a node needs."""
    compiles_on: str = ""
    """``gpu`` or ``cpu`` where a node's ranks compile kernels for it; empty if they do not."""
    start: str = ""
    """Differs at each start of the run; empty in pods, which begin with a machine."""

    @property
    def control(self) -> Path:
        """Lease, journal and verdicts."""
        return Path(self.shared) / "control"

    @property
    def checkpoints(self) -> Path:
        return Path(self.shared) / "checkpoints"

    def records_of(self, node: int) -> Path:
        """Where a node saves its logs and records when it ends, for readers after its end."""
        return Path(self.shared) / "records" / f"n{node}.txt"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str, *, source: str) -> Bundle:
        """Return the bundle from the text that ``to_json`` makes.

        Raises:
            InputError: it is not what ``to_json`` makes.
        """
        try:
            return from_dict(cls, json.loads(text))
        except (ConfigError, ValueError) as error:
            raise InputError(
                f"{source} does not describe a run: {error}",
                remedy="start the node again through the run's engine",
            ) from error

    def save(self, path: Path) -> None:
        """Raises OSError."""
        replace_file(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Bundle:
        """Read a bundle from its file.

        Raises:
            InputError: it is absent or damaged.
        """
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot read {path}: {error}", remedy="start the run again"
            ) from error
        return cls.from_json(text, source=str(path))
