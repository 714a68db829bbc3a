"""Which files a folder was prepared from, in ``sources.json``: path, size, time and digest of each.

With it a changed text is noticed without reading all of them again. Built-in sources have none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import xxhash
from headway.dataloader.folders import LeftOut
from headway.dataloader.sources import DEBIAN_DOCS, STDLIB, read_source
from headway.dataloader.trouble import printable

NAME = "sources.json"
_VERSION = 1
_NAMED = 3

Entry = tuple[int, int, str]  # size in bytes, modification time in ns, xxh3-64


def write_manifest(folder: Path, source: str, files: Mapping[Path, tuple[int, int]]) -> None:
    """Describe ``files`` (size, modification time in ns) of ``source``; an equal one is kept.

    Raises:
        OSError: it cannot be written, or a file cannot be read.
    """
    if source in (STDLIB, DEBIAN_DOCS):
        return
    lines = [
        json.dumps([_name(path, source), size, time_ns, _digest(path)])
        for path, (size, time_ns) in files.items()
    ]
    text = f'{{"version": {_VERSION}, "files": [\n' + ",\n".join(lines) + "\n]}\n"
    path = folder / NAME
    if not path.exists() or path.read_text(encoding="ascii") != text:
        path.write_text(text, encoding="ascii")


def changed_texts(folder: Path, source: str) -> str:
    """How the files of ``source`` differ from those that ``folder`` was prepared from, as words.

    "" if they do not, or if that cannot be said: the folder has no manifest, as those of built-in
    sources and of earlier versions, or there is no such source on this machine.

    Raises:
        InputError: a folder of the source cannot be read.
    """
    known = _read(folder / NAME)
    if known is None or not Path(source).expanduser().exists():
        return ""
    here = {_name(path, source): path for _, path in read_source(source).walk(LeftOut())}
    gone = [name for name in known if name not in here]
    new = [name for name in here if name not in known]
    changed = [name for name in here if name in known and _is_changed(here[name], known[name])]
    parts = [
        f"{len(names)} {what} ({', '.join(names[:_NAMED])}{', ...' if names[_NAMED:] else ''})"
        for what, names in (("changed", changed), ("new", new), ("gone", gone))
        if names
    ]
    return ", ".join(parts)


def _is_changed(path: Path, known: Entry) -> bool:
    try:
        facts = path.stat()
        if facts.st_size != known[0]:
            return True
        return facts.st_mtime_ns != known[1] and _digest(path) != known[2]
    except OSError:
        return True


def _read(path: Path) -> dict[str, Entry] | None:
    try:
        content = json.loads(path.read_bytes())
        if content["version"] != _VERSION:
            return None
        return {name: (size, time_ns, digest) for name, size, time_ns, digest in content["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _name(path: Path, source: str) -> str:
    root = Path(source).expanduser()
    return printable((path.relative_to(root) if path != root else Path(path.name)).as_posix())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_64).hexdigest()
