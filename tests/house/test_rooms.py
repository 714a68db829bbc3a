"""The rooms of the three largest parts: folders on floors, from which imports only point down."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "trainer": (
        ("config", "errors"),
        ("device", "state"),
        ("comm", "exchange", "optim"),
        ("parallel",),
        ("model",),
        ("data", "inference"),
        ("pipeline",),
        ("session",),
        ("worker",),
        ("trials",),
        ("cli", "client"),
        ("__main__",),
    ),
    "controller": (
        ("decisions", "faults", "journal"),
        ("driver", "executor"),
        ("client", "__main__"),
    ),
    "launch": (
        ("lease", "engine", "cluster"),
        ("join", "nodes"),
        ("init",),
        ("engines",),
        ("machine",),
    ),
}
"""By part, from the ground up: rooms that may be imported by those above them."""
MOST_FILES = 20
"""In one folder of these parts."""


def _room(module: str, part: str) -> str:
    """``session`` of ``headway.trainer.session.step``; empty for the package itself."""
    below = module.removeprefix(f"headway.{part}").lstrip(".")
    return below.partition(".")[0]


@pytest.mark.parametrize("part", FLOORS)
def test_imports_between_rooms_point_down(sources: list[Any], part: str) -> None:
    floors = {room: floor for floor, rooms in enumerate(FLOORS[part]) for room in rooms}
    inner = [s for s in sources if s.package == part and _room(s.module, part)]
    assert {_room(s.module, part) for s in inner} == set(floors), "each room has its floor"
    upward = []
    for source in inner:
        here = _room(source.module, part)
        for item in source.imports:
            if not f"{item.module}.".startswith(f"headway.{part}."):
                continue
            there = _room(item.module, part)
            # ``from headway.trainer import worker`` names the room, not the package
            rooms = [there] if there else [name for name in item.names if name in floors]
            upward += [
                f"{source.path}:{item.line}: {room}"
                for room in rooms
                if room != here and floors[room] >= floors[here]
            ]
    assert upward == []


@pytest.mark.parametrize("part", FLOORS)
def test_no_folder_is_a_hall(sources: list[Any], part: str) -> None:
    folders = Counter(s.path.parent for s in sources if s.package == part)
    assert {str(folder): n for folder, n in folders.items() if n > MOST_FILES} == {}
    root = min(folders, key=lambda folder: len(folder.parts))
    assert folders[root] <= 6


def test_the_controller_knows_of_the_trainer_only_its_configuration(sources: list[Any]) -> None:
    used = {
        item.module
        for source in sources
        if source.package == "controller"
        for item in source.imports
        if f"{item.module}.".startswith("headway.trainer.")
    }
    assert used == {"headway.trainer.config"}
    assert not [
        item
        for source in sources
        if source.package == "trainer"
        for item in source.imports
        if item.module.startswith("headway.controller")
    ]


@pytest.mark.parametrize("part", FLOORS)
def test_the_page_on_the_architecture_shows_every_room(root: Path, part: str) -> None:
    page = (root / "docs" / "architecture.md").read_text().partition("## Rooms")[2]
    tree = re.search(rf"/{part}/  .*?(?=\nservices|\nlibs)", page, re.DOTALL)
    assert tree is not None
    rooms = {room for floor in FLOORS[part] for room in floor}
    (source,) = root.glob(f"*/{part}/src/headway/{part}")
    folders = {room for room in rooms if (source / room / "__init__.py").exists()}
    assert folders == set(re.findall(r"^  (\w+)/", tree[0], re.MULTILINE))
