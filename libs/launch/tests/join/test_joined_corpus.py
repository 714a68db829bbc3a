"""A machine has the run's corpus before it joins: it was there, or it is prepared."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from headway.common.errors import InputError
from headway.common.node.janitor import end_node, processes_of
from headway.common.node.testing import child_environment, python_child, wait_until
from headway.launch.join.corpus import Corpus, digest_of, provide
from headway.launch.join.ticket import Ticket

RUN = "0123ab04"


def supply(corpus: Corpus, limit_s: float = 60.0) -> None:
    provide(corpus, RUN, 1, limit_s)


def test_another_corpus_or_none_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    wanted = Corpus(str(data), "0" * 64)
    with pytest.raises(InputError, match="has no corpus in"):
        supply(wanted)
    (data / "train").mkdir(parents=True)
    (data / "train" / "tokens.bin").write_bytes(b"abc")
    wanted = dataclasses.replace(wanted, digest=digest_of(data))
    supply(wanted)
    (data / "train" / "tokens.bin").write_bytes(b"abcd")
    with pytest.raises(InputError, match="on this machine differs from the run's corpus"):
        supply(wanted)
    assert data.exists(), "it is not this machine's to remove"
    supply(dataclasses.replace(wanted, digest=""))


def test_a_pair_of_megatron_is_named_by_its_prefix_or_one_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "text.bin").write_bytes(b"abc")
    with pytest.raises(InputError, match="has no corpus in"):
        digest_of(tmp_path / "text")
    (tmp_path / "text.idx").write_bytes(b"abcd")
    (tmp_path / "other.bin").write_bytes(b"abcd")
    digests = {digest_of(tmp_path / name) for name in ("text", "text.bin", "text.idx")}
    assert len(digests) == 1
    (tmp_path / "text.idx").write_bytes(b"abcde")
    assert digest_of(tmp_path / "text") not in digests


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.txt").write_text(f"line {number} of a text\n" * 20)
    return folder


def recipe(text: Path) -> tuple[str, ...]:
    return ("--source", str(text), "--vocab-size", "300", "--validation-fraction", "0.2")


@pytest.fixture
def wanted(text: Path, tmp_path: Path) -> Corpus:
    """What the console has prepared at another place."""
    words = [*recipe(text), "--out", str(tmp_path / "console")]
    command = [sys.executable, "-m", "headway.dataloader", "prepare", *words]
    subprocess.run(command, env=child_environment(), check=True, capture_output=True)
    path = tmp_path / "disk" / "data"
    return Corpus(str(path), digest_of(tmp_path / "console"), recipe(text))


def test_a_machine_prepares_what_it_lacks(
    wanted: Corpus, text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = Path(wanted.path)
    supply(wanted)
    assert capfd.readouterr().err == f"preparing the corpus {path}\n"
    for file in path.iterdir():
        assert file.read_bytes() == (tmp_path / "console" / file.name).read_bytes()
    (text / "0.txt").write_text("other text")
    supply(wanted)
    assert capfd.readouterr().err == "", "it is there"
    ticket = Ticket("0", 1, "", "/c", "/s", corpus=wanted)
    assert Ticket.from_json(ticket.to_json()) == ticket


def test_a_machine_with_other_texts_keeps_nothing_of_them(wanted: Corpus, text: Path) -> None:
    (text / "0.txt").write_text("other text " * 100)
    with pytest.raises(InputError, match=r"prepares as .* differs from the run's corpus; use the"):
        supply(wanted)
    assert not Path(wanted.path).exists()


def test_a_machine_that_cannot_prepare_says_why(wanted: Corpus, text: Path) -> None:
    gone = dataclasses.replace(wanted, recipe=recipe(text / "nowhere"))
    with pytest.raises(InputError, match=r"and cannot prepare it: .*nowhere.*copy it there"):
        supply(gone)
    assert not Path(wanted.path).exists()


def test_a_preparation_that_takes_too_long_is_ended_and_leaves_nothing(wanted: Corpus) -> None:
    with pytest.raises(InputError, match=r"cannot prepare it: it takes more than 0.01 s; copy"):
        supply(wanted, 0.01)
    assert not list(Path(wanted.path).parent.glob("*"))
    supply(wanted)


def test_what_ranks_do_not_read_makes_no_difference(wanted: Corpus) -> None:
    supply(wanted)
    path = Path(wanted.path)
    (path / "README").write_text("of a person")
    (path / "train.keys").unlink()
    supply(wanted)
    meta = (path / "meta.json").read_text()
    (path / "meta.json").write_text(meta.replace('"bin_sha256": "', '"bin_sha256": "0'))
    with pytest.raises(InputError, match="differs from the run's corpus"):
        supply(wanted)
    (path / "meta.json").write_text("{}")
    with pytest.raises(InputError, match=r"meta.json is damaged: .*; copy it again"):
        supply(wanted)


@pytest.mark.parametrize("copied", [True, False], ids=["the run's", "another"])
def test_a_corpus_that_a_person_copies_meanwhile_stays(
    wanted: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    path, real = Path(wanted.path), subprocess.run

    def run(*words: Any, **options: Any) -> Any:
        done = real(*words, **options)
        shutil.copytree(tmp_path / "console", path)
        if not copied:
            (path / "train.bin").write_bytes(b"other")
        return done

    monkeypatch.setattr(subprocess, "run", run)
    if copied:
        supply(wanted)
    else:
        with pytest.raises(InputError, match="on this machine differs"):
            supply(wanted)
        assert (path / "train.bin").read_bytes() == b"other"
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_nodes_that_share_a_disk_may_prepare_at_once(wanted: Corpus) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(provide, wanted, RUN, node, 60.0) for node in range(4)]
        for one in done:
            one.result()
    assert digest_of(Path(wanted.path)) == wanted.digest
    assert [one.name for one in Path(wanted.path).parent.iterdir()] == [Path(wanted.path).name]


def test_a_link_to_what_is_not_mounted_is_not_replaced(wanted: Corpus, tmp_path: Path) -> None:
    link = Path(wanted.path)
    link.parent.mkdir()
    link.symlink_to(tmp_path / "not-mounted")
    with pytest.raises(InputError, match="has no corpus in"):
        supply(wanted)
    assert link.is_symlink() and not (tmp_path / "not-mounted").exists()


def test_a_preparation_ends_with_its_node(wanted: Corpus) -> None:
    code = f"""
from headway.launch.join.corpus import Corpus, provide
provide(Corpus({wanted.path!r}, "0" * 64, {wanted.recipe!r}), {RUN!r}, 1, 60.0)
"""
    with python_child(code) as child:
        wait_until(lambda: bool(processes_of(RUN, 1)), what="the preparation")
        end_node(RUN, 1)
        assert child.wait(20.0) != 0
    assert not Path(wanted.path).exists()
