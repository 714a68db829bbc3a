"""Everything that can be asked of a live run: one method each.

``OPERATIONS`` collects them. A shell command (``commands/steering.py``), the lines that a button
shows (``as_cli``, ``as_python``) and the method itself come from the same signature, so a new
operation is a new method here:

- a positional parameter is a word after RUN on the command line: ``headway evict RUN NODE``;
- a keyword without a default is written KEY=VALUE: ``headway set RUN lr=3e-4``;
- a keyword with a default is an option; ``Word`` gives its help and its name on the command line;
- the first line of the docstring is the help.
"""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from headway.common.errors import InputError
from headway.console.hints import runs_dir_option

if TYPE_CHECKING:
    from headway.trainer.config import RunConfig

F = TypeVar("F", bound=Callable[..., int])
FAULTS = (
    "kill, stop, freeze, debugger, slow_disk, full_disk, locked_journal, damaged_arena_header, "
    "flipped_snapshot_bit, spawn_failure, silent_node, returning_node or clock_step"
)


@dataclass(frozen=True)
class Word:
    """How a parameter appears on the command line."""

    help: str
    metavar: str = ""
    """What stands for the value in the usage line; the parameter's name by default."""
    flags: tuple[str, ...] = ()
    """Names of the option; ``--parameter-name`` by default."""


@dataclass(frozen=True)
class Operation:
    """One operation, as described by its method."""

    method: Callable[..., int]
    examples: tuple[str, ...]
    """Command lines for the help."""
    asks: Callable[[Mapping[str, Any]], str] | None
    """The question before it breaks or ends something, from its arguments; None asks nothing."""
    is_step: bool
    """Whether ranks apply it at a step, so that a caller can wait for that."""
    has_own_command: bool
    """Whether its command is written out because it does more than send the operation."""

    @property
    def name(self) -> str:
        """On every surface."""
        return self.method.__name__

    @property
    def summary(self) -> str:
        """One sentence."""
        return inspect.getdoc(self.method).partition("\n")[0]  # type: ignore[union-attr]

    @functools.cached_property
    def parameters(self) -> list[inspect.Parameter]:
        """Those of the method, with evaluated annotations."""
        hints = get_type_hints(self.method, include_extras=True)
        found = list(inspect.signature(self.method).parameters.values())[1:]
        return [parameter.replace(annotation=hints[parameter.name]) for parameter in found]

    @property
    def words(self) -> list[inspect.Parameter]:
        """Written after RUN, in this order."""
        return [p for p in self.parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    @property
    def settings(self) -> list[inspect.Parameter]:
        """Written KEY=VALUE after RUN."""
        return [p for p in self.parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]

    @property
    def options(self) -> list[inspect.Parameter]:
        """Written ``--name VALUE``."""
        return [p for p in self.parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]


OPERATIONS: dict[str, Operation] = {}
"""By name, in the order of the help."""


def operation(
    *examples: str,
    asks: Callable[[Mapping[str, Any]], str] | None = None,
    is_step: bool = True,
    has_own_command: bool = False,
) -> Callable[[F], F]:
    """Enter a method in ``OPERATIONS``."""

    def enter(method: F) -> F:
        OPERATIONS[method.__name__] = Operation(method, examples, asks, is_step, has_own_command)
        return method

    return enter


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
    """The operations; each returns the command's sequence number, 0 if ranks do not apply it.

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
        def command(self, operation: str, **fields: Any) -> int: ...

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

    @operation(
        "headway evict 1",
        asks=lambda a: f"take node {a['node']} out of run {a['run']} for good?",
        is_step=False,
    )
    def evict(self, node: Annotated[int, Word("Number of the node, from 0.", "NODE")]) -> int:
        """Remove a node for good; a spare takes over its ranks."""
        return self.command("evict", node=node)

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
                "Break this instead: dataloader, ckpt_store, agent, zygote, executor, monitor or "
                "driver; a whole `node`; or `run`, for what all nodes share.",
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


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def word_of(parameter: inspect.Parameter) -> Word:
    """Its ``Word``, with the defaults filled in."""
    (found,) = [extra for extra in parameter.annotation.__metadata__ if isinstance(extra, Word)]
    flags = found.flags or (f"--{parameter.name.replace('_', '-')}",)
    return Word(found.help, found.metavar or parameter.name.upper(), flags)


def words_after_run(name: str, arguments: Mapping[str, Any]) -> list[str]:
    """What follows RUN on the command line; arguments with their default are left out."""
    row, words = OPERATIONS[name], []
    words += [_value(arguments[p.name]) for p in row.words if p.name in arguments]
    words += [f"{p.name}={_value(arguments[p.name])}" for p in row.settings if p.name in arguments]
    for parameter in row.options:
        value = arguments.get(parameter.name, parameter.default)
        if value != parameter.default:
            flag = word_of(parameter).flags[0]
            words += [flag] if value is True else [flag, _value(value)]
    return words


def as_cli(run: Path, name: str, arguments: Mapping[str, Any]) -> str:
    """The command line that calls method ``name`` with ``arguments`` on the run at ``run``.

    It finds the run from the present working folder.
    """
    words = ["headway", name, run.name, *words_after_run(name, arguments), *runs_dir_option(run)]
    return shlex.join(words)


def as_python(name: str, arguments: Mapping[str, Any]) -> str:
    """The same as a line of Python, for a ``Run`` in ``run``."""
    row = OPERATIONS[name]
    parts = [repr(arguments[p.name]) for p in row.words if p.name in arguments]
    parts += [
        f"{p.name}={arguments[p.name]!r}"
        for p in (*row.settings, *row.options)
        if p.name in arguments and arguments[p.name] != p.default
    ]
    return f"run.{name}({', '.join(parts)})"
