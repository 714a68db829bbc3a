"""The fingerprint is of the content; content that differs from its digests is not handed out."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import CorruptError
from headway.common.node.testing import child_environment
from headway.dataloader import digests, formats
from headway.dataloader.blocks import BLOCK_BYTES
from headway.dataloader.client import ChangedDataError, DataClient
from headway.dataloader.config import DataConfig, stream_spec
from headway.dataloader.dataset import Dataset, verify, write_digests
from headway.dataloader.digests import digests_path
from headway.dataloader.formats import TokenFile, bin_path, idx_path
from headway.dataloader.order import ORDER_MARK
from headway.dataloader.prepare import prepare
from headway.testkit.data_daemon import Daemon, rows, write_tokens


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def copy_pair(prefix: Path, folder: Path) -> Path:
    """The pair alone, as a Megatron tool leaves it, with another time of change."""
    folder.mkdir()
    for path in (bin_path(prefix), idx_path(prefix)):
        shutil.copyfile(path, folder / path.name)
        os.utime(folder / path.name, (1, 1))
    return folder / prefix.name


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Three blocks of 128 KiB and a part of a fourth."""
    return write_tokens(tmp_path / "x", [70_000, 70_000, 60_000], vocab_size=1000)


def test_a_flipped_token_inside_the_vocabulary_is_another_fingerprint(prefix: Path) -> None:
    before = TokenFile(prefix).fingerprint()
    digests_path(prefix).unlink()
    assert TokenFile(prefix).fingerprint() == before
    digests_path(prefix).unlink()
    flip(bin_path(prefix), 100)
    assert TokenFile(prefix).fingerprint() != before


def test_equal_content_has_one_fingerprint_with_and_without_digests_wherever_it_lies(
    prefix: Path, tmp_path: Path
) -> None:
    alone = copy_pair(prefix, tmp_path / "elsewhere")
    assert TokenFile(alone).fingerprint() == TokenFile(prefix).fingerprint()
    assert write_digests(alone) == [digests_path(alone)]
    assert digests_path(alone).read_bytes() == digests_path(prefix).read_bytes()
    assert TokenFile(alone).fingerprint() == TokenFile(prefix).fingerprint()


def test_another_index_over_the_same_tokens_is_another_fingerprint(tmp_path: Path) -> None:
    one = write_tokens(tmp_path / "a", [10, 20])
    other = write_tokens(tmp_path / "b", [20, 10])
    assert bin_path(one).read_bytes() == bin_path(other).read_bytes()
    assert TokenFile(one).fingerprint() != TokenFile(other).fingerprint()


