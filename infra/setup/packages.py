"""uv, and what it installs: every package as constraints.txt pins it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pip_settings
from environment import ROOT, Record, SetupError, run

LOCK = ROOT / "constraints.txt"
FOREIGN = ("VIRTUAL_ENV", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "UV_REQUIRE_HASHES")
"""Variables that would lead an installation elsewhere, or ask of the lock what it does not hold."""


def pin(name: str) -> str:
    """The version that the lock has of a package with one pin."""
    found = re.search(rf"^{name}==(\S+)", LOCK.read_text(), re.MULTILINE)
    if found is None:
        raise SetupError(f"{LOCK.name} has no pin for {name}; run `make lock`")
    return found[1]


# ---- uv -----------------------------------------------------------------------------------------
def make_uv(venv: Path) -> None:
    """Install the pinned uv with pip; its wheel is kept, so that a later set-up works offline."""
    version = pin("uv")
    with contextlib.suppress(OSError):
        asked = [str(venv / "bin/uv"), "--version"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.stdout.split()[1:2] == [version]:
            return
    print(f"installing uv {version}", flush=True)
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    with _wheel_folder() as folder:
        install = [*pip, "install", "--force-reinstall", "--no-index", "--find-links", str(folder)]
        install.append(f"uv=={version}")
        if _succeeds(install, env):
            return
        fetch = [*pip, "download", "--retries", "1", "--no-deps", "-d", str(folder)]
        fetch.append(f"uv=={version}")
        run(fetch, "cannot download uv (check the network and `pip config list`)", env)
        run(install, "cannot install uv", env)


@contextlib.contextmanager
def _wheel_folder() -> Iterator[Path]:
    kept = _user_cache() / "headway" / "wheels"
    if _is_writable(kept):
        yield kept
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


# ---- packages -----------------------------------------------------------------------------------
def install(venv: Path, requirements: list[str], record: Record) -> None:
    """From uv's cache alone where it holds everything, which works offline; else with the index.

    ``record`` tells which build of torch, and is written once all is in place.
    """
    env, uv = environment_for_uv(venv), _uv(venv, record.torch)
    for mode in (["--offline"], []):
        with _torch_build([*uv, *mode], env, record.torch) as build:
            command = [*uv, *mode, *build, *requirements]
            if mode and not _succeeds([*command, "--dry-run"], env):
                continue
            if _change(venv, command, env, record):
                return
    choice = "" if record.torch == "auto" else f" (TORCH={record.torch})"
    raise SetupError(f"could not install the packages{choice}, see above; repeat the command")


def check_torch(venv: Path, torch: str) -> None:
    """Raises SetupError where this build of torch is not to be had: before anything is cleared."""
    env, build = environment_for_uv(venv), _build(torch)
    asked = [*_uv(venv, torch), "--dry-run", "--no-deps", "--reinstall", build]
    if not (_succeeds([*asked, "--offline"], env) or _succeeds(asked, env)):
        raise SetupError(f"no {build} (wrong name, or no network?); nothing was changed")


def _build(torch: str) -> str:
    """The locked torch with a label: 2.13.0+cpu."""
    return f"torch=={pin('torch')}+{torch}"


def environment_for_uv(venv: Path) -> dict[str, str]:
    """Return the environment in which uv installs as pip is configured to."""
    env = {**os.environ, **pip_settings.for_uv(venv / "bin/python")}
    env = {name: value for name, value in env.items() if name not in FOREIGN}
    if not _is_writable(Path(env.get("UV_CACHE_DIR") or _user_cache() / "uv")):
        env["UV_CACHE_DIR"] = str(ROOT / ".uv-cache")  # a read-only home
    return env


def _uv(venv: Path, torch: str) -> list[str]:
    uv = [str(venv / "bin/uv"), "pip", "install", "--python", str(venv / "bin/python")]
    uv += ["--constraints", LOCK.name, "--build-constraints", LOCK.name]
    return uv if torch == "auto" else [*uv, "--torch-backend", torch]


def _change(venv: Path, command: list[str], env: dict[str, str], record: Record) -> bool:
    """Run uv; whether it succeeded. False only where it gave up before it touched a package."""
    before, packages = Record.read(venv), next(venv.glob("lib/python3*/site-packages"))
    changed_ns = packages.stat().st_mtime_ns
    replace(record, set="").write(venv)
    if subprocess.run(command, cwd=ROOT, env=env, check=False).returncode == 0:
        record.write(venv)
        return True
    if packages.stat().st_mtime_ns != changed_ns:
        raise SetupError("the installation failed half-way, see above; repeat the command")
    if before is not None:
        before.write(venv)
    return False


@contextlib.contextmanager
def _torch_build(uv: list[str], env: dict[str, str], torch: str) -> Iterator[list[str]]:
    """Options that take the build of torch that TORCH names.

    With ``auto`` and no GPU that is the CPU build where the index offers it: it saves 4 GB.
    """
    if torch == "auto":
        is_offered = not has_gpu() and _succeeds(
            [*uv, "--dry-run", "--no-deps", _build("cpu")], env
        )
        if not is_offered:
            yield []
            return
        torch = "cpu"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(_build(torch))
        file.flush()
        yield ["--constraints", file.name]


def has_gpu() -> bool:
    """Whether the kernel shows an NVIDIA GPU."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _succeeds(command: list[str], env: dict[str, str]) -> bool:
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True).returncode == 0


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
