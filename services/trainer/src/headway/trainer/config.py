"""The configuration of a run: one TOML file, with a table per component.

``[data]``, ``[ckpt]`` and ``[health]`` are the services' own dataclasses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal

from headway.ckpt_store.config import StoreConfig
from headway.common.errors import ConfigError, InputError
from headway.common.plan.grid import Grid
from headway.dataloader.config import DataConfig
from headway.health.config import HealthConfig

SETTINGS = ("lr",)
MAX_LR_RATIO = 100.0
"""A learning rate above this many times ``optim.lr`` is taken for a typing error."""

_IN_ORDER = (
    ("driver_silent_s", "node_silent_s", "a driver must be back before its nodes look silent"),
    ("node_silent_s", "node_lost_s", "a node is restarted before it is given up"),
    ("node_lost_s", "orphan_limit_s", "workers must outlive the restart of their executor"),
    ("group_timeout_s", "join_timeout_s", "joining builds groups and uses them"),
    ("out_timeout_s", "join_timeout_s", "leaving is a part of joining the next generation"),
    ("fork_limit_s", "gather_timeout_s", "gathering waits for at least one fork"),
    ("service_silent_s", "service_start_s", "a start takes longer than a beat"),
)
"""(smaller, larger, why): pairs of limits in ``[recovery]`` of which the first must
be below the second."""


@dataclass(frozen=True)
class ModelConfig:
    """A GPT: pre-norm LayerNorm blocks, GELU, rotary positions, untied head,
    no biases in linears."""

    layers: int = 4
    """Transformer blocks; a multiple of ``pp * vp``."""
    hidden: int = 384
    """Width of the residual stream."""
    heads: int = 6
    """Attention heads; ``hidden / heads`` is even, and ``tp`` divides ``heads``."""
    ffn: int | None = None
    """Width of the MLP; None means ``4 * hidden``."""
    vocab_size: int = 8192
    """Rows of the embedding and of the head; at least the tokens of the corpus."""
    seq_len: int = 512
    """Tokens of one sequence."""
    block: Literal["serial", "parallel"] = "serial"
    """``parallel``: y = x + mlp(norm(x)) + attn(norm(x)) (MegaScale, arXiv
    2402.15627, section 3.1)."""
    rope_theta: float = 10_000.0
    """Base of the rotary position embedding."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""

    def __post_init__(self) -> None:
        _positive(
            "model",
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            vocab_size=self.vocab_size,
            seq_len=self.seq_len,
        )
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ConfigError(
                f"model.hidden={self.hidden} does not split into {self.heads} heads of an even "
                "size",
                remedy="choose model.hidden as an even multiple of model.heads",
            )

    @property
    def ffn_width(self) -> int:
        """Width of the MLP's inner layer."""
        return self.ffn or 4 * self.hidden

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