def _refuse(*_: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_pair_without_digests_is_given_them_so_that_nobody_reads_it_whole_again(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = digests_path(prefix).read_bytes()
    digests_path(prefix).unlink()
    with caplog.at_level(logging.INFO):
        tokens = TokenFile(prefix)
        found = tokens.fingerprint()
    assert digests_path(prefix).read_bytes() == recorded
    assert tokens.is_current(), "the daemon does not open it anew for that"
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"{digests_path(prefix)} was written" in line
    monkeypatch.setattr(formats, "compute_digests", _refuse)
    assert TokenFile(prefix).fingerprint() == found


@pytest.mark.parametrize("changed", [bin_path, idx_path, digests_path])
def test_a_pair_that_changes_while_it_is_read_is_given_no_digests(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, changed: Callable[[Path], Path]
) -> None:
    digests_path(prefix).unlink()
    real = formats.compute_digests

    def compute(path: Path) -> digests.Digests:
        found = real(path)
        changed(prefix).touch()
        return found

    monkeypatch.setattr(formats, "compute_digests", compute)
    TokenFile(prefix).fingerprint()
    assert not digests_path(prefix).exists() or not digests_path(prefix).stat().st_size


def test_a_pair_without_digests_is_read_whole_once_and_says_so_when_large(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    digests_path(prefix).unlink()
    monkeypatch.setattr(digests, "_LARGE_BYTES", 1000)
    monkeypatch.setattr(digests, "write_digests", _refuse)
    with caplog.at_level(logging.WARNING):
        found = {TokenFile(prefix).fingerprint() for _ in range(3)}
    assert len(found) == 1 and not digests_path(prefix).exists()
    read, kept = [record.getMessage() for record in caplog.records]
    assert f"reading 0.0 GB of {bin_path(prefix)}" in read
    assert f"{digests_path(prefix)} cannot be written (Read-only file system)" in kept
    flip(bin_path(prefix), 7)
    assert TokenFile(prefix).fingerprint() not in found  # remembered by time of change, not by name


def test_a_block_that_differs_is_named_at_its_first_read_and_others_are_handed_out(
    prefix: Path,
) -> None:
    flip(bin_path(prefix), 2 * BLOCK_BYTES + 5)
    tokens = TokenFile(prefix)
    out = memoryview(bytearray(100))
    tokens.read(0, out)
    tokens.read(2 * BLOCK_BYTES - 100, out)
    with pytest.raises(CorruptError, match=r"x\.bin: bytes 262144\.\.393215 do not match"):
        tokens.read(2 * BLOCK_BYTES - 50, out)
    flip(bin_path(prefix), 2 * BLOCK_BYTES + 5)
    tokens.read(2 * BLOCK_BYTES - 50, out)


def test_a_block_that_was_checked_is_not_checked_again(prefix: Path) -> None:
    tokens, out = TokenFile(prefix), memoryview(bytearray(4))
    tokens.read(0, out)
    with bin_path(prefix).open("r+b") as file:
        file.write(b"\xff\xff")
    tokens.read(0, out)
    assert bytes(out[:2]) == b"\xff\xff"


def test_damage_reaches_a_reader_with_and_without_a_daemon(daemon: Daemon, prefix: Path) -> None:
    for at in range(0, 400_000, BLOCK_BYTES):
        flip(bin_path(prefix), at)
    spec = stream_spec(prefix, seq_len=16, micro_batch_size=2)
    for source in (None, daemon.endpoint):
        with (
            DataClient(source, spec=spec) as client,
            pytest.raises(CorruptError, match=r"x\.bin: bytes \d+\.\.\d+ do not match"),
        ):
            client.next()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda raw: raw[:-8], "truncated or damaged"),
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "truncated or damaged"),
        (lambda raw: raw[:11], "holds no block digests"),
        (lambda raw: b"OTHERONE" + raw[8:], "holds no block digests"),
        (lambda raw: raw[:8] + b"\2" + raw[9:], "version 2"),
        (lambda raw: raw[:16] + b"\7" + raw[17:], r"is of a \.bin of"),
    ],
)
def test_digests_that_contradict_the_pair_are_named_with_a_remedy(
    prefix: Path,
    damage: object,
    words: str,
) -> None:
    path = digests_path(prefix)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(CorruptError, match=rf"x\.digests.*{words}.*headway data digest"):
        TokenFile(prefix)
    write_digests(prefix)
    TokenFile(prefix).fingerprint()


def test_a_pair_written_anew_takes_its_old_digests_along(prefix: Path) -> None:
    write_tokens(prefix, [5, 6])
    TokenFile(prefix).sequence(1)
    assert len(TokenFile(prefix).digests()) == 1


def test_a_client_that_names_a_fingerprint_gets_these_data_or_none(
    daemon: Daemon, prefix: Path
) -> None:
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=1)
    for source in (None, daemon.endpoint):
        with DataClient(source, spec=spec) as client:
            assert client.fingerprint == TokenFile(prefix).fingerprint() + ORDER_MARK
        other = stream_spec(
            prefix, seq_len=8, micro_batch_size=1, generation=1, fingerprint="0" * 16 + ORDER_MARK
        )
        with pytest.raises(ChangedDataError, match="have changed: fingerprint"):
            DataClient(source, spec=other)


