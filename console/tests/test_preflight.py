"""Every setting of the data has an effect, at the launch or in a rank."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from headway.common.config import from_dict, load
from headway.common.errors import ConfigError, InputError
from headway.common.node.run_dir import NodePaths
from headway.console.machine import preflight
from headway.console.machine.preflight import own_corpus_folder
from headway.console.testing import SMALL
from headway.controller.executor.service_commands import NodeServices
from headway.dataloader.cli import main
from headway.dataloader.config import DataConfig
from headway.dataloader.prepare import prepare
from headway.health.config import HealthConfig
from headway.trainer.config import RunConfig
from headway.trainer.worker import node_resources
from headway.trainer.worker.node_resources import NodeResources


def test_every_setting_of_the_data_changes_what_a_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the stream, of the wait for it, or of the corpus that a launch makes."""

    def effects(**values: Any) -> Any:
        config = from_dict(RunConfig, {"data": {"path": str(tmp_path), **values}})
        asked: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(node_resources, "DataClient", lambda *a, **kw: asked.append((a, kw)))
            NodeResources.open_data(
                SimpleNamespace(  # type: ignore[arg-type]
                    _config=config,
                    _rank=0,
                    _context=SimpleNamespace(paths=NodePaths("0123abcd", 0), fence=None),
                ),
                "train", 0, 0, "",
            )  # fmt: skip

            def prepare(command: list[str], **_: Any) -> Any:
                asked.append(command)
                return SimpleNamespace(returncode=0, stdout="", stderr="")

            patch.setattr(preflight.subprocess, "run", prepare)
            preflight._prepare(config, Path(config.data.path), lambda _: None)
        return asked

    others = {
        "path": str(tmp_path / "other"),
        "source": "debian-docs",
        "vocab_size": 300,
        "tokenizer": "tokenizer.json",
        "end": "</s>",
        "validation_fraction": 0.25,
        "seed": 99,
        "ring_slots": 32,
        "wait_timeout_s": 7.5,
    }
    assert others.keys() == {field.name for field in dataclasses.fields(DataConfig)}
    plain = effects()
    for key, value in others.items():
        assert effects(**{key: value}) != plain, f"data.{key} has no effect"


def _folder(**data: Any) -> str:
    return own_corpus_folder(dataclasses.replace(SMALL, data=DataConfig(**data))).data.path


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("debian-docs", "debian-docs"),
        ("my texts", "my texts"),
        ("novel.txt", "novel"),
        ("data/here", "here"),
        ("..", None),
    ],
)
def test_a_source_that_is_given_alone_gets_a_folder_of_its_own(
    source: str, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "novel.txt").write_text("once upon a time")
    path = _folder(source=source)
    assert re.fullmatch(f"data/{name or tmp_path.parent.name}-[0-9a-f]{{8}}", path)
    assert _folder(source=source) == path


def test_the_folder_differs_with_the_source_the_tokenizer_and_the_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        (tmp_path / f"{number}.json").write_text(f"{number}")
    (tmp_path / "a").mkdir()
    given: list[dict[str, Any]] = [
        {"source": "a/mine"},
        {"source": "b/mine"},
        {"source": "a/mine", "vocab_size": 300},
        {"source": "a/mine", "tokenizer": "0.json"},
        {"source": "a/mine", "tokenizer": "1.json"},
        {"source": "a/mine", "tokenizer": "1.json", "end": "</s>"},
        {"tokenizer": "0.json"},
        {},
    ]
    folders = [_folder(**one) for one in given]
    assert len(set(folders)) == len(given)
    assert folders[-1] == "data/stdlib"
    assert _folder(source=str(tmp_path / "a" / "mine")) == folders[0]


def test_a_folder_that_was_prepared_by_hand_is_used_if_it_is_of_the_same_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _texts(tmp_path / "mine")
    prepare(DataConfig(path="data/mine", source="mine", vocab_size=300))
    assert _folder(source="mine", vocab_size=300) == "data/mine"
    assert _folder(source="mine") != "data/mine"
    assert _folder(source="other/mine", vocab_size=300) != "data/mine"


def _texts(folder: Path) -> None:
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"tokens of a ring {number} " * 60)


def _run(*settings: str) -> list[str]:
    """What a launch reports about its corpus."""
    reported: list[str] = []
    wanted = ["model.vocab_size=512", *settings]
    preflight.prepare_corpus(own_corpus_folder(load(RunConfig, [], wanted)), reported.append)
    return reported


