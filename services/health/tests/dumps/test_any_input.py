"""No text and no bytes, however damaged, make a reader fail."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from headway.health.dumps.counters import read_counters, read_tree
from headway.health.dumps.elastic import read_elastic
from headway.health.dumps.kernel import read_kernel
from headway.health.dumps.kinds import kind_of
from headway.health.dumps.lines import read_lines, read_text
from headway.health.dumps.logs import read_log
from headway.health.dumps.names import host_of_name, phase_of_name, rank_of_name
from headway.health.dumps.nccl_tests import read_nccl_test
from headway.health.dumps.nvidia_smi import read_nvidia_smi
from headway.health.dumps.prometheus import read_prometheus
from headway.health.dumps.rank_tables import read_ranks
from headway.health.dumps.ras_json import read_ras_json
from headway.health.dumps.ras_text import read_ras_text
from headway.health.dumps.sections import read_sections
from headway.health.dumps.stacks import group_equal, read_stacks
from hypothesis import given
from hypothesis import strategies as st

READERS: dict[str, Callable[[list[str]], object]] = {
    "log": lambda lines: read_log(lines, year=2026),
    "elastic": read_elastic,
    "kernel": lambda lines: read_kernel(lines, "a", job_start_s=0.0, boot_s=0.0, year=2026),
    "counters": read_counters,
    "tree": lambda lines: read_tree([(line, line) for line in lines]),
    "nvidia_smi": lambda lines: list(read_nvidia_smi(lines)),
    "prometheus": lambda lines: list(read_prometheus(lines)),
    "sections": lambda lines: list(read_sections(lines)),
    "ranks": read_ranks,
    "nccl_test": read_nccl_test,
    "stacks": lambda lines: group_equal(read_stacks("\n".join(lines))),
    "ras_text": lambda lines: read_ras_text("\n".join(lines)),
    "ras_json": lambda lines: read_ras_json("\n".join(lines)),
}
REAL = [
    "[rank3]:[E1118 20:32:23.95 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96, OpType=ALLREDUCE, NumelIn=17, NumelOut=17, Timeout(ms)=1800000) ran for 1800887 milliseconds before timing out.",  # noqa: E501
    "[rank3]: [PG ID 2 PG GUID 1(tp_pg) Rank 0]  failure detected by watchdog at work sequence id: 96 PG status: last enqueued work: 98, last completed work: 95",  # noqa: E501
    "h5:1:2 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.9.4.21<512> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid ::ffff:10.9.4.15 remoteGids::1",  # noqa: E501
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "/work/train.py", line 121, in <module>',
    "[rank3]: ValueError: a bad index",
    "Root Cause (first observed failure):",
    "[0]:",
    "  rank      : 8 (local_rank: 0)",
    "  exitcode  : -9 (pid: 14750)",
    'Process 5: python --rank 3\nThread 5 (idle): "MainThread"\n    read (shards.py:88)',
    'Current thread 0x00007f1c (most recent call first):\n  File "a.py", line 1 in f',
    "[Mon Sep 14 02:11:07 2026] mlx5_core 0000:9a:00.0 ibs3: Link down",
    "[ 1843.308145] NVRM: Xid (PCI:0000:b3:00): 79, pid=1, GPU has fallen off the bus.",
    "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed:3",
    "timestamp, index, power.draw [W]",
    "2026/09/14 02:31:00.1, 0, 96.7 W",
    'DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="gpu-k01"} 31',
    "#0-0 (fa93daea854b060b) MISMATCH",
    "  Communicator ranks have different AllReduce operation counts",
    "  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 16 on node h1",
    '{"communicators": [{"ranks": [{"rank": 0, "collective_counts": {"a": 1}}]}]}',
    "rank,host,step,section,start_ms,end_ms",
    "3,gpu-k01,7,forward,1500.0,1750.0",
    "# rank host local_rank pci",
    "13 gpu-k03 5 0000:b3:00.0",
    "#  Rank  0 Group  0 Pid  57211 on   h1 device  0 [0000:07:00] NVIDIA H100",
    "  8  2  float  sum  -1  35.62  0.00  0.00  0  34.82  0.00  0.00  0",
]


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A real line, cut, repeated, joined to another one, or with other characters in it."""
    line = draw(st.sampled_from(REAL))
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(line))] * 2)))
    other = draw(st.one_of(st.text(max_size=8), st.sampled_from(REAL)))
    return draw(st.sampled_from([line[:start] + other + line[end:], line[start:end], line * 3]))


LINES = st.lists(st.one_of(st.text(max_size=60), st.sampled_from(REAL), damaged()), max_size=12)


@pytest.mark.parametrize("name", READERS)
@given(lines=LINES)
def test_no_lines_make_a_reader_fail(name: str, lines: list[str]) -> None:
    READERS[name](lines)


@given(name=st.text(max_size=40))
def test_no_name_makes_a_reader_fail(name: str) -> None:
    rank_of_name(name)
    host_of_name(name)
    phase_of_name(name)


@given(raw=st.one_of(st.binary(max_size=400), LINES.map(lambda lines: "\n".join(lines).encode())))
def test_no_bytes_make_a_file_unreadable_with_an_error(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank_3.txt"
        path.write_bytes(raw)
        found = kind_of(path)
        assert (found.kind is None) == bool(found.reason)
        if found.encoding:
            assert isinstance(read_text(path, found.encoding), str)
            READERS["log"](list(read_lines(path, found.encoding)))


@pytest.mark.parametrize("name", READERS)
def test_deep_and_long_text_does_not_make_a_reader_fail(name: str) -> None:
    READERS[name](["[" * 100_000])
    READERS[name](['{"communicators": ' + "[" * 100_000])
    READERS[name](["(" * 8000, "a." * 8000, "[rank" * 8000, '"' * 8000, "9" * 8000])
