"""`.ci/run` over a small project: green, flaky, red, and runs that were cut short."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

FIRST = """
import os, pathlib, pytest
first = not pathlib.Path(".pytest_cache/exit").exists()
"""
"""``first`` is true in the first of two runs: make writes that file when pytest has ended. A file
of the module's own would not do, for every worker of a run imports the module."""
PASS, FLAKY, RED = "def test_a(): pass", "def test_b(): assert not first", "def test_c(): assert 0"
CASES = {
    "green": (PASS, 0, "1 passed"),
    "flaky": (f"{PASS}\n{FLAKY}", 0, "flaky: test_it.py::test_b failed, then passed by itself"),
    "red": (f"{PASS}\n{FLAKY}\n{RED}", 2, "1 failed, 1 passed in"),
    "too many": (
        "@pytest.mark.parametrize('n', range(6))\ndef test_d(n): assert not first",
        1,
        "6 tests failed: too many to be flaky",
    ),
    "skips when repeated": (
        "def test_e():\n if not first: pytest.skip('no')\n assert 0",
        1,
        "not all of them passed",
    ),
    "collection error": (f"{PASS}\nraise ImportError", 2, "1 error in"),
    "interrupted": (
        f"{FLAKY}\ndef test_f():\n if first: raise KeyboardInterrupt\n{RED}",
        1,
        "did not run to its end: exit code 2",
    ),
    "killed": (f"def test_g(): os._exit(1 if first else 0)\n{RED}", 1, "not all of them passed"),
}


def ci(project: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    ours = ("PYTEST_", "MAKE", "MFLAGS", "JOBS", "ARGS")  # a make hands these on to a make in it
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"JOBS": "1", **settings}
    return subprocess.run(
        ["bash", ".ci/run"], cwd=project, env=env, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("case", CASES)
def test_only_what_failed_and_then_passed_by_itself_is_called_flaky(
    case: str, project: Path
) -> None:
    body, code, expected = CASES[case]
    (project / "test_it.py").write_text(FIRST + body)
    done = ci(project)
    assert done.returncode == code, done.stdout + done.stderr
    assert expected in done.stdout
    assert ("flaky: " in done.stdout) == (case == "flaky")
    if case == "flaky":
        assert done.stdout.splitlines()[-1] == expected


def test_a_checker_that_complains_ends_it_before_any_test(project: Path) -> None:
    (project / "test_it.py").write_text(PASS)
    (project / ".venv/bin/mypy").write_text("#!/bin/sh\nexit 1\n")
    done = ci(project)
    assert done.returncode == 2 and "passed" not in done.stdout


def test_programs_of_the_system_are_found_where_a_users_path_leaves_them_out(project: Path) -> None:
    (project / "test_it.py").write_text(
        "import os\ndef test_a(): assert '/usr/sbin' in os.environ['PATH'].split(':')"
    )
    folders = [one for one in os.environ["PATH"].split(":") if not one.endswith("/sbin")]
    done = ci(project, PATH=":".join(folders))
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_make_starts_keeps_its_bytecode(project: Path) -> None:
    program = project / ".venv/bin/headway"
    program.write_text("#!/bin/sh\nenv\n")
    program.chmod(0o755)
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "INHERITED": "1"}
    done = subprocess.run(
        ["make", "run"], cwd=project, env=env, capture_output=True, text=True, check=True
    )
    assert "INHERITED=1" in done.stdout and "PYTHONDONTWRITEBYTECODE" not in done.stdout
