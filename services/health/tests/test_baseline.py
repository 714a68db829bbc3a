"""Values per host type: kept, merged, and judged against."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.common.node.testing import child_environment
from headway.health.baseline import Baseline, merged, read_baseline, save_values
from headway.health.judging import judge
from headway.health.limits import Limit, limit_of, shipped_limits
from headway.health.machine import Machine, host_type, this_machine
from headway.health.report import Judge, summary
from headway.health.runner import CheckResult

TYPE = "EPYC, 8 CPUs"


def machine(hostname: str = "node0", type_: str = TYPE) -> Machine:
    return Machine(hostname, type_, "EPYC", 8, (), "6.1")


def result(mib_per_s: float, name: str = "disk", ok: bool | None = True) -> CheckResult:
    values = {"MiB/s": mib_per_s, "free GiB": 7.0, "note": "fast"}
    return CheckResult(name, ok, "writes", "", 0.1, values)


def fleet(values: list[float], name: str = "disk MiB/s") -> Baseline:
    hosts = {f"node{n + 1}": {name: value} for n, value in enumerate(values)}
    return Baseline(hosts={TYPE: hosts})


@pytest.mark.parametrize("seed", range(20))
def test_a_machine_at_half_of_its_fleet_is_worse_and_a_usual_one_is_not(seed: int) -> None:
    chance = random.Random(seed)
    known = fleet([chance.gauss(700, 50) for _ in range(8)])
    (usual,) = judge([result(chance.gauss(700, 50))], machine(), known, ())
    (half,) = judge([result(350)], machine(), known, ())
    (better,) = judge([result(7000)], machine(), known, ())
    assert (usual.is_worse, half.is_worse, better.is_worse) == (False, True, False)
    assert half.basis == "fleet" and "8 machines" in half.source


def test_a_machines_own_former_value_and_other_types_are_no_fleet() -> None:
    known = merged([fleet([700] * 4), Baseline(hosts={TYPE: {"node0": {"disk MiB/s": 700.0}}})])
    (found,) = judge([result(1)], machine(), known, ())
    assert (found.basis, found.is_worse) == ("none", False) and "4 other machines" in found.source
    (found,) = judge([result(1)], machine(type_="other"), fleet([700] * 9), ())
    assert found.basis == "none"


def test_a_first_machine_is_judged_by_the_table_and_the_fleet_comes_first() -> None:
    table = [Limit(host="EPYC", value="disk *iB/s", at_least=100.0, source="measured")]
    (low,) = judge([result(99)], machine(), Baseline(), table)
    (high,) = judge([result(101)], machine(), Baseline(), table)
    assert (low.basis, low.is_worse, high.is_worse) == ("table", True, False)
    (found,) = judge([result(99)], machine(), fleet([99] * 5), table)
    assert (found.basis, found.is_worse) == ("fleet", False)


def test_only_rates_of_checks_that_passed_are_judged() -> None:
    results = [result(1, "disk"), result(1, "memory", ok=False), result(1, "mounts", ok=None)]
    found = judge(results, machine(), Baseline(), ())
    assert [(one.check, one.value) for one in found] == [("disk", "MiB/s")]


def test_a_worse_value_fails_its_check_and_says_by_what() -> None:
    judged = Judge(machine(), fleet([700] * 6))
    passed = list(judged.each([result(300), result(650, "memory")]))
    assert [one.ok for one in passed] == [False, True]
    assert passed[0].message == "300 MiB/s is worse than 700 (median of 6 machines)"
    report = judged.report("quick")
    assert not report.is_healthy and "1 values judged by the fleet" in summary(report)


def test_checks_that_were_not_run_make_nobody_ill() -> None:
    judged = Judge(machine(), Baseline())
    assert len(list(judged.each([result(5, ok=None), result(5)]))) == 2
    assert judged.report("quick").is_healthy


def test_values_are_kept_per_type_and_machine_and_the_newest_replaces(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    assert read_baseline(path) == Baseline()
    save_values(path, machine("a"), {"disk MiB/s": 1.0, "memory MiB/s": 5.0})
    save_values(path, machine("b", "other"), {"disk MiB/s": 2.0})
    save_values(path, machine("a"), {"disk MiB/s": 3.0})
    assert json.loads(path.read_text())["hosts"] == {
        TYPE: {"a": {"disk MiB/s": 3.0, "memory MiB/s": 5.0}}, "other": {"b": {"disk MiB/s": 2.0}}
    }  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o644


def test_machines_that_save_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from headway.health.baseline import save_values\n"
        "from headway.health.machine import Machine\n"
        "for n in range(5):\n"
        "    name = f'{sys.argv[2]}-{n}'\n"
        "    save_values(Path(sys.argv[1]), Machine(name, 't', '', 1, (), ''), {'x MiB/s': 1.0})\n"
    )
    path = tmp_path / "fleet.json"
    children = [
        subprocess.Popen([sys.executable, "-c", code, path, str(n)], env=child_environment())
        for n in range(4)
    ]
    assert [child.wait(60) for child in children] == [0] * 4
    assert len(read_baseline(path).hosts["t"]) == 20


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"schema": 2}',
        b'{"schema": 1, "hosts": {"t": {"h": {"x": "fast"}}}}',
    ],
)
def test_a_file_that_is_no_baseline_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fleet.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"fleet\.json") as caught:
        read_baseline(path)
    assert caught.value.remedy
    with pytest.raises(InputError):
        save_values(path, machine(), {})
    assert path.read_bytes() == content


def test_the_shipped_table_is_read_and_every_row_names_its_source() -> None:
    limits = shipped_limits()
    assert limits and all(row.source and row.at_least > 0 for row in limits)
    found = limit_of(limits, "XEON, 8 x NVIDIA H100 80GB HBM3", "copy host to gpu3 GiB/s")
    assert found is not None and "H100" in found.host
    assert limit_of(limits, "XEON", "copy host to gpu3 GiB/s") is None


def test_the_machine_is_read_from_proc_and_what_is_unreadable_is_called_unknown(
    tmp_path: Path,
) -> None:
    (tmp_path / "cpuinfo").write_bytes(b"processor: 0\nmodel name\t: EPYC   9654 \xff\n")
    gpu = tmp_path / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
    found = this_machine(tmp_path)
    assert found.cpu.startswith("EPYC 9654") and found.gpus == ("NVIDIA H100 80GB HBM3",)
    assert found.host_type.endswith("1 x NVIDIA H100 80GB HBM3")
    assert this_machine(tmp_path / "nowhere").cpu.startswith("unknown")
    assert host_type("c", 2, ["b", "a", "b"]) == "c, 2 CPUs, 1 x a, 2 x b"