@dataclass(frozen=True)
class ParallelConfig:
    """How the model spreads over ranks; ``tp * pp * dp`` is the world size."""

    tp: int = 1
    """Tensor-parallel ranks, with sequence parallelism."""
    pp: int = 1
    """Pipeline stages."""
    dp: int = 1
    """Data-parallel replicas; each keeps a part of the optimizer state."""
    vp: int = 1
    """Model chunks per pipeline rank; above 1 only with the interleaved schedule."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1"] = "1f1b"
    """Order of a pipeline rank's forward and backward passes."""
    overlap_grad_reduce: bool = True
    """Start a chunk's gradient reduction at its last weight gradient; off waits for it at once."""
    overlap_param_gather: bool = True
    """Gather chunks while data loads; off waits for each gather at once. Same bits either way."""
    overlap_p2p: bool = True
    """Send in the background and post receives early; off waits for each message at once."""

    def __post_init__(self) -> None:
        _positive("parallel", tp=self.tp, pp=self.pp, dp=self.dp, vp=self.vp)

    @property
    def grid(self) -> Grid:
        """The ranks' coordinates."""
        return Grid(tp=self.tp, pp=self.pp, dp=self.dp, vp=self.vp)

    @property
    def world_size(self) -> int:
        """Number of worker processes."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class LaunchConfig:
    """Where the ranks run."""

    nodes: int = 1
    """Nodes that train, emulated on this machine."""
    ranks_per_node: int = 1
    """Worker processes on each node."""
    spares: int = 0
    """Idle nodes that replace a lost one."""
    standbys: int = 1
    """Warm standby workers kept on each node."""
    threads_per_rank: int = 1
    """OpenMP threads of one worker."""

    def __post_init__(self) -> None:
        _positive(
            "launch",
            nodes=self.nodes,
            ranks_per_node=self.ranks_per_node,
            threads_per_rank=self.threads_per_rank,
        )
        if self.spares < 0 or self.standbys < 0:
            raise ConfigError(
                f"launch.spares={self.spares}, launch.standbys={self.standbys}: below 0",
                remedy="use 0 or more",
            )


@dataclass(frozen=True)
class TrainConfig:
    """The training loop: its length, batch size and precision."""

    steps: int = 200
    """Optimizer steps of the whole run, those before a resume included."""
    global_batch_size: int = 8
    """Sequences per optimizer step, over all data-parallel replicas."""
    micro_batch_size: int = 1
    """Sequences in one forward pass."""
    seed: int = 1234
    """Of the initial weights."""
    dtype: Literal["auto", "bf16", "fp32", "fp64"] = "auto"
    """Compute type; bf16 has an fp32 master. ``auto`` is resolved at launch: bf16 if the machine
    has units for it, else fp32. fp64 is for equality tests."""
    device: Literal["auto", "gpu", "cpu"] = "auto"
    """Where ranks compute. ``auto`` is resolved at launch: one GPU per rank (NCCL), or the CPU for
    all (gloo) if the machine has fewer GPUs than ranks."""
    eval_every: int = 0
    """Steps between validation losses; 0 means only before the first and after the last step."""
    eval_batches: int = 8
    """Global batches of the validation split per evaluation."""
    sample_tokens: int = 64
    """Tokens of the text sample at the end; 0 for none."""
    max_skipped_steps: int = 10
    """Number of consecutive skipped steps (loss or gradient norm not finite) after which the run
    fails; 0 never ends it."""

    def __post_init__(self) -> None:
        if self.max_skipped_steps < 0:
            raise ConfigError(
                f"train.max_skipped_steps={self.max_skipped_steps} is below 0",
                remedy="use a number of steps, or 0 to never end the run",
            )
        _positive(
            "train",
            steps=self.steps,
            global_batch_size=self.global_batch_size,
            micro_batch_size=self.micro_batch_size,
            eval_batches=self.eval_batches,
        )


@dataclass(frozen=True)
class OptimConfig:
    """AdamW with decoupled weight decay (arXiv 1711.05101), warm-up and cosine decay."""

    lr: float = 1e-3
    """Peak learning rate, at the end of the warm-up."""
    min_lr: float = 1e-4
    """Learning rate at the last step."""
    warmup_steps: int = 20
    """Steps over which the rate rises linearly from 0."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.95
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decoupled decay, multiplied by the learning rate."""
    clip_grad: float = 1.0
    """Largest global gradient norm; 0 turns clipping off."""

    def __post_init__(self) -> None:
        _within(
            "optim",
            0.0,
            math.inf,
            lr=self.lr,
            min_lr=self.min_lr,
            eps=self.eps,
            weight_decay=self.weight_decay,
        )
        _within("optim", 0.0, math.inf, warmup_steps=self.warmup_steps, clip_grad=self.clip_grad)
        _within("optim", 0.0, 1.0, beta1=self.beta1, beta2=self.beta2)


@dataclass(frozen=True)
class RecoveryConfig:
    """Time limits of detection and recovery, in seconds; docs/operations.md gives their sources."""

    group_timeout_s: float = 20.0
    """Timeout of a collective."""
    gather_timeout_s: float = 90.0
    """Longest wait for a worker for each rank before other nodes are used."""
    read_timeout_s: float = 20.0
    """Longest time for the nodes to report which snapshots are sealed."""
    choose_timeout_s: float = 60.0
    """Longest time for the search for the newest checkpoint."""
    join_timeout_s: float = 60.0
    """Longest time from assignment until each rank has its state; then the generation is fenced."""
    out_timeout_s: float = 8.0
    """Longest time for a survivor to leave a fenced generation before it is killed."""
    stop_timeout_s: float = 60.0
    """Longest time without progress after a stop command before the run is ended by force."""
    orphan_limit_s: float = 600.0
    """A worker exits after this long without an executor; its snapshots stay in the arena."""
    node_silent_s: float = 3.0
    """An executor that is silent for this long counts as dead and is restarted."""
    node_lost_s: float = 10.0
    """A node that neither answers nor restarts for this long is replaced by a spare."""
    driver_silent_s: float = 2.0
    """A driver that is silent for this long is replaced by one of another executor."""
    service_silent_s: float = 5.0
    """A service that sends no beats for this long is killed and restarted."""
    service_start_s: float = 60.0
    """Longest time from the start of a service to its first beat."""
    fork_limit_s: float = 20.0
    """Longest time from a fork request to the worker's first beat (torch imports in 1-2 s)."""
    folder_gone_s: float = 60.0
    """A run ends once its folder has been gone for this long."""
    max_crashes: int = 5
    """Equal failures at one step before the run fails and reports the cause."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name.endswith("_s") and not 0 < value < math.inf:
                raise ConfigError(
                    f"recovery.{entry.name}={value} is not a valid time limit",
                    remedy="use seconds above 0",
                )
        if self.max_crashes < 1:
            raise ConfigError(
                f"recovery.max_crashes={self.max_crashes} is below 1", remedy="use 1 or more"
            )
        for smaller, larger, why in _IN_ORDER:
            low, high = getattr(self, smaller), getattr(self, larger)
            if not low < high:
                raise ConfigError(
                    f"recovery.{smaller}={low:g} is not below recovery.{larger}={high:g}: {why}",
                    remedy=f"lower recovery.{smaller} or raise recovery.{larger}",
                )


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


def _within(table: str, low: float, high: float, **values: float) -> None:
    """Check that each value is in [low, high); NaN never is."""
    for name, value in values.items():
        if not low <= value < high:
            raise ConfigError(
                f"{table}.{name}={value} is out of range",
                remedy=f"use {low:g} or more, below {high:g}",
            )


def _positive(table: str, **values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{table}.{name}={value} is below 1", remedy="use 1 or more")
