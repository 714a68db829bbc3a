"""Help: one line per command, the same form on every page, examples that work."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from headway.console import cli
from headway.console.cli import main
from headway.console.steering import OPERATIONS
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


@pytest.mark.parametrize("service", ["ckpt", "data", "health"])
def test_a_service_lists_its_commands_in_the_same_form(
    service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page(capsys, service)
    assert text.index("\nCommands:\n") < text.index("\nOptions:\n")
    assert "..." not in text.partition("Options:")[0].partition("\nCommands:\n")[2]
    for verb in listed(text):
        if verb in ("ls", "verify", "prepare", "check"):
            assert not re.search(r"<(str|int|path|float)", page(capsys, service, verb))


NEEDS_NONE = {"run", "runs", "doctor", "cluster", "node", "config"}


@pytest.mark.parametrize("name", sorted({w[0] for w in COMMANDS} - NEEDS_NONE))
def test_run_is_optional(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    usage = page(capsys, name).splitlines()[0]
    assert "[RUN]" in usage, usage
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
