"""Relations of time limits in different tables: which must be longer than which other.

Those within ``[recovery]`` are in ``recovery.py``; docs/operations.md lists all.
"""

from __future__ import annotations

from headway.common.errors import ConfigError
from headway.dataloader.config import DataConfig
from headway.health.config import HealthConfig
from headway.trainer.config.parallel import ParallelConfig
from headway.trainer.config.recovery import RecoveryConfig


def check_relations(
    limits: RecoveryConfig,
    parallel: ParallelConfig,
    data: DataConfig,
    health: HealthConfig,
    device: str,
) -> None:
    """Refuse a limit that must be longer than another one and is not.

    NCCL has no limit for a collective, gloo has; before ``device = "auto"`` is resolved it is not
    known which of them is used: what CPUs need is not checked then, and what GPUs need is.

    Args:
        limits: ``RunConfig.limits``, as they are on ``device``.

    Raises:
        ConfigError: both settings with their values, and the remedy.
    """
    _in_order(
        ("recovery.service_silent_s", limits.service_silent_s),
        ("data.wait_timeout_s", data.wait_timeout_s),
        "a data daemon that hangs is replaced before its readers fail",
    )
    if device == "cpu":
        _in_order(
            ("recovery.hang_act_s", limits.hang_act_s),
            ("recovery.group_timeout_s", limits.group_timeout_s),
            "over gloo a collective ends there by itself",
        )
        _in_order(
            ("health.suspended_limit_s", health.suspended_limit_s),
            ("recovery.first_step_timeout_s", limits.first_step_timeout_s),
            "over gloo a collective of the first step ends there, and which rank hangs is not seen",
        )
    elif parallel.nccl_profile != "none":
        _check_link(limits, parallel)


def _check_link(limits: RecoveryConfig, parallel: ParallelConfig) -> None:
    """A link that comes back in time must not look like a hang that is ended."""
    what = f"waiting for a link (parallel.flap_s={parallel.flap_s:g})"
    if limits.hang_act_s:
        if limits.hang_act_s <= parallel.link_window_s:
            raise ConfigError(
                f"recovery.hang_act_s={limits.hang_act_s:g} is not above the "
                f"{parallel.link_window_s:.3g} s of {what}: the ranks would be restarted meanwhile",
                remedy="raise recovery.hang_act_s or lower parallel.flap_s",
            )
        return
    joining_s = max(limits.join_timeout_s, limits.gpu_join_timeout_s)
    if joining_s <= parallel.link_wait_s:
        raise ConfigError(
            f"recovery.gpu_join_timeout_s={joining_s:g} is not above the "
            f"{parallel.link_wait_s:.3g} s of {what}: a hang is ended there at the latest",
            remedy="raise recovery.gpu_join_timeout_s, set recovery.hang_act_s, or lower "
            "parallel.flap_s",
        )


def _in_order(low: tuple[str, float], high: tuple[str, float], why: str) -> None:
    """``low`` must be below ``high``; each is a key and its value."""
    if not low[1] < high[1]:
        raise ConfigError(
            f"{low[0]}={low[1]:g} is not below {high[0]}={high[1]:g}: {why}",
            remedy=f"lower {low[0]} or raise {high[0]}",
        )
