"""The tests that need a GPU cannot rot where there is none: they are imported, each name that they
replace exists, and the one of the snapshots runs with a device that is made of stubs."""

from __future__ import annotations

import ast
import importlib.util
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from headway.trainer.state import copy_stream, snapshot
from headway.trainer.state.copy_stream import CopyStream

FOLDER = Path(__file__).resolve().parents[1] / "gpu"
FILES = sorted(FOLDER.glob("test_*.py"))


@cache
def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gpu_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def replaced(path: Path) -> list[tuple[ast.expr, str]]:
    """What ``monkeypatch.setattr(owner, "name", ...)`` replaces in a file."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [
        (call.args[0], str(ast.literal_eval(call.args[1])))
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "setattr"
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_gpu_tests_has_tests_and_replaces_only_what_exists(path: Path) -> None:
    module = load(path)
    assert [name for name in vars(module) if name.startswith("test_")]
    for owner, name in replaced(path):
        found = eval(compile(ast.Expression(owner), str(path), "eval"), vars(module))
        assert hasattr(found, name), f"{path.name}: {ast.unparse(owner)} has no {name}"


class Stream:
    """Runs everything at once."""

    device = torch.device("cpu")

    def wait_event(self, event: object) -> None:
        """It is over."""

    def synchronize(self) -> None:
        """Nothing is queued."""


class Event:
    def record(self, stream: object = None) -> None:
        """Nothing is queued."""

    def query(self) -> bool:
        """The next step, which the copy does not wait for, is still running."""
        return False


class Cudart:
    def cudaHostRegister(self, *_: Any) -> int:
        return 0

    def cudaHostUnregister(self, *_: Any) -> int:
        return 0


@pytest.mark.parametrize("refuses", [False, True])
def test_the_gpu_test_of_snapshots_passes_on_a_stubbed_device(
    monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    module = load(FOLDER / "test_groups.py")

    class OnStubs(snapshot.Snapshots):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._gpu = CopyStream(torch.device("cpu"))

    class Block:
        def __init__(self, *_: Any) -> None:
            """Of a stream or a device."""

        def __enter__(self) -> None:
            """Nothing changes."""

        def __exit__(self, *_: object) -> None:
            """Nothing changed."""

    monkeypatch.setattr(module, "Snapshots", OnStubs)
    monkeypatch.setattr(module, "take_device", lambda _: torch.device("cpu"))
    monkeypatch.setattr(copy_stream, "_cudart", Cudart)
    for name, stub in {
        "Stream": lambda *_, **__: Stream(),
        "Event": Event,
        "current_stream": lambda _: Stream(),
        "stream": Block,
        "device": Block,
        "_sleep": lambda _: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        module.test_snapshots_hold_what_was_written_before_them_bit_for_bit(
            Path(folder), monkeypatch, refuses
        )
