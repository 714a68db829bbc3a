"""What an operation of a run is: the table that shell, Python and buttons are made from.

Each is a method of ``steering.Steering``. The shell command (``commands/steering.py``), the lines
that a button shows (``cli_line``, ``python_line``) and the method itself come from the same
signature:

- a positional parameter is a word after RUN on the command line: ``headway evict RUN NODE``;
- a keyword without a default is written KEY=VALUE: ``headway set RUN lr=3e-4``;
- a keyword with a default is an option, which may be given several times if it holds several
  values; ``Word`` gives its help and its name on the command line;
- the first line of the docstring is the help.
"""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, get_args, get_type_hints

from headway.common.errors import InputError
from headway.console.hints import runs_dir_option

F = TypeVar("F", bound=Callable[..., Any])


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

    method: Callable[..., Any]
    examples: tuple[str, ...]
    """Command lines for the help."""
    asks: Callable[[Mapping[str, Any]], str] | None
    """The question before it breaks or ends something, from its arguments; None asks nothing."""
    is_step: bool
    """Whether ranks apply it at a step, so that a caller can wait for that."""
    has_own_command: bool
    """Whether ``commands.steering`` has its own command for it, which does more than send."""

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
        found = list(inspect.signature(self.method).parameters.values())[1:]
        annotations = SimpleNamespace(__annotations__={p.name: p.annotation for p in found})
        hints = get_type_hints(annotations, self.method.__globals__, include_extras=True)
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

    # ---- with arguments -------------------------------------------------------------------------
    def words_after_run(self, arguments: Mapping[str, Any]) -> list[str]:
        """What follows RUN on the command line; arguments with their default are left out."""
        words = [_text(arguments[p.name]) for p in self.words if p.name in arguments]
        given = [p.name for p in self.settings if p.name in arguments]
        words += [f"{name}={_text(arguments[name])}" for name in given]
        for parameter in self.options:
            value = arguments.get(parameter.name, parameter.default)
            if value != parameter.default:
                words += _option_words(word_of(parameter).flags[0], value)
        return words

    def cli_line(self, run: Path, arguments: Mapping[str, Any], *, absolute: bool = False) -> str:
        """The command line for the run at ``run``.

        It finds the run from the present working folder, with ``absolute`` from every folder.
        """
        words = ["headway", self.name, run.name, *self.words_after_run(arguments)]
        folder = ["--runs-dir", str(run.parent.resolve())] if absolute else runs_dir_option(run)
        return shlex.join([*words, *folder])

    def python_line(self, arguments: Mapping[str, Any]) -> str:
        """The call as a line of Python, for a ``Run`` in ``run``."""
        parts = [repr(arguments[p.name]) for p in self.words if p.name in arguments]
        parts += [
            f"{p.name}={arguments[p.name]!r}"
            for p in (*self.settings, *self.options)
            if p.name in arguments and arguments[p.name] != p.default
        ]
        return f"run.{self.name}({', '.join(parts)})"


def operation(
    *examples: str,
    asks: Callable[[Mapping[str, Any]], str] | None = None,
    is_step: bool = True,
    has_own_command: bool = False,
) -> Callable[[F], F]:
    """Make a method an operation, which ``operations_of`` its class finds."""

    def enter(method: F) -> F:
        made = Operation(method, examples, asks, is_step, has_own_command)
        method.operation = made  # type: ignore[attr-defined]
        return method

    return enter


def operations_of(kind: type) -> dict[str, Operation]:
    """Name -> operation, in the order of the class."""
    found = (getattr(method, "operation", None) for method in vars(kind).values())
    return {one.name: one for one in found if one is not None}


def word_of(parameter: inspect.Parameter) -> Word:
    """Its ``Word``, with the defaults filled in."""
    (found,) = [extra for extra in parameter.annotation.__metadata__ if isinstance(extra, Word)]
    flags = found.flags or (f"--{parameter.name.replace('_', '-')}",)
    return Word(found.help, found.metavar or parameter.name.upper(), flags)


def kind_of(parameter: inspect.Parameter) -> type:
    """float, int or str, also where None is allowed."""
    (annotated, *_) = get_args(parameter.annotation)
    kinds = [kind for kind in get_args(annotated) or (annotated,) if kind is not type(None)]
    kind: type = kinds[0]
    return kind


def parse(parameter: inspect.Parameter, text: str) -> Any:
    """The value that was typed for ``parameter``.

    Raises:
        InputError: ``text`` is not a number where one is needed.
    """
    name, kind = parameter.name, kind_of(parameter)
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        example = "20" if kind is int else "3e-4 or 0.0003"
        raise InputError(
            f"{name} must be {wanted}, not {text!r}", remedy=f"for example {example}"
        ) from None


def _option_words(flag: str, value: object) -> list[str]:
    if value is True:
        return [flag]
    several = value if isinstance(value, list | tuple) else [value]
    return [word for one in several for word in (flag, _text(one))]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
