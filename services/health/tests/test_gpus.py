"""GPUs through NVML: a real library of our own stands for the driver's, in a real process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from headway.common.node.testing import wait_until
from headway.common.wire.messages.health import Finding
from headway.health.config import HealthConfig
from headway.health.sources.gpu_probe import GpuProbe
from headway.health.sources.gpus import GpuSource, has_gpus
from headway.health.sources.nvml import Reading

CONFIG = HealthConfig(throttle_hold_s=4.0)
COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler for a fake NVML")
TWO = ("0 00000000:3B:00.0 0 0 5 16 0 4", "1 00000000:5E:00.0 0 0 0 16 0 4")
PCI = "0000:3b:00.0"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake library; its functions are a part of NVML's, as in an old driver."""
    assert COMPILER is not None
    made = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_fake.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", made, source], check=True)
    return made


class Card:
    """What the fake library reports, and what is found of it."""

    def __init__(self, library: Path, file: Path, deadline_s: float = 60.0) -> None:
        self._file, self._now_s = file, 0.0
        self.probe = GpuProbe(str(library), deadline_s)
        self.sysfs = file.parent / "sys"
        self.source = GpuSource(self.probe, CONFIG, lambda: self._now_s, sysfs=self.sysfs)

    def show(self, *lines: str) -> list[Finding]:
        self._file.write_text("\n".join(lines) + "\n")
        self._now_s += 2.0
        return self.source.read()

    def rules(self, *lines: str) -> list[str]:
        return [one.rule for one in self.show(*lines)]


@pytest.fixture
def card(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus"))
    made = Card(library, tmp_path / "gpus")
    with closing(made.source):
        yield made


@needs_compiler
def test_gpus_are_known_by_address_and_uuid_and_old_errors_are_a_baseline(card: Card) -> None:
    assert card.show(*TWO) == []
    first, second = card.source.identity
    assert (first.pci, first.uuid, first.name) == (PCI, "GPU-00000000:3B:00.0", "Fake H100")
    assert second.index == 1 and card.source.driver == "570.158.01"


@needs_compiler
@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("0 00000000:3B:00.0 0 0 6 16 0 4", "gpu_memory_error"),
        ("0 00000000:3B:00.0 0 2 5 16 0 4", "gpu_recovery"),
        ("0 00000000:3B:00.0 0 0 5 8 0 4", "gpu_pcie_width"),
        ("0 00000000:3B:00.0 0 0 5 16 0 3", "gpu_link_down"),
        ("0 00000000:3B:00.0 15 0 5 16 0 4", "gpu_lost"),
    ],
)
def test_a_change_of_one_gpu_is_one_finding_about_it(card: Card, line: str, rule: str) -> None:
    card.show(*TWO)
    (found,) = card.show(line, TWO[1])
    assert (found.rule, found.name, found.uuid) == (rule, PCI, "GPU-00000000:3B:00.0")
    assert found.subject == "gpu" and PCI in found.line
    assert card.show(line, TWO[1]) == []
    assert card.show(*TWO) == [], "it has passed"


@needs_compiler
@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("0 00000000:3B:00.0 0 0 5 16 0 3", "gpu_link_down"),
        ("0 00000000:3B:00.0 15 0 5 16 0 4", "gpu_lost"),
    ],
)
def test_a_state_of_a_gpu_that_lasts_is_reported_again(card: Card, line: str, rule: str) -> None:
    card.show(*TWO)
    seen = [card.rules(line, TWO[1]) for _ in range(20)]
    assert [turn for turn, found in enumerate(seen) if found == [rule]] == [0, 8, 16]
    assert [card.rules(*TWO) for _ in range(10)] == [[]] * 10


@needs_compiler
def test_a_gpu_that_is_gone_from_the_bus_is_lost(card: Card) -> None:
    device = card.sysfs / "bus/pci/devices" / PCI
    device.mkdir(parents=True)
    device.with_name("0000:00:00.0").mkdir()
    card.show(*TWO)
    device.rmdir()
    (found,) = card.show(TWO[1])
    assert (found.rule, found.name) == ("gpu_lost", PCI)
    assert card.show(TWO[1]) == []


@needs_compiler
@pytest.mark.parametrize(
    "lines",
    [(TWO[1],), ("count 0",), ("0 00000000:3B:00.0 999 0 5 16 0 4", TWO[1])],
    ids=["one is missing", "none is listed", "its handle is refused"],
)
def test_an_incomplete_answer_is_no_loss_and_must_come_twice(
    card: Card, lines: tuple[str, ...]
) -> None:
    card.show(*TWO)
    seen = [card.rules(*shown) for shown in (lines, TWO, lines, lines, lines, TWO, lines)]
    assert seen == [[], [], [], ["gpu_unreadable"], [], [], []]
    (found,) = card.show(*lines)
    assert found.subject == "node" and PCI in found.line
    assert card.rules("0 00000000:3B:00.0 0 0 6 16 0 4", TWO[1]) == ["gpu_memory_error"]


@needs_compiler
def test_a_link_that_can_be_read_again_has_no_new_errors(card: Card) -> None:
    both = (*TWO, "link 0 7", "link 3 90000")
    assert card.show(*both) == []
    assert card.show(*TWO, "link 0 7") == card.show(*both) == []
    found = card.show(*TWO, "link 0 7", "link 3 99000")
    assert [one.rule for one in found] == ["gpu_link_errors"] * 2 and found[0].count == 9000


