"""Where a run stands: from its driver while that answers, and from the journal always."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from headway.common.errors import DeadlineError
from headway.common.output import counted
from headway.common.plan.model_shape import mfu
from headway.common.wire.messages.driver import Status
from headway.console.analysis.newest import NewestSteps, SkippedSteps
from headway.console.live.findings import Findings
from headway.console.machine.peak import Peak
from headway.console.run import TERMINAL_OUTCOMES, Run
from headway.controller.client import Step
from headway.trainer.config import RunConfig
from headway.trainer.config.memory import model_shape

ANSWER_S = 1.0


@dataclass(frozen=True)
class Progress:
    """A run at one moment."""

    name: str
    phase: str
    """The driver's phase, the outcome of an ended run, ``starting`` before its driver answers,
    ``unreachable`` while no driver does, ``interrupted`` when an unfinished run has no process."""
    step: int
    """Completed steps."""
    steps: int
    loss: float | None = None
    """Loss of the newest completed step, in nats per token."""
    grad_norm: float | None = None
    lr: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    """0..1, of the measured peak; None while that is unknown."""
    eta_s: float | None = None
    generation: int = -1
    paused: bool = False
    skipped: int = 0
    """Steps skipped because loss or gradient norm was not finite, or a spike."""
    last_skipped: int | None = None
    """The newest of them, None without any."""
    waiting: str = ""
    """Why the run does not step now, as the driver or the command that starts it says; empty while
    it steps."""
    applied: int = 0
    """Newest steering command that all ranks applied."""
    detail: str = ""
    findings: tuple[str, ...] = ()
    """What is wrong while it trains on, such as a rank that computes slower than its peers."""
    status: Status | None = None
    """The driver's own answer, None while there is none."""

    @property
    def is_over(self) -> bool:
        """Whether the run has an outcome."""
        return self.phase in TERMINAL_OUTCOMES

    @property
    def state(self) -> str:
        """The phase, or that it is paused, or loads torch."""
        if self.status is not None and self.status.is_starting:
            return "starting"
        return "paused" if self.paused else self.phase

    def facts(self) -> list[str]:
        """What is known of loss, speed and remaining time, ready to print."""
        parts = []
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.skipped:
            last = "" if self.last_skipped is None else f", last at step {self.last_skipped}"
            parts.append(f"{counted(self.skipped, 'step')} skipped{last}")
        if self.tokens_per_s:
            parts.append(f"{self.tokens_per_s:,.0f} tokens/s")
        if self.mfu is not None:
            parts.append(f"MFU {self.mfu:.1%}")
        if self.eta_s is not None and not self.is_over:
            parts.append(f"ETA {clock(self.eta_s)}")
        if self.generation >= 0:
            parts.append(f"generation {self.generation}")
        return parts

    def line(self) -> str:
        """All of it on one line."""
        return "  ".join([f"step {self.step}/{self.steps}", *self.facts(), self.doing])

    @property
    def doing(self) -> str:
        """The state, and why it does not step."""
        return f"{self.state}: {self.waiting}" if self.waiting else self.state

    def record(self) -> dict[str, Any]:
        """Plain values for JSON, without the driver's own answer."""
        return {**asdict(replace(self, status=None)), "unix_s": time.time()}


class ProgressReader:
    """``read`` says where a run stands, and reads only what is new since the call before.

    One thread only.
    """

    def __init__(self, run: Run, peak: Peak | None = None) -> None:
        self._run, self.peak = run, peak
        self.config = run.config
        self._config_at_ns = run.folder.config.stat().st_mtime_ns
        self.newest = NewestSteps(run)
        self._skipped_steps = SkippedSteps(run)
        self._findings = Findings(run)
        self.new: list[Step] = []
        """The steps that the newest ``read`` found."""
        self.skipped: list[int] = []
        """Every skipped step of the run, as of the newest ``read``."""

    def read(self, *, num_ranks: int = 0) -> Progress:
        """Where the run stands now; waits at most ``ANSWER_S`` for its driver.

        ``num_ranks``: so many ranks are listed in ``status``; their counts are there in any case.
        """
        with self._run.reading():
            return self._read(num_ranks)

    def _read(self, num_ranks: int) -> Progress:
        self._read_config()
        self.new = self.newest.update()
        starter = self._run.starter
        run, last, rate = self._run, self.newest.last, self.newest.tokens_per_s()
        progress = Progress(
            name=run.name,
            phase=run.state.replace("live", "unreachable") if starter is None else "starting",
            step=last.step + 1 if last else 0,
            steps=self.config.train.steps,
            loss=last.loss if last else None,
            grad_norm=last.grad_norm if last else None,
            lr=last.lr if last else None,
            tokens_per_s=rate or None,
            generation=last.generation if last else -1,
            detail="" if starter is not None else run.fact("detail"),
            waiting="" if starter is None else starter.doing(),
            mfu=utilisation(self.config, self.peak, rate),
        )
        if not progress.is_over:
            progress = _ask_driver(run, progress, num_ranks)
            progress = replace(progress, findings=self._findings.update())
        if progress.status is None:  # only the driver knows at once
            progress = replace(progress, steps=run.total_steps)
        progress = self._with_skipped(progress)
        per_step = self.newest.seconds_per_step()
        if per_step and not progress.is_over and progress.phase != "interrupted":
            progress = replace(progress, eta_s=max(0, progress.steps - progress.step) * per_step)
        return progress

    def _with_skipped(self, progress: Progress) -> Progress:
        known = None if progress.status is None else progress.status.skipped
        self.skipped = steps = self._skipped_steps.update(self.new, known=known)
        return replace(
            progress, skipped=max(len(steps), known or 0), last_skipped=steps[-1] if steps else None
        )

    def _read_config(self) -> None:
        """It changes when a run is resumed with other settings."""
        at_ns = self._run.folder.config.stat().st_mtime_ns
        if at_ns != self._config_at_ns:
            self.config, self._config_at_ns = self._run.config, at_ns


def read_progress(run: Run, peak: Peak | None = None, *, num_ranks: int = 0) -> Progress:
    """Where ``run`` stands now, as ``ProgressReader.read``."""
    return ProgressReader(run, peak).read(num_ranks=num_ranks)


def utilisation(config: RunConfig, peak: Peak | None, tokens_per_s: float) -> float | None:
    """MFU of a run at this rate, 0..1, or None.

    None without a rate, or without a peak that was taken on an idle machine.
    """
    full = full_rate(config, peak)
    return None if full is None or not tokens_per_s else tokens_per_s / full


def full_rate(config: RunConfig, peak: Peak | None) -> float | None:
    """Tokens per second at which MFU would be 1, or None.

    None without a peak of an idle machine, or with layers of the user's own, whose FLOPs are not
    known.
    """
    if peak is None or not peak.is_idle or config.model.architecture.own_block is not None:
        return None
    flops = peak.of_run(config.train.dtype, config.parallel.world_size)
    flops_per_token = model_shape(config).flops_per_token
    return 1.0 / mfu(tokens_per_s=1.0, flops_per_token=flops_per_token, peak_flops=flops)


def _ask_driver(run: Run, progress: Progress, num_ranks: int) -> Progress:
    try:
        status = run.status(ANSWER_S, num_ranks=num_ranks)
    except DeadlineError:
        return progress
    return replace(
        progress,
        status=status,
        phase=status.phase,
        step=status.step if status.phase == "running" else max(progress.step, status.step),
        steps=status.steps,
        generation=status.generation,
        paused=status.paused,
        applied=status.applied,
        detail=status.detail,
        waiting=status.waiting,
    )


def clock(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
