"""``topology.toml``: the switches above each machine, the top one first; or a command's output.

gpu-01 = ["spine", "leaf-1"]
gpu-02 = ["spine", "leaf-2"]

A machine that is left out is at no known place. What such a text says wrongly is refused. A command
that fails or hangs only costs speed, so the run begins without its answer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from headway.common.errors import ConfigError
from headway.common.plan.topology import Chain
from headway.launch.engines.remote import reach
from headway.launch.engines.remote.reach import UnreachableError

FILE = "topology.toml"
COMMAND = "the output of `topology`"
COMMAND_LIMIT_S = 30.0
EXAMPLE = 'machine = ["spine", "leaf"]'
MOST_NAMED = 4

Chains = dict[str, Chain]
"""Name of a machine -> the switches above it."""


def read_next_to(path: Path, command: Sequence[str]) -> Chains:
    """The ``topology.toml`` in the folder of a cluster's file; empty where there is none.

    Raises:
        ConfigError: it cannot be used, or the cluster's file also has the command ``topology``.
    """
    file = path.parent / FILE
    if not file.exists():
        return {}
    if command:
        raise ConfigError(
            f"{path} has the key topology, and there is a file {file}",
            remedy="remove one of the two",
        )
    try:
        return parse(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {file}: {error}", remedy="correct it or remove it"
        ) from None


def parse(text: str, source: str) -> Chains:
    """The switches that a text in the form of ``topology.toml`` names.

    Raises:
        ConfigError: it is not in that form, or the chains of switches differ in length.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{source} is not TOML: {error}",
            remedy=f"write lines such as {EXAMPLE}; quote names with other characters than a-z 0-9 "
            "- _",
        ) from None
    found: Chains = {}
    for name, switches in tables.items():
        is_list = isinstance(switches, list) and bool(switches)
        if not is_list or not all(isinstance(one, str) and one for one in switches):
            raise ConfigError(
                f"{source}: {name} is not a list of names of switches",
                remedy=f"write {EXAMPLE}, the top switch first; quote names with dots, leave out "
                "machines at no known place",
            )
        found[name] = tuple(switches)
    _check_depth(found, source)
    return found


def _check_depth(chains: Chains, source: str) -> None:
    """Else a forgotten switch would make two machines of one leaf seem far from each other."""
    by_depth = {len(chain): name for name, chain in chains.items()}
    if len(by_depth) > 1:
        (low, one), *_, (high, other) = sorted(by_depth.items())
        raise ConfigError(
            f"{source}: {one} has {low} switches above it and {other} has {high}",
            remedy="name as many levels of switches for every machine",
        )


def ask(command: Sequence[str], report: Callable[[str], None]) -> Chains:
    """What the command prints; empty, with a line reported, if it fails or hangs.

    Raises:
        ConfigError: as ``parse``. DeadlineError: there is no such program.
    """
    try:
        found = reach.run(command, name="topology", limit_s=COMMAND_LIMIT_S)
    except UnreachableError:
        trouble = f"did not end within {COMMAND_LIMIT_S:g} s"
    else:
        if not found.returncode:
            return parse(found.stdout, COMMAND)
        trouble = f"failed: {reach.last_line(found.stderr) or f'exit code {found.returncode}'}"
    report(
        f"the topology command {trouble}; ranks are placed without knowing the switches: "
        f"run `{' '.join(command)}` to see why"
    )
    return {}


def check_known(chains: Mapping[str, Chain], machines: Collection[str], where: str) -> None:
    """Raises ConfigError if it names other machines than those, which are listed ``where``."""
    if unknown := sorted(set(chains) - set(machines)):
        raise ConfigError(
            f"the topology names {_some(unknown)}, not in {where}",
            remedy="correct the name, or remove the machine from the topology",
        )


def above(
    machines: Sequence[str], chains: Mapping[str, Chain], report: Callable[[str], None]
) -> tuple[Chain, ...]:
    """The switches above each machine, empty for one at no known place; empty where all are.

    Reports a line that names those that are missing while others are not.
    """
    found = tuple(chains.get(name, ()) for name in machines)
    if not any(found):
        return ()
    missing = [name for name, chain in zip(machines, found, strict=True) if not chain]
    if missing:
        report(
            f"no switches are known above {_some(missing)}, which counts as far from the others; "
            "add it to the topology"
        )
    return found


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
