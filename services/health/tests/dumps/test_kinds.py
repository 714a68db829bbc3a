"""Which reader a file is for, and files that no reader may open."""

from __future__ import annotations

import gzip
import os
import random
import socket
from pathlib import Path

import pytest
from headway.health.dumps.kinds import Kind, kind_of
from headway.health.dumps.lines import (
    HEAD_BYTES,
    MAX_LINE_BYTES,
    Unreadable,
    read_head,
    read_lines,
    read_text,
)
from headway.health.dumps.names import host_of_name, phase_of_name, rank_of_name

WATCHDOG = "[rank3]:[E1118 20:32:23.95 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught\n"
SAMPLES: list[tuple[str, str, Kind | None]] = [
    ("a", WATCHDOG, "log"),
    ("a", 'step 1\nTraceback (most recent call last):\n  File "x.py", line 1\n', "log"),
    ("train.log", "step 91 loss 2.3\n", "log"),
    ("a", "step 91 loss 2.3\n", None),
    ("a", 'Process 5: python\nPython v3.11.9\n\nThread 5 (idle): "MainThread"\n', "stacks"),
    (
        "a",
        'Current thread 0x00007f1c (most recent call first):\n  File "a.py", line 1 in f\n',
        "stacks",
    ),
    ("a", '[{"pid": 1, "thread_id": 3, "frames": []}]', "stacks"),
    ("a", "[  912.114031] nvidia: loaded\n[  912.114032] nvidia: again\n", "kernel"),
    ("a", "[Mon Sep 14 02:11:07 2026] mlx5_core 0000:9a:00.0 ibs3: Link down\n", "kernel"),
    ("a", "Sep 14 02:11:07 gpu-k11 kernel: mlx5_core 0000:9a:00.0 ibs3: Link down\n", "kernel"),
    ("dmesg_gpu-k11.txt", "nothing in a format\n", "kernel"),
    ("a", "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed:3\n", "counters"),
    ("gpu-k11/mlx5_0/ports/1/counters/link_downed", "3\n", "sysfs_counter"),
    ("a", "timestamp, index, power.draw [W]\n2026/09/14 02:31:00.1, 0, 96.7 W\n", "nvidia_smi"),
    ("a", "# HELP x y\nx 1\n", "prometheus"),
    ("a", 'DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="gpu-k01"} 31\n', "prometheus"),
    ("a", "dp_size: 4\npp_size: 4\n", None),
    ("nccl_gpu-k11.txt", "nothing in a format\n", "log"),
    ("a.txt", "step 91 loss 2.3\n" * 5000, "log"),
    ("syslog", "nothing in a format\n", "kernel"),
    ("a", "==> /sys/class/infiniband/mlx5_0/ports/1/counters/link_downed <==\n3\n", "counters"),
    ("a", "mlx5_0/ports/1/counters/link_downed 3\n", "counters"),
    ("a", "link mlx5_0/1 rx_write_requests 3 link_downed 4\n", "counters"),
    ("a", '{"rank": 0, "step": 1, "section": "f", "start": 1.0, "end": 2.0}\n', "sections"),
    ("a", '{"pg_config": {"0": {"ranks": "[0]"}}, "pg_status": {}, "more": 1}', "flight_json"),
    ("a", "Communicators... (0.00s)\n=============\n", "ras_text"),
    ("a", '{"nccl_version": "2.29.1", "communicators": []}', "ras_json"),
    ("a", "# nThread 1 nGpus 8 minBytes 8\n# Using devices\n", "nccl_test"),
    ("a", "rank,host,step,section,start_ms,end_ms\n0,h,1,f,1,2\n", "sections"),
    ("a", "# rank host local_rank pci\n13 gpu-k03 5 0000:b3:00.0\n", "ranks"),
    ("a", "13 gpu-k03 5 0000:b3:00.0\n21 gpu-k04 5 0000:b3:00.0\n", "ranks"),
    ("a", "rank 0=gpu-k01 slot=0-7\nrank 1=gpu-k02 slot=0-7\n", "ranks"),
    ("a", '{"version": "2.10", "pg_config": {}, "entries": []}', "flight_json"),
    ("expected.json", '{"kind": "hang", "cause": "data_stall"}', None),
    ("README.md", "# A heading\n\nSome sentences about a cluster.\n", None),
    ("train.py", "import torch\n\nprint(torch.__version__)\n", None),
]


