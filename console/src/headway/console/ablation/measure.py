"""Measures a ladder in rounds and keeps the record up to date after every trial."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from headway.common.config import to_dict
from headway.common.errors import HeadwayError, InputError
from headway.console.ablation.ladder import Ladder, Variant, climb, turns
from headway.console.ablation.record import STAND_IN, Measured, Measurements, Record
from headway.console.ablation.rungs import choose
from headway.console.ablation.shown import Ablation
from headway.console.machine import preflight
from headway.console.machine.data_sheet import sheet_flops
from headway.console.machine.peak import machine_peak
from headway.trainer.client import Outcome, Trial, TrialRunner
from headway.trainer.config.memory import model_shape

ROUNDS, STEPS = 5, 12
FOLDER = Path("ablations")
"""Where results are written if no folder is given."""

Report = Callable[[str], None]


class Runner(Protocol):
    """What carries out trials, such as a ``TrialRunner``."""

    def run(self, trial: Trial) -> Outcome:
        """Carry out one."""


def ablate(
    config: str | Path,
    overrides: Sequence[str] = (),
    *,
    rungs: Sequence[str] = (),
    rounds: int = ROUNDS,
    steps: int = STEPS,
    stand_in: bool = False,
    out: str | Path | None = None,
    report: Report = lambda _: None,
) -> Ablation:
    """Measure what each technique is worth for the run in the file ``config``, on this machine.

    All variants train in turns from the same first weights on the same tokens. An interrupt ends
    every process, and what was measured until then is returned and stays in ``ablate.json``.

    Args:
        overrides: changed settings, ``key=value``.
        rungs: names of techniques in their order; all by default (``rungs.RUNGS``).
        rounds: turns of every variant; three or more show a spread.
        steps: steps of a turn that count, with the batch of the file.
        stand_in: computation sleeps for its measured time, messages are real.
        out: a folder that does not exist yet; ``ablations/NAME`` by default.
        report: receives a line per trial.

    Raises:
        InputError: bad configuration or arguments. HeadwayError: the baseline cannot be trained.
        KeyboardInterrupt: interrupted before anything was measured.
    """
    file = Path(config)
    if rounds < 1:
        raise InputError(f"--rounds {rounds} is below 1", remedy="use 5")
    ladder = climb(file, overrides, choose(rungs), steps=steps, stand_in=stand_in)
    preflight.check_torch()
    with _new_folder(file.stem, out) as folder:
        report(ladder.device)
        for name, why in ladder.left_out.items():
            report(f"left out: {name} ({why})")
        if stand_in:
            report(STAND_IN)
        else:
            preflight.prepare_corpus(ladder.variants[0].config, report)
        record = _new_record(ladder, rounds, stand_in=stand_in)
        try:
            with TrialRunner() as runner:
                measure(record, ladder.variants, runner, folder, report)
        except (KeyboardInterrupt, HeadwayError) as error:
            if not record.baseline.trials:
                raise
            if isinstance(error, HeadwayError):
                report(f"what was measured until then is in {folder}")
                raise
        return Ablation(record, folder)


def measure(
    record: Record, variants: Sequence[Variant], runner: Runner, folder: Path, report: Report
) -> None:
    """Carry out all turns; ``record`` and its file in ``folder`` are complete up to every moment.

    A variant that fails is given up, with its error in the record.

    Raises:
        HeadwayError: the baseline failed, which everything is compared with.
    """
    by_name = {tuple(one.rungs): one for one in record.variants}
    began_s, done, total = time.monotonic(), 0, record.rounds * len(variants)
    record.interrupted = True
    try:
        for number, variant in turns(variants, record.rounds):
            found = by_name[variant.rungs]
            done += 1
            if found.error:
                continue
            trial = Trial(to_dict(variant.config), variant.reads_ahead, record.stand_in)
            outcome = runner.run(trial)
            where = f"{done}/{total}  {variant.name}"
            if outcome.error:
                found.error = outcome.error
                report(f"{where}: given up: {outcome.error}")
                if not variant.rungs:
                    raise HeadwayError(
                        f"the baseline cannot be trained: {outcome.error}",
                        remedy="try the configuration with `headway run`",
                    )
                continue
            found.trials.append(
                Measured(number, outcome.step_s, outcome.eval_loss, outcome.peak_bytes)
            )
            record.took_s = round(time.monotonic() - began_s, 1)
            record.write(folder)
            report(f"{where}: {found.rates[number]:,.0f} tokens/s")
        record.interrupted = False
    finally:
        record.took_s = round(time.monotonic() - began_s, 1)
        if record.baseline.trials:
            record.write(folder)


@contextlib.contextmanager
def _new_folder(name: str, out: str | Path | None) -> Iterator[Path]:
    """A new folder of the results, which is removed if nothing was written to it."""
    folder = _claimed(name, out)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _claimed(name: str, out: str | Path | None) -> Path:
    """Made at once: another command on the same file takes another one."""
    if out is not None:
        try:
            Path(out).mkdir(parents=True)
        except FileExistsError:
            remedy = "choose a folder that does not exist"
            raise InputError(f"--out {out} exists", remedy=remedy) from None
        except OSError as error:
            remedy = "choose a folder that you may write to"
            raise InputError(f"--out {out}: {error.strerror}", remedy=remedy) from None
        return Path(out)
    for number in itertools.count(1):
        folder = FOLDER / (f"{name}-{number}" if number > 1 else name)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError("numbers do not end")


def _new_record(ladder: Ladder, rounds: int, *, stand_in: bool) -> Record:
    baseline = ladder.variants[0]
    record = Record(
        titles={rung.name: rung.title for rung in ladder.rungs},
        left_out=dict(ladder.left_out),
        config=to_dict(baseline.config),
        variants=[_unmeasured(variant) for variant in ladder.variants],
        rounds=rounds,
        tokens=baseline.config.train.steps * baseline.tokens_per_step,
        stand_in=stand_in,
        note=STAND_IN if stand_in else "",
    )
    if not stand_in:  # which computes nothing that could be compared with a peak
        train, world = baseline.config.train, baseline.config.parallel.world_size
        peak = machine_peak(train.device)
        record.peak_flops = peak.of_run(train.dtype, world)
        record.machine["processor"] = peak.name
        sheet = sheet_flops(peak.name, train.dtype)
        record.sheet_flops = None if sheet is None else sheet * world
    return record


def _unmeasured(variant: Variant) -> Measurements:
    shape = model_shape(variant.config)
    return Measurements(
        rungs=list(variant.rungs),
        settings=dict(variant.settings),
        tokens_per_step=variant.tokens_per_step,
        warmup_steps=variant.warmup_steps,
        flops_per_token=shape.flops_per_token,
        full_flops_per_token=shape.full_flops_per_token,
    )