def test_texts_that_have_changed_since_are_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _texts(tmp_path / "mine")
    assert _run("data.source=mine")
    assert _run("data.source=mine") == []
    os.utime(tmp_path / "mine" / "0.txt", (1, 1))  # another time, the same text
    assert _run("data.source=mine") == []
    same_size = (tmp_path / "mine" / "0.txt").read_text().replace("ring", "king")
    for change, words in (
        (lambda: (tmp_path / "mine" / "0.txt").write_text(same_size), "1 changed (0.txt)"),
        (lambda: (tmp_path / "mine" / "9.txt").write_text("new"), "1 changed (0.txt), 1 new (9"),
        (lambda: (tmp_path / "mine" / "5.txt").unlink(), "1 new (9.txt), 1 gone (5.txt)"),
    ):
        change()
        with pytest.raises(InputError, match=re.escape(words)) as refused:
            _run("data.source=mine")
    (command,) = re.findall("`headway data (.*)`", refused.value.remedy)
    assert main(shlex.split(command)) == 0
    assert _run("data.source=mine") == []


def test_settings_that_the_prepared_folder_does_not_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _texts(tmp_path / "mine")
    _run("data.source=mine", "data.validation_fraction=0.4")
    with pytest.raises(InputError, match=r"fraction=0\.4, but data.validation_fraction=0\.05"):
        _run("data.source=mine")
    (made,) = (tmp_path / "data").iterdir()
    assert _run(f"data.path={made}") == []  # the folder as it was prepared
    with pytest.raises(InputError, match=r"vocab_size=512, but data\.vocab_size=300"):
        _run(f"data.path={made}", "data.vocab_size=300")
    assert _run(f"data.path={made}", "data.vocab_size=512") == []


def test_a_folder_that_is_given_is_kept(tmp_path: Path) -> None:
    given = dataclasses.replace(SMALL, data=DataConfig(source="x", path=str(tmp_path)))
    assert own_corpus_folder(given) == given


def test_a_corpus_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for number in range(4):
        (text / f"{number}.txt").write_text(f"tokens of a ring {number} " * 60)
    first = DataConfig(path=str(tmp_path / "first"), source=str(text), vocab_size=300)
    prepare(first)
    given = str(tmp_path / "first" / "tokenizer.json")
    second = dataclasses.replace(first, path=str(tmp_path / "second"), tokenizer=given)

    def check(data: DataConfig) -> None:
        config = from_dict(RunConfig, {"model": {"vocab_size": 512}})
        preflight.prepare_corpus(dataclasses.replace(config, data=data), lambda _: None)

    check(second)
    other = tmp_path / "other.json"
    other.write_text(Path(given).read_text() + " ")
    with pytest.raises(InputError, match="was prepared with another tokenizer"):
        check(dataclasses.replace(second, tokenizer=str(other)))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        check(dataclasses.replace(second, tokenizer=str(tmp_path / "none.json")))


def test_rules_that_are_not_valid_are_refused_before_the_start(tmp_path: Path) -> None:
    rules = tmp_path / "own.toml"
    rules.write_text("[[rule]]\nname = 'tokens_lost'\nsource = 'ranks'\n")
    config = from_dict(RunConfig, {"health": {"rules": [str(rules)]}})
    with pytest.raises(ConfigError, match=r"own\.toml.*tokens_lost.*"):
        preflight.check_own_rules(config)
    preflight.check_own_rules(RunConfig())


def test_an_agent_gets_the_runs_rules_and_its_file_systems(tmp_path: Path) -> None:
    config = from_dict(
        RunConfig, {"health": {"rules": ["it's.toml", "b.toml"]}, "data": {"path": "/corpus"}}
    )
    run = SimpleNamespace(
        logs=tmp_path, events=tmp_path, checkpoints=Path("/ckpt"), path=tmp_path, control=tmp_path,
        verdicts=tmp_path / "verdicts.jsonl",
    )  # fmt: skip
    paths = NodePaths("0badcafe", 0)
    services = NodeServices(run, config, paths, tmp_path)  # type: ignore[arg-type]
    words = list(services.spec("agent").argv)
    mounts = [words[at + 1] for at, word in enumerate(words) if word == "--mount"]
    assert mounts == ["/ckpt", "/corpus"]
    settings = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    assert load(HealthConfig, overrides=settings).rules == ("it's.toml", "b.toml")
