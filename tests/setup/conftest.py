"""Copies of this checkout, and the environment of somebody who has just logged in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = (
    "PIP_",
    "UV_",
    "SSL_",
    "REQUESTS_CA",
    "http_proxy",
    "https_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
)
"""Beginnings of the variables without which this machine may not reach its package index."""
DEAD_PROXY = "http://127.0.0.1:9"
SMALL = Path(__file__).with_name("small.py")
SMALL_PARTS = (
    "Makefile",
    "constraints.txt",
    "pyproject.toml",
    "infra/setup",
    "libs/common",
    "libs/launch",
    "services/health",  # installed where there is a GPU
)
"""What a set-up by ``small.py`` may read."""


@pytest.fixture
def environment() -> dict[str, str]:
    """As ``env -i`` leaves it: a home, the system's programs, the user's package index."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    return {"HOME": str(Path.home()), "PATH": "/usr/bin:/bin", **kept}


@pytest.fixture
def offline(environment: dict[str, str]) -> dict[str, str]:
    """The same without a network, and without the seconds for which uv tries again."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    proxies = {**dict.fromkeys(names, DEAD_PROXY), "PIP_PROXY": DEAD_PROXY}
    return {**environment, **proxies, "UV_HTTP_RETRIES": "0"}


@pytest.fixture(scope="session")
def pythons() -> list[Path]:
    """The supported Pythons of this machine that have venv, the oldest first."""
    program = "import sys, ensurepip, venv; print(*sys.version_info[:3])"
    folders = [*os.environ["PATH"].split(os.pathsep), "/usr/bin"]
    folders += map(str, Path.home().glob(".pyenv/versions/*/bin"))
    found: dict[tuple[int, ...], Path] = {}
    for folder in dict.fromkeys(folders):
        for name in ("python3", "python3.11", "python3.12", "python3.13"):
            path = Path(folder) / name
            if path.exists() and not {".venv", "shims"} & set(path.parts):
                done = subprocess.run([path, "-c", program], capture_output=True, text=True)
                version = tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()
                if (3, 11) <= version < (3, 14):
                    found.setdefault(version, path)
    assert found, "no Python 3.11 to 3.13 with venv on this machine"
    return [found[version] for version in sorted(found)]


@pytest.fixture(scope="session")
def lowest_python(pythons: list[Path]) -> Path:
    return pythons[0]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where copies lie, one after the other: a virtual environment works at its own path only."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture
def checkout(place: Path, request: pytest.FixtureRequest) -> Path:
    """What git knows of this tree, in a folder with a blank in its name.

    Only a part of it for tests of small set-ups: a whole copy takes seconds.
    """
    target = place / "a checkout"
    shutil.rmtree(target, ignore_errors=True)
    parts = SMALL_PARTS if {"small", "small_anew"} & set(request.fixturenames) else ()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *parts],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(checkout: Path, environment: dict[str, str]) -> Run:
    """Run a command in the copy; stdout and stderr come together, as a user sees them."""

    def start(
        *command: str | Path, env: dict[str, str] | None = None, code: int = 0, limit_s: float = 600
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=checkout,
            env=environment if env is None else env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
        )
        assert done.returncode == code, f"exit code {done.returncode}, not {code}:\n{done.stdout}"
        return done

    return start


@pytest.fixture
def small(place: Path, lowest_python: Path) -> Sequence[str]:
    """The command that sets up one small part in the copy it runs in."""
    return [str(lowest_python), str(SMALL), str(place), "run"]


@pytest.fixture
def small_anew(tmp_path: Path, lowest_python: Path) -> Sequence[str]:
    """The same without anything that a former one has kept."""
    return [str(lowest_python), str(SMALL), str(tmp_path), "run"]


@pytest.fixture
def set_up(place: Path, checkout: Path, run: Run, small: Sequence[str]) -> None:
    """The copy after ``small``, which is done once."""
    first, found = place / "first .venv", checkout / ".venv"
    if first.exists():
        shutil.copytree(first, found, symlinks=True)
    else:
        run(*small)
        shutil.copytree(found, first, symlinks=True)


@pytest.fixture
def installed(checkout: Path) -> Callable[[], dict[str, str]]:
    """Name -> version of what the copy's ``.venv`` holds, after a look whether it works."""

    def look() -> dict[str, str]:
        program = "import headway.common.log, msgspec, zmq"
        subprocess.run([checkout / ".venv/bin/python", "-c", program], check=True)
        (site,) = (checkout / ".venv/lib").glob("python3*/site-packages")
        names = [path.stem.split("-") for path in site.glob("*.dist-info")]
        return {name.lower(): version for name, version in names}

    return look


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The real Makefile and ``.ci/run`` with a set-up and checkers that do nothing."""
    for name in (".ci/run", "Makefile"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "infra/setup").mkdir(parents=True)
    for name in ("lock.py", "lab_page_config.json"):
        (tmp_path / "infra/setup" / name).touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    scripts = ("infra/setup/setup.sh", "infra/setup/test_packages.sh")
    for name in (*scripts, ".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/python"):
        real = f'exec "{sys.executable}" "$@"' if name.endswith("python") else "exit 0"
        (tmp_path / name).write_text(f"#!/bin/sh\n{real}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    return tmp_path
