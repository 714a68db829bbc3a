"""Prose and names avoid a short list of words that only the authors understand.

Machines send, report, receive, fail and restart; they do not tell, say or hear. Prose is
docstrings, comments, messages and Markdown outside code blocks; names are those of the sources.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = {
    r"mend(s|ed|ing)?": "repair, restart, fix",
    r"for ever": "forever",
    r"unheard": "silent, unreachable",
    r"(is|are|was) heard": "is received, is detected",
    r"hears (from|of|that|none|it)": "receives",
    r"tells (all|it|them|what|who|where|that|apart)": "reports, sends, shows",
    r"(is|are|was|were) told": "is sent, is asked",
    r"its word": "its report",
    r"says? nothing": "does not report anything",
    r"whoever": "the process that, any client",
    r"goes? on": "continues",
    r"went on": "continued",
    r"stands? still|stood still": "makes no progress, does not change",
    r"is no (JSON|TOML|CURVE|Megatron|Z85|tokenizer|folder|key|multiple|socket|text|count)": (
        "is not a"
    ),
    r"(one|once) a (step|run|wish|generation|recovery|order|drill|period|call)": "one per",
    r"asked was": "but ... was requested",
    r"of no use": "unusable",
    r"lets? go of": "release",
    r"gets? ahead|got ahead": "makes progress",
    r"by and by|again and again": "repeatedly",
    r"rightly": "(leave it out)",
    r"beside (it|the other|a worker)": "next to",
}
"""Pattern -> what to write instead."""

NAMES = {
    "Hands": "SideThread",
    "Background": "SideThread",
    "Leading": "LeaseCandidate",
    "Standing": "LeaseDecision",
    "EngineLooks": "EngineProbe",
    "Stay": "ForegroundNode",
    "Gate": "JoinServer",
    "Lines": "Connections",
    "Brake": "CrashLoopBreaker",
    "LastWords": "ExitRecord",
    "Tenure": "LeaseTerm",
    "Doorkeeper": "HandshakeLimiter",
    "Solo": "SingleRank",
    "Moved": "ExchangeReport",
    "Judged": "VerdictReceived",
    "Steered": "CommandQueued",
    "Beaten": "BeatReceived",
    "Rebooted": "NodeRebooted",
    "PassOn": "ForwardSigterm",
    "barred": "excluded",
    "set_bar": "exclude",
    "condemn": "mark_for_kill",
    "is_doomed": "is_terminating",
    "last_words": "exit_record",
    "furthest": "max_step",
    "guilt": "suspicion",
    "lean": "recompute_cheap",
    "pass_to": "skip_to",
    "has_lost_touch": "is_cut_off",
    "somebody_listens": "has_listener",
    "is_audible": "sends_beats",
    "_hear": "_on_message",
    "_heard": "_on_message",
    "_heed": "_react",
    "_bury": "_abandon",
    "_way_back": "_restore_hint",
    "_take_back": "_supersede",
}
"""Name -> the field's own."""

HANGING = re.compile(r"(Of|The same|As|Who|With) ")

RECORDS = ("docs/lab_log.md",)
"""What was written on its day stays as it was."""

TESTS = re.compile(r"(.*/)?tests/")
"""Test code, whose test names are sentences, is not checked."""

WORDS = re.compile(rf"\b({'|'.join(FORBIDDEN)})\b", re.IGNORECASE)


def _files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = [name for name in listed.stdout.split() if (ROOT / name).exists()]
    return [name for name in found if not name.startswith(RECORDS) and not TESTS.match(name)]


def prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of what people read: strings and comments of code, Markdown without code."""
    if name.endswith(".md"):
        yield from _markdown(text)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    block: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            block.append(token.string.lstrip("# "))
        elif token.type != tokenize.NL and block:
            yield token.start[0] - len(block), " ".join(block)
            block = []


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    is_code, start, block = False, 1, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        is_code ^= line.startswith("```")
        if line.strip() and not is_code and not line.startswith("|"):
            block.append(line)
            continue
        yield start, " ".join(block)
        block, start = [], number + 1
        if line.startswith("|"):
            yield number, line


def findings(name: str, text: str) -> list[str]:
    """``file:line: the phrase and what to write``, of one file."""
    found = []
    for line, passage in prose(name, text):
        for match in WORDS.finditer(" ".join(passage.split())):
            instead = next(
                advice
                for pattern, advice in FORBIDDEN.items()
                if re.fullmatch(pattern, match[0], re.IGNORECASE)
            )
            found.append(f"{name}:{line}: {match[0]!r}; write: {instead}")
    return found


def test_prose_has_none_of_the_forbidden_words() -> None:
    names = _files()
    assert len(names) > 200, "the files were found"
    assert [hit for name in names for hit in findings(name, (ROOT / name).read_text())] == []


def _names(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def test_no_name_of_the_code_is_of_a_language_of_its_own() -> None:
    sources = [name for name in _files() if "/src/" in name and name.endswith(".py")]
    found = [
        f"{name}:{line}: {word}; write: {NAMES[word]}"
        for name in sources
        for line, word in _names((ROOT / name).read_text())
        if word in NAMES
    ]
    assert len(sources) > 500 and found == []
    assert list(_names("class Hands: pass"))[1] == (1, "Hands"), "a name is found"


def hanging(text: str) -> list[tuple[int, str]]:
    """(line, start) of docstrings whose first words need what stands above them."""
    return [
        (node.lineno, node.value.value[:40])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and HANGING.match(node.value.value)
    ]


def test_a_docstring_can_be_read_alone_in_an_editor() -> None:
    sources = [name for name in _files() if "/src/" in name and name.endswith(".py")]
    found = {name: lines for name in sources if (lines := hanging((ROOT / name).read_text()))}
    assert len(sources) > 500 and found == {}
    assert hanging('x = 1\n"""Of the log."""\n') == [(2, "Of the log.")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""A run that goes\n    on."""\n'),
        ("a.py", "x = 1\n# who must\n# mend it\ny = 2\n"),
        ("a.py", 'raise ValueError(f"{x} is no JSON")\n'),
        ("a.md", "It waits\nfor ever.\n"),
        ("a.md", "| a | whoever reads it |\n"),
    ],
)
def test_a_forbidden_word_is_found_also_across_lines(name: str, text: str) -> None:
    assert len(findings(name, text)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "unheard = 1\n"),
        ("a.md", "```\nfor ever\n```\n"),
        ("a.py", '"""It continues."""\n'),
    ],
)
def test_names_and_code_blocks_are_not_prose(name: str, text: str) -> None:
    assert findings(name, text) == []
