"""One micro-batch through every chunk of a rank, alone: compiles kernels before peers wait.

A first step with ``train.compile`` would take as long as the compiler, while the collectives of
other ranks run into their timeout. So a rank first runs its chunks on zeros, with collectives that
only copy, on the shapes of its real steps. Gradients are left behind; a step begins by zeroing
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from headway.trainer.comm.interface import Done, Op, SingleRank, Ticket
from headway.trainer.errors import RefusedError
from headway.trainer.model.chunk import Chunk
from headway.trainer.model.kernels import watching
from headway.trainer.parallel.tensor import TensorParallel
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.exc import InductorError


class Echo(SingleRank):
    """A member of a group whose others send nothing: what it gathers or reduces is its own."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        """Leave ``tensor`` as it is."""
        del tensor, op
        return Done()

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor) -> Ticket:
        """Every piece is this rank's."""
        for piece in out.view(self.size, -1):
            if piece.data_ptr() != shard.data_ptr():  # which is a part of ``out`` as a rule
                piece.copy_(shard)
        return Done()

    def reduce_scatter(self, out: torch.Tensor, flat: torch.Tensor) -> Ticket:
        """This rank's piece, not summed."""
        out.copy_(flat.view(self.size, -1)[self.rank])
        return Done()


def rehearse(
    chunks: Sequence[Chunk], micro_batch_size: int, progress: Callable[[int], object]
) -> None:
    """Run a forward and a backward of each chunk.

    ``progress`` is called with 1 before each compiled operation, and what it raises ends the
    rehearsal.

    Raises:
        RefusedError: the compiler failed, as it would again after a restart.
    """
    with alone(chunks[0].tp, progress):
        _run(chunks, micro_batch_size)


@contextmanager
def alone(tp: TensorParallel, progress: Callable[[int], object]) -> Iterator[None]:
    """In the block ``tp`` reaches nobody, and ``progress`` is called as ``rehearse`` does.

    Raises:
        RefusedError: the compiler failed in the block.
    """
    comm, tp.comm = tp.comm, Echo(tp.rank, tp.size)
    try:
        with watching(lambda: progress(1)):
            yield
    except (BackendCompilerFailed, InductorError) as error:
        raise RefusedError(
            f"train.compile: torch's compiler failed: {str(error).strip().splitlines()[0]}",
            remedy="set CXX to a C++ compiler that works, or set train.compile=false",
        ) from error
    finally:
        tp.comm = comm


def _run(chunks: Sequence[Chunk], micro_batch_size: int) -> None:
    for chunk in chunks:
        tokens = torch.zeros(
            (micro_batch_size, chunk.model.seq_len), dtype=torch.int64, device=chunk.device
        )
        x = torch.zeros(
            chunk.activation_shape(micro_batch_size),
            dtype=chunk.precision.param_dtype,
            device=chunk.device,
        )
        has_documents = chunk.model.document_end is not None
        borders = ((0, chunk.model.seq_len),) * micro_batch_size if has_documents else None
        given = tokens if chunk.is_first else x
        forward = chunk.forward(given, tokens, tokens, borders=borders)
        chunk.backward(forward, None if chunk.is_last else x)
