"""First weights from a checkpoint: which one, and whether it fits the model; free of torch."""

from __future__ import annotations

from pathlib import Path

from headway.ckpt_store.client import CheckpointInfo, CheckpointTensors, find
from headway.common.errors import InputError
from headway.trainer.config import RunConfig
from headway.trainer.exchange.shapes import parameter_shapes

CHECKPOINTS = "checkpoints"


def checkpoint_in(path: Path, step: int | None = None) -> CheckpointInfo:
    """Return the newest complete checkpoint, or that of ``step``.

    ``path`` is a run, an imported model or a folder of checkpoints.

    Raises:
        InputError: there is none. CorruptError: there are some, but none can be read.
    """
    inner = path / CHECKPOINTS
    return find(inner if inner.is_dir() else path, step)


def check_first_weights(config: RunConfig) -> CheckpointInfo | None:
    """The checkpoint of ``train.init_from``, None without that key.

    Raises:
        InputError: there is none, or it is of another model; names the first difference.
        CorruptError: it cannot be read.
    """
    if not config.train.init_from:
        return None
    info = checkpoint_in(Path(config.train.init_from))
    if config.model.architecture.own_block is not None:
        return info  # its names are known to its module only
    found = CheckpointTensors(info).shapes
    wanted = parameter_shapes(config.model.architecture)
    for name in (*wanted, *found):
        if found.get(name) == wanted.get(name):
            continue
        here = f"[model] gives it {list(wanted[name])}" if name in wanted else "[model] has none"
        there = f"is {list(found[name])}" if name in found else "is missing"
        raise InputError(
            f"train.init_from={config.train.init_from!r}: {name} {there} in {info.path.name}, "
            f"{here}",
            remedy="use the [model] table of the model.toml or config.toml in that folder",
        )
    return info
