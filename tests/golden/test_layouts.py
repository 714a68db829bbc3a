"""Every layout computes what one process computes: gradients, parameters, losses.

The whole matrix is ``make matrix``; this is a subset in which each grid, schedule, block and type
occurs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from headway.testkit.trainer.layouts import BARS, STEPS, Layout, single, small_run
from headway.testkit.trainer.pool import WorkerPool
from headway.testkit.trainer.training import Trained, distance, train_layout

Reference = Callable[[str, str], Trained]

SUBSET = [
    Layout("tp2", "1f1b", "parallel"),
    Layout("pp2", "zb-h1", "serial"),
    Layout("dp2", "gpipe", "parallel"),
    Layout("dp4", "1f1b", "serial"),
    Layout("tp2xdp2", "zb-h1", "serial"),
    Layout("pp2xdp2", "1f1b", "parallel"),
    Layout("pp2", "interleaved", "parallel"),
    Layout("pp2xdp2", "interleaved", "serial"),
    Layout("pp2xdp2", "zb-v", "parallel"),
    Layout("tp2xpp2", "gpipe", "serial"),
    Layout("tp2xpp2xdp2", "zb-h1", "parallel"),
]


def _curve_error(found: dict[int, float], expected: dict[int, float]) -> float:
    assert found.keys() == expected.keys()
    return max(abs(found[step] - expected[step]) for step in expected)


@pytest.mark.parametrize("layout", SUBSET, ids=lambda layout: layout.name)
def test_in_fp64_gradients_and_parameters_equal_the_single_process(
    pool: WorkerPool, tmp_path: Path, reference: Reference, layout: Layout
) -> None:
    found = train_layout(pool, layout.config("fp64"), layout.world_size, tmp_path, STEPS)
    expected = reference(layout.block, "fp64")
    for kind in ("grads", "params"):
        worst, name = distance(getattr(found, kind), getattr(expected, kind))
        assert worst < BARS["fp64"], f"{kind} of {name} differ by {worst:.1e} of their norm"
    for curve in ("losses", "norms", "evals"):
        assert _curve_error(getattr(found, curve), getattr(expected, curve)) < BARS["fp64"], curve
    assert found.evals.keys() == {0, 6, 12}


@pytest.mark.parametrize("layout", [SUBSET[0], SUBSET[7]], ids=lambda layout: layout.name)
def test_in_fp32_losses_equal_the_single_process_to_1e_5(
    pool: WorkerPool, tmp_path: Path, reference: Reference, layout: Layout
) -> None:
    found = train_layout(pool, layout.config("fp32"), layout.world_size, tmp_path, STEPS)
    assert _curve_error(found.losses, reference(layout.block, "fp32").losses) < BARS["fp32"]


@pytest.mark.parametrize("layout", [SUBSET[0], SUBSET[7]], ids=lambda layout: layout.name)
def test_in_bf16_losses_stay_within_the_stated_bound(
    pool: WorkerPool, tmp_path: Path, reference: Reference, layout: Layout
) -> None:
    found = train_layout(pool, layout.config("bf16"), layout.world_size, tmp_path, STEPS)
    assert _curve_error(found.losses, reference(layout.block, "bf16").losses) < BARS["bf16"]


@pytest.mark.parametrize(
    "layout",
    [Layout("dp4", "1f1b", "serial"), Layout("pp2xdp2", "zb-v", "serial")],
    ids=lambda layout: layout.name,
)
def test_gradients_summed_in_bf16_are_off_by_its_rounding(
    pool: WorkerPool, tmp_path: Path, reference: Reference, layout: Layout
) -> None:
    settings = layout.config("fp64", grad_reduce="bf16")
    found = train_layout(pool, settings, layout.world_size, tmp_path, STEPS)
    expected = reference(layout.block, "fp64")
    worst, name = distance(found.grads, expected.grads)
    assert 2**-12 < worst < 2**-7, f"gradients of {name} differ by {worst:.1e} of their norm"
    assert _curve_error(found.losses, expected.losses) < BARS["bf16"]
    settings = layout.config("fp64", grad_reduce="bf16", overlap_grad_reduce=False)
    one_by_one = train_layout(pool, settings, layout.world_size, tmp_path / "one by one", 3)
    assert one_by_one.losses == {step: found.losses[step] for step in range(3)}


def test_the_model_learns_and_its_norm_is_clipped_at_times(reference: Reference) -> None:
    found = reference("serial", "fp64")
    assert found.losses[STEPS - 1] < found.losses[0] - 0.5
    assert found.evals[STEPS] < found.evals[0] - 0.5
    assert min(found.norms.values()) < 2.0 < max(found.norms.values())


def test_documents_end_at_the_same_borders_on_every_stage_of_four(
    pool: WorkerPool, tmp_path: Path
) -> None:
    stages = small_run("fp64", parallel={"pp": 4}, world_size=4, family="neox")
    found = train_layout(pool, stages, 4, tmp_path / "four", 3)
    expected = train_layout(pool, single("serial", "fp64", "neox"), 1, tmp_path / "one", 3)
    for kind in ("grads", "params"):
        worst, name = distance(getattr(found, kind), getattr(expected, kind))
        assert worst < BARS["fp64"], f"{kind} of {name} differ by {worst:.1e} of their norm"
    assert _curve_error(found.losses, expected.losses) < BARS["fp64"]


OVERLAP_STEPS = 4
SWITCHES = ("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p")


@pytest.mark.parametrize(
    "layout",
    [
        Layout("dp4", "1f1b", "serial"),
        Layout("pp2xdp2", "interleaved", "serial"),
        Layout("pp2xdp2", "zb-h1", "parallel", buckets=2),
        Layout("pp2xdp2", "zb-v", "serial"),
    ],
    ids=lambda layout: layout.name,
)
def test_overlap_switches_change_no_bit(pool: WorkerPool, tmp_path: Path, layout: Layout) -> None:
    def train(name: str, **switches: bool) -> Trained:
        config = layout.config("bf16", **switches)
        return train_layout(pool, config, layout.world_size, tmp_path / name, OVERLAP_STEPS)

    on = train("on")
    for switch in (*SWITCHES, "all"):
        off = dict.fromkeys(SWITCHES if switch == "all" else (switch,), False)
        found = train(switch, **off)
        assert found.losses == on.losses, f"{switch} off changes the losses"
        assert found.norms == on.norms
        for name, value in on.params.items():
            assert (found.params[name] == value).all(), f"{switch} off changes {name}"


@pytest.mark.parametrize(
    "layout",
    [
        Layout("tp2", "1f1b", "serial"),
        Layout("tp2xpp2", "zb-h1", "parallel"),
        Layout("tp2", "1f1b", "serial", recompute="selective"),
    ],
    ids=lambda layout: f"{layout.name}-{layout.recompute}",
)
def test_what_is_kept_of_gathered_activations_changes_no_bit(
    pool: WorkerPool, tmp_path: Path, layout: Layout
) -> None:
    pieces, whole = (
        train_layout(
            pool,
            replace(layout, tp_keep=kept).config("bf16"),
            layout.world_size,
            tmp_path / kept,
            OVERLAP_STEPS,
        )
        for kept in ("pieces", "whole")
    )
    assert whole.losses == pieces.losses and whole.norms == pieces.norms
    for name, value in pieces.params.items():
        assert (whole.params[name] == value).all(), name
