"""NCCL's settings for the network between machines: ``parallel.nccl_profile``.

A profile names environment variables with their values and reasons. What the environment sets
already wins, and so does what NCCL reads from its files, which it lets the environment override
(NCCL user guide, "Environment Variables"; its ``src/misc/param.cc``).
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headway.common.log import get_logger
from headway.trainer.comm.adapters import SYSFS, chosen_ports
from headway.trainer.config import ParallelConfig
from headway.trainer.config.link_retries import LinkRetries

ETC = Path("/etc/nccl.conf")
ENVIRONMENT = "environment"
TIMEOUT, RETRIES = "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"

log = get_logger("nccl")


@dataclass(frozen=True)
class Setting:
    """A variable of a profile: its name, its value, and why it has that value."""

    name: str
    value: str
    reason: str = ""
    source: str = ""
    """The profile, ``ENVIRONMENT`` or the file that the value is from."""
    beaten: tuple[tuple[str, str], ...] = ()
    """(value, file) of other values that NCCL's files have for it, and that do not count."""


def wanted(parallel: ParallelConfig, sysfs: Path = SYSFS) -> list[Setting]:
    """What the profile sets on this machine, whose adapters are below ``sysfs``."""
    profile = parallel.nccl_profile
    if profile == "none":
        return []
    variables = _EFA if profile == "efa" else _verbs(parallel, sysfs)
    return [Setting(*variable, source=f"profile {profile}") for variable in variables]


def effective(
    parallel: ParallelConfig,
    environ: Mapping[str, str] = os.environ,
    *,
    sysfs: Path = SYSFS,
    etc: Path = ETC,
) -> list[Setting]:
    """What holds in this process: the profile's variables, then whatever else is set for NCCL.

    A value of the environment or of a file keeps the profile's reason for that variable. The
    environment wins over NCCL's files, and these over the profile.
    """
    in_files = _in_files(environ, etc)
    given = _winners(in_files)
    given |= {
        name: Setting(name, value, source=ENVIRONMENT)
        for name, value in environ.items()
        if name.startswith(("NCCL_", "FI_"))
    }
    found = []
    for one in wanted(parallel, sysfs):
        other = given.pop(one.name, one)
        found.append(Setting(one.name, other.value, one.reason, other.source))
    found += [one for one in given.values() if one.value]
    return [replace(one, beaten=_beaten(one, in_files)) for one in found]


def _beaten(winner: Setting, in_files: list[Setting]) -> tuple[tuple[str, str], ...]:
    others = [one for one in in_files if one.name == winner.name and one.value != winner.value]
    return tuple((one.value, one.source) for one in others)


def apply(parallel: ParallelConfig) -> None:
    """Set the profile's variables in this process, before its first communicator.

    NCCL reads each variable once. One that is set otherwise keeps its value, which is logged.
    """
    before = {one.name: one for one in effective(parallel)}
    for one in wanted(parallel):
        given = before[one.name]
        if given.value != one.value:
            log.info("NCCL setting kept", name=one.name, value=given.value, source=given.source)
        elif given.source != ENVIRONMENT:
            os.environ[one.name] = one.value
            log.info("NCCL setting made", name=one.name, value=one.value, source=one.source)


def retries(settings: list[Setting]) -> LinkRetries:
    """The retries that ``settings`` amount to, NCCL's defaults where they have none."""
    values = {one.name: _number(one.value) for one in settings if one.value}
    usual = LinkRetries()
    return LinkRetries(values.get(TIMEOUT, usual.timeout), values.get(RETRIES, usual.retries))


def from_files(environ: Mapping[str, str] = os.environ, etc: Path = ETC) -> list[Setting]:
    """What NCCL reads from its files: the first of two that sets a variable wins."""
    return list(_winners(_in_files(environ, etc)).values())


def _winners(in_files: list[Setting]) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for one in in_files:
        found.setdefault(one.name, one)
    return found


def _in_files(environ: Mapping[str, str], etc: Path) -> list[Setting]:
    """All lines of NCCL's files, of which the first for a variable counts.

    They are ``NCCL_CONF_FILE``, or else ``.nccl.conf`` in the home directory, and ``etc``. NCCL
    ignores a file that it cannot read, and lines without ``=``.
    """
    own = environ.get("NCCL_CONF_FILE")
    found: list[Setting] = []
    for path in (Path(own) if own else _home() / ".nccl.conf", etc):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, sign, value = line.partition("=")
            if sign and not line.startswith("#"):
                found.append(Setting(name, value, source=str(path)))
    return found


def _home() -> Path:
    """The home directory as NCCL finds it, whatever ``HOME`` is."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path("/")


def _number(text: str) -> int:
    """An integer as NCCL reads it: what follows it is ignored, and 0 stands for no integer."""
    match = re.match(r"\s*([+-]?(?:0[xX][0-9a-fA-F]+|\d+))", text)
    return int(match[1], 16 if "x" in match[1].lower() else 10) if match else 0


# ---- the profiles -------------------------------------------------------------------------------
def _verbs(parallel: ParallelConfig, sysfs: Path) -> list[tuple[str, str, str]]:
    """Settings of NCCL's own transport for InfiniBand and RoCE."""
    link = LinkRetries.outlasting(parallel.flap_s)
    window = f"{link.window_s:.3g} s, in which a link may be away for {parallel.flap_s:g} s"
    found = [
        (
            TIMEOUT,
            str(link.timeout),
            f"an adapter resends after {link.ack_timeout_s:.2g} s without an acknowledgement",
        ),
        (
            RETRIES,
            str(link.retries),
            f"as often as it takes to last for {window} (parallel.flap_s)",
        ),
    ]
    layer = "InfiniBand" if parallel.nccl_profile == "ib" else "Ethernet"
    if ports := chosen_ports(sysfs, layer):
        why = f"the {layer} ports that are active and fast, without those of storage or management"
        found.append(("NCCL_IB_HCA", "=" + ",".join(ports), why))
    return found + (_IB if parallel.nccl_profile == "ib" else _ROCE)


_IB = [
    (
        "NCCL_IB_ADAPTIVE_ROUTING",
        "1",
        "switches route around busy links (NCCL's default here); more queue pairs would not",
    ),
]
_ROCE = [
    (
        "NCCL_IB_QPS_PER_CONNECTION",
        "4",
        "switches hash each queue pair to a path of its own, so few large flows collide less",
    ),
    (
        "NCCL_IB_TC",
        "106",
        "DSCP 26 with ECN, which switches map to the lossless priority 3 by default",
    ),
    ("NCCL_IB_SL", "3", "the same priority for switches that look at VLAN tags"),
]
_EFA = [
    (
        "NCCL_NET",
        "AWS Libfabric",
        "the plugin aws-ofi-nccl or an error, instead of TCP sockets without a word",
    ),
    ("FI_PROVIDER", "efa", "no other provider of libfabric is taken where EFA is missing"),
    (
        "FI_EFA_USE_HUGE_PAGE",
        "0",
        "processes that torch's compiler forks do not run out of huge pages",
    ),
]
