"""Why a host does not enter an operation, from its Python stack."""

from __future__ import annotations

from collections.abc import Sequence

from headway.common.wire.messages.health import Cause
from headway.health.dumps.frames import Frame

_SIGNS: tuple[tuple[Cause, str, tuple[str, ...]], ...] = (
    ("checkpoint_write", "is writing a checkpoint",
     ("checkpoint", "ckpt", "torch/serialization.py", "safetensors", "save_pretrained")),
    ("data_stall", "is reading data",
     ("dataloader", "dataset", "__getitem__", "_next_data", "shard", "tokeniz", "webdataset",
      "streaming", "collate", "load_batch", "read_batch", "next_batch")),
    ("host_stall", "collects garbage", ("gc.collect",)),
    ("host_stall", "is compiling", ("torch/_inductor", "torch/_dynamo", "triton/compiler", "nvcc")),
    ("host_stall", "waits for another service",
     ("urllib", "requests/", "http/client.py", "socket.py", "subprocess.py", "grpc")),
)  # fmt: skip
"""Tried in this order: who saves a checkpoint writes and reads like others, too."""
_IN_COLLECTIVE = ("torch/distributed", "distributed_c10d", "wait_for_others")


def host_cause(frames: Sequence[Frame]) -> tuple[Cause, str]:
    """The cause and what the process does, from frames with the innermost first."""
    texts = [f"{frame.file} {frame.function}".lower() for frame in frames]
    for cause, words, signs in _SIGNS:
        if any(sign in text for text in texts for sign in signs):
            return cause, words
    if frames and any(sign in text for text in texts for sign in _IN_COLLECTIVE):
        return "host_stall", "is in a collective of its own"
    return "host_stall", "is busy with something else" if frames else "does something unknown"
