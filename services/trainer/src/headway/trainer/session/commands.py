"""What the ranks agree on at each step and between steps, and what follows from it.

Every decision comes from the agreement, so all ranks make the same one at the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from headway.common.log import get_logger
from headway.common.node.flight_record import WAITING
from headway.common.plan.schedule.actions import Kind
from headway.trainer.comm.agreement import Agreement, all_reduce_agreement
from headway.trainer.data.batches import BatchReader
from headway.trainer.session.commits import Commits
from headway.trainer.session.context import StepContext
from headway.trainer.session.evaluation import Evaluation
from headway.trainer.session.hooks import Directive, StepHooks
from headway.trainer.state.train_state import TrainState

PAUSE_ROUND_S = 0.05
STILL_ROUNDS = 1200
"""Rounds of ``PAUSE_ROUND_S`` without progress of any store that end the wait at a run's end."""

OpenReader = Callable[[], BatchReader]
"""Opens the validation data at their first use."""

log = get_logger("session")


class ControlLoop:
    """The commands, votes and agreements of one generation."""

    def __init__(
        self, context: StepContext, state: TrainState, hooks: StepHooks, commits: Commits
    ) -> None:
        self._context, self._state = context, state
        self._hooks, self._commits = hooks, commits
        self.directive = Directive()
        """In force for the next step."""

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, extensions included."""
        return max(self._context.config.train.steps, self.directive.steps)

    def start(self) -> None:
        """Put the commands in force that the restored state had applied."""
        state = self._state
        self.directive = self._hooks.apply(state.step, state.command, state.command)
        if state.step >= self.total_steps:  # it may have been extended since
            self.round()

    def agree(self, *, is_step: bool = False, bad: bool = False, moved: bool = False) -> Agreement:
        """One agreement of all ranks, and its effects: commits, then commands.

        ``is_step``: it ends a step, which all ranks skip if any of them says ``bad``.
        ``moved``: this rank's store made progress since the last agreement.

        Raises:
            Aborted: the generation was fenced.
        """
        context, state, snapshots = self._context, self._state, self._context.snapshots
        mine = Agreement(
            command=self._hooks.command_seq(),
            sealed=snapshots.sealed,
            every=self._commits.pace.every,
            stop=self._hooks.stop_requested(),
            bad=bad,
            busy=snapshots.busy,
            moved=moved,
            full=snapshots.lacks_room,
        )
        groups = context.groups
        with context.agreement(state.step):
            agreed = all_reduce_agreement(groups.every_rank, groups.channels, mine, context.device)
        if is_step:
            state.skipped += agreed.bad
            state.skipped_in_row = state.skipped_in_row + 1 if agreed.bad else 0
        self._commits.commit(agreed)
        directive = self._hooks.apply(state.step, state.command, agreed.command)
        self._commits.follow(directive, is_new=agreed.command > state.command)
        state.command = max(state.command, agreed.command)
        state.asked += directive.asked
        self.directive = replace(directive, stop=True) if agreed.stop else directive
        return agreed

    def round(self, *, moved: bool = False, look_at_state: bool = False) -> Agreement:
        """Agree outside of a step: commits what is sealed and receives new commands.

        ``look_at_state``: check that the state is finite, because no later step will.
        """
        snapshots = self._context.snapshots
        with self._context.recorder.record(Kind.SNAPSHOT_WAIT, step=self._state.step):
            snapshots.finish()
        with self._context.recorder.record(Kind.NORM, step=self._state.step, flags=WAITING):
            # a state that is committed while the run is paused was not used by a step either
            look_at_state = look_at_state or snapshots.has_uncommitted
            is_bad = look_at_state and not self._is_state_finite()
            return self.agree(bad=is_bad, moved=moved)

    def carry_out(self, evaluation: Evaluation, validation: OpenReader) -> None:
        """Do the evaluations and samples that were asked for; all ranks call this together."""
        state, step = self._state, self._state.step
        if not state.asked:
            return
        for sequence in state.asked:
            if self._hooks.is_answered(sequence):
                continue
            command = self._hooks.command(sequence)
            if command.operation == "evaluate":
                self._hooks.begin_eval()
                self._hooks.on_eval(step, evaluation.loss(step, validation()), sequence)
            else:
                prompt, count = list(command.tokens), command.count
                tokens = evaluation.sample(step, prompt, count, temperature=command.value)
                self._hooks.on_sample(sequence, step, prompt, tokens)
        state.asked = ()
        self._hooks.on_applied(state.command)

    def pause(self, evaluation: Evaluation, validation: OpenReader) -> None:
        """Wait between two steps until a command resumes or stops the run."""
        self._hooks.on_pause(True)
        while self.directive.pause and not self.directive.stop:
            time.sleep(PAUSE_ROUND_S)
            self.round()
            self.carry_out(evaluation, validation)
        self._hooks.on_pause(False)

    def finish(self, store_moved: Callable[[], bool]) -> bool:
        """Commit the last snapshot; False if it could not be marked durable.

        It is marked once every store has released the one before. If no store makes progress for
        ``STILL_ROUNDS``, it stays in the arenas only.
        """
        agreed, num_still = self.round(look_at_state=True), 0
        is_good = self._state.skipped_in_row == 0 and not agreed.bad
        # counted, not timed: all ranks must end the loop together
        while agreed.busy and num_still < STILL_ROUNDS:
            time.sleep(PAUSE_ROUND_S)
            agreed = self.round(moved=store_moved())
            num_still = 0 if agreed.moved else num_still + 1
        durable = is_good and not agreed.busy
        reason = ""
        if not is_good:
            reason = "its last step was skipped, or its state is not finite"
        elif agreed.busy:
            waited_s = STILL_ROUNDS * PAUSE_ROUND_S
            reason = f"a store has made no progress with an earlier one for {waited_s:g} s"
        self._commits.begin(durable=durable, is_last=True)
        if self.round().bad and durable:
            durable, reason = False, "its state is not finite"
        if reason:
            log.warning(f"the last step is not made durable: {reason}", step=self._state.step)
        return durable

    def _is_state_finite(self) -> bool:
        return all(flat.is_state_finite() for flat in self._context.flats)
