"""Replacing a file: whole or not at all, for any number of writers, nothing left beside it."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest
from headway.common.node.files import replace_file, replace_json


def test_a_file_gets_new_content_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"first, and longer")
    replace_file(path, "zweitens: ü")
    assert path.read_text("utf-8") == "zweitens: ü"
    replace_json(path, {"step": 3})
    assert json.loads(path.read_text()) == {"step": 3}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("mode", "umask", "expected"), [(0o666, 0o022, 0o644), (0o666, 0o077, 0o600), (0o600, 0, 0o600)]
)
def test_rights_are_the_mode_less_the_umask_also_where_the_old_file_had_others(
    tmp_path: Path, mode: int, umask: int, expected: int
) -> None:
    path = tmp_path / "a"
    path.touch(mode=0o640)
    before = os.umask(umask)
    try:
        replace_file(path, b"x", mode=mode)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == expected


@pytest.mark.parametrize("step", ["write", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_scratch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a"
    replace_file(path, b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = os.open

    def full_device(name: Path, flags: int, mode: int) -> int:
        os.close(real(name, flags, mode))
        return real("/dev/full", os.O_WRONLY)

    if step == "replace":
        monkeypatch.setattr(Path, "replace", full)
    else:
        monkeypatch.setattr(os, "open", full_device)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new" * 100_000)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_missing_folder_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "gone" / "a", b"")
    assert list(tmp_path.iterdir()) == []


def test_writers_at_once_never_mix_and_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    path = tmp_path / "a"
    contents = {bytes([letter]) * 50_000 for letter in b"abcd"}
    replace_file(path, min(contents))

    def write(content: bytes) -> None:
        for _ in range(50):
            replace_file(path, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert path.read_bytes() in contents
    for thread in threads:
        thread.join()
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
