# ruff: noqa: E501  lines stand here as the programs print them
"""Rules on lines as real programs print them: each rule's own samples, and further ones."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from headway.common.errors import ConfigError
from headway.health.policy import advice
from headway.health.rule_files import rules_of, shipped, with_own
from headway.health.rulebook import LINE_SOURCES, Rule, pci_address
from headway.health.sources.lines import MAX_LINE_CHARS, LineMatcher, sources_of
from structlog.testing import capture_logs

RULES = shipped().rules
OF_LINES = [rule for rule in RULES if rule.expressions]
SOURCES = {
    "nccl": ("nccl", "rank"),
    "rank": ("nccl", "rank"),
    "service": ("nccl", "rank", "service"),
    "kernel": ("kernel",),
}
MORE = [
    ("kernel", "xid_13", "NVRM: Xid (PCI:0000:3b:00): 13, pid=4711, name=python3, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address"),
    ("kernel", "xid_31", "[Sat Sep  5 11:02:10 2026] NVRM: Xid (PCI:0000:19:00): 31, pid=5120, name=python3, channel 0x00000012, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_0 faulted @ 0x7f2a_1c000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"),
    ("kernel", "xid_45", "[ 1851.120334] NVRM: Xid (PCI:0000:45:00): 45, pid=91822, name=python3, channel 0x00000002"),
    ("kernel", "xid_48", "NVRM: Xid (PCI:0000:17:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, subpartition 0."),
    ("kernel", "xid_62", "NVRM: Xid (PCI:0000:c1:00): 62, pid=1230, 32a4(2d8c) 00000000 00000000"),
    ("kernel", "xid_63", "NVRM: Xid (PCI:0000:5d:00): 63, pid=2011, name=python3, Row Remapper: New row (0x0000000012345) marked for remapping, reset gpu to activate."),
    ("kernel", "xid_64", "NVRM: Xid (PCI:0000:5d:00): 64, pid=2011, name=python3, Row Remapper: All reserved rows for bank are remapped"),
    ("kernel", "xid_74", "NVRM: Xid (PCI:0000:ab:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
    ("kernel", "xid_94", "NVRM: Xid (PCI:0000:cb:00): 94, pid=7194, name=python3, Ch 00000008, Contained: SM (0x1). RST: No, D-RST: No"),
    ("kernel", "xid_95", "NVRM: Xid (PCI:0000:cb:00): 95, pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"),
    ("kernel", "xid_119", "NVRM: Xid (PCI:0000:4e:00): 119, pid=3201, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20808513 0x598)."),
    ("kernel", "xid_120", "NVRM: Xid (PCI:0000:4e:00): 120, pid='<unknown>', name=<unknown>, GSP task exception: load access fault (cause:0x5) @ pc:0x1a2b"),
    ("kernel", "xid_154", "NVRM: Xid (PCI:0000:4e:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
    ("kernel", "gpu_lost", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."),
    ("kernel", "xid", "NVRM: Xid (PCI:0000:3b:00): 999, pid=1234, a number of tomorrow"),
    ("kernel", "host_oom", "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/system.slice,task=python3,pid=41822,uid=1000"),
    ("kernel", "soft_lockup", "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [kworker/3:1:231]"),
    ("kernel", "hung_task", "INFO: task ckpt_store:21114 blocked for more than 241 seconds."),
    ("nccl", "nccl_timeout", "[rank1]:[E1126 08:11:12.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=RECV, NumelIn=16777216, NumelOut=16777216, Timeout(ms)=600000) ran for 600022 milliseconds before timing out."),
    ("rank", "gloo_peer", "[rank1]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.4]:21345"),
    # an H100, driver 580.159.04, on 2026-11-26
    ("kernel", "xid_31", "[   44.568797] NVRM: Xid (PCI:0000:00:06): 31, pid=697, name=python3, channel 0x00000032, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x7000_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"),
    ("kernel", "xid_43", "[   73.224800] NVRM: Xid (PCI:0000:00:06): 43, pid=900, name=python3, channel 0x0000001e"),
    ("rank", "cuda_assert", "[rank2]: torch.AcceleratorError: CUDA error: device-side assert triggered"),
]  # fmt: skip
HEALTHY = [
    "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15",
    "[    0.985977] NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.",
    "[    3.426894] NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced instead.",
    "[   44.568789] NVRM: GPU at PCI:0000:00:06: GPU-37e8ea85-6bde-ddfe-b31b-7f582170d903",
    "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  570.158.01",
    "NVRM: Xid (PCI:0000:4e:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    "job started Mon Sep 14 01:58:00 2026",
    "step 91 loss 2.3017",
    "gpu-b05:19012:19101 [3] NCCL INFO transport/net.cc:1302 -> 6",
    "Traceback (most recent call last):",
    "docker0: port 1(veth12) entered disabled state",
    "IPv6: ADDRCONF(NETDEV_CHANGE): ens1f0np0: link becomes ready",
]  # fmt: skip

_STARTS = (
    "nan loss", "igb 0000:01:00.0 ", "ice.ice.", "ice ", "mlx5_core 0000:9a:00.0: ", "ncclRemoteErro ",
    "mlx5_core 0000:9a:00.0: wait_func:1:(pid 1): ", "NCCL WARN NET/IB: Got completion from peer ",
    "NCCL WARN socketPollConnect: Connect to ", "NCCL WARN Call to ibv_x ", "gloo ", "oom-kill: ",
    "INFO: task ", "[Hardware Error]: ", "loss loss: ", 'x_loss" ', "NVRM: Xid (PCI:0000:3b:00): 154 ",
    "NVRM: Xid (PCI:0000:3b:00): 149 ", "GPU at PCI:0000:9b:00 ", "soft lockup ", "EXT4-fs XFS (sda): ",
    "nvme nvme0: I/O 1 timeout ", "Lustre: a: Connection to ", "segfault at [1]", "a.cu:1: block: [",
    '"event": "failed, and is tried again" ', "x", " ", "0000:9b:00.0 ", "\t", "é",
)  # fmt: skip
HOSTILE = [(start * 4096)[:MAX_LINE_CHARS] for start in _STARTS] + [
    (start + blank * 4096)[:MAX_LINE_CHARS] for start in _STARTS for blank in (" ", "a", "1")
]
HOSTILE_CPU_S = 0.25
"""For all patterns on one line, of which the slowest takes about 0.02 s."""


def named(line: str, source: str) -> str | None:
    found = shipped().match(line, SOURCES[source])
    return found.rule.name if found else None


@pytest.mark.parametrize("rule", OF_LINES, ids=lambda rule: str(rule.name))
def test_a_rule_matches_its_bad_lines_and_no_rule_its_good_ones(rule: Rule) -> None:
    assert rule.bad and rule.good
    assert {line: named(line, rule.source) for line in rule.bad} == dict.fromkeys(
        rule.bad, rule.name
    )
    assert [line for line in rule.good if shipped().match(line, LINE_SOURCES)] == []


@pytest.mark.parametrize(("source", "rule", "line"), MORE)
def test_a_line_in_a_real_format_is_recognised(source: str, rule: str, line: str) -> None:
    assert named(line, source) == rule


@pytest.mark.parametrize("line", HEALTHY)
def test_a_healthy_line_raises_no_alarm(line: str) -> None:
    assert shipped().match(line, LINE_SOURCES) is None


@pytest.mark.parametrize("rule", OF_LINES, ids=lambda rule: str(rule.name))
def test_each_pattern_of_a_rule_finds_a_sample_and_is_not_skipped(rule: Rule) -> None:
    """The texts in ``contains`` are tried first, and may not leave out what a pattern is for."""
    lines = [line for line in rule.bad if named(line, rule.source) == rule.name]
    unused = [
        text
        for text in rule.expressions
        if not any(re.search(text, line, re.IGNORECASE) for line in lines)
    ]
    assert unused == []
    assert all(text == text.lower() for text in rule.contains)


def test_hostile_lines_are_searched_in_little_time() -> None:
    """Nested or adjacent repetitions without a limit took from 0.3 to 1.5 s for some of these."""
    patterns = [re.compile(text, re.IGNORECASE) for rule in OF_LINES for text in rule.expressions]
    slow = {}
    for line in HOSTILE:
        assert 3000 < len(line) <= MAX_LINE_CHARS
        begun_s = time.process_time()
        for pattern in patterns:
            pattern.search(line)
        if (used_s := time.process_time() - begun_s) > HOSTILE_CPU_S:
            slow[line[:40]] = used_s
    assert slow == {}


@pytest.mark.parametrize("number", range(144, 151))
def test_an_nvlink_error_that_is_not_fatal_calls_for_no_reset(number: int) -> None:
    start = f"NVRM: Xid (PCI:0000:04:00): {number}, pid='<unknown>', name=<unknown>, NETIR_LINK_EVT"
    advised = {}
    for severity in ("Nonfatal", "Fatal"):
        found = shipped().match(f"{start} {severity} XC0 i0 Link 07 (0x00000001)", ["kernel"])
        assert found is not None
        advised[severity] = (found.rule.severity, "reset both" in found.rule.remedy)
    assert advised == {"Nonfatal": ("warning", False), "Fatal": ("error", True)}


def test_a_contained_memory_error_is_the_gpus() -> None:
    remedy = shipped().by_name["xid_94"].remedy
    assert "reset this GPU" in remedy and "program" not in remedy


def test_a_device_behind_a_port_is_named_by_what_reports_its_error() -> None:
    for text in ("Uncorrectable (Fatal)", "Multiple Correctable"):
        line = f"pcieport 0000:15:01.0: AER: {text} error message received from 0000:17:00.0"
        found = shipped().match(line, ["kernel"])
        assert found is not None and found.name == "0000:17:00.0"


def test_a_good_line_would_be_found_out() -> None:
    assert named("ModuleNotFoundError: No module named 'x'", "rank") == "missing_module"
    assert named("ModuleNotFoundError: No module named 'x'", "kernel") is None, "not a kernel line"


def test_a_program_cannot_print_lines_of_the_kernel(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3"
    assert LineMatcher(shipped(), tmp_path / "n0w1.log").find(line, 1, 0) is None
    assert LineMatcher(shipped(), tmp_path / "dmesg.log").find(line, 1, 0) is not None
    assert "service" in sources_of("n0-dataloader.log") and "service" not in sources_of("n0w1.log")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (13, "fault of the program"),
        (48, "reset this GPU"),
        (79, "power-cycle"),
        (45, "the cause is elsewhere"),
        (64, "replacement"),
        (999, "no action"),
    ],
)
def test_an_xid_names_its_gpu_and_is_advised_by_its_number(number: int, said: str) -> None:
    found = shipped().match(f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=4711", ["kernel"])
    assert found is not None
    remedy = advice(found.rule, found.name, found.detail).remedy
    assert remedy.startswith("GPU 0000:3b:00.0: ") and said in remedy


def test_what_a_device_is_named_for_comes_with_its_name() -> None:
    for line, name in (
        ("nvidia-nvswitch3: SXid (PCI:0000:07:00.0): 12028, Non-fatal", "0000:07:00.0 12028"),
        ("mlx5_core 0000:9a:00.0 ibs3: Link down", "ibs3"),
        ("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.", "GPU 0000:9b:00.0"),
        (MORE[12][2], "GPU 0000:4e:00.0 GPU Reset Required"),
    ):
        found = shipped().match(line, ["kernel"])
        assert found is not None
        assert advice(found.rule, found.name, found.detail).remedy.startswith(f"{name}: ")


def test_an_address_has_one_form() -> None:
    forms = ("0000:3b:00", "0000:3b:00.0", "00000000:3B:00.0")
    assert {pci_address(form) for form in forms} == {"0000:3b:00.0"}
    assert pci_address("mlx5_3:1") == "mlx5_3:1"
    found = shipped().match("NET/IB : mlx5_3:1 Got async event : port error", ["nccl"])
    assert found is not None and (found.name, found.detail) == ("mlx5_3/1", "port error")


def test_a_line_only_observes_but_for_a_missing_module() -> None:
    advised = {rule.name: rule.action for rule in RULES}
    assert advised.pop("missing_module") == "stop_run"
    assert set(advised.values()) == {"observe"}


def test_a_victims_line_never_calls_for_action() -> None:
    for rule in RULES:
        if rule.kind in ("peer_lost", "collective_timeout"):
            assert rule.action == "observe" and rule.confidence < 0.5


OWN = """
[[rule]]
name = "tokens_lost"
source = "rank"
kind = "user_error"
subject = "rank"
confidence = 0.6
pattern = 'lost (\\d+) tokens'
remedy = "see the loader"
"""


def test_own_rules_come_first(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    found = with_own([file]).match("CUDA out of memory: lost 12 tokens", ["rank"])
    assert found is not None and (found.rule.name, found.detail) == ("tokens_lost", "12")
    assert len(with_own([file]).rules) == len(RULES) + 1


def test_capitals_in_contains_rule_no_line_out(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN + "contains = ['Lost ']\nbad = ['we lost 12 tokens']\n")
    assert with_own([file]).match("we lost 12 tokens", ["rank"]) is not None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("'lost (\\d+) tokens'", "'lost (\\d+ tokens'", "lost (\\d+ tokens"),
        ('source = "rank"', 'source = "ranks"', "ranks"),
        ('source = "rank"', 'source = "gpu"', "gpu"),
        ('kind = "user_error"', 'kind = "sunspots"', "sunspots"),
        ("confidence = 0.6", "confidence = 6", "6"),
        ("confidence = 0.6", "confidence = 0.6\naction = 'stop_run'", "stop_run"),
        ("confidence = 0.6", "confidence = 0.6\ntimes = 3", "3 within"),
        ("confidence = 0.6", "confidence = 0.6\ntimes = 65\nwithin_s = 60.0", "times = '65 within"),
        ("confidence = 0.6", "confidence = 0.6\ntimes = 0\nwithin_s = 60.0", "times = '0 within"),
        ("confidence = 0.6", "confidence = 0.6\ntimes = 2\nwithin_s = nan", "2 within nan"),
        (
            "confidence = 0.6",
            "confidence = 0.6\nrepeat = { times = 0, within_s = 9.0, remedy = 'x' }",
            "repeat = '0 within 9.0 s'",
        ),
        (
            "confidence = 0.6",
            "confidence = 0.6\nrepeat = { times = 65, within_s = 9.0, remedy = 'x' }",
            "repeat = '65 within 9.0 s'",
        ),
        (
            "confidence = 0.6",
            "confidence = 0.6\nrepeat = { times = 2, within_s = 0.0, remedy = 'x' }",
            "repeat = '2 within 0.0 s'",
        ),
        (
            "confidence = 0.6",
            "confidence = 0.6\nrepeat = { times = 2, within_s = 9.0, remedy = '', kind = 'link_flapping' }",
            "repeat.kind = 'link_flapping'",
        ),
        (
            "confidence = 0.6",
            "confidence = 0.6\nrepeat = { times = 2, within_s = 9.0, remedy = '', confidence = 7.0 }",
            "repeat.confidence = 7.0",
        ),
        ("confidence = 0.6", "confidence = 0.6\ncolour = 'red'", "colour"),
        ('name = "tokens_lost"', 'name = "gpu_lost"', "gpu_lost"),
        ('name = "tokens_lost"', 'name = "a:b"', "a:b"),
        ("confidence = 0.6", "confidence = 0.6\nbad = ['all is fine']", "all is fine"),
        ("confidence = 0.6", "confidence = 0.6\ngood = ['lost 3 tokens']", "lost 3 tokens"),
        ("[[rule]]", "[rules]", "rules"),
        ("[[rule]]", "[[rule", "TOML"),
    ],
)
def test_a_bad_own_rule_is_refused_by_name_and_the_shipped_ones_remain(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN.replace(old, new))
    with pytest.raises(ConfigError) as refused:
        with_own([file])
    assert said in refused.value.message and refused.value.remedy
    with capture_logs() as logged:
        rules, why = rules_of([str(file)])
    assert rules.rules == RULES and said in why and len(logged) == 1


def test_files_that_are_not_rules_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    for name in ("binary.toml", "missing.toml", "."):
        with pytest.raises(ConfigError, match=r"cannot be read"):
            with_own([tmp_path / name])
