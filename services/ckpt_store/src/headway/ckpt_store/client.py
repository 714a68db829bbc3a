"""What other programs import: save and restore a state, find and read checkpoints.

``CheckpointClient("checkpoints/")`` works on a folder by itself; ``CheckpointClient("ipc://...")`` hands
snapshots to a daemon through shared memory and returns before they are on disk. A trainer with arenas of
its own uses ``newest`` and ``read_shard_into`` only.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.ckpt_store.config import StoreConfig
from headway.ckpt_store.files import Files
from headway.ckpt_store.flush import Snapshot, write_manifest, write_shard
from headway.ckpt_store.folder import (
    CheckpointInfo,
    FolderView,
    find,
    is_superseded,
    look,
    mark_generation,
    newest,
    open_checkpoint,
)
from headway.ckpt_store.manifest import Part, step_dir_name
from headway.ckpt_store.retention import newest_complete, removable
from headway.ckpt_store.tree import Flat, Leaf, flatten, unflatten
from headway.ckpt_store.verify import read_part, read_shard, read_shard_into, verify
from headway.common.errors import CorruptError, InputError

__all__ = [
    "CheckpointClient",
    "CheckpointInfo",
    "apply_retention",
    "mark_generation",
    "newest",
    "read_part",
    "read_shard",
    "read_shard_into",
]

ALIGN_BYTES = 64
LOCAL_RUN = "00000000"


class CheckpointClient:
    """Saves and restores one process's state: ``save(step, state)``, ``restore() -> (step, state)``.

    ``target`` is a checkpoints folder or the endpoint of a daemon. ``rank`` and ``world_size`` say which
    part of the whole this process saves: a step counts once all ranks have saved it. With a folder ``save``
    returns when the state is durable; with a daemon when it is in shared memory, and ``wait`` tells about
    the rest.

    Raises:
        InputError: ``target`` is a file, or no daemon answers.
    """

    def __init__(
        self,
        target: str | Path,
        *,
        rank: int = 0,
        world_size: int = 1,
        keep: int = 3,
        run_id: str = LOCAL_RUN,
    ) -> None:
        if not 0 <= rank < world_size:
            raise InputError(
                f"rank {rank} of {world_size} is impossible", remedy="count ranks from 0"
            )
        self.rank = rank
        self.world_size = world_size
        self._run_id = run_id
        self._keep = StoreConfig(keep=keep).keep
        self._arena: Any = None
        if str(target).startswith(("ipc://", "tcp://", "inproc://")):
            from headway.ckpt_store.daemon_client import DaemonArena

            self._arena = DaemonArena(str(target), rank)
            self.checkpoints = self._arena.checkpoints
        else:
            self.checkpoints = Path(target)
            if self.checkpoints.exists() and not self.checkpoints.is_dir():
                raise InputError(
                    f"{target} is no folder", remedy="give a folder or an ipc:// endpoint"
                )
        self._generation = _newest_generation(look(self.checkpoints))

    def save(self, step: int, state: Any, *, generation: int | None = None) -> None:
        """Save a nested dict of tensors, arrays, numbers and text as checkpoint ``step``.

        May block: on the disk with a folder; with a daemon only while the snapshot before is still on its
        way. ``generation`` (default: as ``restore`` left it) tells a step done again from its first
        attempt; with several ranks they must agree on it.

        Raises:
            InputError: a value that cannot be saved. HeadwayError: ``step`` is complete with other content.
            OSError: from the disk; what was saved before stays as it is.
        """
        generation = self._generation if generation is None else generation
        if step < 0 or generation < 0:
            raise InputError(
                f"step {step}, generation {generation}: below 0", remedy="count from 0"
            )
        flat = flatten(state, _leaf_of_tensor)
        layout, nbytes = self._layout(flat)
        if self._arena is not None:
            self._arena.save(
                step,
                generation,
                layout,
                nbytes,
                lambda data: _pack(flat, layout, data),
                flat.extra(),
            )
            return
        data = np.zeros(nbytes, np.uint8)
        _pack(flat, layout, data)
        files = Files(f"r{self.rank}")
        write_shard(
            files,
            self.checkpoints,
            Snapshot(self._run_id, step, generation, layout, data, flat.extra()),
        )
        attempt = next(
            (a for a in look(self.checkpoints).attempts if a.key == (step, generation)), None
        )
        if attempt is not None and (attempt.has_all_parts or attempt.is_complete):
            write_manifest(files, self.checkpoints / step_dir_name(step, generation))
            apply_retention(self.checkpoints, self._keep, files=files)

    def restore(self, step: int | None = None) -> tuple[int, Any] | None:
        """(step, state) of the newest complete checkpoint, or of ``step``; None when there is none at all.

        Every byte is checked against its digest. Without ``step`` a corrupt checkpoint is passed over for
        the one before. Tensors come back on the CPU.

        Raises:
            CorruptError: nothing readable is left. InputError: ``step`` is not there, or was saved by another
            number of ranks.
        """
        if step is not None:
            state = self._read(find(self.checkpoints, step))
            self._go_on_from(step)
            return step, state
        problem: CorruptError | None = None
        info = newest(self.checkpoints)
        while info is not None:
            try:
                state = self._read(info)
                self._go_on_from(info.step)
                return info.step, state
            except CorruptError as error:
                problem = problem or error
                info = newest(self.checkpoints, max_step=info.step - 1)
        if problem is not None:
            raise problem
        return None

    def wait(self, step: int, timeout_s: float = 60.0) -> None:
        """Block until checkpoint ``step`` is complete on disk.

        Raises:
            DeadlineError: not within ``timeout_s``; the message carries the daemon's last error.
        """
        if self._arena is not None:
            self._arena.wait(step, timeout_s)

    def close(self) -> None:
        """Let go of the daemon; what it has still to flush it will flush."""
        if self._arena is not None:
            self._arena.close()

    def __enter__(self) -> CheckpointClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _go_on_from(self, step: int) -> None:
        """What lies after ``step`` belongs to an earlier life of the script: begin a new generation."""
        view = look(self.checkpoints)
        newer = [
            a for a in view.attempts if a.step > step and not is_superseded(*a.key, view.marks)
        ]
        if self.world_size == 1 and newer:
            self._generation = _newest_generation(view) + 1
            mark_generation(self.checkpoints, self._generation, step)

    def _read(self, info: CheckpointInfo) -> Any:
        if info.world_size != self.world_size:
            raise InputError(
                f"{info.path} was saved by {info.world_size} ranks, this client is one of {self.world_size}",
                remedy="restore with the number of ranks that saved it",
            )
        data, extra = read_shard(info, self.rank)
        return unflatten(extra, _leaves(read_part(info, self.rank), data), _tensor)

    def _layout(self, flat: Flat) -> tuple[dict[str, Any], int]:
        tensors, offset = [], 0
        for name, leaf in flat.leaves.items():
            tensors.append(
                {"name": name, "field": "", "dtype": leaf.dtype, "offset": offset, "nbytes": leaf.data.nbytes,
                 "global_shape": list(leaf.shape), "tp_dim": None, "tp_rank": 0, "tp_size": 1}
            )  # fmt: skip
            offset += -(-leaf.data.nbytes // ALIGN_BYTES) * ALIGN_BYTES
        mesh = {"tp": 1, "pp": 1, "dp": self.world_size, "vp": 1, "rank": self.rank}
        return {"tensors": tensors, "mesh": mesh}, max(offset, ALIGN_BYTES)


def _leaf_of_tensor(value: Any) -> Leaf | None:
    if "torch" not in sys.modules:
        return None  # whoever holds a tensor has torch in memory; nobody else has to load it
    from headway.ckpt_store import torch_client

    return torch_client.to_leaf(value)


def _tensor(leaf: Leaf) -> Any:
    from headway.ckpt_store import torch_client

    return torch_client.from_leaf(leaf)


def _newest_generation(view: FolderView) -> int:
    return max([0, *view.marks, *(a.generation for a in view.attempts)])


def _pack(flat: Flat, layout: dict[str, Any], data: npt.NDArray[np.uint8]) -> None:
    for tensor, leaf in zip(layout["tensors"], flat.leaves.values(), strict=True):
        start = tensor["offset"]
        data[start : start + leaf.data.nbytes] = leaf.data


def _leaves(part: Part, data: npt.NDArray[np.uint8]) -> dict[str, Leaf]:
    leaves = {}
    try:
        for tensor in part.layout["tensors"]:
            piece = data[tensor["offset"] : tensor["offset"] + tensor["nbytes"]]
            leaves[tensor["name"]] = Leaf(piece, tensor["dtype"], tuple(tensor["global_shape"]))
    except (KeyError, TypeError) as error:
        raise CorruptError(f"the layout of rank {part.rank} cannot be read: {error!r}") from error
    return leaves


def apply_retention(
    checkpoints: Path, keep: int, *, deep: bool = False, files: Files | None = None
) -> list[Path]:
    """Remove complete checkpoints beyond the newest ``keep`` and return their folders; marked ones stay.

    The newest is checked first, byte by byte with ``deep``; nothing is removed while it is not sound.

    Raises:
        CorruptError: the newest checkpoint is not sound.
    """
    files = files or Files("gc")
    view = look(checkpoints)
    surplus, newest_key = removable(view, keep), newest_complete(view)
    if not surplus or newest_key is None:
        return []
    if problems := verify(open_checkpoint(checkpoints, *newest_key), deep=deep):
        raise CorruptError(
            f"{problems[0].message}: nothing was removed", remedy="look with `headway ckpt verify`"
        )
    removed = []
    for key in surplus:
        folder = checkpoints / step_dir_name(*key)
        files.remove_tree(folder)
        removed.append(folder)
    return removed
