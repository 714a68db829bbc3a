"""First weights of a rank's part of the model from a checkpoint of any layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from headway.ckpt_store.client import CheckpointTensors
from headway.common.errors import CorruptError, InputError
from headway.trainer.errors import RefusedError
from headway.trainer.exchange.checkpoint import checkpoint_in
from headway.trainer.state.flat import FlatChunk


def load_first_weights(
    flats: Sequence[FlatChunk], folder: Path, progress: Callable[[int], object] = lambda _: None
) -> None:
    """Fill the master weights of ``flats`` and zero the moments.

    One whole parameter at a time is in memory besides. ``progress`` is called with the bytes of the
    state that each parameter has completed; what it raises ends the loading.

    Raises:
        RefusedError: the checkpoint cannot be read, or lacks a parameter of this shape.
    """
    try:
        tensors = CheckpointTensors(checkpoint_in(folder))

        def read(name: str, shape: tuple[int, ...]) -> torch.Tensor:
            found = tensors.shapes.get(name)
            if found != shape:
                raise RefusedError(
                    f"train.init_from={str(folder)!r}: {name} is "
                    f"{'missing' if found is None else list(found)}, the model needs {list(shape)}",
                    remedy="use the [model] table of the folder's model.toml or config.toml",
                )
            return torch.from_numpy(tensors.read(name))

        for flat in flats:
            flat.load_master_from(read, progress)
    except RefusedError:
        raise
    except (InputError, CorruptError) as error:
        raise RefusedError(
            f"train.init_from={str(folder)!r}: {error.message}", remedy=error.remedy
        ) from error
