"""Reads and writes ``.safetensors`` files tensor by tensor.

The format: 8 bytes with the length of a JSON header, the header with dtype, shape and place of each
tensor, then the bytes (github.com/huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from headway.common.errors import InputError

DTYPES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Types that convert to fp32 without rounding."""
MAX_HEADER_BYTES = 100_000_000
"""The limit of the format's own reader."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file; its bytes are [start, stop) of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class TensorFile:
    """A file whose header was read and checked."""

    def __init__(self, path: Path) -> None:
        """Raises InputError: it cannot be read, or its header is wrong."""
        self.path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                length = int.from_bytes(file.read(8), "little")
                if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                    raise self._damaged(f"its header would have {length} bytes of {size}")
                header = file.read(length)
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror}", remedy="download the file"
            ) from error
        self.entries: dict[str, Entry] = self._parse(header, 8 + length, size)

    def read(self, name: str) -> torch.Tensor:
        """A tensor in its own type, in new memory.

        Raises:
            InputError: a type that is none of ``DTYPES``, or the file cannot be read.
        """
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise InputError(
                f"{self.path}: {name} is {entry.dtype}",
                remedy=f"convert it to one of {', '.join(DTYPES)} first",
            )
        tensor = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        if entry.start == entry.stop:
            return tensor
        memory = memoryview(_bytes(tensor))
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(entry.start)
                while memory:
                    done = file.readinto(memory)
                    if not done:
                        raise self._damaged("it ends early")
                    memory = memory[done:]
        except OSError as error:
            raise InputError(
                f"cannot read {self.path}: {error.strerror}", remedy="download it again"
            ) from error
        return tensor

    def _parse(self, header: bytes, start: int, size: int) -> dict[str, Entry]:
        try:
            table = json.loads(header)
            table.pop("__metadata__", None)
            entries = {str(name): _entry(fields, start) for name, fields in table.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._damaged(f"its header cannot be read ({error!r})") from error
        for name, entry in entries.items():
            known = DTYPES.get(entry.dtype)
            nbytes = entry.stop - entry.start
            if entry.stop > size or nbytes < 0 or entry.start < start:
                raise self._damaged(f"{name} is beyond its end")
            if known is not None and nbytes != math.prod(entry.shape) * known.itemsize:
                raise self._damaged(f"{name} has {nbytes} bytes for {list(entry.shape)}")
        return entries

    def _damaged(self, why: str) -> InputError:
        return InputError(
            f"{self.path} is not a safetensors file: {why}", remedy="download it again"
        )


def _bytes(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous tensor as a uint8 array, which exists for every type."""
    return tensor.view(-1).view(torch.uint8).numpy()


def _entry(fields: Mapping[str, Any], start: int) -> Entry:
    first, last = fields["data_offsets"]
    numbers = [first, last, *fields["shape"]]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"{fields!r}")
    return Entry(str(fields["dtype"]), tuple(fields["shape"]), start + first, start + last)


# ---- writing ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Planned:
    """A tensor that will be written."""

    name: str
    shape: tuple[int, ...]


class TensorFileWriter:
    """One file, whose tensors come in the order of its plan; a context manager."""

    def __init__(self, path: Path, plan: Sequence[Planned], dtype: torch.dtype) -> None:
        self._dtype, self._waiting = dtype, list(reversed(plan))
        self._file = path.open("xb")
        table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for item in plan:
            start, end = end, end + math.prod(item.shape) * dtype.itemsize
            table[item.name] = {
                "dtype": _NAMES[dtype],
                "shape": list(item.shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(table, separators=(",", ":")).encode()
        text = text.ljust(-(-len(text) // 8) * 8)  # so that the data are aligned
        self._file.write(len(text).to_bytes(8, "little") + text)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Append the next tensor, rounded to the file's type.

        Raises:
            ValueError: it is not the next one of the plan, or has another shape.
        """
        item = self._waiting.pop()
        if (name, tuple(tensor.shape)) != (item.name, item.shape):
            raise ValueError(f"{name} {tuple(tensor.shape)} in the place of {item}")
        if tensor.numel():
            self._file.write(memoryview(_bytes(tensor.to(self._dtype).contiguous())))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the file; durable unless something failed."""
        with self._file:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
