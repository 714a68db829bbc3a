"""Lists the text files below a folder, linked folders included, and names what is left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path

from headway.common.errors import InputError

_NAMED = 3  # examples per reason


@dataclass
class LeftOut:
    """What is not read, or not as it stands: reason -> names, in the order in which it was met."""

    names: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        """Note ``name`` once. ``reason`` has a place for the count: ``leaving out {} not ...``."""
        known = self.names.setdefault(reason, [])
        if name not in known[-1:]:
            known.append(name)

    def lines(self) -> Iterator[str]:
        """One line per reason, with the number and the first names."""
        for reason, names in self.names.items():
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            shown = ", ".join(names[:_NAMED])
            kind = "folder" if names[0].endswith("/") else "file"
            count = f"{len(names)} {kind}{'' if len(names) == 1 else 's'}"
            yield f"{reason.format(count)}: {shown}{more}"


def text_files(
    root: Path, endings: Set[str], without: Set[str], left_out: LeftOut
) -> list[tuple[str, Path]]:
    """Key (path relative to ``root``) and path of each file, in the order of the keys.

    A folder that several links lead to is read once, under its own path if that is below ``root``;
    so a link to a folder above ends nowhere. ``left_out`` gets every file that is not listed.

    Raises:
        InputError: a folder cannot be read.
    """
    found: list[tuple[str, Path]] = []
    seen: set[tuple[int, int]] = set()
    links: list[Path] = []
    to_read = [root]
    while to_read or links:
        if to_read:
            folder = to_read.pop()
        else:  # after all real folders, so that these keep their keys
            folder = links.pop(0)
        if _identity(folder) in seen:  # a link, or a folder that a link to one above leads to
            name = folder.relative_to(root).as_posix() + "/"
            left_out.add("leaving out {} linked to one that is read already", name)
            continue
        seen.add(_identity(folder))
        for entry in _entries(folder):
            path = Path(entry.path)
            key = path.relative_to(root).as_posix()
            if _is(entry.is_dir):
                if entry.name in without:
                    left_out.add(f"leaving out {{}} named {_listed(without)}", key + "/")
                else:
                    (links if entry.is_symlink() else to_read).append(path)
            elif path.suffix.lower() not in endings:
                left_out.add(f"leaving out {{}} not ending in {_listed(endings)}", key)
            elif not _is(entry.is_file):
                left_out.add("leaving out {} that cannot be opened as a file", key)
            else:
                found.append((key, path))
    return sorted(found)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(
            f"cannot read {folder}: {error.strerror}", remedy="check its rights"
        ) from error


def _is(what: Callable[[], bool]) -> bool:
    try:
        return what()
    except OSError:  # a link in a circle of links
        return False


def _identity(folder: Path) -> tuple[int, int]:
    facts = folder.stat()
    return facts.st_dev, facts.st_ino


def _listed(names: Set[str]) -> str:
    return ", ".join(sorted(names))
