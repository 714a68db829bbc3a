"""What the set-up does with the `.venv` that it finds, whoever made it."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Installed = Callable[[], dict[str, str]]


def edit(checkout: Path, **changes: object) -> None:
    """Change the record of the last set-up."""
    file = checkout / ".venv/.headway.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.usefixtures("set_up")
def test_what_cannot_be_used_is_made_anew(
    checkout: Path, run: Run, small: Sequence[str], installed: Installed
) -> None:
    python = checkout / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nonexistent/python3.10")
    assert "the existing one has no working Python" in run(*small).stdout
    edit(checkout, path="/elsewhere/.venv")
    assert "was created at another path" in run(*small).stdout
    python.unlink()
    python.write_text("#!/bin/sh\necho 3 10 /usr\n")
    python.chmod(0o755)
    assert "the existing one uses Python 3.10" in run(*small).stdout
    assert "headway_common" in installed()


@pytest.mark.usefixtures("set_up")
def test_another_python_is_taken_when_it_is_asked_for(
    run: Run,
    small: Sequence[str],
    pythons: list[Path],
    environment: dict[str, str],
    installed: Installed,
) -> None:
    if len(pythons) < 2:
        pytest.skip("one supported Python on this machine")
    other = [str(pythons[-1]), *small[1:]]
    assert run(*other).stdout == ""  # the default interpreter changed: nobody asked for it
    said = run(*other, env={**environment, "PYTHON": str(pythons[-1])}).stdout
    assert "not the requested one" in said
    assert "headway_common" in installed()


def test_a_bigger_set_stays_when_a_smaller_one_is_asked_for(
    checkout: Path, run: Run, small: Sequence[str], installed: Installed
) -> None:
    run(*small[:-1], "lab")
    assert "headway_launch" in installed()
    edit(checkout, inputs="of an older checkout")
    assert "what `make lab` needs" in run(*small).stdout
    assert run(*small[:-1], "lab").stdout == ""


@pytest.mark.usefixtures("set_up")
def test_a_bigger_set_leaves_alone_what_a_live_run_may_import(
    checkout: Path, run: Run, small: Sequence[str], installed: Installed
) -> None:
    (site,) = (checkout / ".venv/lib").glob("python3*/site-packages")
    before = {path.name: path.stat().st_ino for path in site.glob("*headway_common*")}
    assert before
    assert "Uninstalled" not in run(*small[:-1], "lab").stdout
    assert "headway_launch" in installed()
    assert {path.name: path.stat().st_ino for path in site.glob("*headway_common*")} == before


@pytest.mark.usefixtures("set_up")
def test_a_set_up_that_fails_leaves_what_works(
    checkout: Path, run: Run, small: Sequence[str], offline: dict[str, str], installed: Installed
) -> None:
    file = checkout / "libs/common/pyproject.toml"
    file.write_text(file.read_text().replace('"pyzmq>=26"', '"pyzmq>=26", "toolz"'))
    said = run(*small, env={**offline, "UV_CACHE_DIR": str(checkout / "empty")}, code=2).stdout
    assert said.splitlines()[-1].startswith("headway: could not install the packages")
    assert json.loads((checkout / ".venv/.headway.json").read_text())["set"] == "run"
    assert "toolz" not in installed()
    assert "creating" not in run(*small).stdout and "toolz" in installed()


def test_a_build_of_torch_that_is_not_to_be_had_changes_nothing(
    checkout: Path, run: Run, small: Sequence[str], offline: dict[str, str], installed: Installed
) -> None:
    said = run(*small, env={**offline, "TORCH": "gpu"}, code=2).stdout
    assert said.startswith("headway: TORCH=gpu is not a build of torch") and said.count("\n") == 1
    assert not (checkout / ".venv").exists()
    run(*small)
    said = run(*small, env={**offline, "TORCH": "cu118"}, code=2).stdout
    assert said.startswith("headway: no torch==2.13.0+cu118") and said.count("\n") == 1
    assert "headway_common" in installed() and run(*small).stdout == ""
    edit(checkout, torch="cu130")
    assert run(*small).stdout == ""  # what was asked for the last time holds
    said = run(*small, env={**offline, "TORCH": "auto"}).stdout
    assert "the existing one was set up with TORCH=cu130" in said


@pytest.mark.usefixtures("set_up")
def test_a_record_of_another_version_is_no_trouble(
    checkout: Path, run: Run, small: Sequence[str], installed: Installed
) -> None:
    for record in ("", "[]", '{"set": "cloud", "colour": "blue"}'):
        (checkout / ".venv/.headway.json").write_text(record)
        assert "installing" in run(*small).stdout
    assert "headway_common" in installed()


@pytest.mark.usefixtures("set_up")
def test_a_broken_uv_is_replaced(checkout: Path, run: Run, small: Sequence[str]) -> None:
    (checkout / ".venv/bin/uv").write_bytes(b"")
    edit(checkout, inputs="of an older checkout")
    assert "installing uv" in run(*small).stdout


def test_what_somebody_else_made_is_used_but_never_cleared(
    checkout: Path, run: Run, small: Sequence[str], lowest_python: Path, installed: Installed
) -> None:
    run(lowest_python, "-m", "venv", ".venv")
    (checkout / ".venv/notes.txt").write_text("mine")
    assert "creating" not in run(*small).stdout
    assert "headway_common" in installed()
    edit(checkout, torch="cu130", set="")
    said = run(*small, code=2).stdout
    assert said.startswith("headway: ") and "remove it, or set VENV=" in said
    assert (checkout / ".venv/notes.txt").read_text() == "mine"


def test_nobody_elses_folder_is_emptied(
    run: Run, small: Sequence[str], environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "thesis.tex").write_text("x")
    said = run(*small, env={**environment, "VENV": str(folder)}, code=2).stdout
    assert said == f"headway: {folder} is not a virtual environment; move it away, or set VENV=\n"
    (folder / "pyvenv.cfg").write_text("home = /nowhere\n")
    said = run(*small, env={**environment, "VENV": str(folder)}, code=2).stdout
    assert said == f"headway: {folder} has no working Python; remove it, or set VENV=\n"
    assert (folder / "thesis.tex").read_text() == "x"


def test_the_lock_decides_and_the_cpu_build_is_taken_where_it_is_offered(
    checkout: Path,
    tmp_path: Path,
    run: Run,
    small: Sequence[str],
    environment: dict[str, str],
    installed: Installed,
) -> None:
    lock, part = checkout / "constraints.txt", checkout / "libs/common/pyproject.toml"
    lock.write_text(lock.read_text().replace("msgpack==1.2.4", "msgpack==1.1.2"))
    part.write_text(part.read_text().replace('"pyzmq>=26"', '"pyzmq>=26", "torch"'))
    folder = tmp_path / "wheels"  # pip's lists are separated by blanks
    folder.mkdir()
    for build in ("2.13.0+cpu", "2.13.0+cu130"):
        with zipfile.ZipFile(folder / f"torch-{build}-py3-none-any.whl", "w") as wheel:
            info, head = f"torch-{build}.dist-info", "Metadata-Version: 2.1\nName: torch\n"
            wheel.writestr(f"{info}/METADATA", f"{head}Version: {build}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    links = {"PIP_FIND_LINKS": str(folder), "PIP_EXTRA_INDEX_URL": ""}
    run(*small, env={**environment, **links})
    assert installed()["msgpack"] == "1.1.2"
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    assert installed()["torch"] == ("2.13.0+cu130" if has_gpu else "2.13.0+cpu")
