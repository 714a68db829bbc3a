"""What `.ci/run` installs for the tests, with stand-ins for Debian's programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "infra/setup/test_packages.sh"
INSTALL = "install slurmctld slurmd slurm-client munge openssh-server chromium fonts-liberation"


def _run(
    folder: Path, *, uid: int = 0, has_apt: bool = True, installed: str = "iproute2", code: int = 0
) -> tuple[str, list[str]]:
    """What it prints, and what apt-get was asked."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "tail", "chmod", "rm"):
        (tools / name).symlink_to(f"/bin/{name}" if name != "tail" else "/usr/bin/tail")
    programs = {
        "id": f"echo {uid}",
        "dpkg-query": f'case " {installed} " in *" $4 "*) echo install ok installed;; esac',
        "apt-get": f'test -x {folder}/policy && echo "$@" >> {folder}/asked\n'
        f"echo noise; echo no network >&2; exit {code}",
    }
    for name, text in programs.items():
        if has_apt or name != "apt-get":
            (tools / name).write_text(f"#!/bin/sh\n{text}\n")
            (tools / name).chmod(0o755)
    env = {"PATH": str(tools), "POLICY": str(folder / "policy")}
    done = subprocess.run([SCRIPT], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr and not (folder / "policy").exists()
    asked = folder / "asked"
    return done.stdout, asked.read_text().splitlines() if asked.exists() else []


def test_only_what_is_missing_is_installed_and_quietly(tmp_path: Path) -> None:
    said, asked = _run(tmp_path)
    assert said == f"installed for tests: {INSTALL.removeprefix('install ')}\n"
    assert asked == ["-qq update", f"-qq -y --no-install-recommends {INSTALL}"]


def test_a_failure_is_printed_and_fails_nothing(tmp_path: Path) -> None:
    said, _ = _run(tmp_path, code=100)
    assert said.startswith("not installed, so the tests that need them are skipped: slurmctld")
    assert "no network" in said


@pytest.mark.parametrize(
    "options",
    [
        {"uid": 1000},
        {"has_apt": False},
        {"installed": f"{INSTALL} iproute2"},
    ],
    ids=["not root", "no apt-get", "all there"],
)
def test_else_nothing_is_done(tmp_path: Path, options: dict[str, object]) -> None:
    assert _run(tmp_path, **options) == ("", [])  # type: ignore[arg-type]


def test_it_knows_what_the_tests_themselves_ask_for() -> None:
    from headway.testkit.browser.browser import NAMES
    from headway.testkit.machines.slurm import PROGRAMS

    packages = SCRIPT.read_text().partition('packages="')[2].partition('"')[0].split()
    assert {*PROGRAMS.values(), "openssh-server", "iproute2", NAMES[0], "fonts-liberation"} == set(
        packages
    )
    assert os.access(SCRIPT, os.X_OK)
