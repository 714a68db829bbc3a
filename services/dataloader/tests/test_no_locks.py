"""Where the file system has no locks, ``prepare`` says so and goes on; two at once mix nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from headway.dataloader import place
from headway.dataloader import prepare as module
from headway.dataloader.config import DataConfig
from headway.dataloader.dataset import verify
from headway.dataloader.prepare import prepare


def refuse_locks(patch: pytest.MonkeyPatch, number: int) -> None:
    def flock(_fd: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    patch.setattr("fcntl.flock", flock)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_there_is_a_warning_and_the_data(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_locks(monkeypatch, number)
    said: list[str] = []
    data = DataConfig(path=str(tmp_path / "d"), source=str(text_folder), vocab_size=300)
    prepare(data, say=said.append)
    assert [line for line in said if "has no file locks" in line]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    verify(tmp_path / "d")


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_second_run_amid_the_first_leaves_the_data_of_the_last_whole(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    refuse_locks(monkeypatch, errno.ENOLCK)
    if not can_exchange:
        monkeypatch.setattr(place, "_exchange", lambda *_: False)
    target, real = tmp_path / "d", module._encode
    first = DataConfig(path=str(target), source=str(text_folder), vocab_size=300)
    second = DataConfig(path=str(target), source=str(text_folder), vocab_size=290)

    def encode(prefix: Path, *rest: object) -> object:
        if prefix.name == "validation":
            with monkeypatch.context() as patch:
                patch.setattr(module, "_encode", real)
                assert prepare(second, force=True).meta.asked_vocab_size == 290
            verify(target)
        return real(prefix, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_encode", encode)
    assert prepare(first, force=True).meta.asked_vocab_size == 300
    verify(target)
    assert module.read_meta(target).asked_vocab_size == 300
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_data_moved_away_by_a_killed_run_without_locks_come_back(tmp_path: Path) -> None:
    old = tmp_path / ".d.prepare" / "host-7" / "old"
    old.mkdir(parents=True)
    (old / "meta.json").write_text("old")
    assert place.recover(tmp_path / "d")
    assert (tmp_path / "d" / "meta.json").read_text() == "old"
