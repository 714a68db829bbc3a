"""`make setup` as it happens: stock Python, blanks in paths, no network, cut short, run twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Installed = Callable[[], dict[str, str]]


def test_stock_python_gets_what_a_run_needs_and_no_more(
    checkout: Path, run: Run, lowest_python: Path, installed: Installed
) -> None:
    first = run("make", "setup", f"PYTHON={lowest_python}")
    assert "creating .venv" in first.stdout and "installing" in first.stdout  # progress can be seen
    found = installed()
    assert {"torch", "polars", "pyzmq", "uv", "headway_console", "headway_trainer"} <= found.keys()
    assert not {"jupyterlab", "ipykernel", "pytest", "mypy", "tensorboard"} & found.keys()
    assert "headway_testkit" not in found
    assert "Usage" in run(checkout / ".venv/bin/headway", "--help").stdout
    pins: dict[str, set[str]] = {}
    for line in (checkout / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition(" ;")[0].partition("==")
        pins.setdefault(name, set()).add(version)
    for name, version in found.items():
        allowed = pins.get(name.replace("_", "-"), {version.partition("+")[0]})
        assert version.partition("+")[0] in allowed, f"{name} {version}"
    assert run("make", "setup").stdout == ""


def test_a_set_up_that_was_killed_is_resumed(
    checkout: Path,
    run: Run,
    small: Sequence[str],
    environment: dict[str, str],
    installed: Installed,
) -> None:
    log = checkout / "log"
    with log.open("w") as out:
        victim = subprocess.Popen(
            small, cwd=checkout, env=environment, stdout=out, start_new_session=True
        )
        deadline_s = time.monotonic() + 60
        while "installing what" not in log.read_text() and victim.poll() is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
    assert victim.returncode == -signal.SIGKILL
    assert json.loads((checkout / ".venv/.headway.json").read_text())["set"] == ""
    assert "the existing one is only partly installed" in run(*small).stdout
    assert "headway_common" in installed()


def test_ctrl_c_says_how_to_go_on(
    checkout: Path, small: Sequence[str], environment: dict[str, str]
) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # A background job of a shell ignores Ctrl-C, and its children would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(small, cwd=checkout, env=environment, **pipes) as child:
        assert "creating .venv" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        left = child.stdout.read().strip()
    signal.signal(signal.SIGINT, before)
    wanted = "headway: interrupted; run the same command to continue"
    assert (child.returncode, left) == (130, wanted)


@pytest.mark.usefixtures("set_up")
def test_a_filled_cache_needs_no_network(
    checkout: Path,
    run: Run,
    small_anew: Sequence[str],
    offline: dict[str, str],
    installed: Installed,
) -> None:
    (checkout / ".venv").rename(checkout / "old")
    assert "creating .venv" in run(*small_anew, env=offline).stdout
    assert "headway_common" in installed()


def test_without_network_and_cache_it_says_what_it_needs(
    run: Run, small_anew: Sequence[str], offline: dict[str, str], tmp_path: Path
) -> None:
    empty = {
        **offline,
        "XDG_CACHE_HOME": str(tmp_path),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "PIP_NO_CACHE_DIR": "1",
    }
    said = run(*small_anew, env=empty, code=2).stdout.splitlines()
    assert said[-1].startswith("headway: cannot download uv (check the network")


def test_a_home_that_cannot_be_written_does_not_matter(
    run: Run,
    small_anew: Sequence[str],
    environment: dict[str, str],
    installed: Installed,
) -> None:
    config = Path.home() / ".config/pip/pip.conf"
    settings = {"PIP_CONFIG_FILE": str(config)} if config.exists() else {}
    run(*small_anew, env={**settings, **environment, "HOME": "/proc"})
    assert "headway_common" in installed()


def test_two_at_once_wait_for_each_other(
    checkout: Path, small: Sequence[str], environment: dict[str, str]
) -> None:
    both = [
        subprocess.Popen(small, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [child.communicate(timeout=300)[0] for child in both]
    assert [child.returncode for child in both] == [0, 0]
    assert sum("creating .venv" in text for text in said) == 1
    assert sum("waiting for another set-up" in text for text in said) == 1


STUBS = {
    "not Linux": ("uname", "echo Darwin", "Linux is required, this is Darwin"),
    "too old": ("python3", "[ $1 = -c ] && echo Python 3.9.2 || exit 4", "python3 is Python 3.9.2"),
    "broken": ("python3", "exit 1", "python3 is not found or not working"),
    "no venv": ("python3", "exit 3", "python3 has no venv module; install it"),
}


@pytest.mark.parametrize("case", STUBS)
def test_a_machine_that_will_not_do_is_told_so_in_one_line(
    case: str, run: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    name, body, expected = STUBS[case]
    for stub in {name, *(["python3.11", "python3.12", "python3.13"] if name == "python3" else [])}:
        (tmp_path / stub).write_text(f"#!/bin/sh\n{body if stub == name else 'exit 4'}\n")
        (tmp_path / stub).chmod(0o755)
    env = {**environment, "PATH": f"{tmp_path}:{environment['PATH']}"}
    said = run("infra/setup/setup.sh", "run", env=env, code=2).stdout
    assert expected in said and said.count("\n") == 1


def test_parts_install_with_pip_alone(run: Run, checkout: Path, lowest_python: Path) -> None:
    run(lowest_python, "-m", "venv", "venv")
    run(
        "venv/bin/pip",
        "install",
        "-q",
        "-c",
        "constraints.txt",
        "./libs/common",
        "./services/health",
    )
    said = run("venv/bin/python", "-m", "headway.health", "check", "--help").stdout
    assert "Usage" in said and not list(checkout.glob("venv/bin/uv"))
