"""Time limits in their order, settings with sane values, and a `set` that can be taken back."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from headway.common.config import from_dict
from headway.common.errors import ConfigError, InputError
from headway.common.wire.messages.worker import Steer
from headway.trainer.config import RecoveryConfig, RunConfig, check_name, check_setting
from headway.trainer.config.link_retries import LinkRetries
from headway.trainer.session.hooks import StepResult
from headway.trainer.worker.control_hooks import ControlHooks
from structlog.testing import capture_logs


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"driver_silent_s": 3.0}, ("driver_silent_s=3", "node_silent_s=3")),
        ({"node_silent_s": 12.0}, ("node_silent_s=12", "node_lost_s=10")),
        ({"node_lost_s": 700.0}, ("node_lost_s=700", "orphan_limit_s=600")),
        ({"group_timeout_s": 60.0}, ("group_timeout_s=60", "join_timeout_s=60")),
        ({"leave_timeout_s": 61.0}, ("leave_timeout_s=61", "join_timeout_s=60")),
        ({"gather_timeout_s": 20.0}, ("fork_limit_s=20", "gather_timeout_s=20")),
        ({"service_silent_s": 99.0}, ("service_silent_s=99", "service_start_s=60")),
        ({"read_timeout_s": 0.0}, ("recovery.read_timeout_s=0.0",)),
        ({"choose_timeout_s": float("nan")}, ("recovery.choose_timeout_s=nan",)),
        ({"stop_timeout_s": float("inf")}, ("recovery.stop_timeout_s=inf",)),
        ({"folder_gone_s": -1.0}, ("recovery.folder_gone_s=-1.0",)),
        ({"max_crashes": 0}, ("recovery.max_crashes=0",)),
        ({"driver_silent_s": 0.7}, ("recovery.driver_silent_s=0.7", "every 0.25 s", "0.75 s")),
        ({"node_silent_s": 0.4, "driver_silent_s": 0.3}, ("driver_silent_s=0.3", "0.75 s or more")),
        (
            {"node_silent_s": 1.4, "driver_silent_s": 1.0},
            ("recovery.node_silent_s=1.4", "every 0.5 s", "use 1.5 s or more"),
        ),
        ({"service_silent_s": 1.0}, ("recovery.service_silent_s=1", "use 1.5 s or more")),
        ({"folder_gone_s": 0.1}, ("recovery.folder_gone_s=0.1", "use 0.75 s or more")),
        ({"group_timeout_s": 0.1}, ("recovery.group_timeout_s=0.1", "use 1.5 s or more")),
        ({"read_timeout_s": 0.05}, ("recovery.read_timeout_s=0.05", "use 1.5 s or more")),
        ({"choose_timeout_s": 0.05}, ("recovery.choose_timeout_s=0.05", "use 1.5 s or more")),
        ({"leave_timeout_s": 0.1}, ("recovery.leave_timeout_s=0.1", "use 1.5 s or more")),
        ({"stop_timeout_s": 0.1}, ("recovery.stop_timeout_s=0.1", "use 1.5 s or more")),
        ({"fork_limit_s": 0.1}, ("recovery.fork_limit_s=0.1", "torch", "use 2 s or more")),
    ],
)
def test_a_limit_out_of_range_or_order_is_refused_with_both_keys_and_values(
    limits: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        RecoveryConfig(**limits)
    assert all(part in str(caught.value) for part in named) and caught.value.remedy


def test_a_limit_to_act_on_hangs_is_compared_with_that_of_gloo_only() -> None:
    recovery = RecoveryConfig(hang_act_s=20.0)
    with pytest.raises(
        ConfigError, match=r"hang_act_s=20 .*group_timeout_s=20: over gloo"
    ) as caught:
        _on("cpu", recovery)
    assert caught.value.remedy
    for device in ("gpu", "auto"):
        assert _on(device, recovery).limits.hang_act_s == 20.0
    _on("cpu", RecoveryConfig(hang_act_s=19.0))


def test_the_monitor_judges_a_hang_of_the_first_step_before_gloo_ends_it() -> None:
    recovery = RecoveryConfig(first_step_timeout_s=100.0)
    with pytest.raises(
        ConfigError, match=r"health.suspended_limit_s=120 .*recovery.first_step_timeout_s=100: over"
    ) as caught:
        _on("cpu", recovery)
    assert caught.value.remedy
    _on("gpu", recovery)


def test_a_data_daemon_is_replaced_before_its_readers_fail() -> None:
    with pytest.raises(
        ConfigError, match=r"recovery.service_silent_s=5 .*data.wait_timeout_s=5: a data daemon"
    ):
        from_dict(RunConfig, {"data": {"wait_timeout_s": 5.0}})


def _on(device: str, recovery: RecoveryConfig, **parallel: Any) -> RunConfig:
    tables = {"train": {"device": device}, "recovery": asdict(recovery), "parallel": parallel}
    return from_dict(RunConfig, tables)


# ---- links --------------------------------------------------------------------------------------
@pytest.mark.parametrize("flap_s", [0.001, 0.1, 1.0, 7.5, 7.6, 10.0, 30.0, 60.2, 103.0, 120.0])
def test_retries_last_for_a_flap_and_not_for_much_longer(flap_s: float) -> None:
    found = LinkRetries.outlasting(flap_s)
    assert flap_s <= found.window_s <= max(1.26 * flap_s, 0.3)
    assert 1 <= found.timeout <= 22 and 4 <= found.retries <= 7, "what every NCCL accepts"
    sooner = LinkRetries(found.timeout - 1, 7)
    assert found.timeout == 14 or sooner.window_s < flap_s, "it resends as soon as it can"


def test_the_window_is_that_of_nccls_documentation() -> None:
    """Its table: 20 and 7 are 30 s, 18 and 7 are 7.5 s; 0 and 32 have no limit."""
    assert LinkRetries().window_s == pytest.approx(30.06, abs=0.01)
    assert LinkRetries(18, 7).window_s == pytest.approx(7.52, abs=0.01)
    assert LinkRetries(0, 7).window_s == LinkRetries(32, 7).window_s == float("inf")


@pytest.mark.parametrize("flap_s", [0.0, -1.0, float("inf"), float("nan"), 120.3])
def test_a_flap_that_no_retries_outlast_is_refused_in_one_line(flap_s: float) -> None:
    with pytest.raises(ConfigError, match=f"parallel.flap_s={flap_s:g} is out of") as caught:
        from_dict(RunConfig, {"parallel": {"flap_s": flap_s}})
    assert "at most 120: NCCL_IB_TIMEOUT=22 and" in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_misspelt_profile_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="nccl_profile = 'rocee' is not one of") as caught:
        from_dict(RunConfig, {"parallel": {"nccl_profile": "rocee"}})
    assert "did you mean 'roce'?" in str(caught.value)


def test_a_link_that_comes_back_in_time_is_never_a_hang_to_act_on() -> None:
    short = RecoveryConfig(hang_act_s=10.5)
    for device in ("gpu", "auto"):
        with pytest.raises(
            ConfigError, match=r"recovery.hang_act_s=10.5 .* 10.7 s .*parallel.flap_s=10"
        ) as caught:
            _on(device, short, nccl_profile="ib")
        assert caught.value.remedy
    _on("gpu", short)
    _on("cpu", short, nccl_profile="ib")
    _on("gpu", short, nccl_profile="ib", flap_s=7.5)
    with pytest.raises(ConfigError, match=r"gpu_join_timeout_s=120 .* 129 s .*flap_s=100"):
        _on("gpu", RecoveryConfig(), nccl_profile="roce", flap_s=100.0)
    _on("gpu", RecoveryConfig(gpu_join_timeout_s=200.0), nccl_profile="roce", flap_s=100.0)


@pytest.mark.parametrize(("ctas", "word"), [(0, "below 1"), (65, "above 64")])
def test_thread_blocks_are_counted_from_1_to_nccls_highest(ctas: int, word: str) -> None:
    with pytest.raises(ConfigError, match=f"parallel.pair_ctas={ctas} is {word}") as caught:
        from_dict(RunConfig, {"parallel": {"pair_ctas": ctas}})
    assert caught.value.remedy


@pytest.mark.parametrize("value", [0.0, -1e-3, float("nan"), float("inf"), 0.1001])
def test_absurd_learning_rates_are_refused_with_a_remedy(value: float) -> None:
    with pytest.raises(InputError) as caught:
        check_setting("lr", value, RunConfig())
    assert caught.value.remedy
    if 0 < value < 1:
        assert "optim.lr=0.001" in str(caught.value)
        check_setting("lr", value, RunConfig(), force=True)
    else:
        with pytest.raises(InputError):
            check_setting("lr", value, RunConfig(), force=True)


def test_only_known_settings_can_be_set() -> None:
    check_setting("lr", 0.1, RunConfig())
    for name in ("", "batch"):
        with pytest.raises(InputError, match="only lr"):
            check_name(name)
    zero = replace(RunConfig(), optim=replace(RunConfig().optim, lr=0.0))
    check_setting("lr", 5.0, zero)  # no rate to compare with


class Link:
    """Of rank 0, which reports itself."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def keep(self, message: Any) -> None:
        raise AssertionError(f"rank 0 reports itself: {message}")

    def beat_now(self) -> None:
        """No executor listens."""