@needs_compiler
def test_slowing_down_must_last(card: Card) -> None:
    hot = TWO[0].replace(" 16 0 4", " 16 64 4")
    peaks = (TWO[0], hot, TWO[0], hot, hot, hot, hot)
    seen = [card.rules(line, TWO[1]) for line in peaks]
    assert seen == [[], [], [], [], [], ["gpu_throttled"], []]


@needs_compiler
def test_an_xid_is_taken_from_nvml_only_without_a_kernel_log(card: Card) -> None:
    card.show(*TWO)
    (found,) = card.show(*TWO, "xid 1 48")
    assert (found.rule, found.name) == ("xid_48", "0000:5e:00.0")


@needs_compiler
def test_an_xid_is_left_to_the_kernels_log(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpus").write_text("\n".join([*TWO, "xid 1 48"]) + "\n")
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus"))
    source = GpuSource(GpuProbe(str(library), 60.0), CONFIG, wants_xids=lambda: False)
    with closing(source):
        assert source.read() == [] and len(source.identity) == 2


@needs_compiler
def test_a_library_that_lies_is_one_finding(card: Card) -> None:
    card.show(*TWO)
    assert card.show(*TWO, "count 1000000") == []
    (found,) = card.show(*TWO, "count 1000000")
    assert found.rule == "gpu_unreadable"
    assert card.show(*TWO, "count 1000000") == []
    assert card.show(*TWO) == [], "and no GPU was lost"
    assert card.show(*TWO, "2 \x01garbage 0 0 0 0 0 0", TWO[0]) == [], "no address, and one twice"


@needs_compiler
def test_a_library_that_cannot_start_is_one_finding(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_BROKEN", "1")
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus"))
    for name, said in ((str(library), "999"), (str(tmp_path / "no.so"), "no.so")):
        with closing(GpuSource(GpuProbe(name, 60.0), CONFIG)) as source:
            assert source.read() == []
            (found,) = source.read()
            assert found.rule == "gpu_unreadable" and said in found.line
            assert source.read() == []


@needs_compiler
def test_a_probe_that_hangs_is_one_finding_and_one_process(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus"))
    card = Card(library, tmp_path / "gpus", deadline_s=0.3)
    with closing(card.source):
        assert [card.rules("hang") for _ in range(3)] == [["gpu_probe_hung"], [], []]
        assert children_of(os.getpid()) <= 1
        card.probe._deadline_s = 60.0
        assert card.show(*TWO) == [] and len(card.source.identity) == 2
        assert children_of(os.getpid()) == 1
    wait_until(lambda: children_of(os.getpid()) == 0, what="the process to end")


@needs_compiler
def test_a_process_that_cannot_be_ended_is_not_started_twice(card: Card) -> None:
    """As one that hangs in the driver: it ignores even SIGKILL."""
    card.show(*TWO)
    process = card.probe._process
    assert process is not None
    card.probe._process = Unkillable()  # type: ignore[assignment]
    assert [card.rules(*TWO) for _ in range(3)] == [["gpu_probe_hung"], [], []]
    card.probe._process = process
    assert card.show(*TWO) == []


class Unkillable:
    """A process whose system call never returns; its pipes are closed already."""

    stdin = stdout = None

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        pass

    def wait(self, limit_s: float) -> None:
        raise subprocess.TimeoutExpired("probe", limit_s)


@needs_compiler
def test_a_process_that_crashes_is_started_again_after_ever_longer_times(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpus").write_text("\n".join(TWO) + "\n")
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus"))
    now_s = [100.0]
    probe = GpuProbe(str(library), 60.0, lambda: now_s[0])
    with closing(probe):
        assert probe.read().error == ""
        assert probe._process is not None
        probe._process.kill()
        probe._process.wait()
        started = []
        monkeypatch.setattr("sys.executable", "/bin/false")
        for _ in range(200):
            before = probe._start_s
            assert "failed" in probe.read().error
            if probe._start_s != before:
                started.append(now_s[0])
            now_s[0] += 1.0
        assert started == [100.0, 101.0, 103.0, 107.0, 115.0, 131.0, 163.0, 223.0, 283.0]
        monkeypatch.undo()
        monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus"))
        now_s[0] += 60.0
        assert len(probe.read().gpus) == 2


def test_replies_that_are_none_are_an_error() -> None:
    class Says:
        def __init__(self, text: str) -> None:
            self.text = text

        def read(self) -> Reading:
            return Reading(error=self.text)

        def close(self) -> None:
            pass

    source = GpuSource(Says("nonsense"), CONFIG)
    assert [[one.rule for one in source.read()] for _ in range(3)] == [[], ["gpu_unreadable"], []]


def test_a_machine_with_gpus_is_known_by_its_pci_devices(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    assert not has_gpus(tmp_path) and not has_gpus(tmp_path / "missing")
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x068000\n")
    assert not has_gpus(tmp_path), "an NVSwitch"
    (device / "class").write_text("0x030200\n")
    assert has_gpus(tmp_path)


def children_of(pid: int) -> int:
    """Processes of this test that read NVML."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    commands = [Path(f"/proc/{child}/cmdline") for child in text.split()]
    return sum(b"gpu_process" in one.read_bytes() for one in commands if one.exists())
