"""Everything that can be asked of a run, one method each.

Commands and buttons are made from the methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from headway.common.errors import InputError
from headway.console.steering.operations import Word, operation, operations_of

if TYPE_CHECKING:
    from headway.common.node.run_dir import RunDir
    from headway.common.wire.messages.driver import CommandOperation
    from headway.trainer.config import RunConfig

FAULTS = (
    "kill, stop, freeze, debugger, slow, slow_disk, full_disk, locked_journal, "
    "damaged_arena_header, flipped_snapshot_bit, spawn_failure, silent_node, returning_node, "
    "clock_step, oom, hang, hang_before_collective, hang_in_data, gil, gc, nan, flip, "
    "flip_weight, mismatch, skip, bandwidth, loss, delay, partition, kernel, counter or gpu"
)


def _check_victim(rank: int | None, target: str) -> None:
    """Raises InputError unless exactly one of the two says what to break."""
    if (rank is None) == (not target):
        raise InputError(
            "nothing to break" if rank is None else "two things to break",
            remedy="give --rank R, or --service NAME with --node N",
        )


def _fault_question(arguments: Mapping[str, Any]) -> str:
    rank, target, node = (arguments[key] for key in ("rank", "target", "node"))
    _check_victim(rank, target)
    where = "the driver's node" if node is None else f"node {node}"
    if rank is not None:
        victim = f"the worker of rank {rank}"
    elif target == "node":
        victim = where
    else:
        victim = "what all nodes share" if target == "run" else f"{target} of {where}"
    return f"inject {arguments['fault']} into {victim} of run {arguments['run']}?"


class Steering:
    """The operations. Those sent to the driver return the command's sequence number.

    It is 0 if ranks do not apply the command. ``fork`` returns the new run.

    Raises, in every method:
        InputError: an argument is wrong, the run is over, or none of its processes is running.
        RemoteError: the driver refused it.
        DeadlineError: no driver took it.
    """

    if TYPE_CHECKING:  # Run has them, and importing it here would slow every --help

        @property
        def name(self) -> str: ...
        @property
        def config(self) -> RunConfig: ...
        @property
        def folder(self) -> RunDir: ...
        @property
        def is_elsewhere(self) -> bool: ...
        def command(self, operation: CommandOperation, **fields: Any) -> int: ...

    @operation("headway pause --wait")
    def pause(self) -> int:
        """Hold all ranks at their next step."""
        return self.command("pause")

    @operation("headway resume")
    def resume(self) -> int:
        """Resume a paused run."""
        return self.command("resume")

    @operation("headway checkpoint --wait")
    def checkpoint(self) -> int:
        """Write a checkpoint of the state after the next step."""
        return self.command("checkpoint")

    @operation("headway stop", "headway stop tiny --now", has_own_command=True)
    def stop(self) -> int:
        """Stop at the next step, with a checkpoint."""
        return self.command("stop")

    @operation("headway set lr=3e-4", "headway set tiny lr=3e-4 --wait")
    def set(
        self,
        *,
        lr: Annotated[float, Word("the learning rate, above 0")],
        force: Annotated[bool, Word("Accept a value far above the configured one.")] = False,
    ) -> int:
        """Change the learning rate from the next step on, until `unset`.

        Raises:
            InputError: ``lr`` is not above 0, or so far above ``optim.lr`` that it takes ``force``.
        """
        from headway.trainer.config import check_setting

        check_setting("lr", lr, self.config, force=force)
        return self.command("set", name="lr", value=lr, force=force)

    @operation("headway unset lr")
    def unset(self, name: Annotated[str, Word("The setting: lr.", "lr")] = "lr") -> int:
        """Undo `set`: the schedule decides again from the next step on."""
        from headway.trainer.config import check_name

        check_name(name)
        return self.command("unset", name=name)

    @operation("headway evaluate")
    def evaluate(self) -> int:
        """Measure the validation loss now.

        ``result`` waits for it.
        """
        return self.command("evaluate")

    @operation(
        "headway sample --prompt 'def main('",
        "headway sample --temperature 0",
        "headway sample models/smollm --prompt 'Once' --count 3 --top-p 0.9",
        has_own_command=True,
    )
    def sample(
        self,
        *,
        prompt: Annotated[str, Word("The text to continue; none begins a new one.", "TEXT")] = "",
        tokens: Annotated[int, Word("How many tokens to write.", "N")] = 64,
        temperature: Annotated[
            float, Word("0 for the likeliest tokens; higher is more varied.", "T")
        ] = 0.8,
    ) -> int:
        """Generate text from a prompt.

        ``result`` waits for what it wrote, ``samples`` lists all.

        Raises:
            InputError: the prompt and ``tokens`` exceed the model's length, or the corpus with its
                tokenizer is not on this machine.
        """
        from headway.console.folder.samples import encode
        from headway.trainer.config import check_sample

        encoded = encode(self.config, prompt)
        check_sample(encoded, tokens, temperature, self.config)
        return self.command("sample", tokens=encoded, count=tokens, value=temperature)

    @operation("headway extend 100", "headway extend tiny 100 --wait")
    def extend(self, steps: Annotated[int, Word("Number of additional steps.", "STEPS")]) -> int:
        """Train more steps than configured.

        The learning rate's schedule reaches to the new end from the next step on.
        """
        return self.command("extend", count=steps)

    @operation(
        "headway rollback 80",
        asks=lambda a: (
            f"go back to step {a['step']} of run {a['run']}? Its newer checkpoints are removed"
        ),
        is_step=False,
    )
    def rollback(self, step: Annotated[int, Word("Step of a complete checkpoint.", "STEP")]) -> int:
        """Continue from an earlier checkpoint.

        What came after it is trained again; newer checkpoints are removed.

        Raises:
            InputError: there is no checkpoint of that step; the available steps are listed.
        """
        from headway.console.steering.forking import checkpoint_of

        if not self.is_elsewhere:  # the driver looks in any case
            checkpoint_of(self.folder.checkpoints, step)
        return self.command("rollback", step=step)

    @operation(
        "headway fork tiny-b --set optim.lr=1e-3",
        "headway fork tiny tiny-b --step 80",
        is_step=False,
        has_own_command=True,
    )
    def fork(
        self,
        name: Annotated[str, Word("Name of the new run.", "NEW")],
        *,
        step: Annotated[
            int | None, Word("Step of the checkpoint; the newest by default.", "STEP")
        ] = None,
        changes: Annotated[
            Sequence[str],
            Word("Change one setting, e.g. optim.lr=1e-3; repeatable.", "KEY=VALUE", ("--set",)),
        ] = (),
    ) -> Self:
        """Make a new run from a checkpoint, with changed settings.

        This run stays as it is. The new one is not started: `headway run` or ``Cluster.launch``
        with its configuration and name does that.

        Raises:
            InputError: there is no such checkpoint, the name is taken, or the checkpoint does not
                fit the changed configuration.
        """
        from headway.console.steering.forking import fork

        this: Any = self  # a Run, which is above this class
        made: Self = type(this)(fork(this, name, step=step, changes=changes))
        return made

    @operation(
        "headway evict 1",
        asks=lambda a: f"take node {a['node']} out of run {a['run']} for good?",
        is_step=False,
    )
    def evict(self, node: Annotated[int, Word("Number of the node, from 0.", "NODE")]) -> int:
        """Remove a node for good; a spare takes over its ranks."""
        return self.command("evict", node=node)

    @operation(
        "headway drain 1",
        asks=lambda a: f"take node {a['node']} out of run {a['run']} after a checkpoint?",
        is_step=False,
    )
    def drain(
        self,
        node: Annotated[int, Word("Number of the node, from 0.", "NODE")],
        *,
        notice_s: Annotated[
            float,
            Word("Longest wait for the checkpoint; 300 by default.", "SECONDS", ("--notice",)),
        ] = 300.0,
    ) -> int:
        """Remove a node after a checkpoint; a spare takes over."""
        return self.command("drain", node=node, duration_s=notice_s)

    @operation(
        "headway inject kill --rank 2",
        "headway inject freeze --service dataloader --node 0 --for 5",
        asks=_fault_question,
        is_step=False,
    )
    def inject(
        self,
        fault: Annotated[str, Word(f"{FAULTS}.", "FAULT")],
        *,
        rank: Annotated[int | None, Word("Break the worker of this rank.", "RANK")] = None,
        target: Annotated[
            str,
            Word(
                "Break this instead: dataloader, ckpt_store, agent, zygote, executor, init, "
                "monitor or driver; a whole `node`; or `run`, for what all nodes share.",
                "NAME",
                ("--service", "--target"),
            ),
        ] = "",
        node: Annotated[
            int | None, Word("The node of that service; the driver's by default.", "NODE")
        ] = None,
        duration_s: Annotated[
            float,
            Word("How long the fault lasts; 0 for its default.", "SECONDS", ("--for",)),
        ] = 0.0,
    ) -> int:
        """Break something on purpose, to watch the run recover.

        Exactly one of ``rank`` and ``target`` is needed: no rank is ever chosen by itself.
        """
        _check_victim(rank, target)
        if rank is not None:
            self.check_rank(rank)
        return self.command(
            "inject",
            name=target or "worker",
            fault=fault,
            rank=-1 if rank is None else rank,
            node=-1 if node is None else node,
            duration_s=duration_s,
        )

    def check_rank(self, rank: int) -> None:
        """Raises InputError when the run has no such rank."""
        world = self.config.parallel.world_size
        if not 0 <= rank < world:
            raise InputError(
                f"rank {rank} is not in run {self.name}", remedy=f"use 0 to {world - 1}"
            )


OPERATIONS = operations_of(Steering)
"""By name, in the order of the help."""
