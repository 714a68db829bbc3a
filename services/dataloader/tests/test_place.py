"""Whatever ends ``prepare``, and whenever: old or new data are at the target, whole."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from headway.common.errors import InputError
from headway.common.node.testing import child_environment
from headway.dataloader import place
from headway.dataloader.config import DataConfig
from headway.dataloader.dataset import Dataset, verify
from headway.dataloader.place import draft_of, put, recover, sweep
from headway.dataloader.prepare import prepare


def config_of(folder: Path, source: Path) -> DataConfig:
    return DataConfig(path=str(folder), source=str(source), vocab_size=300)


def fill(folder: Path, word: str) -> None:
    folder.mkdir(parents=True)
    for name in ("meta.json", "train.bin", "train.idx"):
        (folder / name).write_text(word)


def content(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.iterdir()} | {str(len(list(folder.iterdir())))}


def killed_at(line: int, act: Callable[[], None]) -> bool:
    """Run ``act`` in a child killed at its ``line``-th line of ``place``; False if it ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads: the child uses none of them
        child = os.fork()
    if not child:
        seen = 0

        def trace(frame: FrameType, event: str, _arg: object) -> object:
            nonlocal seen
            if frame.f_code.co_filename == place.__file__ and event == "line":
                seen += 1
                if seen == line:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_kill_at_any_line_leaves_old_or_new_data_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(place, "_exchange", lambda *_: False)
    found, line = [], 0
    while True:
        line += 1
        target = tmp_path / str(line) / "corpus"
        fill(target, "old")
        fill(draft_of(target), "new")
        was_killed = killed_at(line, lambda target=target: put(target))  # type: ignore[misc]
        if can_exchange:
            assert target.is_dir()  # at every moment
        recover(target)
        assert content(target) in ({"old", "3"}, {"new", "3"}), line
        found.append("new" if "new" in content(target) else "old")
        sweep(target)
        assert [path.name for path in target.parent.iterdir()] == ["corpus"]
        if not was_killed:
            break
    assert line > 20 and found == sorted(found, reverse=True)  # first old ones, then new ones


def test_a_kill_at_any_line_of_the_first_run_leaves_new_data_or_none(tmp_path: Path) -> None:
    found, line, was_killed = [], 0, True
    while was_killed:
        line += 1
        target = tmp_path / str(line) / "corpus"
        fill(draft_of(target), "new")
        was_killed = killed_at(line, lambda target=target: put(target))  # type: ignore[misc]
        recover(target)
        found.append(target.exists())
        assert not target.exists() or content(target) == {"new", "3"}
    assert found == sorted(found) and set(found) == {False, True}


def test_data_moved_away_by_a_killed_run_come_back_even_if_the_source_is_gone(
    text_folder: Path, tmp_path: Path
) -> None:
    target = prepare(config_of(tmp_path / "d", text_folder)).path
    (tmp_path / ".d.prepare").mkdir()
    target.rename(tmp_path / ".d.prepare" / "old")
    with pytest.raises(InputError, match="does not exist"):
        prepare(config_of(target, tmp_path / "gone"), force=True)
    verify(target)
    said: list[str] = []
    target.rename(tmp_path / "x")
    (tmp_path / ".d.prepare").mkdir(exist_ok=True)
    (tmp_path / "x").rename(tmp_path / ".d.prepare" / "old")
    assert prepare(config_of(target, text_folder), say=said.append).already_prepared
    assert any("was restored" in line for line in said)
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_run_killed_while_it_builds_leaves_nothing_at_the_target_and_the_next_sweeps(
    text_folder: Path, tmp_path: Path
) -> None:
    code = (
        "import os, signal, sys\n"
        "import headway.dataloader.prepare as module\n"
        "module.put = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from headway.dataloader.config import DataConfig\n"
        "module.prepare(DataConfig(path=sys.argv[1], source=sys.argv[2], vocab_size=300))\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "d"), str(text_folder)]
    assert subprocess.run(arguments, env=child_environment(), check=False).returncode == -9
    assert draft_of(tmp_path / "d").is_dir() and not (tmp_path / "d").exists()
    prepare(config_of(tmp_path / "d", text_folder))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d"]
    verify(tmp_path / "d")


@pytest.mark.parametrize("other", ["corpus.v2", "corpus.prepare", "corpus.1.tmp"])
def test_a_run_leaves_the_draft_of_a_target_of_a_similar_name_alone(
    text_folder: Path, tmp_path: Path, other: str
) -> None:
    fill(draft_of(tmp_path / other), "busy")
    prepare(config_of(tmp_path / "corpus", text_folder))
    assert content(draft_of(tmp_path / other)) == {"busy", "3"}


def test_a_failed_put_leaves_the_old_data_and_no_draft(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = prepare(config_of(tmp_path / "d", text_folder)).path
    before = (target / "meta.json").read_bytes()
    real = place._rename

    def fail(source: Path, to: Path) -> None:
        if source.name == "draft":
            raise OSError(5, "Input/output error")
        real(source, to)

    monkeypatch.setattr(place, "_exchange", lambda *_: False)
    monkeypatch.setattr(place, "_rename", fail)
    with pytest.raises(InputError, match="Input/output error"):
        prepare(config_of(target, text_folder), force=True)
    assert (target / "meta.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_every_file_and_name_is_on_disk_before_and_after_the_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, steps = tmp_path / "corpus", []
    fill(target, "old")
    fill(draft_of(target), "new")
    fsync, exchange = os.fsync, place._exchange

    def record(fd: int) -> None:
        steps.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    def named(one: Path, other: Path) -> bool:
        steps.append("exchange")
        return exchange(one, other)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(place, "_exchange", named)
    put(target)
    at = steps.index("exchange")
    assert set(steps[:at]) == {"meta.json", "train.bin", "train.idx", "draft"}
    assert steps[at - 1] == "draft" and tmp_path.name in steps[at:]


def test_a_source_whose_name_is_not_utf8_is_prepared(text_folder: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(text_folder, tmp_path / os.fsdecode(b"t\xe4xt")))
    folder = prepare(config_of(tmp_path / "d", source)).path
    assert json.loads((folder / "meta.json").read_bytes())["source"].endswith("t\\udce4xt")
    assert Dataset(folder).meta is not None
