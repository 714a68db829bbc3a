"""Builds large sample orders in a process of its own, into files that the node's daemons share.

numpy holds the interpreter lock while it shuffles, seconds for tens of millions of numbers, in
which a daemon could not answer and would be taken for dead. The files lie beside the rings, so that
a successor finds them; small orders are built where they are needed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import xxhash
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.common.node.process import ProcessId
from headway.dataloader.formats import TokenFile
from headway.dataloader.index import HEAD, idx_path
from headway.dataloader.order import OrderSettings, SampleOrder, order_size

LARGE = 1 << 20
"""Numbers to shuffle from which an order is built elsewhere: 0.07 s of numpy's shuffle."""
_VERSION = 2
_PARTS = ("document_index", "sample_index", "shuffle_index")


BuildOrder = Callable[[TokenFile, OrderSettings], SampleOrder]
"""Builds the order of a pair; ``in_process`` or ``BuiltOrders.build``."""


def in_process(tokens: TokenFile, settings: OrderSettings) -> SampleOrder:
    """An order in this process's memory."""
    return SampleOrder(tokens.lengths, **settings._asdict())


class BuiltOrders:
    """The orders in ``folder``. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def build(self, tokens: TokenFile, settings: OrderSettings) -> SampleOrder:
        """The order, from its files if they exist; waits for the process that builds it.

        Raises:
            InputError: the files cannot be written. CorruptError: the index has changed meanwhile.
        """
        if order_size(tokens.lengths, settings.seq_len, settings.num_samples) < LARGE:
            return in_process(tokens, settings)
        digest = xxhash.xxh3_64_hexdigest(tokens.lengths.data)
        name = "-".join(map(str, (f"order-v{_VERSION}", digest, *settings)))
        folder = self._folder / name
        if not folder.is_dir():
            _run(tokens, folder, digest, settings)
        parts = [np.load(folder / f"{part}.npy", mmap_mode="r") for part in _PARTS]
        return SampleOrder.of(tokens.lengths, *parts, name=name)

    def sweep(self, used: Iterable[str], spare: int = 0) -> None:
        """Remove the files of orders that are not ``used``, but for the newest ``spare``.

        Who has them mapped keeps them. Drafts of processes that were killed go, too.
        """
        for draft in self._folder.glob(".order-v*"):
            pid = draft.name.rpartition(".")[2]
            if not (pid.isdigit() and ProcessId.of(int(pid))):
                remove_order(draft)
        unused = {path.name: path for path in self._folder.glob("order-v*")}
        for name in used:
            unused.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            by_age = sorted(unused.values(), key=lambda path: path.stat().st_mtime_ns)
            for folder in by_age[: len(by_age) - spare]:
                remove_order(folder)


def remove_order(folder: Path) -> None:
    """Remove the files of one order; another process may be doing the same."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()


def _run(tokens: TokenFile, folder: Path, digest: str, settings: OrderSettings) -> None:
    words = [str(idx_path(tokens.prefix)), str(folder), digest]
    words += map(str, (tokens.lengths.size, *settings))
    done = subprocess.run(
        [sys.executable, "-m", __name__, *words], capture_output=True, text=True, check=False
    )
    if folder.is_dir():
        return
    lines = done.stderr.strip().splitlines()
    why = lines[-1] if lines else f"its process ended with code {done.returncode}"
    raise InputError(
        f"the sample order of {tokens.prefix} cannot be built in {folder.parent}: {why}",
        remedy="free memory, or space in shared memory",
    )


def main(words: list[str]) -> int:
    """Build one order: IDX FOLDER DIGEST SEQUENCES SEQ_LEN SEED EPOCH SAMPLES."""
    idx, folder, digest = Path(words[0]), Path(words[1]), words[2]
    num_sequences, *numbers = map(int, words[3:])
    lengths = np.fromfile(idx, "<i4", num_sequences, offset=HEAD.size)
    if xxhash.xxh3_64_hexdigest(lengths.data) != digest:
        raise CorruptError(f"{idx} has changed since it was opened", remedy="open it again")
    order = SampleOrder(lengths, **OrderSettings(*numbers)._asdict())
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    draft.mkdir()
    try:
        for part in _PARTS:
            np.save(draft / f"{part}.npy", getattr(order, part))
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was faster
            raise
    finally:
        remove_order(draft)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (HeadwayError, OSError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