def test_unset_is_as_if_the_rate_had_never_been_set_also_when_commands_are_replayed(
    rank: Any,
) -> None:
    context = rank._context
    context.commands += [
        Steer(sequence=1, operation="set", name="lr", value=0.5),
        Steer(sequence=2, operation="unset", name="lr"),
        Steer(sequence=3, operation="set", name="other", value=7.0),
        Steer(sequence=4, operation="set", name="lr", value=0.25),
    ]
    for hooks in (ControlHooks(context, 1), ControlHooks(context, 2)):
        rates = [hooks.apply(10, 0, agreed).lr for agreed in range(5)]
        assert rates == [None, 0.5, None, None, 0.25]


def test_a_rank_that_leaves_a_pause_counts_as_stepping_only_after_a_step(rank: Any) -> None:
    context = rank._context
    context.view.rank, context.view.status, context.link = 0, "restored", Link()
    hooks = ControlHooks(context, 1)
    seen = []
    for paused in (True, False):
        hooks.on_pause(paused)
        seen.append((context.view.status, context.view.paused))
    assert seen == [("running", True), ("restored", False)]
    hooks.on_step(StepResult(0, 2.5, 1.0, 1e-3, 8, False, 0, 0.1))
    for paused in (True, False):
        hooks.on_pause(paused)
        assert context.view.status == "running"


def test_skipped_steps_are_reported_and_logged_with_their_reason_and_not_one_by_one(
    rank: Any,
) -> None:
    context = rank._context
    context.view.rank, context.link = 0, Link()
    hooks = ControlHooks(context, 1)
    nan, inf = float("nan"), float("inf")
    with capture_logs() as logs:
        for step in range(250):
            loss, norm = (nan, nan) if step < 20 else (2.5, inf)
            hooks.on_step(StepResult(step, loss, norm, 1e-3, 8, True, step + 1, 0.1))
        hooks.on_step(StepResult(250, 2.5, 1.0, 1e-3, 8, False, 0, 0.1))
    lines = [line for line in logs if "skipped" in line["event"]]
    assert len(lines) == 20
    assert lines[0]["event"] == "the step was skipped: the loss is nan"
    assert lines[-1]["event"] == "the step was skipped: the gradient norm is inf"
    assert [m.skipped for m in context.link.sent] == [True] * 250 + [False]
