"""Commands that steer a live run, derived from the operations of ``console.steering``.

Most send one message to the driver. ``stop`` also waits and may use force; ``fork`` works on the
folder alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from headway.common.cli import AsJson
from headway.common.errors import InputError
from headway.common.help_pages import page
from headway.common.output import emit
from headway.console.commands.options import (
    RUN_HELP,
    RUNS,
    AnyRun,
    RunsDir,
    Yes,
    complete_nodes,
    complete_ranks,
    complete_runs,
    confirm,
    find_run,
    reporter,
)
from headway.console.commands.pages import STEER
from headway.console.commands.sampling import KEYS as SAMPLE_KEYS
from headway.console.commands.sampling import sample_command
from headway.console.hints import resume_command
from headway.console.steering.methods import OPERATIONS
from headway.console.steering.operations import Operation, parse, word_of

if TYPE_CHECKING:
    from headway.console.run import Run

SENT = ("run", "operation", "sequence", "applied")
"""Keys of the JSON of every operation; its own arguments follow."""
Wait = Annotated[bool, typer.Option("--wait", help="Return when all ranks have applied it.")]
WaitForResult = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait for the result and print it (the default).")
]
WAIT_S = 86400.0
"""Longest wait of --wait: the end of the run ends it too, and Ctrl-C."""
COMPLETION = {"rank": complete_ranks, "node": complete_nodes}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for name, row in OPERATIONS.items():
        more = RESULT_KEYS.get(name, ())
        keys = ", ".join((*SENT, *(parameter.name for parameter in row.parameters), *more))
        json = OWN_KEYS.get(name, keys)
        function = OWN[name] if row.has_own_command else command_of(row)
        page(app, name=name, heading=STEER, examples=row.examples, json=f"one object: {json}")(
            function
        )


def command_of(
    row: Operation, show: Callable[[Run, dict[str, Any], bool], None] | None = None
) -> Callable[..., None]:
    """The function that typer turns into the command of an operation.

    ``show`` carries it out and prints the result; by default the operation is sent.
    """

    def command(runs_dir: Path, as_json: bool, **given: Any) -> None:
        name: str | None = given.pop("run", None)
        arguments: dict[str, Any] = {}
        if "words" in given:
            name, arguments = read_words(row, given.pop("words") or [])
        if show is not None:
            show(find_run(name, runs_dir), {**arguments, **given}, as_json)
            return
        wait, yes = given.pop("wait", False), given.pop("yes", False)
        _send(row, name, {**arguments, **given}, runs_dir, wait=wait, yes=yes, as_json=as_json)

    parameters = [*_positional(row), *(_option(parameter) for parameter in row.options)]
    if row.is_step:
        has_result = row.name in RESULTS
        kind = WaitForResult if has_result else Wait
        parameters.append(_parameter("wait", kind, has_result))
    if row.asks is not None:
        parameters.append(_parameter("yes", Yes, False))
    parameters.append(_parameter("runs_dir", RunsDir, RUNS))
    parameters.append(_parameter("as_json", AsJson, False))
    command.__name__, command.__doc__ = row.name, row.summary
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _send(
    row: Operation,
    name: str | None,
    arguments: dict[str, Any],
    runs_dir: Path,
    *,
    wait: bool,
    yes: bool,
    as_json: bool,
) -> None:
    run = find_run(name, runs_dir)
    if arguments.get("rank") is not None:
        run.check_rank(arguments["rank"])
    if row.asks is not None:
        confirm(row.asks({"run": run.name, **arguments}), yes)
    sequence = row.method(run, **arguments)
    result: dict[str, Any] = {}
    if wait:
        run.wait_applied(sequence, timeout_s=WAIT_S)
        result = run.result(sequence) if row.name in RESULTS else {}
    done = dict(zip(SENT, (run.name, row.name, sequence, wait), strict=True))
    what = " ".join((row.name, *row.words_after_run(arguments)))
    lines = [f"{what}: {'applied' if wait else 'sent'} to {run.name}"]
    if result:
        lines = RESULTS[row.name](result)
    emit({**done, **arguments, **result}, as_json, lines)


def _evaluated(result: dict[str, Any]) -> list[str]:
    loss = "not finite" if result["loss"] is None else f"{result['loss']:.4f} nats per token"
    return [f"validation loss after step {result['step']}: {loss}"]


def _sampled(result: dict[str, Any]) -> list[str]:
    return [f"after step {result['step']}:", *(result["prompt"] + result["text"]).splitlines()]


RESULTS = {"evaluate": _evaluated, "sample": _sampled}
"""Operations that have a result, and how it is shown."""
RESULT_KEYS = {"evaluate": ("step", "loss"), "sample": ("step", "text", "generation")}


def read_words(row: Operation, words: list[str]) -> tuple[str | None, dict[str, Any]]:
    """The run's name, None for the newest, and the arguments that the words stand for.

    Raises:
        InputError: there are too few or too many words, or one has the wrong form.
    """
    settings = {parameter.name: parameter for parameter in row.settings}
    words = _joined(words, settings)
    needed = len(row.words) + len(row.settings)
    if not needed <= len(words) <= needed + 1:
        raise InputError(
            f"expected [RUN] {_usage(row)}, got {' '.join(words) or 'nothing'!r}",
            remedy=f"for example `{row.examples[0]}`",
        )
    name = words.pop(0) if len(words) > needed else None
    arguments = {p.name: parse(p, word) for p, word in zip(row.words, words, strict=False)}
    for word in words[len(row.words) :]:
        key, equals, text = word.partition("=")
        if not equals or not text:
            raise InputError(
                f"expected KEY=VALUE, got {word!r}", remedy=f"for example `{row.examples[0]}`"
            )
        if key not in settings:
            known = ", ".join(settings)
            raise InputError(f"cannot set {key!r}", remedy=f"only {known} can be set on a live run")
        arguments[key] = parse(settings[key], text)
    return name, arguments


def _joined(words: list[str], settings: dict[str, Any]) -> list[str]:
    """``lr 3e-4`` is the same as ``lr=3e-4``."""
    if settings and len(words) >= 2 and words[-2] in settings and "=" not in words[-1]:
        return [*words[:-2], f"{words[-2]}={words[-1]}"]
    return list(words)


# ---- the signature that typer reads -------------------------------------------------------------
def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _positional(row: Operation) -> list[inspect.Parameter]:
    """RUN alone, or RUN and the words of the operation as one list, by their number."""
    if not row.words and not row.settings:
        return [_parameter("run", AnyRun, None)]
    rows = [("RUN", RUN_HELP)]
    rows += [(word_of(p).metavar, word_of(p).help) for p in row.words]
    rows += [(f"{p.name}=VALUE", f"{p.name}: {word_of(p).help}.") for p in row.settings]
    argument = typer.Argument(
        metavar=f"[RUN] {_usage(row)}",
        help="\n".join("\t".join(row) for row in rows),
        autocompletion=_completion(row),
    )
    return [_parameter("words", Annotated[list[str] | None, argument], None)]


def _usage(row: Operation) -> str:
    words = [word_of(p).metavar for p in row.words]
    return " ".join([*words, *(f"{p.name}=VALUE" for p in row.settings)])


def _completion(row: Operation) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        found = complete_runs(ctx, incomplete)
        for parameter in row.words:
            if parameter.name in COMPLETION:
                found += COMPLETION[parameter.name](ctx, incomplete)
        return [*found, *(f"{p.name}=" for p in row.settings if p.name.startswith(incomplete))]

    return complete


def _option(parameter: inspect.Parameter) -> inspect.Parameter:
    word, kind = word_of(parameter), get_args(parameter.annotation)[0]
    is_flag = kind is bool
    option = typer.Option(
        *word.flags,
        help=word.help,
        metavar=None if is_flag else word.metavar,
        autocompletion=COMPLETION.get(parameter.name),
    )
    if kind == Sequence[str]:
        return _parameter(parameter.name, Annotated[list[str], option], [])
    return _parameter(parameter.name, Annotated[kind, option], parameter.default)


# ---- stop ---------------------------------------------------------------------------------------
def stop(
    run: AnyRun = None,
    limit: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Kill it after this long without progress; recovery.stop_timeout_s by default.",
            min=0,
        ),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="End its processes at once, without a checkpoint.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the run has ended (the default).")
    ] = True,
    yes: Yes = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Stop a run with a checkpoint, and wait until it has ended.

    A run that cannot stop is ended by force; its checkpoints stay. Exit code 0: it stopped by
    itself, or by --now. 3: it was ended by force. 1: a process could not be ended.
    """
    from headway.console.lifecycle.ending import end

    found = find_run(run, runs_dir)
    confirm(f"stop run {found.name}?", yes)
    if not wait and not now:
        row = OPERATIONS["stop"]
        _send(row, found.name, {}, runs_dir, wait=False, yes=True, as_json=as_json)
        return
    ending = end(found, limit_s=limit, now=now, report=reporter(as_json))
    emit(ending, as_json, [ending.line()])
    raise typer.Exit(ending.exit_code(now=now))


# ---- fork ---------------------------------------------------------------------------------------
def _fork_command() -> Callable[..., None]:
    """The generated command, which prints where the new run is instead of what was sent."""
    row = OPERATIONS["fork"]

    def show(run: Run, arguments: dict[str, Any], as_json: bool) -> None:
        made = row.method(run, **arguments)
        step = made.forked_from["step"]
        resume = resume_command(made.path, made.cluster_folder)
        done = {"run": made.name, "path": made.path, "step": step, "resume": resume}
        lines = [f"{made.name} begins at step {step} of {run.name}; start it with", f"  {resume}"]
        emit(done, as_json, lines)

    return command_of(row, show)


def _send_sample(
    name: str, arguments: dict[str, Any], runs_dir: Path, *, wait: bool, as_json: bool
) -> None:
    row = OPERATIONS["sample"]
    _send(row, name, arguments, runs_dir, wait=wait, yes=True, as_json=as_json)


OWN = {"stop": stop, "fork": _fork_command(), "sample": sample_command(_send_sample)}
"""Commands that do more than send the operation."""
OWN_KEYS = {
    "stop": "run, outcome, checkpoint, reason, ended, left, kept_on",
    "fork": "run, path, step, resume",
    "sample": SAMPLE_KEYS,
}
