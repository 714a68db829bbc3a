"""A node's agent with all its sources: real processes, files and a tree like sysfs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from headway.common.node.testing import wait_until
from headway.common.wire.messages.health import AgentBeat, Finding
from headway.health.agent import MACHINE_BEATS, MAX_FINDINGS_A_BEAT, AgentOptions, NodeWatch
from headway.health.client import verdicts_of
from headway.health.config import HealthConfig
from headway.testkit.played.health_bench import Bench, health_bench

PORT = "sys/class/infiniband/mlx5_0/ports/1"
FAST = HealthConfig(source_interval_s=0.05, beat_interval_s=0.05, source_deadline_s=60.0)
LOST = "[ 9.1] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def options(root: Path) -> AgentOptions:
    for name in ("shm", "logs"):
        (root / name).mkdir(exist_ok=True)
    return AgentOptions(
        "", root / "monitor.json", root, root / "shm", root / "logs", "0badcafe", 0,
        sysfs=root / "sys", kmsg=root / "kmsg",
    )  # fmt: skip


@pytest.fixture
def bench() -> Iterator[Bench]:
    with health_bench() as made:
        yield made


class Beats:
    """The beats of an agent, which are all sent."""

    def __init__(self, watch: NodeWatch) -> None:
        self.watch, self.found = watch, dict[tuple[str, str, int], Finding]()

    def beat(self) -> AgentBeat:
        made = self.watch.beat()
        self.watch.sent(time.monotonic())
        self.found |= {(one.rule, one.file, one.offset): one for one in made.findings}
        return made

    def rules(self) -> set[str]:
        return {rule for rule, _, _ in self.found}

    def has(self, rule: str) -> bool:
        self.beat()
        return rule in self.rules()


def test_old_marks_are_a_baseline_and_changes_are_found(tmp_path: Path) -> None:
    """An Xid nine days ago, three lost links since boot, and then something new of each."""
    old = "[Sat Sep  5 11:02:10 2026] NVRM: Xid (PCI:0000:19:00): 31, pid=5120\n"
    write(tmp_path, {"kmsg": old, f"{PORT}/state": "4: ACTIVE"})
    write(tmp_path, {f"{PORT}/counters/link_downed": "3", "logs/n0w0.log": "step 91 loss nan\n"})
    waited = f"{PORT}/counters/port_xmit_wait"
    write(tmp_path, {waited: "14681376621"})
    with closing(NodeWatch(options(tmp_path), FAST)) as watch:
        beats = Beats(watch)
        wait_until(lambda: beats.beat().machine is not None, what="the machine")
        write(tmp_path, {waited: "14690031188"})  # congestion, which is no fault
        until_s = time.monotonic() + 1.0
        wait_until(lambda: bool(beats.beat()) and time.monotonic() > until_s, what="a second")
        assert beats.rules() == set()
        write(tmp_path, {f"{PORT}/counters/link_downed": "4"})
        with (tmp_path / "kmsg").open("a") as log:
            log.write(LOST)
        wait_until(lambda: beats.has("nic_flap") and beats.has("gpu_lost"), what="both")
        assert beats.rules() == {"nic_flap", "gpu_lost"}


def test_the_machine_is_sent_at_first_and_then_once_a_minute(tmp_path: Path) -> None:
    write(tmp_path, {"sys/class/dmi/id/product_name": "G8 Node", f"{PORT}/state": "4: ACTIVE"})
    with closing(NodeWatch(options(tmp_path), FAST)) as watch:
        wait_until(lambda: watch.beat().machine is not None, what="the machine")
        machines = [beat.machine for beat in (watch.beat() for _ in range(MACHINE_BEATS))]
        (sent,) = filter(None, machines)
        assert sent.host_type == "G8 Node" and [nic.name for nic in sent.nics] == ["mlx5_0"]


def test_a_storm_of_lines_makes_no_large_beat(tmp_path: Path) -> None:
    with closing(NodeWatch(options(tmp_path), FAST)) as watch:
        lines = "".join(f"[rank{n % 200}]: loss: nan\n" for n in range(40_000))
        write(tmp_path, {"logs/n0w0.log": lines})
        sizes, total = [], 0
        seen: set[int] = set()

        def all_read() -> bool:
            nonlocal total
            beat = watch.beat()
            sizes.append(len(beat.findings))
            total += sum(one.count for one in beat.findings if one.offset not in seen)
            seen.update(one.offset for one in beat.findings)
            watch.sent(time.monotonic() + 3600 * len(sizes))
            return total == 40_000

        wait_until(all_read, what="all lines, counted")
        assert max(sizes) <= MAX_FINDINGS_A_BEAT and len(seen) < 40_000


def test_own_rules_that_are_not_valid_are_one_finding(tmp_path: Path) -> None:
    write(tmp_path, {"own.toml": "[[rule]]\nname = 'x'\n"})
    config = FAST.with_rules([str(tmp_path / "own.toml")])
    with closing(NodeWatch(options(tmp_path), config)) as watch:
        (found,) = watch.beat().findings
        assert found.rule == "rules_refused" and "own.toml" in found.line and "'x'" in found.line


def test_an_own_rule_that_never_ends_is_turned_off_and_the_agent_goes_on(tmp_path: Path) -> None:
    rule = (
        "[[rule]]\nname = 'slow_one'\nsource = 'rank'\nkind = 'user_error'\nsubject = 'rank'\n"
        "confidence = 0.6\npattern = '(x+x+)+y'\nremedy = 'r'\n"
    )
    write(tmp_path, {"own.toml": rule, "kmsg": ""})
    config = FAST.with_rules([str(tmp_path / "own.toml")])
    with closing(NodeWatch(options(tmp_path), config)) as watch:
        beats = Beats(watch)
        beats.beat()
        lines = "x" * 4000 + "\n[rank3]: RuntimeError: CUDA error: device-side assert triggered\n"
        write(tmp_path, {"logs/n0w0.log": lines})
        wait_until(lambda: beats.has("rules_refused") and beats.has("cuda_assert"), what="both")
        [refused] = [one for one in beats.found.values() if one.rule == "rules_refused"]
        assert "slow_one" in refused.line and "turned off" in refused.line


def test_a_binary_log_and_a_missing_one_are_nothing(tmp_path: Path) -> None:
    made = options(tmp_path)
    write(tmp_path, {"kmsg": "", "sys": "not a folder"})
    (tmp_path / "logs" / "n0w0.log").write_bytes(b"")
    with closing(NodeWatch(made, FAST)) as watch:
        beats = Beats(watch)
        (tmp_path / "logs" / "n0w0.log").write_bytes(bytes(range(256)) * 4096)
        (tmp_path / "kmsg").write_bytes(bytes(range(255, -1, -1)) * 64 + b"\n" + LOST.encode())
        wait_until(lambda: beats.has("gpu_lost"), what="the line behind it")
        assert beats.rules() == {"gpu_lost"}


def test_a_lost_gpu_in_the_kernels_log_reaches_the_verdicts(bench: Bench) -> None:
    """Through two real processes, with options for all that a test cannot have."""
    own = bench.root / "own.toml"
    own.write_text(
        "[[rule]]\nname = 'tokens_lost'\nsource = 'rank'\nkind = 'user_error'\nsubject = 'rank'\n"
        "confidence = 0.6\npattern = 'lost (\\d+) tokens'\nremedy = 'see the loader'\n"
    )
    (bench.root / "kmsg").touch()
    bench.driver(), bench.monitor("--rules", str(own))
    bench.agent("--rules", str(own), "--mount", str(bench.root))
    bench.wait_for_beats(3)
    with (bench.root / "kmsg").open("a") as log:
        log.write(LOST)
    (bench.root / "logs" / "n4w1.log").write_text("[rank1]: lost 12 tokens\n")
    bench.wait(lambda: len(verdicts_of(bench.root)) == 2, "both verdicts")
    lost, own_one = sorted(verdicts_of(bench.root), key=lambda one: one.kind)
    assert lost.kind == "gpu_fault" and lost.remedy.startswith("GPU 0000:9b:00.0: ")
    assert (own_one.rank, own_one.remedy) == (1, "see the loader")
