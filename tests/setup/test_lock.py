"""The lock agrees with the pyproject files, and pip's settings reach uv."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "infra/setup"))

import environment  # noqa: E402
import lock  # noqa: E402
import pip_settings  # noqa: E402

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_requirement_that_no_pin_meets_fails_the_check(
    checkout: Path, run: Run, environment: dict[str, str]
) -> None:
    env = {**environment, "VENV": sys.prefix}
    run(sys.executable, "infra/setup/lock.py", "--check", env=env)
    file = checkout / "libs/common/pyproject.toml"
    file.write_text(file.read_text().replace('"pyzmq>=26"', '"pyzmq>=26", "toolz"'))
    said = run(sys.executable, "infra/setup/lock.py", "--check", env=env, code=1).stdout
    assert "+toolz==" in said and "run `make lock`" in said


def test_every_part_names_the_supported_pythons_and_the_licence() -> None:
    (low, high), files = (
        environment.PYTHONS,
        [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")],
    )
    wanted = f">={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}"
    tables = [tomllib.loads(file.read_text())["project"] for file in files]
    assert len(tables) == 9
    assert {(table["requires-python"], table["license"]) for table in tables} == {
        (wanted, "Apache-2.0")
    }
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    script = (ROOT / "infra/setup/setup.sh").read_text()
    assert f"({low[0]}, {low[1]}) <= sys.version_info[:2] <= ({high[0]}, {high[1]})" in script


LINUX = "sys_platform == 'linux'"
SUPPORTED = f"python_full_version < '3.14' and {LINUX}"
NEWER = "python_full_version >= '3.12'"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (f"a==1 ; {SUPPORTED}", "a==1"),
        (f"a==1 ; {LINUX}", "a==1"),
        (f"a==1 ; {NEWER} and {SUPPORTED}", f"a==1 ; {NEWER}"),
        ("a==1", "a==1"),
    ],
)
def test_conditions_that_always_hold_are_left_out(line: str, kept: str) -> None:
    assert lock._drop_redundant_markers(line) == kept


def test_pip_settings_reach_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        *pip_settings.UV_INDEX_VARIABLES,
        *pip_settings.CONNECTION.values(),
        "UV_FIND_LINKS",
        "UV_NO_INDEX",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in (
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_FIND_LINKS",
        "PIP_CERT",
        "PIP_DEFAULT_TIMEOUT",
    ):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pip.conf").write_text(
        "[global]\n"
        "index-url = https://mirror.example/simple\n"
        "find-links = /one /two\n"
        "cert = /ca.pem\n"
        "[install]\n"
        "extra-index-url =\n    https://one.example/simple\n    https://two.example/simple\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.example/simple")
    env = pip_settings.for_uv(Path(sys.executable))
    assert env["UV_DEFAULT_INDEX"] == "https://variable.example/simple"  # a variable beats the file
    assert env["UV_INDEX"] == "https://one.example/simple https://two.example/simple"
    assert env["UV_FIND_LINKS"] == "/one,/two"
    assert env["SSL_CERT_FILE"] == "/ca.pem"
    assert env["UV_PYTHON_DOWNLOADS"] == "never"
    assert env["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://own.example/simple")
    assert "UV_INDEX" not in pip_settings.for_uv(Path(sys.executable))