def test_a_ring_that_is_open_is_refused_to_who_expects_other_data(
    daemon: Daemon, prefix: Path
) -> None:
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=1, num_readers=2)
    expects = stream_spec(
        prefix, seq_len=8, micro_batch_size=1, num_readers=2, fingerprint="f" * 16 + ORDER_MARK
    )
    with (
        DataClient(daemon.endpoint, spec=spec),
        pytest.raises(ChangedDataError, match="have changed: fingerprint"),
    ):
        DataClient(daemon.endpoint, spec=expects, reader=1)


def test_a_restarted_daemon_sees_other_content_of_the_same_size(
    daemon: Daemon, tmp_path: Path
) -> None:
    prefix = write_tokens(tmp_path / "x", [300, 300])
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=2, ring_slots=2)
    with DataClient(daemon.endpoint, spec=spec) as client:
        rows(client, 3)
        daemon.kill()
        write_tokens(prefix, [300, 300], seed=1)
        daemon.start()
        with pytest.raises(ChangedDataError, match="have changed"):
            rows(client, 5)


def test_verify_names_the_block_that_differs(prefix: Path) -> None:
    (line,) = verify(prefix)
    assert "4 blocks as in x.digests" in line
    flip(bin_path(prefix), BLOCK_BYTES)
    with pytest.raises(CorruptError, match=r"x\.bin: bytes 131072\.\.262143"):
        verify(prefix)


def test_verify_still_compares_with_meta_json(corpus: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(corpus, tmp_path / "d"))
    flip(bin_path(folder / "train"), 3)
    digests_path(folder / "train").unlink()
    with pytest.raises(CorruptError, match=r"train\.bin has SHA-256"):
        verify(folder)
    with pytest.raises(CorruptError, match=r"train\.bin has SHA-256"):
        write_digests(folder)  # damage gets no digest of its own
    assert not digests_path(folder / "train").exists()


def test_the_command_writes_the_digests_of_a_pair_and_of_a_folder(
    corpus: Path, prefix: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(corpus, tmp_path / "d"))
    made = [
        digests_path(prefix),
        digests_path(folder / "train"),
        digests_path(folder / "validation"),
    ]
    before = [path.read_bytes() for path in made]
    for path in made:
        path.unlink()
    for target in (prefix, folder):
        command = [sys.executable, "-m", "headway.dataloader", "digest", str(target), "--json"]
        done = subprocess.run(
            command, env=child_environment(), capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout)["written"]
    assert [path.read_bytes() for path in made] == before


def test_the_digests_do_not_depend_on_how_the_bytes_came() -> None:
    raw = np.random.default_rng(0).bytes(3 * BLOCK_BYTES + 17)
    whole, parts = digests.BlockHasher(), digests.BlockHasher()
    whole.update(raw)
    for at in range(0, len(raw), 9973):
        parts.update(raw[at : at + 9973])
    np.testing.assert_array_equal(whole.finish(), parts.finish())


def test_a_prepared_folder_has_digests(corpus: Path) -> None:
    for split in ("train", "validation"):
        assert Dataset(corpus).split(split).has_digests


def test_a_prepared_folder_without_digests_is_compared_with_its_description(
    text_folder: Path, tmp_path: Path
) -> None:
    folder = prepare(
        DataConfig(path=str(tmp_path / "d"), source=str(text_folder), vocab_size=300)
    ).path
    (folder / "train.digests").unlink()
    spec = stream_spec(folder, seq_len=4, micro_batch_size=1)
    with DataClient(None, spec=spec):
        pass
    (folder / "train.digests").unlink()
    path = folder / "train.bin"
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptError, match=r"train\.bin is not what meta\.json describes"):
        DataClient(None, spec=spec)
    assert not (folder / "train.digests").exists()


def test_a_description_that_is_not_utf8_is_named(text_folder: Path, tmp_path: Path) -> None:
    folder = prepare(
        DataConfig(path=str(tmp_path / "d"), source=str(text_folder), vocab_size=300)
    ).path
    raw = (folder / "meta.json").read_bytes()
    (folder / "meta.json").write_bytes(raw.replace(b'"source": "', b'"source": "\xff'))
    with pytest.raises(CorruptError, match=r"meta\.json is not readable"):
        DataClient(None, spec=stream_spec(folder, seq_len=4, micro_batch_size=1))
