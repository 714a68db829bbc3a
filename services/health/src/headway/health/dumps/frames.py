"""Frames of Python stacks, and which of them are a user's own code.

Short paths are those of py-spy, which leaves out the folder of ``sys.path``: a library's file is
``torch/cuda/streams.py`` there and ``.../site-packages/torch/cuda/streams.py`` elsewhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_SHOWN: Final = 3
"""Frames in the sentence about a place."""
MAX_CHARS: Final = 160

_LIBRARY_FOLDER = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/python\d[\d.]*|python\d\d?\.zip)/|^<(?!stdin|string|ipython)"
)
_PACKAGES: Final = frozenset((
    "_distutils_hack", "accelerate", "aiohttp", "apex", "boto3", "botocore", "click", "cupy",
    "cv2", "datasets", "debugpy", "deepspeed", "flash_attn", "flax", "fsspec", "functorch",
    "gcsfs", "h5py", "httpx", "hydra", "jax", "jaxlib", "lightning", "lightning_fabric",
    "mlflow", "mpi4py", "numpy", "pandas", "PIL", "polars", "py_spy", "pyarrow",
    "pytorch_lightning", "ray", "requests", "s3fs", "s3transfer", "safetensors", "scipy",
    "sentencepiece", "tensorboard", "tokenizers", "torch", "torchaudio", "torchdata", "torchrl",
    "torchtext", "torchvision", "tqdm", "transformer_engine", "transformers", "triton", "typer",
    "urllib3", "wandb", "webdataset", "xformers", "zarr", "zmq",
))  # fmt: skip
"""First folder of short paths that are not a user's code."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack."""

    function: str
    file: str
    """Path of the file as printed, whole or only its end."""
    line: int
    """-1 if not printed."""

    @property
    def is_library(self) -> bool:
        """Whether it is in an installed package or in Python itself, not in a user's own code."""
        path = self.file.replace("\\", "/")
        if not path or _LIBRARY_FOLDER.search(path) or not path.endswith((".py", ".pyx", ">")):
            return True
        if path.startswith("/"):
            return False
        first, _, rest = path.removeprefix("./").partition("/")
        if not rest:
            return path.removesuffix(".py") in sys.stdlib_module_names
        return first in _PACKAGES or first in sys.stdlib_module_names

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})" if self.line >= 0 else self.function


def innermost_own(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of a user's own code, of frames with the innermost first.

    The outermost frame of any code stands for it if all are in libraries; None without frames.
    """
    own = (frame for frame in frames if not frame.is_library)
    return next(own, frames[-1] if frames else None)


def place(frames: Sequence[Frame]) -> str:
    """Where a process is, such as ``shards.py:88 read < loader.py:121 load``.

    These are the innermost frames of a user's own code, or of any code if all are in libraries, of
    frames with the innermost first.
    """
    own = [frame for frame in frames if not frame.is_library] or list(frames)
    return " < ".join(
        f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}"
        for frame in own[:MAX_SHOWN]
    )[:MAX_CHARS]
