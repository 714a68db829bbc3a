"""Judges the summaries of runs with known stragglers, and of clean ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from headway.health.slowness.findings import Slowness
from headway.health.slowness.judge import slowness_of
from headway.health.slowness.reading import rows_of
from headway.health.slowness.steps import WARM_STEPS, table_of

from benchmarks.campaign.slow_draw import FACTORS, NUM_STEPS, Draw, draw
from benchmarks.campaign.slow_play import summaries
from benchmarks.campaign.slow_rows import spoiled

ONSET_STEPS = 2
BINS = 25
EXACT, LITTLE, CAUSE, OFF, SECONDS, GIB = 0.97, 0.90, 0.95, 0.05, 5.0, 4.0


@dataclass(frozen=True, slots=True)
class SlowOutcome:
    """A judgement beside the truth."""

    draw: Draw
    said: tuple[Slowness, ...]

    @property
    def found(self) -> list[Slowness]:
        """Without the note about a stage that has more to do, if it is right."""
        return [one for one in self.said if not self._is_note(one)]

    @property
    def right(self) -> list[bool]:
        """Of each finding, whether subject, cause, and that it is over or not are right."""
        both = zip(self.found, self.subject, strict=True)
        return [
            is_right and one.cause == self.draw.kind and self._is_end(one) for one, is_right in both
        ]

    @property
    def subject(self) -> list[bool]:
        """Of each finding, whether its subject is right."""
        return [self._is_subject(one) for one in self.found]

    @property
    def ends(self) -> list[bool]:
        """Of each finding about the right subject, whether it is over exactly if the fault is."""
        both = zip(self.found, self.subject, strict=True)
        return [self._is_end(one) for one, is_right in both if is_right]

    @property
    def cause(self) -> str:
        """Of the finding with the right subject, else of the worst one."""
        both = zip(self.found, self.subject, strict=True)
        fitting = [one for one, is_right in both if is_right] or self.found
        return fitting[0].cause if fitting else "nothing"

    @property
    def is_noted(self) -> bool | None:
        """Whether a stage that has more to do was noted; None if there is none."""
        return any(map(self._is_note, self.said)) if self.draw.uneven[0] >= 0 else None

    @property
    def onset(self) -> int | None:
        """How many steps the beginning is off, None if it is not known to have one."""
        fitting = [one for one, is_right in zip(self.found, self.right, strict=True) if is_right]
        if not fitting or self.draw.since <= WARM_STEPS or self.draw.rank < 0:
            return None
        since = fitting[0].since if fitting[0].since is not None else self.draw.first_step
        return abs(since - self.draw.first_step - self.draw.since)

    def _is_note(self, one: Slowness) -> bool:
        is_uneven = one.place == f"stage {self.draw.uneven[0]}"
        return is_uneven and one.cause == "stage_imbalance" and not one.ranks

    def _is_end(self, one: Slowness) -> bool:
        return (one.until is not None) == (self.draw.until < NUM_STEPS)

    def _is_subject(self, one: Slowness) -> bool:
        draw = self.draw
        if draw.kind is None:
            return False
        named = set(one.ranks)
        if draw.kind == "stage_imbalance":
            return not named and one.place == f"stage {draw.stage}"
        if draw.rank < 0:
            return not named
        return draw.rank in named and named <= draw.ranks


def judge_slow(seed: int, most: int, *, clean: float = 0.4) -> SlowOutcome:
    """Draw, play and judge one run; rows are missing, double and in any order."""
    one = draw(seed, most, clean=clean)
    table = table_of(rows_of(spoiled(one, summaries(one))), one.layout.grid)
    return SlowOutcome(one, tuple(slowness_of(table)))


def figures(outcomes: Sequence[SlowOutcome]) -> dict[str, Any]:
    """Precision, recall by factor, causes, false alarms and calibration."""
    slow = [one for one in outcomes if one.draw.kind is not None]
    clean = [one for one in outcomes if one.draw.kind is None]
    large = [one for one in slow if one.draw.factor >= 1.2]
    found = [one for one in slow if any(one.subject)]
    claims = [(finding.certainty, is_right) for one in outcomes
              for finding, is_right in zip(one.found, one.right, strict=True)]  # fmt: skip
    onsets = [one.onset for one in slow if one.onset is not None]
    confusion = Counter((str(one.draw.kind), one.cause) for one in outcomes)
    false = sum(len(one.found) for one in clean)
    drawn = Counter(one.draw.factor for one in slow)
    return {
        "runs": len(outcomes), "slow": len(slow), "clean_steps": len(clean) * NUM_STEPS,
        "precision": _share([is_right for one in large for is_right in one.subject]),
        "drawn": {str(factor): count for factor, count in sorted(drawn.items())},
        "recall": {
            str(factor): _share([any(one.subject) for one in slow if one.draw.factor == factor])
            for factor in FACTORS
            if drawn[factor]
        },
        "recall_1.2_up": _share([any(one.subject) for one in large]),
        "over_or_not": _share([is_right for one in slow for is_right in one.ends]),
        "uneven_noted": _share([one.is_noted for one in outcomes if one.is_noted is not None]),
        "cause": _share([one.cause == one.draw.kind for one in found]),
        "false_alarms_per_10_000_steps": round(1e4 * false / max(1, len(clean) * NUM_STEPS), 2),
        "calibration_error": calibration_error(claims),
        "onset_within_2_steps": _share([off <= ONSET_STEPS for off in onsets]),
        "confusion": {
            kind: {said: count for (k, said), count in sorted(confusion.items()) if k == kind}
            for kind in sorted({str(one.draw.kind) for one in outcomes})
        },
        "wrong": [_row(one) for one in outcomes if _is_wrong(one)][:40],
    }  # fmt: skip


def missed(found: dict[str, Any]) -> list[str]:
    """The goals that figures do not reach."""
    scale, little = found["scale"], found["recall"].get("1.1")
    goals = {
        f"precision {found['precision']} < {EXACT}": found["precision"] < EXACT,
        f"recall from 1.2x on {found['recall_1.2_up']} < {EXACT}": found["recall_1.2_up"] < EXACT,
        f"recall of 1.1x {little} < {LITTLE}": little is None or little < LITTLE,
        f"cause {found['cause']} < {CAUSE}": found["cause"] < CAUSE,
        f"{found['false_alarms_per_10_000_steps']} false alarms per 10,000 steps": found[
            "false_alarms_per_10_000_steps"
        ]
        >= 1.0,
        f"calibration error {found['calibration_error']} > {OFF}": found["calibration_error"] > OFF,
        f"10,000 ranks: {scale}": not scale["is_right"]
        or scale["seconds"] > SECONDS
        or scale["peak_gib"] > GIB,
    }
    return [text for text, is_missed in goals.items() if is_missed]


def calibration_error(claims: Sequence[tuple[float, bool]]) -> float:
    """Mean distance between the confidence of findings and how many of them are right."""
    if not claims:
        return 0.0
    sure, right = np.array([one for one, _ in claims]), np.array([one for _, one in claims])
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    off = [
        (bins == one).mean() * abs(sure[bins == one].mean() - right[bins == one].mean())
        for one in np.unique(bins)
    ]
    return round(float(sum(off)), 4)


def _share(values: Sequence[bool]) -> float:
    return round(sum(values) / len(values), 4) if values else 1.0


def _is_wrong(one: SlowOutcome) -> bool:
    return not all(one.right) or (one.draw.kind is not None and not one.found)


def _row(one: SlowOutcome) -> str:
    draw = one.draw
    said = "; ".join(
        f"{found.cause} of {list(found.ranks)[:8] or found.place} {found.excess:.2f} since "
        f"{found.since} until {found.until}"
        for found in one.said
    )
    return (
        f"seed {draw.seed}: {draw.kind} {draw.factor} of {draw.rank} stage {draw.stage} since "
        f"{draw.since} until {draw.until}, replaced at {draw.replaced_at}, uneven {draw.uneven}, "
        f"jitter {draw.jitter} in {draw.layout}; said {said or 'nothing'}"
    )
