"""Layouts drawn at random, with recomputation, buckets and collectives in pieces.

fp64 shows a wrong sum or a missing term anywhere in them; bits show whether a switch changes when
work is done or what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from headway.testkit.trainer.layouts import BARS, BLOCKS, FAMILIES, GRIDS, SCHEDULES, Layout
from headway.testkit.trainer.pool import WorkerPool
from headway.testkit.trainer.training import Trained, distance, train_layout
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Reference = Callable[[str, str, str], Trained]
SHORT = 3
DRAWN = settings(
    max_examples=8,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any grid under any schedule that it allows, with any of the memory and overlap settings."""
    grid = draw(st.sampled_from(sorted(GRIDS)))
    pp, tp = GRIDS[grid].get("pp", 1), GRIDS[grid].get("tp", 1)
    schedule = draw(st.sampled_from((*SCHEDULES, "interleaved")))
    takes_chunks = schedule == "1f1b" and pp == 1
    families = ["", *(name for name in FAMILIES if tp == 1 or name != "own block")]
    return Layout(
        grid,
        schedule,
        draw(st.sampled_from(BLOCKS)),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        recompute_layers=draw(st.sampled_from(((), (0,), (1, 2), (3,)))),
        tp_pieces=draw(st.sampled_from((1, 2, 4))),
        tp_keep=draw(st.sampled_from(("pieces", "whole"))),
        vp=draw(st.integers(1, 4)) if takes_chunks else None,
        buckets=draw(st.sampled_from((None, 1, 2, 4))),
        family=draw(st.sampled_from(families)),
        head_layers=draw(st.sampled_from((0.0, 1.5))) if pp > 1 else 0.0,
    )


@DRAWN
@given(layout=layouts())
def test_a_drawn_layout_equals_the_single_process_in_fp64(
    pool: WorkerPool, tmp_path: Path, reference: Reference, layout: Layout
) -> None:
    found = train_layout(pool, layout.config("fp64"), layout.world_size, tmp_path, SHORT)
    expected = reference(layout.block, "fp64", layout.family)
    worst, name = distance(found.grads, expected.grads)
    assert worst < BARS["fp64"], f"gradient of {name} differs by {worst:.1e} of its norm"
    for curve in ("losses", "norms"):
        ours, theirs = getattr(found, curve), getattr(expected, curve)
        assert max(abs(ours[step] - theirs[step]) for step in range(SHORT)) < BARS["fp64"]


@DRAWN
@given(layout=layouts())
def test_recomputation_changes_no_bit_under_any_layout(
    pool: WorkerPool, tmp_path: Path, layout: Layout
) -> None:
    recompute_cheap = replace(
        layout, recompute="selective" if layout.recompute == "none" else "full"
    )
    plain = replace(layout, recompute="none")
    found, expected = (
        train_layout(pool, one.config("bf16"), one.world_size, tmp_path, SHORT)
        for one in (recompute_cheap, plain)
    )
    assert found.losses == expected.losses
    assert found.norms == expected.norms
    for name, value in expected.params.items():
        assert (found.params[name] == value).all(), name
