"""What gloo and NCCL print about connections that failed."""

from __future__ import annotations

import pytest
from headway.health.dumps.log_lines import split_line
from headway.health.dumps.transport import TransportLine, address, bus_address, read_transport


def read(line: str, rank: int = -1) -> TransportLine:
    (event,) = read_transport([line], rank).lines
    return event


@pytest.mark.parametrize(
    ("line", "status", "own", "nic"),
    [
        (
            "gpu-k05:19012:19101 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.9.4.21<51201> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid ::ffff:10.9.4.15 remoteGids::ffff:10.9.4.21 hca mlx5_3",  # noqa: E501
            12, "10.9.4.15", "mlx5_3",
        ),
        (
            "gpu-k05:19012:19101 [3] transport/net_ib.cc:2290 NCCL WARN NET/IB: Got completion from peer 10.9.4.21<51201> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1) reqSize=0 vendor_err=129 req_type=Send localGid ::ffff:10.9.4.15 remoteGids::ffff:10.9.4.21 hca mlx5_3",  # noqa: E501
            12, "10.9.4.15", "mlx5_3",
        ),
        (
            "gpu-k05:19012:19101 [3] transport/net_ib.cc:94 NCCL WARN NET/IB : Got completion from peer 10.9.4.21<51201> with error 5, opcode 0, len 0, vendor err 129 (Send)",  # noqa: E501
            5, "", "",
        ),
    ],
)  # fmt: skip
def test_a_failed_transfer_names_both_ends(line: str, status: int, own: str, nic: str) -> None:
    event = read(line)
    assert (event.kind, event.host, event.pid, event.device) == ("completion", "gpu-k05", 19012, 3)
    assert (event.peer, event.status, event.vendor_error) == ("10.9.4.21", status, 129)
    assert (event.own_address, event.nic, event.is_send) == (own, nic, True)


def test_a_port_of_the_own_host_that_failed_names_it() -> None:
    for line in (
        "gpu-k11:2:3 [3] transport/net_ib.cc:221 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error",  # noqa: E501
        "gpu-k11:2:3 [3] transport/net_ib.cc:192 NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)",  # noqa: E501
        "gpu-k11:2:3 [3] transport/net_ib.cc:141 NCCL WARN NET/IB : mlx5_3:1 async fatal event: local catastrophic error",  # noqa: E501
    ):
        event = read(line)
        assert (event.kind, event.host, event.nic, event.peer) == (
            "port",
            "gpu-k11",
            "mlx5_3/1",
            "",
        )


@pytest.mark.parametrize(
    ("line", "kind", "peer"),
    [
        ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.2.0.7]:28077", "closed", "10.2.0.7"),  # noqa: E501
        ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:549] Read error [10.2.0.7]:41122: Connection reset by peer", "closed", "10.2.0.7"),  # noqa: E501
        ("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer [fe80::1%eth0]:7071", "closed", "fe80::1"),  # noqa: E501
        ("h4:7:8 [5] misc/socket.cc:47 NCCL WARN socketProgress: Connection closed by remote peer h3<40118>", "closed", "h3"),  # noqa: E501
        ("h4:7:8 [5] misc/socket.cc:58 NCCL WARN socketProgress: Call to recv from 10.0.0.8<40118> failed : Broken pipe", "closed", "10.0.0.8"),  # noqa: E501
        ("h4:7:8 [5] misc/socket.cc:484 NCCL WARN socketPollConnect: Connect to 10.0.0.8<51234> returned 111(Connection refused) errno 115(Operation now in progress)", "refused", "10.0.0.8"),  # noqa: E501
        ("h4:7:8 [5] misc/socket.cc:449 NCCL WARN socketStartConnect: exceeded retries (20000)", "connect", ""),  # noqa: E501
        ("[E528 08:52:46.164295950 ProcessGroupGloo.cpp:145] Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error", "connect", ""),  # noqa: E501
        ("h4:7:8 [0] transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.0.0.8<58683> collective mismatch error, local size 496640 remote size 65536", "mismatch", "10.0.0.8"),  # noqa: E501
        ("h4:7:8 [0] enqueue.cc:1485 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'", "cuda", ""),  # noqa: E501
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error, NCCL version 2.27.5", "remote", ""),  # noqa: E501
    ],
)  # fmt: skip
def test_each_report_has_its_kind_and_the_other_end(line: str, kind: str, peer: str) -> None:
    event = read(f"[rank5]: {line}")
    assert (event.kind, event.peer, event.rank) == (kind, peer, 5)


def test_a_wait_for_gloo_has_its_limit_and_direction() -> None:
    event = read(
        "[rank3]: RuntimeError: [/pytorch/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
        "Timed out waiting 1800000ms for recv operation to complete"
    )
    assert (event.kind, event.timeout_s, event.is_send) == ("timeout", 1800.0, False)


def test_other_programs_connections_are_not_those_of_the_job() -> None:
    lines = [
        "wandb: ConnectionResetError(104, 'Connection reset by peer'), entering retry loop.",
        "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peers is : 3",
        "gpu-k05:1:2 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.7<0>",
    ]
    assert read_transport(lines).lines == ()


def test_nccl_says_where_a_rank_runs() -> None:
    line = "gpu-k04:70214:70530 [5] NCCL INFO comm 0x55d0 rank 21 nranks 32 cudaDev 5 nvmlDev 5 busId b3000 commId 0x1 - Init COMPLETE"  # noqa: E501
    (seat,) = read_transport([line]).seats
    assert (seat.rank, seat.size, seat.host, seat.pid) == (21, 32, "gpu-k04", 70214)
    assert seat.pci == "0000:b3:00.0"


def test_the_stamp_of_a_container_counts_where_the_program_prints_none() -> None:
    line = "h4:7:8 [5] misc/socket.cc:47 NCCL WARN socketProgress: Connection closed by remote peer h3<40118>"  # noqa: E501
    assert read(line).at_s is None
    assert read(f"2026-09-14T02:17:40.5Z stderr F {line}").at_s == 1789352260.5


def test_addresses_have_one_form() -> None:
    assert address("::ffff:10.0.0.7") == address("0:0:0:0:0:ffff:10.0.0.7") == "10.0.0.7"
    assert address("[fe80::1]") == "fe80::1"
    assert bus_address("1b3000") == "0001:b3:00.0"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank13]: text", 13),
        ("[default5]:[rank13]: text", 13),
        ("[default5]: text", -1),
        ("[trainer22|6]:text", 22),
        ("[1,13]<stderr>: text", 13),
        (" 13: text", 13),
        ("13: [rank4]: text", 4),
        ("(RayTrainWorker pid=933, ip=10.0.0.3) [rank13]: text", 13),
        ("2026-11-18T20:32:23.956Z [rank13]: text", 13),
        ("text", -1),
    ],
)
def test_the_prefix_of_a_launcher_gives_the_rank(line: str, rank: int) -> None:
    found = split_line(line)
    assert (found.rank, found.text) == (rank, "text")
