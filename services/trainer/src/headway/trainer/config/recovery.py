"""The table ``[recovery]``: the time limits of detection and recovery."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from headway.common.config_checks import at_least
from headway.common.errors import ConfigError
from headway.common.paces import FOLDER_LOOK_S, LEASE_RENEW_S, NODE_BEAT_S, SERVICE_BEAT_S

IN_ORDER = (
    ("driver_silent_s", "node_silent_s", "a driver must be back before its nodes look silent"),
    ("node_silent_s", "node_lost_s", "a node is restarted before it is given up"),
    ("node_lost_s", "orphan_limit_s", "workers must outlive the restart of their executor"),
    ("group_timeout_s", "first_step_timeout_s", "a first step takes longer than later ones"),
    ("group_timeout_s", "join_timeout_s", "joining builds groups and uses them"),
    ("leave_timeout_s", "join_timeout_s", "leaving is a part of joining the next generation"),
    ("fork_limit_s", "gather_timeout_s", "gathering waits for at least one fork"),
    ("service_silent_s", "service_start_s", "a start takes longer than a beat"),
)
"""(smaller, larger, why): pairs of limits in ``[recovery]`` of which the first must
be below the second."""
_MAY_BE_0 = frozenset({"hang_act_s", "wait_for_node_s"})
MISSED = 3
"""So many signs of life must be missing before their sender counts as silent."""
_PACES = (
    ("driver_silent_s", LEASE_RENEW_S, "a driver renews its lease"),
    ("node_silent_s", NODE_BEAT_S, "a node sends its beats"),
    ("service_silent_s", SERVICE_BEAT_S, "a service sends its beats"),
    ("folder_gone_s", FOLDER_LOOK_S, "a node looks at the run's folder"),
)
"""(limit, seconds between two signs of life, what they are)."""
_ANSWERED = MISSED * NODE_BEAT_S
_FLOORS = (
    ("group_timeout_s", _ANSWERED, "a collective waits for the slowest rank"),
    ("read_timeout_s", _ANSWERED, "nodes answer with their beats"),
    ("choose_timeout_s", _ANSWERED, "every checkpoint in the folder may be looked at"),
    ("leave_timeout_s", _ANSWERED, "a rank that has left is reported with its node's beat"),
    ("stop_timeout_s", _ANSWERED, "progress is reported with the beats of nodes"),
    ("fork_limit_s", 2.0, "a worker imports torch before its first beat, in 1-2 s"),
)
"""(limit, its least value, what sound processes need that time for)."""


@dataclass(frozen=True)
class RecoveryConfig:
    """Time limits of detection and recovery, in seconds; docs/operations.md gives their sources."""

    group_timeout_s: float = 20.0
    """Longest time for a collective over gloo from the first step of a generation on, and for a
    request to the generation's store. NCCL has no limit: the monitor and the driver judge what is
    late."""
    first_step_timeout_s: float = 600.0
    """``group_timeout_s`` before that step is done: kernels are compiled, caches are cold, and an
    evaluation may come first. A rank that hangs there is found by the monitor."""
    gather_timeout_s: float = 90.0
    """Longest wait for a worker for each rank before other nodes are used."""
    read_timeout_s: float = 20.0
    """Longest time for the nodes to report which snapshots are sealed."""
    choose_timeout_s: float = 60.0
    """Longest time for the search for the newest checkpoint."""
    join_timeout_s: float = 60.0
    """Longest time from assignment until each rank has its state, not counting time in which more
    and more of it is read or made; then the generation is fenced."""
    gpu_join_timeout_s: float = 120.0
    """``join_timeout_s`` with ``train.device = "gpu"``, if it is longer: joining includes loading
    CUDA's libraries. Also limits each request to the store while the communicators are made."""
    leave_timeout_s: float = 8.0
    """Longest time for a survivor to leave a fenced generation before it is killed."""
    stop_timeout_s: float = 60.0
    """Longest time without progress after a stop command before the run is ended by force."""
    orphan_limit_s: float = 600.0
    """A rank exits after this long without an executor, and its snapshots stay in the arena; a
    standby does so after ``node_lost_s``."""
    node_silent_s: float = 3.0
    """An executor that is silent for this long counts as dead and is restarted."""
    node_lost_s: float = 10.0
    """A node that neither answers nor restarts for this long is given up; a spare replaces it."""
    driver_silent_s: float = 2.0
    """A driver that is silent for this long is replaced by one of another executor."""
    service_silent_s: float = 5.0
    """A service that sends no beats for this long is killed and restarted."""
    service_start_s: float = 60.0
    """Longest time from the start of a service to its first beat; after a start that took longer
    the next one has twice the time."""
    fork_limit_s: float = 20.0
    """Longest time from a fork request to the worker's first beat (torch imports in 1-2 s)."""
    wait_for_node_s: float = 600.0
    """How long a run without a ready spare waits for a node with ranks that is lost, or silent for
    ``node_lost_s``; then it fails. 0 waits without a limit. Time in which Slurm has a machine on
    order, or another one is on order or will be ordered again (``replace_after_s``), does not
    count."""
    replace_after_s: float = 60.0
    """A machine that has been lost for this long is replaced, where the cluster's file has a
    ``replace`` command; one that a verdict has condemned, or that was evicted, as soon as nothing
    of the run is on it. Choose less than ``wait_for_node_s``, or a run without a spare ends
    first."""
    folder_gone_s: float = 60.0
    """A run ends once its folder has been gone for this long."""
    hang_act_s: float = 0.0
    """A hang that may still pass is ended after this long; 0: from the measured cost of a recovery,
    the median of the run's newest, at first 10 s, at most ``join_timeout_s``. A process that is
    stopped or does not run at all is ended as soon as it is named. With ``train.device = "cpu"``
    it must be below ``group_timeout_s``, where gloo ends a collective, and 0 means at most half of
    that. With ``parallel.nccl_profile`` it must be above the time for which NCCL waits for a link
    (``parallel.flap_s``), and 0 means at least 1.25 times that."""
    max_crashes: int = 5
    """Equal failures at one step before the run fails and reports the cause."""
    max_node_failures: int = 3
    """A node whose ranks have failed so much more often within an hour than those of any other node
    gives them to a ready spare."""
    max_replacements: int = 20
    """Most machines that are ordered within 24 hours in place of others, failed tries included."""
    max_spike_rollbacks: int = 3
    """How often spikes may lead back to one checkpoint (``train.on_spike = "rollback"``) before the
    run fails."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            is_valid = 0 < value < math.inf or (value == 0 and entry.name in _MAY_BE_0)
            if entry.name.endswith("_s") and not is_valid:
                raise ConfigError(
                    f"recovery.{entry.name}={value} is not a valid time limit",
                    remedy="use seconds above 0",
                )
        at_least(self, "recovery", 1, "max_crashes", "max_node_failures", "max_replacements")
        if self.max_spike_rollbacks < 1:
            raise ConfigError(
                f"recovery.max_spike_rollbacks={self.max_spike_rollbacks} is below 1",
                remedy="use 1 or more, or train.on_spike=stop",
            )
        for name, pace_s, what in _PACES:
            if getattr(self, name) < MISSED * pace_s:
                raise ConfigError(
                    f"recovery.{name}={getattr(self, name):g} is too short: {what} every "
                    f"{pace_s:g} s, so one that is only late would count as dead",
                    remedy=f"use {MISSED * pace_s:g} s or more",
                )
        for name, least_s, why in _FLOORS:
            if getattr(self, name) < least_s:
                raise ConfigError(
                    f"recovery.{name}={getattr(self, name):g} is too short: {why}",
                    remedy=f"use {least_s:g} s or more",
                )
        for smaller, larger, why in IN_ORDER:
            low, high = getattr(self, smaller), getattr(self, larger)
            if not low < high:
                raise ConfigError(
                    f"recovery.{smaller}={low:g} is not below recovery.{larger}={high:g}: {why}",
                    remedy=f"lower recovery.{smaller} or raise recovery.{larger}",
                )
