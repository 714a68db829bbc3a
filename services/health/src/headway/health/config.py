"""Every limit of the health service, each with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from headway.common.errors import ConfigError


@dataclass(frozen=True)
class HealthConfig:
    """Times in seconds. The table ``[health]`` of a run's configuration."""

    beat_interval_s: float = 0.5
    """Time between two beats of an agent. A stopped process was found in 0.49 s with beats of this order
    (measured on 3 gloo ranks, recovery prototype)."""

    silence_floor_s: float = 2.0
    """Shortest silence of a flight ring that counts. Below it garbage collection, page faults and a crowded
    machine look alike (3 x a 0.5 s step, rounded up)."""

    silence_factor: float = 3.0
    """Silence counts beyond this many rolling median steps. A throttled machine (20 % CPU quota) was measured
    3.0 x slower; a ring moves many times a step, so a step 3 x slower stays far below."""

    median_window_steps: int = 16
    """Steps in the rolling median: short enough to follow a changed sequence length within seconds."""

    first_steps: int = 3
    """Steps of a generation that are exempt from the rolling limit: allocation, compilation and warm-up."""

    suspended_limit_s: float = 120.0
    """Limit while joining, restoring, evaluating and in the first steps. Six processes compiling at once on
    two cores took 23 s; five times that. Not infinite: a rank that hangs in its first step must be found
    too."""

    data_floor_s: float = 3.0
    """Shortest time without any data for a waiting rank that counts. A restarted data daemon delivers after
    about 1 s, so a shorter pause of a disk is better waited for."""

    data_start_s: float = 60.0
    """The same in the first steps of a generation, where the daemon opens files and seeks: half of the 120 s
    after which a rank gives its data up."""

    again_s: float = 10.0
    """A verdict that was acted on and is still open after this long is given again, doubling each time: a
    recovery takes below 1 s with a standby at hand, and about 8 s when a worker must be started."""

    confirm_beats: int = 2
    """Beats in a row that must agree before silence counts: after the whole machine was paused every ring
    looks silent in the first beat, and moves by the second."""

    node_silence_s: float = 5.0
    """An agent unheard for this long makes its node silent: ten beats, and ample for a killed agent to be
    restarted (interpreter start 0.3 s plus the executor's back-off)."""

    log_quiet_s: float = 60.0
    """A log episode ends after this long without another matching line; training logs print every few
    seconds."""

    hit_repeat_s: float = 5.0
    """A matched log line is repeated in beats for this long: ten chances to arrive."""

    log_bytes_per_beat: int = 1 << 20
    """Log bytes read in one beat, all files together; the rest waits for the next beat."""

    pss_interval_s: float = 10.0
    """Proportional memory is read this seldom: the kernel walks every page table for it."""

    check_deadline_s: float = 20.0
    """Longest time one check of the quick suite may take before it is ended and counts as failed."""

    def __post_init__(self) -> None:
        for name in (
            "beat_interval_s", "silence_floor_s", "silence_factor", "suspended_limit_s", "data_floor_s",
            "data_start_s", "again_s", "node_silence_s", "log_quiet_s", "hit_repeat_s", "pss_interval_s",
            "check_deadline_s",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"{name} = {getattr(self, name)} is not above 0", remedy="give seconds above 0"
                )
        for name in ("median_window_steps", "first_steps", "confirm_beats", "log_bytes_per_beat"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} = {getattr(self, name)} is below 1", remedy="give a count of 1 or more"
                )
        if self.node_silence_s < 2 * self.beat_interval_s:
            raise ConfigError(
                f"node_silence_s = {self.node_silence_s} is below two beats of {self.beat_interval_s} s",
                remedy="a single lost beat must not make a node silent: raise it",
            )
