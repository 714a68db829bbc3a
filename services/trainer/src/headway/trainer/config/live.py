"""What may be set and asked while a run is live; the console checks it, and the driver again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headway.common.errors import InputError
from headway.trainer.config.run import RunConfig

SETTINGS = ("lr",)
MAX_LR_RATIO = 100.0
"""A learning rate above this many times ``optim.lr`` is taken for a typing error."""


@dataclass(frozen=True)
class RunConfig:
    """Everything a run needs, checked as a whole before step 0."""

    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    data: DataConfig = field(default_factory=DataConfig)
    ckpt: StoreConfig = field(default_factory=StoreConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)

    def __post_init__(self) -> None:
        self._check_world()
        self._check_batch()
        self._check_split()

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of one replica in one step."""
        return self.train.global_batch_size // (self.train.micro_batch_size * self.parallel.dp)

    def _check_world(self) -> None:
        world, ranks = self.parallel.world_size, self.launch.nodes * self.launch.ranks_per_node
        if world != ranks:
            raise ConfigError(
                f"tp x pp x dp = {self.parallel.tp} x {self.parallel.pp} x {self.parallel.dp} = "
                f"{world}, but launch.nodes x launch.ranks_per_node = {ranks}",
                remedy="make the two products equal",
            )

    def _check_batch(self) -> None:
        unit = self.train.micro_batch_size * self.parallel.dp
        if self.train.global_batch_size % unit:
            raise ConfigError(
                f"train.global_batch_size={self.train.global_batch_size} is not a multiple of "
                f"train.micro_batch_size x parallel.dp = {unit}",
                remedy=f"use a multiple of {unit}",
            )
        interleaved = self.parallel.schedule == "interleaved"
        if self.parallel.vp > 1 and not interleaved:
            raise ConfigError(
                f"parallel.vp={self.parallel.vp} with parallel.schedule={self.parallel.schedule!r}",
                remedy="set parallel.schedule='interleaved' or parallel.vp=1",
            )
        if interleaved and self.num_micro_batches % self.parallel.pp:
            raise ConfigError(
                f"{self.num_micro_batches} micro-batches per replica are not a multiple of "
                "parallel.pp="
                f"{self.parallel.pp}, which the interleaved schedule needs",
                remedy="change train.global_batch_size",
            )

    def _check_split(self) -> None:
        stages = self.parallel.pp * self.parallel.vp
        if self.model.layers % stages:
            raise ConfigError(
                f"model.layers={self.model.layers} is not divisible by pp x vp = {stages}",
                remedy=f"use a multiple of {stages} layers",
            )
        tp = self.parallel.tp
        for name, value in (
            ("model.heads", self.model.heads),
            ("model ffn width", self.model.ffn_width),
            ("model.vocab_size", self.model.vocab_size),
            ("model.seq_len", self.model.seq_len),
        ):
            if value % tp:
                raise ConfigError(
                    f"{name}={value} is not divisible by parallel.tp={tp}",
                    remedy=f"use a multiple of {tp}",
                )


def check_name(name: str) -> None:
    """Raises InputError unless ``name`` is a setting of a live run."""
    if name not in SETTINGS:
        raise InputError(
            f"cannot set {name!r}",
            remedy=f"only {', '.join(SETTINGS)} can be set while a run is live",
        )


def check_setting(name: str, value: float, config: RunConfig, *, force: bool = False) -> None:
    """Raises InputError for an unknown setting or an absurd value; ``force``
    accepts any above 0."""
    check_name(name)
    if not 0 < value < math.inf:
        raise InputError(f"cannot set lr to {value:g}", remedy="set lr to a number above 0")
    limit = MAX_LR_RATIO * config.optim.lr
    if value > limit > 0 and not force:
        raise InputError(
            f"lr={value:g} is more than {MAX_LR_RATIO:g} times optim.lr={config.optim.lr:g}",
            remedy=f"set lr to {limit:g} or less, or repeat it with --force",
        )


def check_sample(prompt: Sequence[int], count: int, temperature: float, config: RunConfig) -> None:
    """Raises InputError unless the model can write ``count`` tokens after ``prompt``."""
    vocabulary = config.model.vocab_size
    if not prompt:
        raise InputError("the prompt has no token", remedy="begin it with the end-of-text token")
    if unknown := [token for token in prompt if not 0 <= token < vocabulary]:
        raise InputError(
            f"token {unknown[0]} of the prompt is not in the vocabulary of {vocabulary}",
            remedy="encode the prompt with the tokenizer of the run's corpus",
        )
    if count < 1:
        raise InputError(f"cannot write {count} tokens", remedy="ask for 1 token or more")
    tp = config.parallel.tp
    longest = config.model.seq_len // tp * tp
    if len(prompt) + count > longest:
        raise InputError(
            f"a prompt of {len(prompt)} tokens and {count} more exceed the model's {longest}",
            remedy="shorten the prompt or ask for fewer tokens",
        )
    if not 0 <= temperature < math.inf:
        raise InputError(
            f"temperature {temperature:g} is out of range",
            remedy="use 0 for the likeliest token, 0.8 for a varied text",
        )
