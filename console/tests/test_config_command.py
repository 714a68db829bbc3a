"""``headway config``: what is set, where it comes from, and in what two configurations differ."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from headway.common.config import load
from headway.console.cli import main
from headway.console.folder import config_origins
from headway.console.folder.claim import keep_config
from headway.console.testing import SMALL, FakeRun
from headway.trainer.config import RunConfig

Call = Callable[..., tuple[int, str, str]]
TOML = (
    "[train]\nsteps = 7\nglobal_batch_size = 4\n[parallel]\ndp = 2\n[launch]\nranks_per_node = 2\n"
)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], fake: FakeRun, own_roots: Path,
         monkeypatch: pytest.MonkeyPatch) -> Call:  # fmt: skip
    """A command in the folder above the runs, where ``my.toml`` is too."""
    (own_roots / "my.toml").write_text(TOML)
    monkeypatch.chdir(own_roots)
    assert fake.folder.path.parent == own_roots / "runs"

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["config", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def origins(call: Call, *arguments: str) -> dict[str, tuple[object, str]]:
    code, out, _ = call("show", *arguments, "--origin", "--json")
    assert code == 0
    return {row["key"]: (row["value"], row["origin"]) for row in json.loads(out)}


def test_a_run_or_a_file_is_shown_as_toml_that_reads_back(call: Call, tmp_path: Path) -> None:
    _, out, _ = call("show")
    (tmp_path / "again.toml").write_text(out)
    assert load(RunConfig, [tmp_path / "again.toml"]) == SMALL
    _, out, _ = call("show", "my.toml")
    assert "steps = 7" in out


def test_every_setting_of_a_file_has_its_origin(call: Call) -> None:
    found = origins(call, "my.toml")
    assert found["train.steps"] == (7, "my.toml")
    assert found["train.seed"][1] == "default"
    _, out, _ = call("show", "my.toml", "--origin")
    assert out.splitlines()[0].split() == ["key", "value", "origin"]


def test_origins_of_a_run_survive_its_resume(call: Call, fake: FakeRun, own_roots: Path) -> None:
    file, run = own_roots / "my.toml", fake.run
    overrides = ["train.steps=9"]
    asked = load(RunConfig, [file], overrides)
    resolved = dataclasses.replace(asked, train=dataclasses.replace(asked.train, device="cpu"))
    keep_config(run, resolved)
    config_origins.keep(run, config_origins.given(file, overrides), asked, resolved)
    first = origins(call)
    assert first["train.steps"] == (9, "command line")
    assert first["parallel.dp"] == (2, str(file))
    assert first["train.device"] == ("cpu", "chosen at launch")
    assert first["train.seed"][1] == "default"
    own = run.folder.config
    asked = load(RunConfig, [own], ["optim.lr=1e-4"])
    keep_config(run, asked)
    config_origins.keep(run, config_origins.given(own, ["optim.lr=1e-4"]), asked, asked)
    again = origins(call)
    assert again["optim.lr"] == (1e-4, "command line")
    assert {**again, "optim.lr": None} == {**first, "optim.lr": None}


def test_a_run_of_an_older_version_has_no_origins(call: Call, fake: FakeRun) -> None:
    assert {origin for _, origin in origins(call, "fake").values()} == {"default"}
    (fake.folder.path / config_origins.FILE).write_text("{")
    assert {origin for _, origin in origins(call, "fake").values()} == {"default"}


def test_differences_are_listed_by_key(call: Call) -> None:
    code, out, _ = call("diff", "my.toml", "--json")
    rows = {row["key"]: (row["a"], row["b"]) for row in json.loads(out)}
    assert code == 0 and rows["train.steps"] == (7, 40)
    _, out, _ = call("diff", "my.toml", "fake")
    assert out.splitlines()[0].split() == ["key", "my.toml", "fake"]
    _, out, _ = call("diff", "fake")
    assert out == "fake and fake have the same configuration\n"


@pytest.mark.parametrize("arguments", [["show", "nope"], ["diff", "fake", "nope.toml"]])
def test_what_is_not_there_is_named(arguments: list[str], call: Call) -> None:
    code, _, err = call(*arguments)
    assert code == 2 and "nope" in err and "; " in err
