"""Tables of GPUs, metrics, sections, ranks and bandwidth."""

from __future__ import annotations

import pytest
from headway.health.dumps.nccl_tests import read_nccl_test
from headway.health.dumps.nvidia_smi import read_nvidia_smi
from headway.health.dumps.prometheus import read_prometheus
from headway.health.dumps.rank_tables import RankPlace, read_ranks
from headway.health.dumps.sections import Section, read_sections

SMI = """\
timestamp, index, pci.bus_id, utilization.gpu [%], power.draw [W], clocks.sm [MHz], clocks_throttle_reasons.active
2026/09/14 02:31:00.114, 0, 00000000:3B:00.0, 100 %, 96.70 W, 1980 MHz, 0x0000000000000008
2026/09/14 02:31:00.115, gpu-k02:1, 00000000:5E:00.0, [N/A], [GPU requires reset], 1980 MHz, 0x0000000000000000
2026/09/14 02:31:00.116, 2, 00000000:86:00.0
""".splitlines()  # noqa: E501
ALL_REDUCE = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  57211 on   gpu-k01 device  0 [0000:07:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  57212 on   gpu-k02 device  0 [0x07] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    35.62    0.00    0.00      0    34.82    0.00    0.00      0
   134217728      33554432     float     sum      -1   6519.3   20.59   38.60      0   6512.8   20.61   38.64      3
# Out of bounds values : 3 FAILED
# Avg bus bandwidth    : 19.31
""".splitlines()  # noqa: E501


def test_gpus_have_values_by_query_and_what_was_printed_instead() -> None:
    first, second = read_nvidia_smi(SMI, host="gpu-k01")
    assert (first.host, first.index, first.pci) == ("gpu-k01", 0, "0000:3b:00.0")
    assert first.values["power.draw"] == 96.7
    assert first.values["clocks_throttle_reasons.active"] == 8.0
    assert first.at_s == pytest.approx(1789353060.114)
    assert (second.host, second.index) == ("gpu-k02", 1)
    assert second.problems == {"power.draw": "GPU requires reset"}
    assert "utilization.gpu" not in second.values


def test_without_a_header_nothing_is_known_of_the_columns() -> None:
    assert list(read_nvidia_smi(SMI[1:])) == []


def test_metrics_are_read_line_by_line() -> None:
    lines = [
        "# HELP DCGM_FI_DEV_XID_ERRORS the last one",
        "# TYPE DCGM_FI_DEV_XID_ERRORS gauge",
        'DCGM_FI_DEV_XID_ERRORS{gpu="3",Hostname="gpu-k01"} 31 1789353060000',
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"',
        "up NaN",
        'node_load1{instance="gpu-k01:9100"} 1e3',
    ]
    xid, load = read_prometheus(lines)
    assert (xid.name, xid.host, xid.gpu, xid.value) == (
        "DCGM_FI_DEV_XID_ERRORS",
        "gpu-k01",
        3,
        31.0,
    )
    assert xid.at_s == 1789353060.0
    assert (load.host, load.gpu, load.value, load.at_s) == ("gpu-k01", -1, 1000.0, None)


@pytest.mark.parametrize(
    "lines",
    [
        ["rank,host,step,section,start_ms,end_ms", "3,gpu-k01,7,forward,1500.0,1750.0"],
        ["Rank;Node;Iteration;Name;Begin [us];Stop [us]", "3;gpu-k01;7;forward;1500000;1750000"],
        ["global_rank\thostname\titer\tphase\tts\tdur_ms", "3\tgpu-k01\t7\tforward\t1.5\t250"],
        ['{"rank": 3, "host": "gpu-k01", "step": 7, "op": "forward", "t0_s": 1.5, "t1_s": 1.75}'],
        [
            "# rank,host,step,event,startTime_s,duration (ms)",
            '"rank3",gpu-k01,7.0,"forward",1.5,250',
        ],
    ],
)
def test_section_times_are_read_whatever_their_columns_are_called(lines: list[str]) -> None:
    (found,) = read_sections(lines)
    assert (found.rank, found.host, found.step, found.name) == (3, "gpu-k01", 7, "forward")
    assert (found.start_s, found.duration_s) == (pytest.approx(1.5), pytest.approx(0.25))


def test_times_since_1970_without_a_unit_are_told_by_their_size() -> None:
    lines = ["rank,section,start,end", "0,f,1789353060000000000,1789353061000000000"]
    assert list(read_sections(lines)) == [Section(0, "", -1, "f", 1789353060.0, 1789353061.0)]


def test_damaged_rows_are_skipped_and_a_second_header_counts() -> None:
    lines = [
        "rank,section,start_s,end_s", "0,f,1,2", "0,f,1", "x,f,1,2", "0,f,2,1", "0,f,nan,2",
        "0,f,1,inf", "section,rank,start_s,end_s", "f,1,1,2",
    ]  # fmt: skip
    assert [found.rank for found in read_sections(lines)] == [0, 1]


@pytest.mark.parametrize(
    "lines",
    [
        ["# rank host local_rank pci", "13 gpu-k03 5 0000:b3:00.0"],
        ["13 gpu-k03 5 0000:B3:00.0"],
        ["host,global rank,local-rank,bus_id", "gpu-k03,13,5,00000000:B3:00.0"],
        ["rank\tnode\tgpu\tlocal_rank", "13\tgpu-k03\t0000:b3:00\t5"],
    ],
)
def test_rank_tables_are_read_with_and_without_names(lines: list[str]) -> None:
    (place,) = read_ranks(lines)
    assert (place.rank, place.host, place.local_rank) == (13, "gpu-k03", 5)
    assert place.pci == "0000:b3:00.0"


def test_files_of_open_mpi_name_ranks() -> None:
    assert read_ranks(["rank 13=gpu-k03 slot=0-7"]) == (RankPlace(13, "gpu-k03"),)
    lines = [
        " Data for node: gpu-k03\tNum slots: 8\tMax slots: 0\tNum procs: 8",
        " \tProcess OMPI jobid: [4711,1] App: 0 Process rank: 13 Bound: N/A",
    ]
    assert read_ranks(lines) == (RankPlace(13, "gpu-k03"),)
    assert read_ranks(["13: gpu-k03"]) == (RankPlace(13, "gpu-k03"),)


@pytest.mark.parametrize("line", ["", "13", "13 14 15", "step 3 loss 2.1", "rank host", "# 1 a"])
def test_other_lines_name_no_rank(line: str) -> None:
    assert read_ranks([line]) == ()


def test_the_table_of_nccl_tests_has_bandwidth_by_size() -> None:
    test = read_nccl_test(["# Collective test starting: all_reduce_perf", *ALL_REDUCE])
    assert test is not None
    assert (test.name, test.average_bus_gbps, test.num_out_of_bounds) == (
        "all_reduce_perf",
        19.31,
        3,
    )
    assert [(rank.host, rank.pci) for rank in test.ranks] == [
        ("gpu-k01", "0000:07:00.0"),
        ("gpu-k02", ""),
    ]
    small, large = test.rows
    assert (small.size_bytes, small.root, small.num_wrong) == (8, -1, 0)
    assert (large.time_us, large.bus_gbps, large.num_wrong) == (6519.3, 38.6, 3)
    assert test.peak_bus_gbps == 38.64


def test_rows_without_a_root_or_a_check_are_read() -> None:
    row = "  1048576        262144     float    none           97.1   10.80   10.12    N/A     96.0   10.92   10.24    N/A"  # noqa: E501
    test = read_nccl_test([f"[1,0]<stdout>:{row}"])
    assert test is not None
    (found,) = test.rows
    assert (found.op, found.root, found.bus_gbps, found.num_wrong) == ("none", -1, 10.12, -1)


def test_another_text_is_no_table() -> None:
    assert read_nccl_test(["step 1 loss 2", "1 2 3 4 5 6 7 8 9 10 11 12"]) is None
