"""Sources of text: Python's standard library, Debian's documentation, or a path of the user.

A source is an ordered series of documents, whatever the order of the file system.
It may be gone through repeatedly: only one document is held at a time, and a large file never
whole.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from headway.common.errors import InputError
from headway.dataloader.decoding import (
    READ_ENCODINGS,
    Encoding,
    encoding_of,
    lines_of,
    text_of,
)
from headway.dataloader.folders import LeftOut, text_files

STDLIB = "stdlib"
DEBIAN_DOCS = "debian-docs"
DEBIAN_PACKAGES = ("postgresql-doc-15", "perl-doc")
# Tests are the bulk of the library's text and differ from the rest; compiled and installed
# files are not source.
_NOT_STDLIB = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_NOT_TEXTS = {"__pycache__", ".git"}
_MIN_DEBIAN_CHARS = 400  # shorter pages are redirects and navigation
_DOWNLOAD_TIMEOUT_S = 300.0
_HTML = {".html", ".htm"}
TEXT_ENDINGS = {".txt", ".md", ".rst", ".py", ".pod", ".html", ".htm", ".jsonl"}
LARGE_BYTES = 8 << 20
"""A text file of this size or more is read in pieces."""


@dataclass(frozen=True)
class Document:
    """One text and the key that decides its split.

    The key is a path relative to the source, or file and line.
    """

    key: str
    text: str

    def pieces(self) -> Iterator[str]:
        """The text, in one piece."""
        yield self.text


@dataclass(frozen=True)
class LargeDocument:
    """A document that is read in pieces, each time anew."""

    key: str
    read: Callable[[], Iterator[str]]

    def pieces(self) -> Iterator[str]:
        """The text, in pieces of about 1 MiB."""
        return self.read()


AnyDocument = Document | LargeDocument


@dataclass(frozen=True)
class Source:
    """The documents of a source, in order; empty ones are left out.

    Every file keeps the size and time that it had at first: one that changes while the source is
    gone through again is an InputError.
    """

    name: str
    walk: Callable[[LeftOut], Iterator[tuple[str, Path]]]
    least_chars: int = 1
    left_out: LeftOut = field(default_factory=LeftOut)
    """What is not read, complete after the first pass."""
    files: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """Size in bytes and modification time in ns of each file that was read."""
    _encodings: dict[Path, Encoding | None] = field(default_factory=dict)

    def __iter__(self) -> Iterator[AnyDocument]:
        for key, path in self.walk(self.left_out):
            for document in self._file(key, path):
                if isinstance(document, LargeDocument) or (
                    document.text.strip() and len(document.text) >= self.least_chars
                ):
                    yield document

    def _file(self, key: str, path: Path) -> Iterator[AnyDocument]:
        num_bytes = self._check(path)
        if path not in self._encodings:
            self._encodings[path] = self._encoding(key, path)
        encoding = self._encodings[path]
        ending = path.suffix.lower()
        if encoding is None:
            return
        if ending == ".jsonl":
            yield from _jsonl(path, key, encoding)
        elif num_bytes >= LARGE_BYTES and ending not in _HTML:
            yield LargeDocument(key, lambda: text_of(path, encoding))
        else:
            text = "".join(text_of(path, encoding))
            yield Document(key, strip_html(text) if ending in _HTML else text)

    def _check(self, path: Path) -> int:
        try:
            facts = path.stat()
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror}", remedy="check its rights"
            ) from error
        known = self.files.setdefault(path, (facts.st_size, facts.st_mtime_ns))
        if known != (facts.st_size, facts.st_mtime_ns):
            raise InputError(f"{path} changed while it was read", remedy="prepare the data again")
        return facts.st_size

    def _encoding(self, key: str, path: Path) -> Encoding | None:
        found = encoding_of(path)
        if found is None:
            self.left_out.add(f"leaving out {{}} not in {READ_ENCODINGS}", key)
        elif found.is_broken:
            self.left_out.add(f"replacing bytes that are not {found.name} in {{}}", key)
        elif found.name != "utf-8":
            self.left_out.add(f"reading {{}} as {found.name}", key)
        return found


def read_source(source: str, *, cache: Path | None = None) -> Source:
    """Return the documents of ``source``.

    The source is ``stdlib``, ``debian-docs``, a folder, a text file or ``.jsonl``.

    Raises:
        InputError: there is no such path, or ``debian-docs`` cannot be fetched.
    """
    if source == STDLIB:
        root = Path(sysconfig.get_paths()["stdlib"])
        return Source(source, lambda _: iter(text_files(root, {".py"}, _NOT_STDLIB, LeftOut())))
    if source == DEBIAN_DOCS:
        folders = {name: _unpacked(name, cache or _default_cache()) for name in DEBIAN_PACKAGES}
        return Source(source, lambda _: _pages(folders), _MIN_DEBIAN_CHARS)
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
        return Source(
            source, lambda left_out: iter(text_files(path, TEXT_ENDINGS, _NOT_TEXTS, left_out))
        )
    return Source(source, lambda _: iter([(path.name, path)]))


def no_text(source: str) -> InputError:
    """The error for a source without a document."""
    return InputError(
        f"source {source!r} holds no text",
        remedy=f"give files ending in {', '.join(sorted(TEXT_ENDINGS))}, in {READ_ENCODINGS}",
    )


def _default_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "headway" / "debian-docs"


def _jsonl(path: Path, key: str, encoding: Encoding) -> Iterator[Document]:
    for number, line in enumerate(lines_of(path, encoding), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
            if not isinstance(text, str):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError) as error:
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


def _pages(folders: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    for package, folder in folders.items():
        for key, path in text_files(folder, {".html", ".pod"}, set(), LeftOut()):
            yield f"{package}/{key}", path


def _unpacked(package: str, cache: Path) -> Path:
    """Return the folder with the package's files.

    They are downloaded and unpacked at first use, never installed.
    """
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
