"""Reading ``.bin``: trouble is an error that names file and place, and ids come out as they are."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import CorruptError, InputError
from headway.common.node.testing import child_environment
from headway.dataloader.blocks import BlockReader, ReadError
from headway.dataloader.client import DataClient
from headway.dataloader.config import DataConfig, stream_spec
from headway.dataloader.formats import TokenFile, TokenFileWriter, bin_path, idx_path
from headway.dataloader.prepare import prepare
from headway.dataloader.shared import SharedPackers
from headway.testkit.data_daemon import write_tokens

CUT = """
import os, sys
from headway.common.errors import CorruptError
from headway.dataloader.client import DataClient
from headway.dataloader.config import stream_spec
client = DataClient(None, spec=stream_spec(sys.argv[1], seq_len=64, micro_batch_size=8))
client.next()
os.truncate(sys.argv[1] + ".bin", 4096)
try:
    for _ in range(500):
        client.next()
except CorruptError as error:
    sys.exit(str(error))
"""


def test_a_bin_cut_under_a_reader_is_an_error_and_not_the_end_of_the_process(
    tmp_path: Path,
) -> None:
    prefix = write_tokens(tmp_path / "x", [200_000])
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(prefix)],
        env=child_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done
    assert re.search(r"x\.bin ends at byte \d+, it had 400000 bytes when it was", done.stderr)


def test_what_the_disk_says_is_kept_with_file_and_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = write_tokens(tmp_path / "x", [100])

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with DataClient(None, spec=stream_spec(prefix, seq_len=8, micro_batch_size=1)) as client:
        client.next()
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(ReadError, match=r"x\.bin at byte \d+: Input/output error \(EIO\)") as e:
            client.next()
        assert (e.value.errno, e.value.path) == (errno.EIO, bin_path(prefix))
        monkeypatch.undo()
        assert client.next().sample == 1  # the same batch, once the disk is back


def test_a_read_that_comes_in_pieces_is_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(range(200)))
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, to, at: preadv(fd, [to[0][:7]], at))
    out = memoryview(bytearray(100))
    BlockReader(path).read(50, out)
    assert bytes(out) == bytes(range(50, 150))


def test_trouble_with_the_index_is_told_apart_from_its_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = write_tokens(tmp_path / "x", [100])

    def fail(_: Path) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch, pytest.raises(ReadError, match=r"x\.idx .*\(ESTALE\)"):
        patch.setattr(Path, "read_bytes", fail)
        TokenFile(prefix)
    idx_path(prefix).unlink()
    with pytest.raises(InputError, match=r"x\.idx: No such file"):
        TokenFile(prefix)


@pytest.mark.parametrize("call", ["exists", "stat", "is_dir", "read_bytes"])
def test_whatever_call_fails_while_opening_it_is_a_read_error(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(path: Path, *_: object, **__: object) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    spec = stream_spec(corpus, seq_len=8, micro_batch_size=1)
    shared = SharedPackers(tmp_path)
    for open_it in (lambda: DataClient(None, spec=spec), lambda: shared.packer(spec)):
        with monkeypatch.context() as patch, pytest.raises(ReadError, match=r"\(EIO\)"):
            patch.setattr(Path, call, fail)
            open_it()


def test_prepared_data_that_cannot_be_read_now_are_not_made_again(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DataConfig(path=str(tmp_path / "d"), source=str(text_folder), vocab_size=300)
    before = prepare(config).path.stat().st_ino

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch, pytest.raises(ReadError):
        patch.setattr(os, "preadv", fail)
        prepare(config)
    assert (tmp_path / "d").stat().st_ino == before
    assert prepare(config).already_prepared


def test_the_index_is_read_once_per_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = write_tokens(tmp_path / "x", [100])
    read: list[str] = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path.name), real(path))[1])
    with DataClient(None, spec=stream_spec(prefix, seq_len=8, micro_batch_size=1)) as client:
        assert client.fingerprint
        client.next()
    assert read.count("x.idx") == 1


@pytest.mark.parametrize("value", [2**32 + 5, 2**31, -1, -(2**40)])
def test_an_id_that_int32_does_not_hold_is_named_and_not_made_narrower(
    tmp_path: Path, value: int
) -> None:
    with TokenFileWriter(tmp_path / "z", np.int64) as writer:
        writer.add([1, 2, 3])
        writer.add([value] * 20)
    spec = stream_spec(tmp_path / "z", seq_len=4, micro_batch_size=1)
    with (
        DataClient(None, spec=spec) as client,
        pytest.raises(CorruptError, match=rf"z\.bin: token \d+ of sequence 1 is {value}, ids are"),
    ):
        for _ in range(5):
            client.next()


@pytest.mark.parametrize(
    "dtype", [np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16], ids=str
)
def test_ids_that_fit_come_out_as_they_are(tmp_path: Path, dtype: type[np.generic]) -> None:
    ids = [0, 1, min(np.iinfo(dtype).max, 2**31 - 1)] * 3
    with TokenFileWriter(tmp_path / "z", dtype) as writer:
        writer.add(ids)
    with DataClient(
        None, spec=stream_spec(tmp_path / "z", seq_len=8, micro_batch_size=1)
    ) as client:
        batch = client.next()
        assert [*batch.tokens[0].tolist(), int(batch.labels[0, -1])] == ids


def test_an_offset_that_overflows_with_its_length_is_named(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [3, 4, 5])
    raw = bytearray(idx_path(prefix).read_bytes())
    at = 34 + 3 * 4 + 2 * 8  # the third offset
    raw[at : at + 8] = (2**63 - 2).to_bytes(8, "little")
    idx_path(prefix).write_bytes(raw)
    with pytest.raises(CorruptError, match=r"x\.idx: sequence 2 has an offset of 2\^62 or more"):
        TokenFile(prefix)
