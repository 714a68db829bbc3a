"""The checks of a node: well on this machine, failing where something is broken,
ended when they hang."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import InputError
from headway.common.node.testing import child_environment, wait_until
from headway.health import run_checks
from headway.health.checks import bandwidth, clock, disk, gemm, memory, shm, versions
from headway.health.checks.base import CheckSettings, Finding
from headway.health.runner import SUITES, run_check
from headway.health.sources.proc import read_process

README = Path(__file__).parents[1] / "README.md"


def health(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headway.health", *arguments],
        capture_output=True, text=True, env=child_environment(more), timeout=110,
    )  # fmt: skip


def _children() -> set[str]:
    return set(Path("/proc/self/task", str(os.getpid()), "children").read_text().split())


def test_the_quick_suite_runs_every_check_and_is_well_here() -> None:
    settings = CheckSettings(min_shm_free_bytes=1 << 20, min_disk_free_bytes=1 << 20)
    results = run_checks(settings=settings, deadline_s=60)
    assert tuple(result.name for result in results) == SUITES["quick"]
    assert [result for result in results if result.failed] == []
    assert [result.name for result in results if result.ok is None] == ["mounts"]
    assert all(result.message and result.duration_s > 0 for result in results)
    assert all(result.values for result in results if result.ok)


def test_an_unknown_suite_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="quick"):
        run_checks("nonsense")


def test_a_check_that_takes_too_long_is_ended_and_leaves_no_process() -> None:
    """The clock check watches for half a second, so it cannot be done in less."""
    before = _children()  # other tests of the same runner may keep processes of their own
    result = run_check("clock", CheckSettings(), deadline_s=0.4)
    assert not result.ok and "0.4 s" in result.message and result.remedy
    assert _children() <= before


def test_what_a_hanging_check_has_started_is_ended_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(1000)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not run_check("versions", CheckSettings(), deadline_s=2.0).ok
    pid = int((tmp_path / "pid").read_text())
    wait_until(
        lambda: read_process(pid).state in ("gone", "Z"), what="the end of what the check started"
    )


def test_a_check_whose_suite_is_killed_ends_and_so_does_what_it_has_started(
    tmp_path: Path,
) -> None:
    """A probe of a hung mount would be there as long as the mount hangs."""
    (tmp_path / "hung").mkdir()
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib, time\n"
        "is_dir = pathlib.Path.is_dir\n"
        "def answer(path):\n"
        "    if path.name != 'hung': return is_dir(path)\n"
        "    new = path.parent / 'new'\n"
        "    new.write_text(f'{os.getppid()} {os.getpid()}')\n"
        "    new.rename(path.parent / 'pids')\n"
        "    time.sleep(1000)\n"
        "pathlib.Path.is_dir = answer\n"
    )
    suite = (
        "import pathlib\n"
        "from headway.health.checks.base import CheckSettings\n"
        "from headway.health.runner import run_check\n"
        f"hung = pathlib.Path({str(tmp_path / 'hung')!r})\n"
        "run_check('mounts', CheckSettings(mounts=(hung,), mount_answer_s=1000.0), 1000.0)\n"
    )
    env = child_environment({"PYTHONPATH": str(tmp_path)})
    with subprocess.Popen([sys.executable, "-c", suite], env=env) as process:
        wait_until((tmp_path / "pids").exists, 60.0, "the probe")
        check, probe = map(int, (tmp_path / "pids").read_text().split())
        assert read_process(check).state not in ("gone", "Z") and check != process.pid
        process.kill()
    for pid in (check, probe):
        wait_until(lambda: read_process(pid).state in ("gone", "Z"), what="its end")  # noqa: B023


def test_a_check_that_crashes_is_a_failure_of_the_node_with_its_last_words() -> None:
    result = run_check("nonsense", CheckSettings(), deadline_s=60)
    assert not result.ok and "crashed" in result.message and "nonsense" in result.message


def test_one_wrong_element_of_a_product_is_found() -> None:
    chance = np.random.default_rng(1)
    left, right = (chance.integers(-7, 8, (64, 64)).astype(np.float32) for _ in range(2))
    product = left @ right
    assert gemm.count_wrong_sums(left, right, product) == 0
    product[3, 5] += 1
    assert gemm.count_wrong_sums(left, right, product) == 2


def test_the_gemm_check_says_which_device_it_used() -> None:
    finding = gemm.check(CheckSettings())
    assert finding.ok and re.search(r"(CPU \(numpy\)|GPU 0 \(cupy\))", finding.message)


class _BrokenMatrices:
    """numpy whose products have one wrong element."""

    @staticmethod
    def asarray(array: np.ndarray) -> object:
        return _Broken(array)


class _Broken:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __matmul__(self, other: _Broken) -> np.ndarray:
        product = self.array @ other.array
        product[0, 0] += 1
        return product


def test_a_device_that_computes_wrongly_fails_the_check() -> None:
    done = gemm.multiply(_BrokenMatrices, None)
    assert done.num_wrong == 2 * gemm.ROUNDS and not done.is_exact


def test_the_recorded_checksum_is_that_of_the_exact_integer_products() -> None:
    checksum = 0
    for left, right in gemm.factors():
        checksum = gemm.add_to_checksum(left @ right, checksum)  # int64, without any float
    assert checksum == gemm.CHECKSUM
    assert gemm.multiply(np, None).is_exact


def test_errors_that_cancel_out_in_every_sum_change_the_checksum() -> None:
    product = np.arange(16.0, dtype=np.float32).reshape(4, 4)
    wrong = product.copy()
    wrong[0, 0] += 1
    wrong[0, 1] -= 1
    wrong[1, 0] -= 1
    wrong[1, 1] += 1
    assert wrong.sum(0).tolist() == product.sum(0).tolist()
    assert gemm.add_to_checksum(wrong, 0) != gemm.add_to_checksum(product, 0)
    wrong[3, 3] = np.nan
    assert gemm.add_to_checksum(wrong, 0) != gemm.add_to_checksum(product, 0)


class _Leaky(np.ndarray):
    """Memory in which one bit is stuck."""

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__(key, value)
        super().__setitem__(7, np.uint64(int(super().__getitem__(7)) | 1))


def test_a_stuck_bit_is_found_by_the_pattern_that_clears_it() -> None:
    words = np.zeros(64, dtype=np.uint64).view(_Leaky)
    wrong = [memory.write_and_compare(words, pattern) for pattern in memory.PATTERNS]
    assert wrong == [1, 0, 0, 1]


def test_a_clock_that_steps_back_is_measured() -> None:
    assert clock.largest_step_back([1, 2, 2, 9]) == 0
    assert clock.largest_step_back([1, 9, 4, 8, 7]) == 5
    assert clock.largest_step_back([]) == 0
    readings = clock.read_across_cpus()
    assert len(readings) == clock.HOPS and readings == sorted(readings)


def test_a_wall_clock_of_another_pace_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "pace_of_wall_clock", lambda _: 1.02)
    finding = clock.check(CheckSettings())
    assert not finding.ok and "2.00%" in finding.message


def test_too_little_shared_memory_fails_with_the_remedy() -> None:
    finding = shm.check(CheckSettings(min_shm_free_bytes=1 << 60))
    assert not finding.ok and "--shm-size" in finding.remedy
    assert not shm.check(CheckSettings(shm=Path("/nowhere"))).ok


def test_a_full_a_missing_and_a_slow_disk_fail(tmp_path: Path) -> None:
    assert "free" in disk.check(CheckSettings(disk=tmp_path, min_disk_free_bytes=1 << 60)).message
    assert not disk.check(CheckSettings(disk=tmp_path / "nowhere", min_disk_free_bytes=0)).ok
    slow = disk.check(
        CheckSettings(disk=tmp_path, min_disk_free_bytes=0, min_disk_bytes_per_s=1 << 60)
    )
    assert not slow.ok and "MiB/s" in slow.message
    assert disk.check(CheckSettings(disk=tmp_path, min_disk_free_bytes=0)).ok
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_gives_back_other_bytes_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the pages are dropped between writing and reading: the moment for a disk to be wrong
    monkeypatch.setattr(os, "posix_fadvise", lambda file, *_: os.pwrite(file, b"rotten", 0))
    finding = disk.check(
        CheckSettings(disk=tmp_path, min_disk_free_bytes=0, min_disk_bytes_per_s=0)
    )
    assert not finding.ok and "other bytes" in finding.message


def test_loopback_is_compared_with_a_limit() -> None:
    finding = bandwidth.check(CheckSettings(min_loopback_bytes_per_s=1 << 60))
    assert not finding.ok and "below" in finding.message


def test_versions_that_do_not_belong_together_fail() -> None:
    def found(python: str, common: str, health: str) -> Finding:
        parts = {"headway-common": common, "headway-health": health}
        return versions.judge(versions.Installed(python, "6.1", parts), CheckSettings())

    assert found("3.12.1", "0.1.0", "0.1.0").ok
    assert found("3.14.0", "0.1.0", "0.1.0").message == "Python 3.14.0 is not supported"
    assert "headway-health 0.2.0" in found("3.12.1", "0.1.0", "0.2.0").message


def test_json_and_exit_codes_for_prologs(tmp_path: Path) -> None:
    well = health(
        "check", "--json", "--min-shm-mib", "1", "--deadline-s", "60", "--disk", str(tmp_path)
    )
    assert well.returncode == 0, well.stdout
    report = json.loads(well.stdout)
    assert (report["schema"], report["suite"], report["is_healthy"]) == (1, "quick", True)
    assert [row["name"] for row in report["results"]] == list(SUITES["quick"])
    assert report["machine"]["hostname"] and report["machine"]["host_type"]
    assert {row["basis"] for row in report["judgements"]} <= {"table", "none"}
    ill = health(
        "check", "--disk", str(tmp_path / "nowhere"), "--min-shm-mib", "1", "--deadline-s", "60"
    )
    assert ill.returncode == 1 and "FAILED  disk" in ill.stdout
    bad = health("check", "--suite", "nonsense")
    assert bad.returncode == 2 and bad.stderr.count("\n") == 1 and "quick" in bad.stderr
    assert health("check", "--nonsense").returncode == 2
    alone = health("check", "--save-baseline")
    assert alone.returncode == 2 and "--baseline FILE" in alone.stderr


def test_help_imports_neither_zmq_nor_numpy() -> None:
    code = (
        "import sys, runpy; sys.argv = ['health', '--help']\n"
        "try: runpy.run_module('headway.health', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'zmq', 'numpy', 'torch', 'prometheus_client'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_readmes_prolog_drains_a_bad_node_and_lets_a_good_one_work(tmp_path: Path) -> None:
    script = re.search(r"```bash\n(#!/bin/bash.*?)```", README.read_text(), re.DOTALL)
    assert script is not None and script[1].count("\n") < 30
    prolog = tmp_path / "prolog.sh"
    prolog.write_text(script[1])
    drained = tmp_path / "drained"
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {drained}\n')
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    for shm_mib, code in (("1", 0), ("100000000", 1)):
        env = child_environment(
            {
                "PATH": "",
                "HEADWAY_BIN": str(tools),
                "SLURMD_NODENAME": "node7",
                "HEALTH_MIN_SHM_MIB": shm_mib,
            }
        )
        done = subprocess.run(
            ["/bin/bash", str(prolog)], env=env, capture_output=True, text=True, timeout=110
        )
        assert (done.returncode, drained.exists()) == (code, code == 1), done.stdout + done.stderr
    assert "NodeName=node7" in drained.read_text() and "shm" in drained.read_text()
