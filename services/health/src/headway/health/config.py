"""Every limit of the health service, each with its origin; and what is kept of its records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace

from headway.common.errors import ConfigError
from headway.health.domains import check_domains
from headway.health.notify.address import ENV as NOTIFY_ENV
from headway.health.notify.address import check_address, shown

__all__ = ["NOTIFY_ENV", "EventsConfig", "HealthConfig"]

CHECK_NODES = ("auto", "always", "never")
QUICK_CHECKS = (
    "versions", "shm", "mounts", "clock", "disk", "memory", "gemm", "copy", "bandwidth",
)  # fmt: skip
"""The suite for a machine before a run relies on it, cheap ones first."""
CHECK_END_S = 2.0
"""Time to collect a check that was ended at its deadline."""
SUITE_START_S = 20.0
"""Time in which a suite starts, on a machine whose cores are all taken."""


@dataclass(frozen=True)
class HealthConfig:
    """Times in seconds. The table ``[health]`` of a run's configuration."""

    beat_interval_s: float = 0.5
    """Time between two beats of an agent. A stopped process was found in 0.49 s with beats of this
    order (measured on 3 gloo ranks, recovery prototype)."""

    silence_floor_s: float = 2.0
    """Shortest silence of a flight ring that counts; shorter ones may be garbage collection, page
    faults or a busy machine (3 x a 0.5 s step, rounded up)."""

    silence_factor: float = 3.0
    """Silence counts beyond this many rolling median steps. A throttled machine (20 % CPU
    quota) was measured 3.0 x slower; a ring changes many times per step, so a 3 x slower
    step stays far below."""

    median_window_steps: int = 16
    """Steps in the rolling median: short enough to follow a changed sequence
    length within seconds."""

    first_steps: int = 3
    """Steps of a generation that are exempt from the rolling limit: allocation,
    compilation and warm-up."""

    suspended_limit_s: float = 120.0
    """Limit while joining, restoring, evaluating and in the first steps: five times the
    23 s of six processes that compiled at once on two cores. Finite, since a rank may
    hang in its first step."""

    first_floor_s: float = 10.0
    """Shortest limit of the first steps after a recovery. It is ``silence_factor`` times the
    slowest that the generation before showed, its own first steps included, and at most
    ``suspended_limit_s``."""

    step_factor: float = 20.0
    """A step that lasts beyond this many rolling median steps is a hang even if ranks move in it,
    as in an endless repetition; before the first steps, of ``suspended_limit_s``. Seven times the
    slowest that a throttled machine was measured."""

    step_floor_s: float = 120.0
    """Shortest such limit."""

    data_floor_s: float = 3.0
    """Shortest time without any data for a waiting rank that counts. Restarting the data daemon
    takes about 1 s, so shorter pauses of a disk are tolerated."""

    data_start_s: float = 60.0
    """``data_floor_s`` in the first steps of a generation, where the daemon opens files and seeks:
    half of the 120 s after which a rank gives up."""

    again_s: float = 10.0
    """A verdict that was acted on and is still open after this long is repeated, doubling each
    time: a recovery takes below 1 s with a standby, and about 8 s if a worker must be started."""

    confirm_beats: int = 2
    """Consecutive beats that must agree before silence counts: after a pause of the whole machine
    every ring looks silent in the first beat, but not in the second."""

    node_silence_s: float = 5.0
    """A node counts as silent after this long without its agent's beats: ten beats, ample for
    restarting a killed agent (interpreter start 0.3 s plus the executor's back-off)."""

    fabric_silence_s: float = 3.0
    """A node to which another one repeats what it sends for this long, although both beat,
    counts as unreachable in the ranks' network. The kernel repeats after 0.2, 0.6, 1.4 and 3 s
    (RFC 6298 with Linux's least interval of 0.2 s), so four repetitions have failed."""

    slow_factor: float = 1.15
    """A rank is named as slow while the run trains if a step takes it this many times as long as
    others of the same work, and the excess is 1.5 times that of the short slowdowns seen in this
    run (1.25 times once it has lasted for 16 steps). Healthy ranks of a quiet machine differ by 1
    to 2 %; what is slower by less is found by ``headway diagnose``."""

    slow_floor_s: float = 0.01
    """Least difference per step for it, since very short steps vary by more."""

    slow_steps: int = 10
    """Steps over which it must hold, likewise that it is over."""

    digest_every: int = 20
    """Steps between two comparisons of the weights that several ranks hold copies of; 0 compares
    never. A comparison reads the rank's weights once (0.7 ms per MB, measured on one core) and
    gathers 16 bytes per chunk over its replicas. With 1,024 tokens per rank and step at 50 GFLOP/s
    that is 2 to 3 % of a step, and with this interval 0.1 % of the run."""

    replay_every: int = 0
    """Steps between two comparisons of gradients with those that another replica computes from the
    same tokens; 0 compares never. Each costs another forward and backward pass: with 500 the run
    takes 0.2 % longer. It needs machines that compute alike, and ``train.deterministic`` on
    GPUs."""

    log_quiet_s: float = 60.0
    """A log episode ends after this long without a matching line; logs print every few seconds."""

    hit_repeat_s: float = 5.0
    """A matched log line is repeated in beats for this long: ten chances to arrive."""

    log_bytes_per_beat: int = 1 << 20
    """Log bytes read per beat over all files; the rest is read with the next beat."""

    rules: tuple[str, ...] = ()
    """Files with rules of your own for log lines, tried before those that come with Headway; paths
    as seen from where the run is started, on each node. See services/health/README.md."""

    source_interval_s: float = 1.0
    """Interval of reading the machine's counters and states: a 100 Gb/s port has about 25 files,
    of which each takes some 20 us, and an adapter's firmware answers a few hundred times a
    second."""

    source_deadline_s: float = 10.0
    """A reading that lasts longer is reported as hung: a command to the firmware of an mlx5 adapter
    may take 60 s, and one to a healthy one takes milliseconds."""

    gpu_deadline_s: float = 20.0
    """A reading of NVML that lasts longer is reported as hung. This includes starting the process
    that reads, and initialising NVML, which take seconds on a machine with eight GPUs and no
    persistence mode."""

    counter_window_s: float = 60.0
    """Time over which the errors of a port, a link or an interface are added up."""

    nic_errors: int = 100
    """Errors of one kind of a port, or of an interface, within ``counter_window_s`` that are
    reported. InfiniBand allows a bit error rate of 1e-15 after correction, which is fewer than one
    error in that time at 400 Gb/s; single ones come with each lost link."""

    gpu_link_errors: int = 100
    """NVLink errors of a GPU, or PCIe transfers that it repeated, within ``counter_window_s`` that
    are reported."""

    net_drops: int = 1000
    """Packets that an interface drops within ``counter_window_s``, if they also are more than
    ``net_drop_fraction`` of its packets: a few are dropped whenever a queue is full."""

    net_drop_fraction: float = 0.01
    """See ``net_drops``: at 1 % loss a TCP connection carries a small part of its bandwidth
    (Mathis et al., 1997)."""

    retransmit_fraction: float = 0.05
    """Share of TCP segments sent again within ``counter_window_s`` that is reported; a healthy
    network stays below 0.1 %, and a cut peer of many makes up a few percent."""

    memory_pressure: float = 0.2
    """Share of time in which all tasks of the node wait for memory that is reported once it lasts
    for ``pressure_hold_s``; systemd-oomd acts at 0.6."""

    throttled_fraction: float = 0.5
    """Share of the periods of a CPU quota in which it was used up, likewise."""

    pressure_hold_s: float = 30.0
    """How long it must last; the start of a run takes less."""

    throttle_hold_s: float = 10.0
    """How long a GPU must be slowed down by its hardware: short peaks of power are common."""

    clock_step_s: float = 1.0
    """A change of the wall clock that is reported; time services slew by at most 0.5 ms per second,
    and step above 0.128 s (ntpd) only at their start."""

    domains: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """What nodes share, such as ``domains = { switch-a = [0, 1, 2, 3] }``: the numbers of the nodes
    below each switch or in each rack. The same trouble on most nodes of a domain is one verdict,
    which names the domain, and costs no node."""

    pss_interval_s: float = 10.0
    """Interval of reading proportional memory, for which the kernel walks every page table."""

    notify: tuple[str, ...] = ()
    """Web addresses (``http://`` or ``https://``) that each verdict, and each revision with news,
    is sent to as JSON. See docs/howto/health.md."""

    notify_from: float = 0.5
    """The confidence from which on a verdict is sent there: below it are mostly lines of ranks that
    suffer from what happened to another one."""

    check_deadline_s: float = 20.0
    """Time limit of one check of the quick suite; then it is ended and counts as failed."""

    check_nodes: str = "never"
    """Whether the driver has machines checked (``headway health check --suite quick``) before the
    run relies on them: ``always``, ``never``, or ``auto``, which is always where the nodes are
    machines of their own."""

    check_min_shm_mib: int = 256
    """Shared memory, in MiB, that must be free on a machine that is checked. Raise it to
    what the arenas and rings of a node's ranks need."""

    def checks_nodes(self, *, are_machines: bool) -> bool:
        """Whether nodes are checked; ``are_machines``: each is a machine of its own."""
        return self.check_nodes == "always" or (self.check_nodes == "auto" and are_machines)

    @property
    def quick_suite_s(self) -> float:
        """The longest that the quick suite can take: every check misses its deadline."""
        return SUITE_START_S + len(QUICK_CHECKS) * (self.check_deadline_s + CHECK_END_S)

    def with_rules(self, files: Iterable[str]) -> HealthConfig:
        """A copy with further files of rules."""
        return replace(self, rules=(*self.rules, *files))

    def notifying(self, urls: Iterable[str]) -> HealthConfig:
        """A copy with further addresses that verdicts are sent to."""
        return replace(self, notify=(*self.notify, *urls))

    def without_secrets(self) -> HealthConfig:
        """A copy that others may see: of each web address only scheme, host and port."""
        return replace(self, notify=tuple(map(shown, self.notify)))

    def __post_init__(self) -> None:
        for place, url in enumerate(self.notify, 1):
            check_address(url, place)
        check_domains(self.domains)
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, tuple | str | dict):
                continue
            if one.name in ("digest_every", "replay_every") and value == 0:
                continue
            if isinstance(one.default, int) and value < 1:
                raise ConfigError(
                    f"{one.name} = {value} is below 1", remedy="give a count of 1 or more"
                )
            if not value > 0:
                raise ConfigError(
                    f"{one.name} = {value} is not above 0", remedy="give a number above 0"
                )
        if self.check_nodes not in CHECK_NODES:
            raise ConfigError(
                f"check_nodes = {self.check_nodes!r} is unknown",
                remedy=f"use one of: {', '.join(CHECK_NODES)}",
            )
        if self.slow_factor <= 1:
            raise ConfigError(
                f"slow_factor = {self.slow_factor} is not above 1",
                remedy="give how many times as long a slow rank computes, such as 1.5",
            )
        if self.node_silence_s < 2 * self.beat_interval_s:
            raise ConfigError(
                f"node_silence_s = {self.node_silence_s} is below two beats of "
                f"{self.beat_interval_s} s",
                remedy="raise it, so that a single lost beat does not make a node silent",
            )


@dataclass(frozen=True)
class EventsConfig:
    """What is kept of the flight records. The table ``[events]`` of a run's configuration."""

    keep_gib: float = 4.0
    """Disk space for the records of one node, in GiB, and as much again for the run's summaries of
    steps; the oldest are removed first. Those within
    60 s of an incident are kept beyond it, up to four times as much altogether. A node of eight
    ranks of a 175B model (2,331 records per rank and step of 10 s, 10 bytes each) writes 1.5 GiB a
    day."""

    def __post_init__(self) -> None:
        if not 0 < self.keep_gib < float("inf"):
            raise ConfigError(
                f"events.keep_gib = {self.keep_gib} is not above 0",
                remedy="give the disk space in GiB, such as 4.0",
            )

    @property
    def keep_bytes(self) -> int:
        """Disk space for the records of one node, in bytes."""
        return int(self.keep_gib * (1 << 30))
