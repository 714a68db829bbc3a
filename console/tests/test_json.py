"""``--json``: what a command prints has the keys that its help lists, in that order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from headway.common.output import to_json
from headway.console.cli import main
from headway.console.lifecycle import cluster_state
from headway.console.lifecycle.ending import Ending
from headway.console.live.summary import Summary, summarise
from headway.console.testing import FakeRun
from headway.controller.client import Replayed
from headway.launch.engines.remote.survey import Surveyed

Call = Callable[..., tuple[int, str]]
OBJECT, LINES, LIST = "one object", "one object per line", "list"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """(exit code, stdout)."""

    def run(*arguments: str) -> tuple[int, str]:
        code = main(list(arguments))
        return code, capsys.readouterr().out

    return run


def documented(call: Call, *words: str) -> tuple[str, list[str]]:
    """Form and keys that the help names."""
    _, text = call(*words, "--help")
    said = " ".join(text.partition("\nJSON:\n")[2].split())
    form, _, keys = said.partition(": ")
    return form, re.findall(r"\w+", keys)


def printed(form: str, out: str) -> Any:
    """The first object of what a command printed."""
    if form == LINES:
        return json.loads(out.splitlines()[0])
    value = json.loads(out)
    assert isinstance(value, list) == (form == LIST)
    return value[0] if form == LIST else value


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["runs"], []),
        (["status"], []),
        (["trace"], ["-o", "trace.json"]),
        (["doctor"], []),
        (["config", "diff"], ["fake", "other"]),
        (["pause"], []),
        (["resume"], []),
        (["checkpoint"], []),
        (["set"], ["lr=1e-4"]),
        (["unset"], ["lr"]),
        (["evict"], ["0"]),
        (["inject"], ["kill", "--rank", "1"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_the_keys_are_those_of_the_help(
    words: list[str],
    arguments: list[str],
    fake: FakeRun,
    own_roots: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake.advance(2)
    other = own_roots / "runs" / "other"
    other.mkdir()
    (other / "run.json").write_text('{"run_id": "0badcafe", "name": "other"}')
    text = fake.folder.config.read_text()
    (other / "config.toml").write_text(text.replace("steps = 40", "steps = 41"))
    (own_roots / "runs" / "fake" / "run.json").touch()
    monkeypatch.chdir(own_roots)
    form, keys = documented(call, *words)
    code, out = call(*words, *arguments, "--json")
    assert code == 0 or words == ["doctor"]
    assert list(printed(form, out)) == keys


def test_stop_has_the_documented_keys(call: Call) -> None:
    assert documented(call, "stop") == (OBJECT, [field.name for field in fields(Ending)])


def test_watch_prints_the_keys_of_status_and_ends(fake: FakeRun, call: Call) -> None:
    fake.advance(1)
    fake.finish()
    _, keys = documented(call, "status")
    _, out = call("watch", "--json", "--runs-dir", str(fake.folder.path.parent))
    lines = [json.loads(line) for line in out.splitlines()]
    states = [line for line in lines if "event" not in line]
    assert states and all(list(line) == [*keys, "unix_s"] for line in states)
    assert all(list(line) == ["event", "unix_s"] for line in lines if "event" in line)


def test_log_lines_have_the_documented_keys(fake: FakeRun, call: Call) -> None:
    line = {"timestamp": "2026-01-01T00:00:01Z", "level": "info", "event": "one", "answer": 42}
    (fake.folder.logs / "n0-driver.log").write_text(json.dumps(line) + "\n")
    form, keys = documented(call, "logs")
    _, out = call("logs", "--json", "--runs-dir", str(fake.folder.path.parent))
    found = printed(form, out)
    assert list(found)[:3] == keys[:3] and found["file"] == "n0-driver" and found["answer"] == 42


def test_replay_has_the_documented_keys(call: Call) -> None:
    assert documented(call, "replay") == (LIST, [field.name for field in fields(Replayed)])


def test_config_show_prints_tables_or_origins(fake: FakeRun, call: Call) -> None:
    runs = ("--runs-dir", str(fake.folder.path.parent))
    _, keys = documented(call, "config", "show")
    _, out = call("config", "show", "--json", *runs)
    assert json.loads(out)["train"]["steps"] == 40
    _, out = call("config", "show", "--origin", "--json", *runs)
    assert list(json.loads(out)[0]) == keys[-3:]


def test_machines_have_the_documented_keys(own_roots: Path, call: Call) -> None:
    folder = str(own_roots / "cluster")
    place = ("--cluster", folder, "--node", "0")
    for words, arguments in (
        (("cluster", "create"), (folder, "--nodes", "1")),
        (("node", "start"), place),
        (("node", "stop"), place),
        (("cluster", "remove"), (folder,)),
    ):
        form, keys = documented(call, *words)
        code, out = call(*words, *arguments, "--json")
        assert code == 0 and list(printed(form, out)) == keys, words
    assert documented(call, "cluster", "drain") == (LIST, ["run", "outcome"])


def test_what_is_seen_of_a_cluster_has_the_documented_keys(fake: FakeRun, call: Call) -> None:
    folder = str(fake.cluster.path)
    for words in (("cluster", "status"), ("cluster", "logs")):
        form, keys = documented(call, *words)
        _, out = call(*words, folder, "--json")
        assert list(printed(form, out)) == keys, words
    assert documented(call, "cluster", "left") == (LIST, ["left"])
    rows = cluster_state.as_json([Surveyed("a", None)])
    assert documented(call, "cluster", "check") == (LIST, list(rows[0]))


def test_the_summary_of_a_run_keeps_its_keys(fake: FakeRun, call: Call) -> None:
    form, _ = documented(call, "run")
    keys = list(json.loads(to_json(summarise(fake.run))))
    assert form.startswith(LINES) and keys == [field.name for field in fields(Summary)]
    assert keys == [
        "name", "outcome", "detail", "step", "steps", "loss", "validation_before",
        "validation_after", "validation_step", "unigram_nats", "tokens_per_s", "mfu", "peak_flops",
        "dtype",
        "checkpoints", "recoveries", "sample", "trace", "no_trace", "notebook", "resume",
    ]  # fmt: skip
