"""The crash brake: notice a run that keeps falling back to the same step.

It counts what led back to a step, and names what has done so too often to be an accident.
"""

from __future__ import annotations

from collections.abc import Iterable

RECOVERIES_PER_CRASH = 4
"""Recoveries may have many causes; so many times ``max_crashes`` of them at one step have one."""
MAX_COUNTS = 64
"""So many counts are kept, the newest:
a long run goes back to many steps, and the journal keeps them all."""
MAX_SIGNATURE = 300
PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
"""Before the second generation after the same failure at the same step; then four times as long
each, at most the longest: what fills up or is restarted meanwhile may recover by itself."""


class CrashLoopBreaker:
    """Counts by signature of a failure, "" for any, and by the step gone back to.

    Args:
        max_crashes: equal failures at one step that end the run.
        crashes: counts of the driver before, as ``Memory.crashes``.
        causes: what that driver had not counted yet, as ``Memory.causes``.
    """

    def __init__(
        self,
        max_crashes: int,
        crashes: Iterable[tuple[str, int, int]] = (),
        causes: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.max_crashes = max_crashes
        self._counts = {(signature, step): count for signature, step, count in crashes}
        self._causes = dict(causes)
        self._suspects: dict[str, str] = {}
        self._reason = ""
        self._is_recovery = bool(self._causes)
        self.pause_s = 0.0
        """How long the next generation waits after what was counted last."""
        self.repeated = ""
        """What it waits for, as a sentence."""

    def blame(self, signature: str, sentence: str) -> None:
        """Note what a rank did or suffered; the first sentence for a signature stays."""
        self._causes.setdefault(signature[:MAX_SIGNATURE], sentence[:MAX_SIGNATURE])
        self._is_recovery = True

    def suspect(self, signature: str, sentence: str) -> None:
        """Note what a rank suffered that is a cause only if there is no other, such as a death."""
        self._suspects.setdefault(signature[:MAX_SIGNATURE], sentence[:MAX_SIGNATURE])
        self._is_recovery = True

    def fenced(self, reason: str, *, is_counted: bool) -> None:
        """Note why a generation ended; it counts as the cause when nobody else is to blame.

        Not counted are the user's wishes, and a driver's death, which is not the ranks' fault.
        """
        if is_counted:
            self._reason, self._is_recovery = reason[:MAX_SIGNATURE], True

    def bad_copy(self) -> None:
        """Note that a copy of the state was bad: a recovery, but not a crash of the code."""
        self._is_recovery = True
        self._reason, self._suspects = "", {}  # what survivors felt of it

    def count(self, step: int) -> str:
        """Count what led back to ``step``; returns the cause that ends the run, else ""."""
        unexplained = {self._reason: self._reason} if self._reason else {}
        causes = self._causes or self._suspects or unexplained
        is_recovery, last = self._is_recovery, next(reversed(causes.values()), "a bad snapshot")
        self._causes, self._suspects, self._reason, self._is_recovery = {}, {}, "", False
        self.pause_s, self.repeated = 0.0, ""
        for signature, sentence in causes.items():
            count = self._add(signature, step)
            if count >= self.max_crashes:
                return f"{sentence} ({self.max_crashes} times at step {step})"
            if count > 1:
                pause_s = min(PAUSE_S * 4.0 ** (count - 2), LONGEST_PAUSE_S)
                self.pause_s = max(self.pause_s, pause_s)
                self.repeated = f"{sentence} ({count} times at step {step})"
        limit = RECOVERIES_PER_CRASH * self.max_crashes
        if is_recovery and self._add("", step) >= limit:
            return f"{limit} recoveries at step {step}, the last: {last}"
        return ""

    def _add(self, signature: str, step: int) -> int:
        count = self._counts.pop((signature, step), 0) + 1
        self._counts[signature, step] = count
        while len(self._counts) > MAX_COUNTS:
            del self._counts[next(iter(self._counts))]
        return count

    @property
    def crashes(self) -> tuple[tuple[str, int, int], ...]:
        """The counts, the newest last."""
        return tuple((signature, step, count) for (signature, step), count in self._counts.items())

    @property
    def causes(self) -> tuple[tuple[str, str], ...]:
        """What is to be counted when the next generation begins."""
        return tuple(self._causes.items())
