"""Every part is built, installed outside the tree beside nothing but what it needs of Headway, and used there.

Third-party packages come from this environment; Headway's own, which are installed editable, do not: the
child runs with ``-I -S`` and gets exactly two folders.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["libs/common", "libs/launch", "services/dataloader", "services/ckpt_store", "services/health",
           "services/trainer", "console"]  # fmt: skip
PRELUDE = "import sys; sys.path += [{own!r}, {others!r}]; sys.dont_write_bytecode = True\n"
IMPORT_ALL = """
import importlib, json, pkgutil
import headway
assert len(headway.__path__) == 1 and headway.__path__[0].startswith(sys.path[-2]), headway.__path__
part = importlib.import_module(sys.argv[1])
for name in getattr(part, "__all__", ()):
    if name not in json.loads(sys.argv[2]):
        getattr(part, name)
names = [m.name for m in pkgutil.walk_packages(part.__path__, part.__name__ + ".")]
names = [n for n in names if not n.endswith(("__main__", "torch_client"))]
if "torch" in json.loads(sys.argv[2]):
    for name in names:
        importlib.import_module(name)
    assert "torch" not in sys.modules
print(len(names))
"""
ENTRY_POINTS = """
from importlib.metadata import distribution
found = {p.name: p for p in distribution(sys.argv[1]).entry_points}
for point in found.values():
    point.load()
print(*sorted(found))
"""


def project(folder: str) -> dict[str, Any]:
    """The ``[project]`` table of a distribution."""
    table: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    return table


def needed(folder: str) -> list[str]:
    """Folders of the distribution and of all Headway distributions that it stands on."""
    by_name = {project(other)["name"]: other for other in FOLDERS}
    names = [requirement.partition("[")[0] for requirement in project(folder)["dependencies"]]
    below = [inner for name in names if name in by_name for inner in needed(by_name[name])]
    return list(dict.fromkeys([folder, *below]))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folder of each distribution -> its wheel."""
    made = {}
    for folder in FOLDERS:
        out = tmp_path_factory.mktemp("wheel")
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT / folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        (made[folder],) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything installed here but Headway: links, so that no ``.pth`` of an editable part is read."""
    folder = tmp_path_factory.mktemp("third")
    for name in {"purelib", "platlib"}:
        for path in Path(sysconfig.get_path(name)).iterdir():
            is_ours = "headway" in path.name.lower() or path.suffix == ".pth"
            if not is_ours and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    return folder


def installed(folder: str, wheels: dict[str, Path], target: Path) -> Path:
    """Unpack the wheels of ``folder`` and of what it stands on with pip."""
    files = [str(wheels[name]) for name in needed(folder)]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile", "--target"]
    done = subprocess.run([*command, str(target), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def alone(own: Path, others: Path, code: str, *arguments: str) -> str:
    """Run ``code`` outside the tree with two folders on the path; returns what it printed."""
    command = [sys.executable, "-I", "-S", "-c", PRELUDE.format(own=str(own), others=str(others)) + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=own)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_wheel_holds_its_own_part_and_nothing_between(folder: str, wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels[folder]) as wheel:
        names = wheel.namelist()
    code = {name for name in names if ".dist-info/" not in name}
    part = Path(folder).name
    assert all(name.startswith(f"headway/{part}/") for name in code), sorted(code)[:5]
    assert f"headway/{part}/py.typed" in code and f"headway/{part}/__init__.py" in code
    sources = {f"headway/{p.relative_to(ROOT / folder / 'src' / 'headway')}"
               for p in (ROOT / folder / "src").rglob("*.py")}  # fmt: skip
    assert sources <= code


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_part_installed_alone_imports_and_finds_its_entry_points(
    folder: str, wheels: dict[str, Path], third_party: Path, tmp_path: Path
) -> None:
    own = installed(folder, wheels, tmp_path / "own")
    parts = sorted(path.name for path in (own / "headway").iterdir())
    assert parts == sorted(Path(name).name for name in needed(folder))
    name = f"headway.{Path(folder).name}"
    free_of_torch = folder not in ("services/trainer", "console")
    count = alone(own, third_party, IMPORT_ALL, name, json.dumps(["torch"] if free_of_torch else []))
    assert int(count) > 0
    table = project(folder)
    points = [*table.get("scripts", {}), *(p for group in table.get("entry-points", {}).values() for p in group)]
    assert alone(own, third_party, ENTRY_POINTS, table["name"]).split() == sorted(points)


def test_common_alone_lets_nothing_of_torch_in_even_when_a_service_speaks(
    wheels: dict[str, Path], third_party: Path, tmp_path: Path
) -> None:
    own = installed("libs/common", wheels, tmp_path / "own")
    said = alone(own, third_party, f"""
from headway.common.wire.service import Service
from headway.common.wire.server import Server
service = Service("x", Server("ipc://{tmp_path}/s", {{}}))
service.after(0.01, service.stop)
code = service.run()
print(code, "torch" in sys.modules)
""")  # fmt: skip
    assert said.splitlines()[-1] == "0 False"
