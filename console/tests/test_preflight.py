"""Every setting of the data has an effect, at the launch or in a rank."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from headway.common.config import from_dict
from headway.common.errors import InputError
from headway.common.node.run_dir import NodePaths
from headway.console.machine import preflight
from headway.console.machine.preflight import own_corpus_folder
from headway.console.testing import SMALL
from headway.dataloader.config import DataConfig
from headway.dataloader.prepare import prepare
from headway.trainer import rank as rank_module
from headway.trainer.config import RunConfig
from headway.trainer.rank import NodeResources


def test_every_setting_of_the_data_changes_what_a_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the stream, of the wait for it, or of the corpus that a launch makes."""

    def effects(**values: Any) -> Any:
        config = from_dict(RunConfig, {"data": {"path": str(tmp_path), **values}})
        asked: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(rank_module, "DataClient", lambda *a, **kw: asked.append((a, kw)))
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
        "validation_fraction": 0.25,
        "seed": 99,
        "ring_slots": 32,
        "wait_timeout_s": 7.5,
    }
    assert others.keys() == {field.name for field in dataclasses.fields(DataConfig)}
    plain = effects()
    for key, value in others.items():
        assert effects(**{key: value}) != plain, f"data.{key} has no effect"


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        ("stdlib", "data/stdlib"),
        ("debian-docs", "data/debian-docs"),
        ("my texts", "data/my texts"),
        ("novel.txt", "data/novel"),
        ("data/here", "data/here-prepared"),
        ("..", None),
    ],
)
def test_a_source_that_is_given_alone_gets_a_folder_of_its_own(
    source: str, folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "novel.txt").write_text("once upon a time")
    data = own_corpus_folder(dataclasses.replace(SMALL, data=DataConfig(source=source))).data
    expected = folder or f"data/{tmp_path.parent.name}"
    assert (data.source, data.path) == (source, expected)


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
