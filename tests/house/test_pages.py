"""README and docs/: short lines, links that lead somewhere, commands that exist, code that runs."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from headway.common.config import from_dict, load
from headway.common.node.testing import wait_until
from headway.console.cli import app
from headway.console.testing import FakeRun
from headway.console.widgets.watcher import RunWatcher
from headway.controller.decisions import phases
from headway.controller.faults.faults import FAULTS
from headway.trainer.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
OTHERS = {"lab_log.md", "operations.md", "protocol.md"}
"""Pages whose lines are looked after elsewhere."""
PAGES = sorted(
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    if path.name not in OTHERS
)
WIDTH = 100
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@each_page
def test_no_line_is_longer_than_a_screen(page: Path) -> None:
    long = [line for line in page.read_text().splitlines() if len(line) > WIDTH]
    assert not long, "wrap at 100 characters"


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?m)^\[\w+\]: (\S+)$", text)
    targets += re.findall(r'\bsrc(?:set)?="([^"]+)"', text)
    for target in targets:
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target} is not there"
        if anchor:
            assert anchor in {_anchor(line) for line in file.read_text().splitlines()}, target


def _anchor(line: str) -> str:
    """As a code host makes it of a heading."""
    heading = re.sub(r"^#+ ", "", line).lower() if line.startswith("#") else ""
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


@each_page
def test_every_command_exists_and_takes_these_options(page: Path) -> None:
    for words in _commands(page):
        program, *rest = words
        if Path(program).name == "headway" and rest and not rest[0].startswith("-"):
            _parse(rest)
        elif program == "make" and rest:
            targets = [word for word in rest if re.fullmatch("[a-z-]+", word)]
            for target in targets:
                assert f"\n{target}:" in (ROOT / "Makefile").read_text(), words
        elif Path(program).name == "python" and rest[:1] == ["-m"]:
            ours = ROOT / rest[1].replace(".", "/")  # benchmarks is a folder, not a distribution
            is_ours = ours.is_dir() or ours.with_suffix(".py").exists()
            assert is_ours or importlib.util.find_spec(rest[1]), words


def _commands(page: Path) -> Iterator[list[str]]:
    """Lines of fenced shell blocks, and inline code, that begin with a program."""
    lines: list[str] = []
    prose: list[str] = []
    language: str | None = None
    for line in page.read_text().replace("\\\n", " ").splitlines():
        if fence := re.match(r"\s*```(\w*)", line):
            language = fence[1] if language is None else None
        elif language is None:
            prose.append(line)
        elif language in ("", "bash"):
            lines.append(line.strip())
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", "\n".join(prose))]
    for line in lines:
        if re.match(r"(\S*/)?headway |make |(\S*/)?python -m ", line):
            words = shlex.split(line, comments=True)
            yield list(itertools.takewhile(lambda word: word not in (">", "<", "|"), words))


@functools.cache
def _headway() -> Any:
    return typer.main.get_command(app)


def _parse(words: list[str]) -> None:
    """Let the command line's own parser look at the words; nothing is carried out."""
    command: Any = _headway()
    while words and hasattr(command, "get_command"):
        context = typer.Context(command)
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no `headway {words[0]}`"
        command, words = found, words[1:]
    if not words or "--help" in words or any(word.isupper() for word in words[1:]):
        return
    command.make_context("headway", list(words))
    settings = [value for option, value in itertools.pairwise(words) if option == "--set"]
    if settings and words[0].startswith("examples/"):
        load(RunConfig, [ROOT / words[0]], settings)


@each_page
def test_every_configuration_is_one(page: Path) -> None:
    for text in re.findall(r"(?ms)^```toml\n(.*?)^```", page.read_text()):
        from_dict(RunConfig, tomllib.loads(text))


@each_page
def test_every_python_example_runs_on_a_live_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = re.findall(r"(?ms)^```python\n(.*?)^```", page.read_text())
    if not examples:
        return
    for variable, folder in (("SHM_ROOT", "shm"), ("SOCK_ROOT", "sock"), ("CACHE", "cache")):
        monkeypatch.setenv(f"HEADWAY_{variable}", str(tmp_path / folder))
    (tmp_path / "notebooks").mkdir()
    with contextlib.ExitStack() as stack:
        made = FakeRun(tmp_path / "runs", name="tiny")
        stack.callback(made.close)
        _close_watchers(stack, monkeypatch)
        made.advance(3)
        for code in examples:
            where = "notebooks" if '"../runs"' in code else "."
            if '"gateway.key"' in code:  # on a machine that does not see the runs
                where = "elsewhere"
                _open_gateway(tmp_path / "runs", tmp_path / where, stack)
            monkeypatch.chdir(tmp_path / where)
            names: dict[str, Any] = {}
            exec(compile(code, page.name, "exec"), names)
            assert names["Cluster"]
    assert not [one for one in threading.enumerate() if one.name.startswith("console-")]


def _close_watchers(stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the end: their threads open files of the run again and again."""
    start = RunWatcher.start

    def begin(watcher: RunWatcher) -> RunWatcher:
        stack.callback(watcher.close)
        return start(watcher)

    monkeypatch.setattr(RunWatcher, "start", begin)


def _open_gateway(runs: Path, elsewhere: Path, stack: contextlib.ExitStack) -> None:
    elsewhere.mkdir()
    key = elsewhere / "gateway.key"
    words = ["gateway", "--listen", "tcp://127.0.0.1:0", "--key-file", str(key)]
    started = [sys.executable, "-m", "headway.console", *words, "--runs-dir", str(runs)]
    process = stack.enter_context(subprocess.Popen(started, stdout=subprocess.DEVNULL))
    stack.callback(process.terminate)
    wait_until(key.exists, what="the gateway's key file")


@pytest.mark.parametrize("line", ["headway statis", "headway watch --evry 5", "headway runs now"])
def test_a_mistyped_command_is_noticed(line: str) -> None:
    with pytest.raises(Exception, match=r"(?i)there is no|no such option|unexpected"):
        _parse(line.split()[1:])


def test_there_are_commands_on_the_pages() -> None:
    assert len([words for page in PAGES for words in _commands(page)]) > 100


def test_the_page_on_steering_knows_every_state_and_every_fault() -> None:
    text = (ROOT / "docs" / "howto" / "watch-and-steer.md").read_text()
    table = re.findall(r"(?m)^\| `(\w+)` \| .* \| ([a-z, ]+) \|$", text)
    targets = {"worker": "rank"}
    assert {name: set(to.split(", ")) for name, to in table} == {
        name: {targets.get(target, target) for target in fault.targets}
        for name, fault in FAULTS.items()
    }
    folder = Path(phases.__file__).parent
    sources = "".join(path.read_text() for path in sorted(folder.glob("*.py")))
    names = set(re.findall(r'(?m)^ {4}name = "(\w+)"$', sources)) - {"over"}
    assert len(names) > 5
    assert {name for name in names if f"`{name}`" not in text} == set()
