"""The doctor finds what is wrong, and only that."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.common.node.run_dir import NodePaths, RunLock
from headway.console.cli import main
from headway.console.machine import doctor
from headway.console.machine.preflight import check_machine
from headway.trainer.config import RunConfig


def test_every_finding_has_a_level_and_each_bad_one_a_remedy(own_roots: Path) -> None:
    found = doctor.examine(own_roots / "runs" / "not" / "yet")
    assert list(found) == [
        "python", "packages", "torch", "shm", "disk", "limits", "processors", "ports", "leftovers",
        "terraform", "gpus",
    ]  # fmt: skip
    assert all(f.level in ("ok", "note", "bad") for f in found.values())
    assert all(f.remedy for f in found.values() if f.level != "ok")


def test_json_and_exit_code_follow_the_worst_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = doctor.Finding("bad", "too small", "enlarge it")
    for name, finding, code in (("x", doctor.Finding("note", "m", "r"), 0), ("shm", bad, 1)):
        monkeypatch.setattr(doctor, "examine", lambda _, found={name: finding}: found)
        assert main(["doctor", "--json"]) == code
        assert json.loads(capsys.readouterr().out) == [{"name": name, **vars(finding)}]
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out == "BAD  shm  too small; enlarge it\n"


def test_versions_other_than_the_tested_ones_are_named(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text("# tested\nPyZMQ==0.1\nnot_installed==9\n")
    found = doctor.packages(file)
    assert found.level == "note" and "pyzmq" in found.message and "tested 0.1" in found.message
    assert "not-installed" not in found.message
    file.write_text("torch==2.13.0\n")
    assert doctor.packages(file).level == "ok", "a build label is no other version"
    have = version("numpy")
    file.write_text(
        f"numpy=={have} ; python_full_version < '3.12'\nnumpy==9 ; python_full_version >= '3.12'\n"
    )
    assert doctor.packages(file).level == "ok", "each Python has a version of its own"


def test_too_little_room_is_bad(tmp_path: Path) -> None:
    assert doctor.shared_memory(tmp_path, least_bytes=1).level == "ok"
    assert doctor.shared_memory(tmp_path, least_bytes=1 << 60).level == "bad"
    assert doctor.disk(tmp_path / "runs", least_bytes=1).level == "ok"
    assert doctor.disk(tmp_path / "runs", least_bytes=1 << 60).level == "bad"


def test_a_processor_that_may_reorder_stores_is_bad_and_keeps_a_run_from_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert doctor.processors().level != "bad"
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    found = doctor.processors()
    assert found.level == "bad" and "aarch64" in found.message and "x86-64" in found.remedy
    with pytest.raises(InputError, match="aarch64"):
        check_machine(RunConfig(), tmp_path)


@pytest.mark.usefixtures("own_roots")
def test_what_a_dead_run_left_is_noted_and_a_live_run_is_not() -> None:
    assert doctor.leftovers().level == "ok"
    NodePaths("0123abcd", 0).create()
    found = doctor.leftovers()
    assert found.level == "note" and "0123abcd" in found.message
    with RunLock.hold("0123abcd"):
        assert doctor.leftovers().level == "ok"


def test_no_terraform_names_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = doctor.terraform()
    assert found.level == "note" and "make up" in found.remedy


def test_the_doctor_needs_no_torch_import() -> None:
    program = (
        "import sys; from headway.console.machine.doctor import examine; examine(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
