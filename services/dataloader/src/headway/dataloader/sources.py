"""Sources of text: Python's standard library, Debian's documentation, or a path of the user.

A source is an ordered list of documents; order and keys do not depend on the file system's order.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headway.common.errors import InputError

STDLIB = "stdlib"
DEBIAN_DOCS = "debian-docs"
DEBIAN_PACKAGES = ("postgresql-doc-15", "perl-doc")
# Tests are the bulk of the library's text and differ from the rest; compiled and installed
# files are not source.
_NOT_STDLIB = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_MIN_DEBIAN_CHARS = 400  # shorter pages are redirects and navigation
_DOWNLOAD_TIMEOUT_S = 300.0
TEXT_ENDINGS = {".txt", ".md", ".rst", ".py", ".pod", ".html", ".htm", ".jsonl"}


@dataclass(frozen=True)
class Document:
    """One text and the key that decides its split: a path relative to the
    source, or file and line."""

    key: str
    text: str


def read_source(source: str, *, cache: Path | None = None) -> list[Document]:
    """The documents of ``source``: ``stdlib``, ``debian-docs``, a folder, a
    text file or ``.jsonl``.

    Empty documents are left out.

    Raises:
        InputError: there is no such path, no text in it, or ``debian-docs`` cannot be fetched.
    """
    if source == STDLIB:
        documents = _folder(Path(sysconfig.get_paths()["stdlib"]), {".py"}, _NOT_STDLIB)
    elif source == DEBIAN_DOCS:
        documents = _debian(cache or _default_cache())
    else:
        documents = _path(source)
    found = [document for document in documents if document.text.strip()]
    if not found:
        raise InputError(
            f"source {source!r} holds no text",
            remedy=f"give files ending in {', '.join(sorted(TEXT_ENDINGS))}",
        )
    return found


def left_out(source: str) -> int:
    """Files below a folder that are not read, because their ending is not one of a text."""
    root = Path(source).expanduser()
    if source in (STDLIB, DEBIAN_DOCS) or not root.is_dir():
        return 0
    names = [name for _, _, files in os.walk(root) for name in files]
    return sum(Path(name).suffix.lower() not in TEXT_ENDINGS for name in names)


def _default_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "headway" / "debian-docs"


def _path(source: str) -> Iterator[Document]:
    if urlsplit(source).scheme in ("http", "https", "s3", "gs"):
        raise InputError(
            f"source {source!r} is a URL", remedy="download it first and give the path"
        )
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(
            f"source {source!r} does not exist",
            remedy=f"use {STDLIB}, {DEBIAN_DOCS}, or the path of a folder or file",
        )
    if path.is_dir():
        return _folder(path, TEXT_ENDINGS, {"__pycache__", ".git"})
    return _file(path, path.name)


def _folder(root: Path, endings: set[str], without: set[str]) -> Iterator[Document]:
    paths: list[Path] = []
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in without]
        paths += [Path(folder, name) for name in files if Path(name).suffix.lower() in endings]
    for key, path in sorted((path.relative_to(root).as_posix(), path) for path in paths):
        if path.is_file():
            yield from _file(path, key)


def _file(path: Path, key: str) -> Iterator[Document]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", remedy="check its rights"
        ) from error
    if path.suffix.lower() == ".jsonl":
        yield from _jsonl(path, key, raw)
        return
    text = raw.decode("utf-8", "replace")
    yield Document(key, strip_html(text) if path.suffix.lower() in (".html", ".htm") else text)


def _jsonl(path: Path, key: str, raw: bytes) -> Iterator[Document]:
    for number, line in enumerate(raw.splitlines(), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
            if not isinstance(text, str):
                raise TypeError
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f'{path}, line {number}, is not a JSON object with a string "text"',
                remedy="give one document per line",
            ) from error
        yield Document(f"{key}#{number}", text)


_DROPPED = re.compile(r"<(script|style|head|nav)\b.*?</\1>", re.S | re.I)
_BREAKS = re.compile(
    r"<(?:br|hr)\b[^>]*>|</(?:p|div|li|dt|dd|h[1-6]|tr|td|th|pre|table|ul|ol|dl|title)>", re.I
)
_TAGS = re.compile(r"<[^>]+>")


def strip_html(page: str) -> str:
    """The readable text of an HTML page: no tags, entities resolved, one line per block."""
    text = html.unescape(_TAGS.sub("", _BREAKS.sub("\n", _DROPPED.sub("", page))))
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip()


def _debian(cache: Path) -> Iterator[Document]:
    for package in DEBIAN_PACKAGES:
        for document in _folder(_unpacked(package, cache), {".html", ".pod"}, set()):
            if len(document.text) >= _MIN_DEBIAN_CHARS:
                yield Document(f"{package}/{document.key}", document.text)


def _unpacked(package: str, cache: Path) -> Path:
    """The folder with the package's files, downloaded and unpacked at first
    use, never installed."""
    folder = cache / package
    if folder.is_dir():
        return folder
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise InputError(
                f"source {DEBIAN_DOCS!r} needs {tool}",
                remedy=f"use it on Debian or Ubuntu, or --source {STDLIB}",
            )
    cache.mkdir(parents=True, exist_ok=True)
    draft = cache / f".{package}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        _run(["apt-get", "download", "-q", package], draft, package)
        archive = next(iter(draft.glob(f"{package}_*.deb")), None)
        if archive is None:
            raise InputError(
                f"apt-get downloaded no {package}",
                remedy=f"see {draft.parent}, or use --source {STDLIB}",
            )
        _run(["dpkg-deb", "-x", archive.name, "files"], draft, package)
        _move(draft / "files", folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _move(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was first, with the same content
            raise


def _run(command: list[str], cwd: Path, package: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_TIMEOUT_S,
            check=False,
        )
        trouble = (
            ""
            if done.returncode == 0
            else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        )
    except subprocess.TimeoutExpired:
        trouble = f"no answer in {_DOWNLOAD_TIMEOUT_S:g} s"
    if trouble:
        raise InputError(
            f"cannot fetch {package}: {command[0]} says {trouble!r}",
            remedy=f"check the network and run `apt-get update`, or use --source {STDLIB}",
        )
