"""What a run achieved: the end of ``headway run``, and the last cell of a notebook."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.common.errors import InputError
from headway.common.output import Table, mebibytes
from headway.console.analysis.metrics import load_evaluations
from headway.console.folder.outputs import checkpoints
from headway.console.folder.samples import corpus, final_sample
from headway.console.live.progress import read_progress, utilisation
from headway.console.run import Run

TRACED_STEPS = 50
"""The trace written by itself shows this many steps at the end and around each recovery."""
NOTEBOOK = Path("notebooks/01_launch_and_steer.ipynb")


@dataclass(repr=False)
class Summary:
    """Losses in nats per token; None where there is nothing to report."""

    name: str
    outcome: str
    detail: str
    step: int
    steps: int
    loss: float | None = None
    validation_before: float | None = None
    validation_after: float | None = None
    validation_step: int | None = None
    """Completed steps at the newest validation loss."""
    unigram_nats: float | None = None
    """Cross-entropy of the validation split under the training split's unigrams."""
    tokens_per_s: float | None = None
    """Over all steps, by their own durations."""
    mfu: float | None = None
    peak_flops: float | None = None
    dtype: str = ""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    sample: str = ""
    trace: str = ""
    no_trace: str = ""
    """Why no trace was written, if one was wanted."""
    notebook: str = ""
    resume: str = ""
    """The command that resumes a stopped or failed run."""

    def __repr__(self) -> str:
        return "\n".join(render(self))


def summarise(run: Run, *, write_trace: bool = False) -> Summary:
    """Collect what a run, live or ended, has to show; ``write_trace`` also writes its trace."""
    config, peak = run.config, run.peak
    progress, rate = read_progress(run), _mean_rate(run)
    evaluations = load_evaluations(run).sort("step", "generation")
    losses, steps = evaluations["loss"].to_list(), evaluations["step"].to_list()
    data = corpus(config)
    trace, no_trace = _trace(run) if write_trace else ("", "")
    return Summary(
        name=run.name,
        outcome=run.outcome or progress.phase,
        detail=progress.detail,
        step=progress.step,
        steps=progress.steps,
        loss=progress.loss,
        validation_before=losses[0] if losses else None,
        validation_after=losses[-1] if len(losses) > 1 else None,
        validation_step=steps[-1] if len(losses) > 1 else None,
        unigram_nats=data.meta.unigram_nats if data is not None and data.meta is not None else None,
        tokens_per_s=rate or None,
        mfu=utilisation(config, peak, rate),
        peak_flops=peak.of_run(config.train.dtype, config.parallel.world_size) if peak else None,
        dtype=config.train.dtype,
        checkpoints=checkpoints(run),
        recoveries=recovery_rows(run),
        sample=final_sample(run),
        trace=trace,
        no_trace=no_trace,
        notebook=_notebook(),
        resume=run.resume_command(run.state) if run.outcome else "",
    )


def render(summary: Summary) -> list[str]:
    """The summary for people, one line each."""
    parts = report(summary)
    return [line for part in parts for line in ([part] if isinstance(part, str) else part.lines())]


def report(summary: Summary) -> list[str | Table]:
    """The summary for people: figures as a table, what can be pasted as plain lines."""
    s = summary
    detail = f": {s.detail}" if s.detail else ""
    title = f"run {s.name}: {s.outcome} after step {s.step}/{s.steps}{detail}"
    lines: list[str | Table] = ["", title, Table(_figures(s))]
    if s.sample:
        lines += ["sample:", *("  " + line for line in s.sample.splitlines())]
    if s.trace:
        lines.append(f"trace            {s.trace} (open it in https://ui.perfetto.dev)")
        if s.step > TRACED_STEPS:  # as its tracks are empty elsewhere
            lines.append(
                f"                 the last {TRACED_STEPS} steps before the end and each recovery; "
                f"`headway trace {s.name} --steps : -o FILE` writes all"
            )
    if s.no_trace:
        lines.append(f"trace            not written: {s.no_trace}")
    if s.notebook:
        lines.append(f"notebook         {s.notebook} (`make lab`)")
    if s.resume:
        lines.append(f"resume           {s.resume}")
    return lines


def _figures(s: Summary) -> list[tuple[str, str]]:
    before, newest = _nats(s.validation_before), _nats(s.validation_after)
    after = f"{newest} after"
    if s.validation_step is None:
        after = "not measured since"
    elif s.validation_step != s.step:
        after = f"{newest} after step {s.validation_step}"
    unigrams = f"training unigrams give {_nats(s.unigram_nats)}"
    speed = f"{s.tokens_per_s or 0:,.0f} tokens/s"
    if s.mfu is not None and s.peak_flops:
        peak = f"{s.peak_flops / 1e9:,.0f} GFLOP/s ({s.dtype}, measured)"
        speed += f", MFU {s.mfu:.1%} of this machine's {peak}"
    elif s.tokens_per_s:
        busy = "its peak was measured while it was busy"
        speed += f", MFU unknown: {busy if s.peak_flops else 'its peak has not been measured'}"
    return [
        ("validation loss", f"{before} before, {after}; {unigrams}"),
        ("speed", speed),
        *(("checkpoint", _checkpoint_line(row)) for row in s.checkpoints),
        *_not_durable(s),
        *(("recovery", _recovery_line(row)) for row in s.recoveries),
    ]


def _not_durable(s: Summary) -> list[tuple[str, str]]:
    """What an ended run did not get to disk, because its store failed or hung."""
    newest = max((int(row["step"]) for row in s.checkpoints), default=-1)
    if s.outcome not in ("finished", "stopped") or newest >= s.step:
        return []
    where = f"the newest is of step {newest}" if newest >= 0 else "there is none"
    return [("not durable", f"no checkpoint of the last step {s.step}: {where}; see the logs")]


def recovery_rows(run: Run) -> list[dict[str, Any]]:
    """Each recovery as ``run.recoveries()`` has it; without any, flight records are not read."""
    return run.recoveries().to_dicts() if run.records.newest_event("fence") else []


def _mean_rate(run: Run) -> float:
    """Tokens per second over all steps, by their own durations; 0 without any."""
    tokens, spent_s = run.records.tokens_and_seconds()
    return tokens / spent_s if spent_s else 0.0


def _trace(run: Run) -> tuple[str, str]:
    """The trace's path, or why there is none."""
    from headway.console.trace.export import write_trace

    out = run.path / "trace.json.gz"
    if problems := run.fetch_records():  # without some of its ranks a trace would mislead
        return "", problems[0]
    try:
        write_trace(run, out, newest=TRACED_STEPS)
    except InputError as error:  # it may have ended before its first step
        return "", error.message
    return str(out), ""


def _notebook() -> str:
    for root in (Path.cwd(), *Path(__file__).resolve().parents):
        if (root / NOTEBOOK).exists():
            return str(root / NOTEBOOK)
    return ""


def _nats(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _checkpoint_line(row: dict[str, Any]) -> str:
    return f"step {row['step']}, {mebibytes(row['total_bytes'])}, {row['path']}"


def _recovery_line(row: dict[str, Any]) -> str:
    spans = {name: row[f"{name}_s"] for name in ("detect", "decide", "restore", "first_step")}
    known = {name.replace("_", " "): s for name, s in spans.items() if s is not None}
    times = ", ".join(f"{name} {span_s:.2f} s" for name, span_s in known.items())
    total = "under way" if row["total_s"] is None else f"{row['total_s']:.2f} s"
    paused = ", in a pause" * bool(row["is_paused"])
    return (
        f"{total} ({times}){paused}; {row['repeated']} completed steps done again; {row['reason']}"
    )
