"""A machine has the run's corpus before it joins: it was there, or it is prepared."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.common.node.testing import child_environment
from headway.launch.joining.corpus import Corpus, listing_digest, provide
from headway.launch.joining.ticket import Ticket


def test_another_corpus_or_none_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    wanted = Corpus(str(data), "0" * 64)
    with pytest.raises(InputError, match="has no corpus in"):
        provide(wanted)
    (data / "train").mkdir(parents=True)
    (data / "train" / "tokens.bin").write_bytes(b"abc")
    wanted = dataclasses.replace(wanted, digest=listing_digest(data))
    provide(wanted)
    (data / "train" / "tokens.bin").write_bytes(b"abcd")
    with pytest.raises(InputError, match="on this machine differs from the run's corpus"):
        provide(wanted)
    assert data.exists(), "it is not this machine's to remove"
    provide(dataclasses.replace(wanted, digest=""))


def test_a_pair_of_megatron_is_named_by_its_prefix_or_one_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "text.bin").write_bytes(b"abc")
    with pytest.raises(InputError, match="has no corpus in"):
        listing_digest(tmp_path / "text")
    (tmp_path / "text.idx").write_bytes(b"abcd")
    (tmp_path / "other.bin").write_bytes(b"abcd")
    digests = {listing_digest(tmp_path / name) for name in ("text", "text.bin", "text.idx")}
    assert len(digests) == 1
    (tmp_path / "text.idx").write_bytes(b"abcde")
    assert listing_digest(tmp_path / "text") not in digests


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
    return Corpus(str(path), listing_digest(tmp_path / "console"), recipe(text))


def test_a_machine_prepares_what_it_lacks(
    wanted: Corpus, text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = Path(wanted.path)
    provide(wanted)
    assert capfd.readouterr().err == f"preparing the corpus {path}\n"
    for file in path.iterdir():
        assert file.read_bytes() == (tmp_path / "console" / file.name).read_bytes()
    (text / "0.txt").write_text("other text")
    provide(wanted)
    assert capfd.readouterr().err == "", "it is there"
    ticket = Ticket("0", 1, "", "/c", "/s", corpus=wanted)
    assert Ticket.from_json(ticket.to_json()) == ticket


def test_a_machine_with_other_texts_keeps_nothing_of_them(wanted: Corpus, text: Path) -> None:
    (text / "0.txt").write_text("other text " * 100)
    with pytest.raises(InputError, match=r"prepares as .* differs from the run's corpus; use the"):
        provide(wanted)
    assert not Path(wanted.path).exists()


def test_a_machine_that_cannot_prepare_says_why(wanted: Corpus, text: Path) -> None:
    gone = dataclasses.replace(wanted, recipe=recipe(text / "nowhere"))
    with pytest.raises(InputError, match=r"and cannot prepare it: .*nowhere.*copy it there"):
        provide(gone)
    assert not Path(wanted.path).exists()


def test_a_preparation_that_takes_too_long_is_ended_and_leaves_nothing(wanted: Corpus) -> None:
    with pytest.raises(InputError, match=r"cannot prepare it: it takes more than 0.01 s; copy"):
        provide(wanted, limit_s=0.01)
    assert not list(Path(wanted.path).parent.glob("*"))
    provide(wanted)
