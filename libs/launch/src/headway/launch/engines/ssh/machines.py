"""The listed machines, reached by a command: node K of the run is the K-th of the list."""

from __future__ import annotations

import shlex
from pathlib import Path

from headway.launch.engine import NodeLost, Replaces
from headway.launch.engines.remote import hooks, reach
from headway.launch.engines.remote.engine import for_each
from headway.launch.engines.remote.reach import UnreachableError
from headway.launch.engines.ssh.config import HostsConfig

START_LIMIT_S = 90.0
REACH_LIMIT_S = 20.0
REPLACE_LIMIT_S = 900.0
"""An instance of bare metal takes some ten minutes to stop and start."""
SSH_FAILED = 255
"""Exit code of ssh(1) where it could not connect."""
NOT_RUN = (126, 127)
"""Exit codes of a shell where the program is absent or unreadable, as on a dying disk."""


class HostMachines:
    """Implements ``Machines``. The init that it starts outlives the command."""

    def __init__(self, config: HostsConfig) -> None:
        self._config, self.scratch = config, config.scratch
        self.replaces: Replaces = "lost" if config.replace else "nothing"

    def name_of(self, node: int) -> str:
        """The machine of a node. Raises NodeLost if the list has none."""
        if not 0 <= node < len(self._config.hosts):
            raise NodeLost(
                f"hosts.toml lists {len(self._config.hosts)} machines, none for node {node}",
                remedy="add machines, or use fewer nodes and spares",
            )
        return self._config.hosts[node].name

    def start(self, node: int, ticket: str, *, kill_hung: bool) -> None:
        """See ``Machines``."""
        words = ["start", *(["--kill-hung"] if kill_hung else [])]
        self._run(node, words, ticket, START_LIMIT_S)

    def check_reached(self, nodes: int) -> None:
        """Raises UnreachableError for the first of so many machines that is not reached."""
        for_each(lambda node: self._ask(node, ["true"], "", REACH_LIMIT_S), range(nodes))

    def call(self, node: int, verb: str, ticket: str, *, limit_s: float) -> str:
        """See ``Machines``."""
        return self._run(node, [verb], ticket, limit_s)

    def inspect(self, node: int, folder: Path, *, limit_s: float) -> str:
        """What the machine prints of itself; ``folder`` is where it proves that it is shared.

        Raises:
            UnreachableError: it does not answer. HeadwayError: it cannot say what it has.
        """
        return self._run(node, ["inspect", "--look", str(folder)], "", limit_s)

    def words(self, node: int, *words: str) -> list[str]:
        """The command line that runs words on the machine, or opens a shell there without any."""
        return [*hooks.named(self._config.reach, self.name_of(node)), *words]

    def _run(self, node: int, words: list[str], stdin: str, limit_s: float) -> str:
        return self._ask(node, [self._config.python, *reach.MODULE, *words], stdin, limit_s)

    def _ask(self, node: int, words: list[str], stdin: str, limit_s: float) -> str:
        """ssh hands its words to a shell on the machine, so they are quoted."""
        name, asked = self.name_of(node), self.words(node, *map(shlex.quote, words))
        found = reach.run(asked, name=name, stdin=stdin, limit_s=limit_s)
        if found.returncode == SSH_FAILED:
            line = reach.last_line(found.stderr) or "no output"
            raise UnreachableError(
                f"{name} cannot be reached: {line}",
                remedy="check that it is up and that you can log in without a password",
            )
        if found.returncode in NOT_RUN:  # what runs there is not known
            raise UnreachableError(
                f"{name} cannot run {words[0]}: {reach.last_line(found.stderr) or 'no output'}",
                remedy="check `python` and `reach` in hosts.toml, then the machine's disk",
            )
        if found.returncode:
            raise reach.refusal(name, found.returncode, found.stderr, found.stdout)
        return found.stdout

    def cut_off(self, node: int, *, limit_s: float) -> bool:
        """Whether the fence command confirms that the machine does nothing any more."""
        return hooks.cut_off(self._config.fence, self.name_of(node), limit_s=limit_s)

    def report_bad(self, node: int, reason: str, *, limit_s: float) -> None:
        """See ``Machines``."""
        hooks.drain(self._config.drain, self.name_of(node), reason, limit_s=limit_s)

    def replace(self, node: int, reason: str) -> str:
        """See ``Machines``: run the replace command; the new machine has the same name."""
        name = self.name_of(node)
        hooks.replace(self._config.replace, name, reason, limit_s=REPLACE_LIMIT_S)
        return ""

    def sweep(self) -> None:
        """A machine that is down is swept when a node next starts on it."""

    def release(self) -> None:
        """The machines stay as they are."""
