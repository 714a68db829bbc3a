"""Help: one line per command, the same form on every page, examples that work."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
import typer
from headway.ckpt_store import cli as ckpt_store
from headway.common.cli import run
from headway.console import cli
from headway.console.cli import main
from headway.console.steering.methods import OPERATIONS
from headway.dataloader import cli as dataloader
from headway.health import cli as health
from headway.trainer import cli as trainer
from typer.main import get_command

WIDTH = 80
PRIVATE = re.compile(
    r"\b(told|tells?|heard|whoever|somebody|nobody|mend|goes on|is no|"
    r"zygotes?|arenas?|epochs?|lease)\b"
)
"""Words that mean nothing to a newcomer, or that nobody would write."""


def commands(group: object = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command of our own, as words after ``headway``."""
    for name, command in (group or get_command(cli.app)).commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


COMMANDS = sorted(commands())
IDS = [" ".join(words) for words in COMMANDS]
SERVICES = {
    ("headway", "ckpt"): ckpt_store.app,
    ("headway", "data"): dataloader.app,
    ("headway", "health"): health.app,
    ("python -m headway.trainer",): trainer.app,
}
DAEMONS = ("serve", "agent", "monitor", "executor", "driver", "zygote", "worker", "trials")
SERVICE_COMMANDS = [
    (app, (*path, *words))
    for path, app in SERVICES.items()
    for words in sorted(commands(get_command(app)))
]


def page(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


def listed(text: str) -> dict[str, str]:
    """Name -> line of each command in a list of commands."""
    found = {}
    for block in re.split(r"\n\n", text):
        heading, _, rest = block.partition("\n")
        if heading.rstrip(":") in ("Options", "Examples") or not heading.endswith(":"):
            continue
        for line in rest.splitlines():
            name, _, said = line.strip().partition(" ")
            found[name] = said.strip()
    return found


def test_the_list_has_one_line_per_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = page(capsys)
    found = listed(text)
    assert set(found) == {words[0] for words in COMMANDS} | {"ckpt", "data", "health"}
    for name, line in found.items():
        assert line and not line.endswith((".", "...")), f"{name}: {line}"
        assert line[0].isupper(), f"{name}: {line}"


@pytest.mark.parametrize("words", [(), ("cluster",), ("node",), ("config",)], ids=" ".join)
def test_no_line_of_a_list_is_wrapped(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = page(capsys, *words)
    assert all(len(line) <= WIDTH for line in text.splitlines())
    lists = text.partition("Options:")[0]
    assert not re.search(r"^ {10,}\S", lists, re.MULTILINE), "a wrapped line"


@pytest.mark.parametrize("words", COMMANDS, ids=IDS)
def test_a_page_is_plain_and_has_examples(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = page(capsys, *words)
    assert "<" not in text and "[required]" not in text, "types in brackets are for programs"
    prose = text.partition("\nJSON:\n")[0].replace("zygote,", "")
    assert not PRIVATE.search(prose), PRIVATE.search(prose)
    assert all(len(line) <= 100 for line in text.splitlines())
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples
    for line in examples:
        example = shlex.split(line.partition("|")[0])
        assert example[: len(words) + 1] == ["headway", *words]
    # two stay and print their log, one prints nothing but JSON
    if words not in (("node", "init"), ("gateway",), ("node", "ticket")):
        assert "--json" in text and "\nJSON:\n" in text


@pytest.mark.parametrize("words", COMMANDS, ids=IDS)
def test_examples_only_use_options_that_the_page_lists(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = page(capsys, *words)
    options, _, examples = text.partition("Examples:\n")
    for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", examples.partition("\n\n")[0]):
        if option != "-r":  # of jq
            assert re.search(rf"(?<![\w-]){option}\b", options), option


@pytest.mark.parametrize("path", SERVICES, ids=" ".join)
def test_a_service_lists_its_commands_in_the_same_form(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(SERVICES[path], " ".join(path), ["-h"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: {' '.join(path)} [OPTIONS] COMMAND")
    lists, _, _ = text.partition("\nOptions:\n")
    assert "\nCommands:\n" in lists and "..." not in lists.partition("\nCommands:\n")[2]
    assert not re.search(r"^ {10,}\S", lists, re.MULTILINE), "a wrapped line"


@pytest.mark.parametrize(
    ("app", "words"), SERVICE_COMMANDS, ids=[" ".join(words) for _, words in SERVICE_COMMANDS]
)
def test_a_page_of_a_service_is_as_plain(
    app: typer.Typer, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, " ".join(words[:-1]), [words[-1], "--help"]) == 0
    text = capsys.readouterr().out
    assert not re.search(r"<|\[required|\[default|\b(INT|STR|FLOAT|PATH)\b", text)
    options, _, examples = text.partition("\nExamples:\n")
    for line in re.findall(r"^  -.*", options, re.MULTILINE):
        assert re.match(r"  -\S+( [A-Z=]+|, --?\w+)?( {2,}\S|$)", line), f"no help: {line}"
    assert "{command}" not in examples
    if words[-1] in DAEMONS:
        return  # who starts one by hand knows the parts of a run
    assert examples and not PRIVATE.search(text)
    assert ("--json" in options) == ("\nJSON:\n" in text)
    for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", examples.partition("\n\n")[0]):
        if option != "--nproc-per-node":  # of torchrun
            assert re.search(rf"(?<![\w-]){option}\b", options), option


def test_what_a_command_cannot_do_without_is_in_its_usage_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    usage = page(capsys, "node", "start").partition("\n\n")[0]
    assert usage == "Usage: headway node start [OPTIONS] --node NODE"


NEEDS_NONE = {"ablate", "run", "runs", "doctor", "cluster", "node", "config", "model", "gateway"}


@pytest.mark.parametrize("name", sorted({w[0] for w in COMMANDS} - NEEDS_NONE))
def test_run_is_optional(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    usage = page(capsys, name).splitlines()[0]
    assert "[RUN]" in usage or "[RUN|FOLDER]" in usage, usage
    if name in OPERATIONS:
        assert "the newest by default" in page(capsys, name)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"headway \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("words", [(), ("status",), ("ckpt", "ls")], ids=" ".join)
def test_h_is_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "-h"]) == 0
    assert capsys.readouterr().out == page(capsys, *words)


def test_another_system_than_linux_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headway.console.cli.sys.platform", "darwin")
    assert main(["doctor"]) == 2
    said = capsys.readouterr().err
    assert said == "error: Headway needs Linux, this is darwin; use a Linux machine or VM\n"
