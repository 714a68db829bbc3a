"""A page with pictures as one HTML file: data, style and scripts are in it.

The data is JSON, compressed with gzip; arrays in it are the base64 of their bytes. A browser that
cannot decompress says so on the page.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.common.errors import InputError
from headway.console.display.html import LOOK

FOLDER = Path(__file__).with_name("page")
SCRIPTS = ("sheet", "heat", "grid", "graph", "steps", "pictures")
"""Put together in this order, after ``LOOK``, they draw."""
FRAME_HEIGHT = 760
"""Height of a page in a notebook, in pixels; it is scrolled inside."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Picture:
    """``data`` is what the class of the page's scripts that draws ``kind`` takes."""

    kind: str
    title: str
    data: Mapping[str, Any]
    """JSON, and arrays."""
    note: str = ""
    """What the reader needs to know to understand it."""


@dataclass(frozen=True, repr=False)
class Page:
    """Pictures below each other; a rank that is selected in one is selected in all of them."""

    title: str
    pictures: Sequence[Picture]
    lines: Sequence[str] = ()
    """What was found, in words."""

    def html(self) -> str:
        """The whole document."""
        scripts = [LOOK.read_text(), *((FOLDER / f"{name}.js").read_text() for name in SCRIPTS)]
        return (FOLDER / "page.html").read_text().format(
            title=escape(self.title),
            lines=escape("\n".join(self.lines)),
            style=(FOLDER / "pictures.css").read_text(),
            data=_packed([vars(one) for one in self.pictures]),
            script="\n".join(scripts),
        )  # fmt: skip

    def write(self, path: str | Path) -> Path:
        """Write the file; returns its path.

        Raises:
            InputError: it cannot be written.
        """
        try:
            Path(path).write_text(self.html(), encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"{path} cannot be written: {error.strerror}", remedy="choose another file"
            ) from error
        return Path(path)

    def __repr__(self) -> str:
        names = ", ".join(one.title for one in self.pictures)
        return "\n".join([f"{self.title} (pictures: {names or 'none'})", *self.lines])

    def _repr_html_(self) -> str:
        """In a frame of its own, so that its scripts and styles stay apart from the notebook's."""
        return (
            f'<iframe srcdoc="{escape(self.html())}" title="{escape(self.title)}" '
            f'style="width:100%;height:{FRAME_HEIGHT}px;border:0"></iframe>'
        )


def _packed(value: object) -> str:
    text = json.dumps(value, default=_array, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _array(value: object) -> dict[str, str]:
    """An array as its type (``u2``, ``i4``, ``f4``) and bytes."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} is not part of a picture")
    little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return {"type": value.dtype.str[1:], "base64": base64.b64encode(little.tobytes()).decode()}
