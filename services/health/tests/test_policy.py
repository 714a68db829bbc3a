# ruff: noqa: E501  lines stand here as the programs print them
"""Keyword rules on lines as real programs print them: bad ones are recognised,
healthy logs stay silent."""

from __future__ import annotations

import pytest
from headway.health.log_rules import LOG_RULES
from headway.health.policy import advice, match

BAD = [
    ("cuda_oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.31 GiB is free."),
    ("cuda_oom", "RuntimeError: CUDA error: out of memory"),
    ("host_oom", "[84213.512] Out of memory: Killed process 41822 (python3) total-vm:98213456kB, anon-rss:60123456kB"),
    ("host_oom", "Memory cgroup out of memory: Killed process 2311 (python3) total-vm:4213456kB, anon-rss:2048000kB, UID:0"),
    ("host_alloc", "OSError: [Errno 12] Cannot allocate memory"),
    ("host_alloc", "MemoryError"),
    ("nccl_timeout", "[rank3]:[E1121 03:12:44.123 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=25165824, NumelOut=25165824, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."),
    ("nccl_peer", "node7:5821:6003 [3] proxy.cc:1521 NCCL WARN [Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 3, Connection closed by remote peer node8<51234>"),
    ("nccl_completion", "node7:5821:6003 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB: Got completion from peer 10.0.0.8<45678> with status=12 opcode=0 len=0 vendor err 129 (Recv) : error"),
    ("gloo_peer", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:28077"),
    ("gloo_peer", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:549] Read error [127.0.0.1]:41122: Connection reset by peer"),
    ("gloo_timeout", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] gloo: Timed out waiting 20000ms for recv operation to complete"),
    ("nan_loss", "step 1412 loss: nan grad_norm: 3.41 lr: 3.00e-04"),
    ("nan_loss", '{"event": "step", "step": 88, "loss": NaN, "grad_norm": 1.2, "level": "info"}'),
    ("nan_loss", "iteration 500/1000 | grad_norm=inf | skipped"),
    ("nan_loss", '{"event": "the step was skipped: the loss is nan", "step": 88, "level": "warning", "rank": 3}'),
    ("nan_loss", '{"event": "the step was skipped: the loss is -inf", "step": 88, "level": "warning"}'),
    ("nan_loss", '{"event": "the step was skipped: the gradient norm is inf", "step": 88, "level": "warning"}'),
    ("nan_loss", "2026-11-21 [warning] the step was skipped: the gradient norm is nan rank=3 step=88"),
    ("disk_full", "OSError: [Errno 28] No space left on device: '/data/ckpt/step-00000400'"),
    ("disk_full", "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: \"No space left on device\" })"),
    ("read_only_disk", "OSError: [Errno 30] Read-only file system: '/data/logs/rank-3.log'"),
    ("read_only_disk", "OSError: [Errno 5] Input/output error"),
    ("gpu_xid", "[Fri Nov 21 03:11:02 2025] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    ("gpu_xid", "NVRM: Xid (PCI:0000:3b:00): 13, pid=4711, name=python3, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address"),
    ("gpu_lost", "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."),
    ("gpu_ecc", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("cuda_error", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("cuda_error", "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ("segfault", "python3[4711]: segfault at 0 ip 00007f3a2b1c sp 00007ffd9a error 4 in libtorch_cpu.so[7f3a20000000+1a000000]"),
    ("segfault", "Fatal Python error: Segmentation fault"),
    ("nccl_completion", "node5:1912:1990 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.4.8<51201> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid ::ffff:10.0.4.5 remoteGids::ffff:10.0.4.8 hca mlx5_3"),
    ("nccl_system", "node7:5821:6003 [3] transport/net_ib.cc:221 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error"),
    ("nccl_peer", "[rank5]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error, NCCL version 2.27.5"),
    ("nccl_stuck", "[rank6]:[E429 13:55:49.1 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 6] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."),
    ("cuda_oom", "node5:1912:1990 [0] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'"),
    ("cuda_error", "node5:1912:1990 [0] enqueue.cc:1485 NCCL WARN Cuda failure 'an illegal memory access was encountered'"),
    ("cuda_error", "RuntimeError: CUDA error: device-side assert triggered"),
    ("gpu_lost", "               NVRM: fallen off the bus and is not responding to commands."),
    ("switch_xid", "nvidia-nvswitch3: SXid (PCI:0000:07:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"),
    ("pcie_error", "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0"),
    ("pcie_error", "nvidia 0000:b3:00.0: AER: can't recover (no error_detected callback)"),
    ("link_down", "[Mon Sep 14 02:11:07 2026] mlx5_core 0000:9a:00.0 ibs3: Link down"),
    ("link_down", "[ 8123.400121] e1000e 0000:00:1f.6 eno1: NIC Link is Down"),
    ("link_down", "[ 8123.400121] bond0: (slave ens1f1): link status definitely down, disabling slave"),
    ("soft_lockup", "[ 8123.4] watchdog: BUG: soft lockup - CPU#12 stuck for 23s! [python3:4711]"),
    ("soft_lockup", "[ 8123.4] NMI watchdog: Watchdog detected hard LOCKUP on cpu 3"),
    ("hung_task", "[ 8123.4] INFO: task python3:4711 blocked for more than 120 seconds."),
    ("mount_silent", "[ 8123.4] nfs: server files4 not responding, still trying"),
    ("machine_check", "[ 8123.4] mce: [Hardware Error]: Machine check events logged"),
    ("machine_check", "[ 8123.4] EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0"),
    ("bus_error", "/bin/sh: line 1:  4711 Bus error               (core dumped) python train.py"),
    ("missing_module", "ModuleNotFoundError: No module named 'flash_attn'"),
]  # fmt: skip

GOOD = [
    "step 1412 loss: 3.1415 grad_norm: 0.98 lr: 3.00e-04 tokens/s 51234 mfu 0.41",
    '{"event": "step", "step": 88, "loss": 4.17, "grad_norm": 1.2, "level": "info", "rank": 3}',
    "W1121 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1",
    "node7:5821:5821 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.7<0>",
    "node7:5821:6003 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.7<0>",
    "node7:5821:6003 [3] NCCL INFO comm 0x55d0 rank 3 nranks 8 cudaDev 3 - Init COMPLETE",
    "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3",
    "ProcessGroupNCCL environments: NCCL version: 2.28.3, TORCH_NCCL_ASYNC_ERROR_HANDLING: 1, TIMEOUT(ms): 600000",
    "saved checkpoint step-00000400 in 1.8 s, 412 GiB free, no space problem",
    "evaluating on 128 batches, timeout 120 s",
    "collective timed in 12.3 ms",
    "inference of shapes done; info: nanoseconds counted from process start",
    "CUDA memory: 41.2 GiB allocated, 2.1 GiB reserved",
    "out of 1024 documents 3 were empty",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15",
    "EXT4-fs (nvme0n1p1): re-mounted. Quota mode: none.",
    "Traceback tests: ImportError handling enabled",
    "loss scale 65536, finances dataset mounted",
    "the step was skipped: the gradient norm is 1834.2, above the limit",
    "nfs: server files4 OK",
    "mlx5_core 0000:9a:00.0 ibs3: Link up",
    "the message bus errored never; blocked for more than one reason",
    "validation loss 3.21, information gain 0.04 nats",
]


@pytest.mark.parametrize(("rule", "line"), BAD)
def test_a_bad_line_is_recognised(rule: str, line: str) -> None:
    found = match(line)
    assert found is not None and found[0].name == rule


@pytest.mark.parametrize("line", GOOD)
def test_a_healthy_line_raises_no_alarm(line: str) -> None:
    assert match(line) is None


def test_every_rule_has_a_recorded_line() -> None:
    assert {rule.name for rule in LOG_RULES} == {name for name, _ in BAD}


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (13, "fault of the program"),
        (79, "power-cycle"),
        (45, "calls for nothing"),
        (999, "nothing"),
    ],
)
def test_an_xid_names_its_gpu_and_is_advised_by_its_number(number: int, said: str) -> None:
    found = match(f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=4711, name=python3")
    assert found is not None
    remedy = advice(*found).remedy
    assert remedy.startswith(f"Xid {number} of GPU 0000:3b:00: ") and said in remedy


def test_what_a_device_is_named_for_comes_with_its_name() -> None:
    for line, name in (
        ("nvidia-nvswitch3: SXid (PCI:0000:07:00.0): 12028, Non-fatal", "0000:07:00.0 12028"),
        ("mlx5_core 0000:9a:00.0 ibs3: Link down", "ibs3"),
        ("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.", "0000:9b:00.0"),
    ):
        found = match(line)
        assert found is not None and advice(*found).remedy.startswith(f"{name}: ")


def test_all_that_a_line_advises_a_driver_is_to_watch_on_but_for_a_missing_module() -> None:
    advised = {rule.name: rule.advice.action for rule in LOG_RULES}
    assert advised.pop("missing_module") == "stop_run"
    assert set(advised.values()) == {"observe"}


def test_a_victims_line_never_calls_for_action() -> None:
    for rule in LOG_RULES:
        if rule.kind in ("peer_lost", "collective_timeout"):
            assert rule.advice.action == "observe" and rule.advice.confidence < 0.5
