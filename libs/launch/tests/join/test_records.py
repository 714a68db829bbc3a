"""Logs and records of a node, packed into a text and unpacked elsewhere."""

from __future__ import annotations

import base64
import errno
import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from headway.common.errors import CorruptError
from headway.launch.join import records


def _run(folder: Path) -> Path:
    for name in ("logs", "events/n0", "checkpoints"):
        (folder / name).mkdir(parents=True)
    (folder / "logs" / "n0-agent.log").write_text("a line\n")
    (folder / "events" / "n0" / "w.npy").write_bytes(b"\x00" * 100)
    (folder / "config.toml").write_text("secret")
    return folder


def test_logs_and_events_arrive_and_nothing_else(tmp_path: Path) -> None:
    text = records.pack(_run(tmp_path / "node"))
    assert records.unpack(text, tmp_path / "here") == 2
    assert (tmp_path / "here" / "logs" / "n0-agent.log").read_text() == "a line\n"
    assert (tmp_path / "here" / "events" / "n0" / "w.npy").stat().st_size == 100
    assert not (tmp_path / "here" / "config.toml").exists()


def test_a_file_keeps_the_time_at_which_its_node_saved_it(tmp_path: Path) -> None:
    run = _run(tmp_path / "node")
    os.utime(run / "events" / "n0" / "w.npy", (1e9 + 0.25, 1e9 + 0.25))
    records.unpack(records.pack(run), tmp_path / "here")
    assert (tmp_path / "here" / "events" / "n0" / "w.npy").stat().st_mtime == 1e9 + 0.25


def test_the_newest_come_first_where_not_all_fit(tmp_path: Path) -> None:
    run = _run(tmp_path / "node")
    for age, name in enumerate(("new", "old")):
        (run / "logs" / name).write_bytes(os.urandom(50))
        os.utime(run / "logs" / name, (1e9 - age, 1e9 - age))
    text = records.pack(run, most_bytes=7 + 100 + 60)
    records.unpack(text, tmp_path / "here")
    assert sorted(p.name for p in (tmp_path / "here" / "logs").iterdir()) == ["n0-agent.log", "new"]


def _archive(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE) -> str:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.type, entry.linkname = len(data), kind, "/etc/passwd"
        archive.addfile(entry, io.BytesIO(data))
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize("name", ["/etc/x", "logs/../../x", "config.toml", "logs", "../logs/x"])
def test_nothing_is_written_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    assert records.unpack(_archive(name), tmp_path / "run") == 0
    assert list(tmp_path.rglob("*")) == [tmp_path / "run"]


def test_links_are_not_taken(tmp_path: Path) -> None:
    assert records.unpack(_archive("logs/x", b"", tarfile.SYMTYPE), tmp_path) == 0


@pytest.mark.parametrize("text", ["", "no archive", base64.b64encode(b"\x1f\x8bgarbage").decode()])
def test_damage_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(CorruptError, match="cannot be read"):
        records.unpack(text, tmp_path)


def test_no_damaged_byte_is_taken(tmp_path: Path) -> None:
    packed = bytearray(base64.b64decode(_archive("logs/x", bytes(range(256)) * 40)))
    for at in range(10, len(packed), 7):  # behind the header, where the file's name and time are
        packed[at] ^= 0x41
        with pytest.raises(CorruptError, match="cannot be read"):
            records.unpack(base64.b64encode(packed).decode(), tmp_path)
        packed[at] ^= 0x41
    assert not list(tmp_path.iterdir())
    assert records.unpack(base64.b64encode(packed).decode(), tmp_path) == 1


def _sparse(name: bytes, size: int) -> str:
    """A GNU sparse member of one block that stands for a file of any size."""
    header = bytearray(512)
    fields = {0: name, 100: b"0000600\0", 108: b"0000000\0", 116: b"0000000\0", 156: b"S"}
    numbers = {124: 512, 136: 0, 386: 0, 398: 512, 410: size, 422: 0, 483: size}
    fields |= {at: b"%011o\0" % number for at, number in numbers.items()}
    for at, field in {**fields, 148: b" " * 8, 257: b"ustar  \0"}.items():
        header[at : at + len(field)] = field
    header[148:156] = b"%06o\0 " % sum(header)
    packed = gzip.compress(bytes(header) + b"x" * 512 + b"\0" * 1024)
    return base64.b64encode(packed).decode()


def test_a_file_that_is_larger_than_its_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match=r"'logs/big\.log' is packed as a sparse file of 9999"):
        records.unpack(_sparse(b"logs/big.log", 9999), tmp_path)
    assert not list(tmp_path.iterdir())


def test_logs_that_cannot_be_listed_are_not_packed_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was packed is removed on the machine."""
    run = _run(tmp_path / "node")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(PermissionError):
        records.pack(run)


def test_far_too_much_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="more than 0 MiB"):
        records.unpack(_archive("logs/x", b"x" * 100), tmp_path, most_bytes=50)
