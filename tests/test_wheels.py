"""Every part is built, installed outside the tree beside nothing but what it needs of Headway,
and used there.

Third-party packages come from this environment; Headway's own, which are installed editable, do
not: the child runs with ``-I -S`` and gets exactly two folders.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headway.common.node.testing import private_roots
from headway.console.testing import FakeRun

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["libs/common", "libs/launch", "services/dataloader", "services/ckpt_store",
           "services/health",
           "services/trainer", "services/controller", "console"]  # fmt: skip
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
MAIN = "from headway.console.cli import main; sys.exit(main(sys.argv[1:]))"
EVERY_HELP = """
import contextlib, io
import typer
from headway.console.cli import app, main
def walk(command, words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*words, "--help"]) == 0 and "Usage:" in out.getvalue(), words
    print(*words, sep=" ")
    context = typer.Context(command)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        walk(command.get_command(context, name), [*words, name])
walk(typer.main.get_command(app), [])
"""
LEFT_OUT = ("torch", "functorch", "nvidia", "triton", "anywidget", "traitlets", "ipywidgets",
            "jupyter",
            "ipykernel", "ipython", "widgetsnbextension")  # fmt: skip
"""Beginnings of what the extras ``local`` and ``notebooks`` bring."""
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
        command = [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(out),
            str(ROOT / folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        (made[folder],) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything installed here but Headway:
    links, so that no ``.pth`` of an editable part is read."""
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
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
    ]
    done = subprocess.run([*command, str(target), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def alone(own: Path, others: Path, code: str, *arguments: str) -> str:
    """Run ``code`` outside the tree with two folders on the path; returns what it printed."""
    done = child(own, others, code, *arguments, cwd=own)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def child(
    own: Path, others: Path, code: str, *arguments: str, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """The same, however it ends."""
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        PRELUDE.format(own=str(own), others=str(others)) + code,
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_wheel_holds_its_own_part_and_nothing_between(
    folder: str, wheels: dict[str, Path]
) -> None:
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
    free_of_torch = folder != "services/trainer"
    count = alone(
        own, third_party, IMPORT_ALL, name, json.dumps(["torch"] if free_of_torch else [])
    )
    assert int(count) > 0
    table = project(folder)
    points = [
        *table.get("scripts", {}),
        *(p for group in table.get("entry-points", {}).values() for p in group),
    ]
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


# ---- a machine that only watches: no torch, no notebook tools ---------------------------------
Headway = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def light(third_party: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Third-party packages without what the extras of the console bring."""
    folder = tmp_path_factory.mktemp("light")
    for path in third_party.iterdir():
        if not path.name.lower().startswith(LEFT_OUT):
            (folder / path.name).symlink_to(path.resolve())
    return folder


@pytest.fixture(scope="module")
def console(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console and all that it requires of Headway, installed."""
    return installed("console", wheels, tmp_path_factory.mktemp("console") / "own")


@pytest.fixture
def headway(console: Path, light: Path, tmp_path: Path) -> Headway:
    """The command on such a machine, in a folder of the test."""
    return lambda *words: child(console, light, MAIN, *map(str, words), cwd=tmp_path)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRun]:
    """A live run in ``runs`` with steps, a recovery, a log and a checkpoint."""
    import numpy as np
    from headway.ckpt_store.client import CheckpointClient

    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    with private_roots():
        made = FakeRun(tmp_path / "runs")
        made.advance(3)
        made.recover()
        (made.folder.logs / "n0-driver.log").write_text(
            '{"event": "up", "level": "info", "timestamp": "2026"}\n'
        )
        CheckpointClient(made.folder.checkpoints).save(3, {"w": np.zeros(8)})
        yield made
        made.close()


def test_without_torch_every_command_has_its_help(
    console: Path, light: Path, tmp_path: Path
) -> None:
    done = child(console, light, EVERY_HELP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert {
        "run",
        "doctor",
        "ckpt verify",
        "data prepare",
        "health check",
        "cluster create",
        "node stop",
    } <= set(shown)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("runs", "fake  live   4/40"),
        ("status fake", "step 4/40"),
        ("status fake --json", '"step": 4'),
        ("logs fake", "n0-driver"),
        ("trace fake -o t.pftrace", "t.pftrace: "),
        ("trace fake -o t.json.gz", "t.json.gz: "),
        ("ckpt ls fake", "step  3  g0  complete"),
        ("ckpt show fake", "w  float64 [8]"),
        ("pause fake", "pause: sent to fake"),
        ("set fake lr=3e-4 --wait", "set lr=0.0003: applied to fake"),
        ("checkpoint fake", "checkpoint: sent to fake"),
        ("inject fake kill --rank 1", "inject kill --rank 1: sent to fake"),
        ("stop fake --no-wait", "stop: sent to fake"),
    ],
)
def test_without_torch_runs_are_watched_and_steered(
    words: str, part: str, fake: FakeRun, headway: Headway
) -> None:
    done = headway(*words.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert part in done.stdout
    assert [command.operation for command in fake.commands] in ([], [words.split()[0]])


def test_without_torch_a_run_is_watched_to_its_end(fake: FakeRun, headway: Headway) -> None:
    fake.finish()
    done = headway("watch", "fake")
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished" in done.stdout.splitlines()[-1]


def test_without_torch_a_run_is_refused_before_anything_is_written(
    headway: Headway, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "examples" / "tiny.toml", tmp_path)
    done = headway("run", "tiny.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: torch is not installed, and a run needs it; "
        "run `make setup` in the checkout, or `pip install './console[local]'`\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]
    done = headway("run", "tiny.toml", "--dry-run", "--set", "train.steps=7")
    assert done.returncode == 0 and "steps = 7" in done.stdout


def test_without_torch_the_doctor_says_what_installs_it(headway: Headway) -> None:
    done = headway("doctor", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    (torch,) = [finding for finding in json.loads(done.stdout) if finding["name"] == "torch"]
    assert torch["level"] == "bad" and "pip install './console[local]'" in torch["remedy"]


def test_without_the_notebook_tools_the_widget_names_the_extra(
    console: Path, light: Path, tmp_path: Path
) -> None:
    done = child(
        console, light, "from headway.console.widgets import Session, RunConsole", cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: the live console needs anywidget, which is not installed; "
        "run `make setup-lab` in the checkout, or `pip install './console[notebooks]'`"
    )
    assert done.stderr.count("Traceback") == 1
