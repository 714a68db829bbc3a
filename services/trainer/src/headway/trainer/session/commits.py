"""Which states are sealed, committed and made durable: the same decision on every rank.

A snapshot is begun every ``ckpt.snapshot_every`` steps, or as often as the ranks have agreed if
that is ``auto``, and besides after a step at which a command
took effect or a durable snapshot is due. The decisions rest on the step's number and on what the
ranks agreed on, never on what one rank alone knows.
"""

from __future__ import annotations

from dataclasses import replace

from headway.common.plan.schedule.actions import Kind
from headway.trainer.comm.agreement import Agreement
from headway.trainer.session.context import StepContext
from headway.trainer.session.hooks import Directive, StepHooks
from headway.trainer.session.snapshot_pace import SnapshotPace
from headway.trainer.state.train_state import TrainState


class Commits:
    """Begins, commits and marks the snapshots of one generation."""

    def __init__(self, context: StepContext, state: TrainState, hooks: StepHooks) -> None:
        self._context, self._state, self._hooks = context, state, hooks
        self.pace = SnapshotPace(context.config.ckpt.snapshot_every)
        self._every = self.pace.every
        self._is_busy = False
        self._has_new_command = False
        self._doubtful_checkpoint_requested = False
        self._num_postponed = 0  # in a row, for lack of memory
        self._no_mark_before = 0

    def begin(self, *, durable: bool, is_last: bool = False) -> None:
        """Begin sealing the present state; recorded as part of the step before."""
        with self._context.recorder.record(Kind.SNAPSHOT, step=self._state.step - 1):
            self._begin(durable=durable, is_last=is_last)

    def after_step(self) -> None:
        """Begin the snapshot of a step's result if one is due.

        It is marked durable when that is due and no rank's store is still busy. The call is
        recorded at every step, as its end.
        """
        state, ckpt = self._state, self._context.config.ckpt
        with self._context.recorder.record(Kind.SNAPSHOT, step=state.step - 1):
            state.durable_due |= state.step % ckpt.durable_every == 0
            durable = self._take_mark()
            if durable or self._has_new_command or state.step % self._every == 0:
                self._begin(durable=durable)

    def commit(self, agreed: Agreement) -> None:
        """Commit what all ranks have sealed.

        A state whose own step was not finite is kept in memory, where recovery needs it, but does
        not become a checkpoint, nor does a store make it one by itself; the next finite one does.
        Neither does a state beside which some rank has no memory for further snapshots; it is
        tried again later, less and less often.
        """
        snapshots, state = self._context.snapshots, self._state
        is_allowed = self._doubtful_checkpoint_requested
        is_bad = agreed.bad or state.skipped_in_row > 0
        snapshots.judge(is_doubtful=is_bad and not is_allowed)
        if snapshots.awaits_commit:
            is_refused = agreed.bad and not is_allowed
            if is_refused or agreed.full:
                state.durable_due |= snapshots.withdraw()
            self._num_postponed = self._num_postponed + 1 if agreed.full else 0
            pause = min(1 << self._num_postponed, self._context.config.ckpt.durable_every)
            self._no_mark_before = state.step + pause if agreed.full else 0
        snapshots.commit(agreed.sealed)
        self._is_busy, self._every = agreed.busy, agreed.every

    def follow(self, directive: Directive, *, is_new: bool) -> None:
        """Note what the agreed commands want of the next snapshot.

        With ``is_new`` one of them is new, so that a recovery must not go back to before its
        effect.
        """
        state = self._state
        self._has_new_command |= is_new
        state.durable_due |= directive.checkpoint
        self._doubtful_checkpoint_requested = state.skipped_in_row > 0 and (
            directive.checkpoint or (self._doubtful_checkpoint_requested and state.durable_due)
        )

    def _take_mark(self) -> bool:
        """Whether the snapshot of the present state is marked durable."""
        state = self._state
        if not state.durable_due or self._is_busy or state.step < self._no_mark_before:
            return False
        if state.skipped_in_row > 0:
            if not self._doubtful_checkpoint_requested:
                return False
            self._hooks.on_doubtful_checkpoint(state.step, state.step - state.skipped_in_row)
        state.durable_due = False
        return True

    def _begin(self, *, durable: bool, is_last: bool = False) -> None:
        context, step = self._context, self._state.step
        extra = replace(
            self._state,
            durable_due=self._state.durable_due and not durable,
            fingerprint=context.fingerprints["train"],
            validation_fingerprint=context.fingerprints["validation"],
        )
        generation = context.groups.generation
        is_doubtful = self._state.skipped_in_row > 0 and not durable
        context.snapshots.begin(
            step, generation, extra, durable=durable, is_last=is_last, is_doubtful=is_doubtful
        )
        self._has_new_command = False
