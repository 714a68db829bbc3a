"""The losses of several runs in one drawing."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from headway.console.display.charts import Drawing, curves
from headway.console.run_frames import RunFrames


def losses(runs: Sequence[RunFrames]) -> Drawing:
    """Training loss over the steps that all of ``runs`` have completed.

    Runs without a completed step are left out, and said to be.
    """
    found = {run.name: run.metrics().select("step", "loss").sort("step") for run in runs}
    kept = {name: frame for name, frame in found.items() if not frame.is_empty()}
    common = _common_steps(list(kept.values()))
    drawn = {
        name: [(float(step), float(loss)) for step, loss in frame.join(common, on="step").rows()]
        for name, frame in kept.items()
    }
    note = _note(common, len(kept), [name for name in found if name not in kept])
    return curves("Training loss", drawn, x="step", y="nats per token", note=note)


def _common_steps(frames: list[pl.DataFrame]) -> pl.DataFrame:
    if not frames:
        return pl.DataFrame(schema={"step": pl.Int64})
    steps = frames[0].select("step")
    for frame in frames[1:]:
        steps = steps.join(frame, on="step", how="semi")
    return steps


def _note(common: pl.DataFrame, number: int, left_out: list[str]) -> str:
    text = f"{common.height:,} steps that all {number} runs have completed." if number > 1 else ""
    if number > 1 and common.is_empty():
        text = "No step was completed by all of these runs: choose some by name."
    without = f" Without a completed step: {', '.join(left_out)}." if left_out else ""
    return (text + without).strip()
