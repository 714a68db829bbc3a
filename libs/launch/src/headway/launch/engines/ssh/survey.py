"""Asks each listed machine what it is and has, and what runs have left there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.launch.engines.remote.engine import for_each
from headway.launch.engines.remote.judge import Answer, Trouble
from headway.launch.engines.remote.reach import last_line
from headway.launch.engines.remote.survey import Surveyed, surveyed
from headway.launch.engines.ssh.config import HostsConfig
from headway.launch.engines.ssh.machines import HostMachines
from headway.launch.join import facts

INSPECT_LIMIT_S = 30.0
_OLDER = "invalid choice: "
"""What the command line of a version reports that does not have the verb."""


def survey(config: HostsConfig) -> list[Surveyed]:
    """All machines of the list, asked at once; one that fails keeps no other from being asked.

    Raises:
        InputError: this machine cannot write in the shared folder.
    """
    machines, found = HostMachines(config), dict[str, Answer | Trouble]()
    with facts.tested(Path(config.shared)) as folder:

        def ask(node: int) -> None:
            found[config.hosts[node].name] = _asked(machines, node, folder)

        for_each(ask, range(len(config.hosts)))
    return surveyed({host.name: found[host.name] for host in config.hosts}, config.shared)


def _asked(machines: HostMachines, node: int, folder: Path) -> Answer | Trouble:
    asked_unix_s = time.time()
    try:
        text = machines.inspect(node, folder, limit_s=INSPECT_LIMIT_S)
        answered_unix_s = time.time()
        found = facts.parse(text)
    except HeadwayError as error:
        return _trouble(error, machines.name_of(node))
    return Answer(found, asked_unix_s, answered_unix_s, facts.is_answered(folder, found))


def _trouble(error: HeadwayError, name: str) -> Trouble:
    """The error without the machine's name, which begins its line anyway."""
    if _OLDER in error.message:
        return Trouble("has an older Headway", "install the same commit on each machine")
    message = error.message.removeprefix(f"{name} ").removeprefix(f"{name}: ")
    what, _, remedy = message.partition("; ")  # the line of a verb has its own remedy
    return Trouble(what, remedy or error.remedy)


def left_on(config: HostsConfig, run_ids: Iterable[str]) -> list[str]:
    """A line for everything that runs or clusters of these ids have left on a machine.

    So is one for each machine that does not answer, as it is not known what is left there.
    """
    machines, lines, question = HostMachines(config), list[str](), json.dumps(sorted(run_ids))

    def ask(node: int) -> None:
        name = config.hosts[node].name
        try:
            text = machines.call(node, "left", question, limit_s=INSPECT_LIMIT_S)
            lines.extend(f"{name}: {one}" for one in json.loads(last_line(text)))
        except HeadwayError as error:
            lines.append(f"{name}: not known, as it {_trouble(error, name)}")
        except (ValueError, TypeError):
            lines.append(f"{name}: not known, as it printed {text[-80:]!r}")

    for_each(ask, range(len(config.hosts)))
    return sorted(lines)