@pytest.mark.parametrize(("name", "text", "kind"), SAMPLES)
def test_a_file_is_recognised_by_its_content_then_by_its_name(
    tmp_path: Path, name: str, text: str, kind: Kind | None
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    found = kind_of(path, name)
    assert found.kind == kind
    assert bool(found.reason) is (kind is None)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_are_recognised_and_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a"
    path.write_bytes((WATCHDOG * 3).encode(encoding))
    found = kind_of(path)
    assert found.kind == "log"
    assert list(read_lines(path, found.encoding)) == [WATCHDOG.rstrip()] * 3


def test_latin_1_in_a_log_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes("ein großer Fehler\n".encode("latin-1") + WATCHDOG.encode() * 20)
    assert kind_of(path).kind == "log"


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    fifo, folder = tmp_path / "train.log", tmp_path / "folder"
    os.mkfifo(fifo)
    folder.mkdir()
    address = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        reasons = {path.name: kind_of(path).reason for path in (fifo, folder, address)}
    assert reasons == {"train.log": "a FIFO", "folder": "a folder", "s": "a socket"}
    link = tmp_path / "link.log"
    link.symlink_to("/dev/zero")
    assert kind_of(link).reason == "a device"
    assert list(read_lines(fifo)) == list(read_lines(link)) == []
    assert isinstance(read_text(fifo), Unreadable)


def test_files_that_cannot_be_read_have_a_reason(tmp_path: Path) -> None:
    empty, blank, gone = tmp_path / "empty", tmp_path / "blank", tmp_path / "gone"
    empty.touch()
    blank.write_text("\n\n")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    packed, binary = tmp_path / "dmesg.gz", tmp_path / "core"
    packed.write_bytes(gzip.compress(b"text"))
    binary.write_bytes(random.Random(3).randbytes(5000))
    assert kind_of(empty).reason == "empty"
    assert kind_of(blank).reason == "blank"
    assert kind_of(gone).reason == "no such file or directory"
    assert "symbolic links" in kind_of(loop).reason
    assert kind_of(packed).reason == "compressed (gzip): unpack it first"
    assert kind_of(binary).reason.startswith("binary")
    assert kind_of(Path("zero\0")).kind is None


def test_a_dump_that_was_pickled_is_recognised_without_being_loaded(tmp_path: Path) -> None:
    path = tmp_path / "trace_0"
    path.write_bytes(
        b"\x80\x02}q\x00(X\x07\x00\x00\x00versionX\x04\x00\x00\x002.10X\x07\x00\x00\x00entries]u."
    )
    assert kind_of(path).kind == "flight_pickle"


def test_a_file_without_a_line_end_comes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"=" * (3 * HEAD_BYTES) + b"\nlast")
    pieces = list(read_lines(path))
    assert max(map(len, pieces)) <= MAX_LINE_BYTES
    assert sum(map(len, pieces)) == 3 * HEAD_BYTES + 4
    assert pieces[-1] == "last"


def test_a_character_that_two_blocks_share_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    line = "x" * 1000 + "ü" * 40
    path.write_text("\n".join([line] * 200) + "\n")
    assert set(read_lines(path)) == {line}
    head = read_head(path)
    assert not isinstance(head, Unreadable) and head.encoding == "utf-8" and not head.is_whole


@pytest.mark.parametrize(
    ("name", "rank", "host"),
    [
        ("nccl_trace_rank_gpu-k02_5", 5, "gpu-k02"),
        ("nccl_trace_rank_gpu-r12_5", 5, "gpu-r12"),
        ("nccl_trace_rank_3", 3, ""),
        ("trace_6", 6, ""),
        ("_dump_12", 12, ""),
        ("rank_3.json", 3, ""),
        ("stacks/rank-0.txt", 0, ""),
        ("rank_5/stderr.log", 5, ""),
        ("r3.log", 3, ""),
        ("attempt_0/3/stderr.log", -1, ""),
        ("dmesg_gpu-k02.txt", -1, "gpu-k02"),
        ("dmesg-node17.log", -1, "node17"),
        ("dmesg_node-3.txt", -1, "node-3"),
        ("dmesg_alpha.txt", -1, "alpha"),
        ("gpu-k01.dmesg", -1, "gpu-k01"),
        ("gpu-k01/dmesg.txt", -1, "gpu-k01"),
        ("dmesg.gpu-7.cluster.example.txt", -1, "gpu-7.cluster.example"),
        ("10.9.64.245_dmesg.txt", -1, "10.9.64.245"),
        ("nvidia_smi.csv", -1, ""),
        ("train.log", -1, ""),
        ("sections.csv", -1, ""),
    ],
)
def test_names_give_away_rank_and_host(name: str, rank: int, host: str) -> None:
    assert (rank_of_name(name), host_of_name(name)) == (rank, host)


def test_names_give_away_before_and_after() -> None:
    assert phase_of_name("counters/gpu-k05.before.txt") == "before"
    assert phase_of_name("after/gpu-k05/mlx5_0/ports/1/state") == "after"
    assert phase_of_name("counters/gpu-k05.txt") == ""
