"""The settings of data: the table ``[data]`` of a run, and the specification of one stream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.common.config_checks import above_zero, at_least
from headway.common.errors import ConfigError
from headway.common.wire.messages.dataloader import Split, StreamSpec

__all__ = ["SPLITS", "DataConfig", "StreamSpec", "stream_spec"]

SPLITS = ("train", "validation")
_SMALLEST_VOCABULARY = 257  # the bytes and end-of-text


@dataclass(frozen=True)
class DataConfig:
    """Which text is used, and how it is served."""

    path: str = "data/stdlib"
    """The prepared folder, created by ``headway data prepare``."""

    source: str = "stdlib"
    """Source of the text for a new folder: ``stdlib``, ``debian-docs``, a folder or a file."""

    vocab_size: int = 8192
    """Tokens of the byte-level BPE that is trained on the text."""

    tokenizer: str = ""
    """A ``tokenizer.json`` to use instead of training one, such as that of an imported model."""

    end: str = ""
    """Token of ``tokenizer`` that ends a document; "" takes the ``eos_token`` of the
    ``tokenizer_config.json`` next to it, else the only one of the usual names."""

    validation_fraction: float = 0.05
    """Share of the documents kept for validation, by a hash of their path, 0..1 exclusive."""

    seed: int = 1234
    """Seed of the sample order; 1234 is Megatron-LM's default."""

    ring_slots: int = 16
    """Micro-batches prefetched per ring; one slot is ``micro_batch_size * (5 *
    seq_len + 4)`` bytes."""

    wait_timeout_s: float = 120.0
    """How long a reader waits for a batch, including the daemon's restart, before it fails."""

    def __post_init__(self) -> None:
        at_least(self, "data", _SMALLEST_VOCABULARY, "vocab_size")
        at_least(self, "data", 2, "ring_slots")
        above_zero(self, "data", "wait_timeout_s")
        if not 0.0 < self.validation_fraction < 1.0:
            raise ConfigError(
                f"data.validation_fraction={self.validation_fraction} is not between 0 and 1",
                remedy="use 0.05",
            )
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"data.seed={self.seed} is out of range", remedy="use 0..4294967295")


def stream_spec(
    path: str | Path,
    *,
    seq_len: int,
    micro_batch_size: int,
    global_batch_size: int | None = None,
    dp_rank: int = 0,
    dp_size: int = 1,
    split: Split = "train",
    seed: int = 1234,
    generation: int = 0,
    start_sample: int = 0,
    num_samples: int = 0,
    cycle_samples: int = 0,
    ring_slots: int = 16,
    num_readers: int = 1,
    fingerprint: str = "",
    job: str = "",
) -> StreamSpec:
    """A ``StreamSpec`` with an absolute path and the local number of micro-batches.

    ``global_batch_size`` defaults to one micro-batch per dp rank. If its micro-batches are not
    divisible by ``dp_size``, the lower dp ranks have one more. ``job`` names the job where several
    use one daemon.

    Raises:
        ConfigError: the sizes are inconsistent; see ``stream.check``.
    """
    size = micro_batch_size * dp_size if global_batch_size is None else global_batch_size
    return StreamSpec(
        path=str(Path(path).expanduser().absolute()),
        split=split,
        seed=seed,
        seq_len=seq_len,
        micro_batch_size=micro_batch_size,
        num_micro_batches=num_local_micro_batches(size, micro_batch_size, dp_rank, dp_size),
        global_batch_size=size,
        dp_rank=dp_rank,
        dp_size=dp_size,
        generation=generation,
        start_sample=start_sample,
        num_samples=num_samples,
        cycle_samples=cycle_samples,
        ring_slots=ring_slots,
        num_readers=num_readers,
        fingerprint=fingerprint,
        job=job,
    )


def num_local_micro_batches(
    global_batch_size: int, micro_batch_size: int, dp_rank: int, dp_size: int
) -> int:
    """How many of the global batch's micro-batches have ``j % dp_size == dp_rank``.

    Raises:
        ConfigError: a size below 1, a rank out of range, or a global batch that is not a
            multiple of the micro-batch.
    """
    if min(global_batch_size, micro_batch_size, dp_size) < 1 or not 0 <= dp_rank < dp_size:
        raise ConfigError(
            f"global_batch_size={global_batch_size}, micro_batch_size={micro_batch_size}, "
            f"dp_rank={dp_rank} of {dp_size}: a size below 1 or a rank out of range",
            remedy="use sizes of at least 1 and 0 <= dp_rank < dp_size",
        )
    if global_batch_size % micro_batch_size:
        raise ConfigError(
            f"global_batch_size={global_batch_size} is not a multiple of "
            f"micro_batch_size={micro_batch_size}",
            remedy="use "
            f"{global_batch_size // micro_batch_size * micro_batch_size or micro_batch_size}",
        )
    return len(range(dp_rank, global_batch_size // micro_batch_size, dp_size))
