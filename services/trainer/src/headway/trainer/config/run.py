"""The configuration of a run as a whole.

``[data]``, ``[ckpt]``, ``[health]`` and ``[events]`` are the services' own dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.ckpt_store.config import StoreConfig
from headway.common.errors import ConfigError
from headway.common.plan.stages import balanced, stage_layers
from headway.dataloader.config import DataConfig
from headway.health.config import EventsConfig, HealthConfig
from headway.trainer.config.batch_ramp import BatchRamp
from headway.trainer.config.launch import LaunchConfig
from headway.trainer.config.model import ModelConfig
from headway.trainer.config.parallel import ParallelConfig
from headway.trainer.config.recovery import RecoveryConfig
from headway.trainer.config.relations import check_relations
from headway.trainer.config.training import OptimConfig, TrainConfig

BUCKETS = 4
"""Chunks of a model without pipeline: the first three reductions run under the backward of what
follows, and a quarter of the gradients is left to wait for."""


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
    events: EventsConfig = field(default_factory=EventsConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)

    def __post_init__(self) -> None:
        if self.parallel.vp is None:
            parallel = dataclasses.replace(self.parallel, vp=self._default_chunks())
            object.__setattr__(self, "parallel", parallel)
        if self.parallel.buckets is None:
            parallel = dataclasses.replace(self.parallel, buckets=self._default_buckets())
            object.__setattr__(self, "parallel", parallel)
        self._check_world()
        self._check_schedule()
        self._check_batch()
        self._check_split()
        self._check_tensor_parallel()
        check_relations(self.limits, self.parallel, self.data, self.health, self.train.device)

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a step with the whole ``global_batch_size``, of the first replica."""
        return self.micro_batches_of(self.train.global_batch_size)

    def micro_batches_of(self, batch_size: int, dp_rank: int = 0) -> int:
        """Micro-batches of one replica in a step of ``batch_size`` sequences.

        Number j of the step belongs to replica j mod dp: if dp does not divide them, the first
        replicas have one more than the others.
        """
        return len(range(dp_rank, batch_size // self.train.micro_batch_size, self.parallel.dp))

    @property
    def limits(self) -> RecoveryConfig:
        """The time limits as they are on ``train.device``: joining takes longer on GPUs."""
        limits = self.recovery
        if self.train.device != "gpu":
            return limits
        longer_s = max(limits.join_timeout_s, limits.gpu_join_timeout_s)
        return dataclasses.replace(limits, join_timeout_s=longer_s)

    @property
    def batch_ramp(self) -> BatchRamp:
        """How many sequences each step has."""
        return BatchRamp.of(self.train.batch_ramp, self.train.global_batch_size)

    @property
    def stages(self) -> list[range]:
        """The layers of each virtual stage."""
        parallel, layers = self.parallel, self.model.layers
        num_stages = parallel.pp * parallel.num_chunks
        counts: Sequence[int] = parallel.stage_layers
        if not counts and parallel.head_layers and parallel.pp > 1:
            counts = balanced(layers, num_stages, parallel.head_layers)
        return stage_layers(layers, num_stages, counts)

    @property
    def exchanges_table(self) -> bool:
        """Whether embedding and head share a table and are on different pipeline ranks."""
        first, last = self.parallel.grid.stage_map.ends
        return self.model.architecture.tied and first != last

    def _default_chunks(self) -> int:
        parallel = self.parallel
        if parallel.is_v:
            return 2
        overlaps = parallel.pp == 1 and parallel.dp > 1 and parallel.schedule == "1f1b"
        return min(BUCKETS, self.model.layers) if overlaps else 1

    def _default_buckets(self) -> int:
        parallel = self.parallel
        overlaps = parallel.pp > 1 and parallel.dp > 1
        return max(1, BUCKETS // parallel.num_chunks) if overlaps else 1

    def _check_world(self) -> None:
        world, ranks = self.parallel.world_size, self.launch.nodes * self.launch.ranks_per_node
        if world != ranks:
            raise ConfigError(
                f"tp x pp x dp = {self.parallel.tp} x {self.parallel.pp} x {self.parallel.dp} = "
                f"{world}, but launch.nodes x launch.ranks_per_node = {ranks}",
                remedy="make the two products equal",
            )

    def _check_schedule(self) -> None:
        optim, steps = self.optim, self.train.steps
        if optim.schedule == "wsd" and optim.warmup_steps + optim.decay_steps > steps:
            raise ConfigError(
                f"optim.warmup_steps={optim.warmup_steps} and optim.decay_steps="
                f"{optim.decay_steps} exceed train.steps={steps}",
                remedy="lower optim.decay_steps",
            )

    def _check_batch(self) -> None:
        size, micro_batch, parallel = (
            self.train.global_batch_size,
            self.train.micro_batch_size,
            self.parallel,
        )
        unit = micro_batch * parallel.dp
        if size % micro_batch or size < unit:
            raise ConfigError(
                f"train.global_batch_size={size} is not a multiple of train.micro_batch_size="
                f"{micro_batch} with a micro-batch for each of parallel.dp={parallel.dp} replicas",
                remedy=f"use a multiple of {micro_batch}, at least {unit}",
            )
        interleaved = parallel.schedule == "interleaved"
        buckets = parallel.schedule == "1f1b" and parallel.pp == 1
        if parallel.is_v and parallel.num_chunks != 2:
            raise ConfigError(
                f"parallel.vp={parallel.vp} with parallel.schedule='zb-v'",
                remedy="set parallel.vp=2 or remove it",
            )
        if parallel.num_chunks > 1 and not interleaved and not buckets and not parallel.is_v:
            raise ConfigError(
                f"parallel.vp={parallel.vp} with parallel.schedule={parallel.schedule!r} and "
                f"parallel.pp={parallel.pp}",
                remedy="set parallel.schedule='interleaved' or parallel.vp=1",
            )
        if size % unit and self.health.replay_every:
            raise ConfigError(
                f"health.replay_every={self.health.replay_every} with train.global_batch_size="
                f"{size}, of which replicas have unequal numbers of micro-batches",
                remedy=f"use a multiple of {unit}, or set health.replay_every=0",
            )
        if interleaved:
            unit *= parallel.pp
        if interleaved and parallel.pp > 1 and size % unit:
            raise ConfigError(
                f"train.global_batch_size={size} is not a multiple of train.micro_batch_size x "
                f"parallel.dp x parallel.pp = {unit}, which the interleaved schedule needs",
                remedy=f"use a multiple of {unit}, or parallel.schedule='1f1b' with parallel.vp=1",
            )
        wrong = [n for n in self.train.batch_ramp[:2] if n % unit]
        if wrong:
            of = "train.micro_batch_size x parallel.dp"
            raise ConfigError(
                f"{wrong[0]} in train.batch_ramp={list(self.train.batch_ramp)} is not a multiple "
                f"of {of + ' x parallel.pp' if interleaved else of} = {unit}",
                remedy=f"use a start and an increment that are multiples of {unit}",
            )

    def _check_split(self) -> None:
        stages = self.parallel.pp * self.parallel.num_chunks
        if self.parallel.pp == 1 and self.model.layers < stages:
            remedy = f"use parallel.vp={self.model.layers} or less"
            if self.parallel.is_v:
                remedy = "use another parallel.schedule: zb-v has two chunks"
            raise ConfigError(
                f"parallel.vp={stages} chunks of model.layers={self.model.layers} layers",
                remedy=remedy,
            )
        counts = self.parallel.stage_layers
        if counts and (len(counts) != stages or sum(counts) != self.model.layers):
            raise ConfigError(
                f"parallel.stage_layers={list(counts)} with pp x vp = {stages} stages and "
                f"model.layers={self.model.layers}",
                remedy=f"give {stages} numbers whose sum is {self.model.layers}",
            )
        if counts and (min(counts) < 0 or min(counts[:-1], default=1) < 1):
            raise ConfigError(
                f"parallel.stage_layers={list(counts)} has a stage without layers",
                remedy="only the last one, which has the head, may have none",
            )
        even = not counts and self.parallel.head_layers == 0.0
        if self.parallel.pp > 1 and even and self.model.layers % stages:
            raise ConfigError(
                f"model.layers={self.model.layers} is not divisible by pp x vp = {stages}",
                remedy=f"use a multiple of {stages} layers, or set parallel.stage_layers",
            )
        if self.parallel.head_layers and self.parallel.pp == 1:
            raise ConfigError(
                f"parallel.head_layers={self.parallel.head_layers:g} with parallel.pp=1",
                remedy="remove it: there are no stages to cut",
            )
        if self.parallel.head_layers and (counts or self.model.layers < stages):
            raise ConfigError(
                f"parallel.head_layers={self.parallel.head_layers:g} with "
                f"parallel.stage_layers={list(counts)} and model.layers={self.model.layers}",
                remedy="set one of the two, with at least one layer per stage",
            )
        if self.train.recompute_layers and self.train.recompute == "none":
            raise ConfigError(
                f"train.recompute_layers={list(self.train.recompute_layers)} with "
                "train.recompute='none'",
                remedy="set train.recompute='selective' or 'full', or remove recompute_layers",
            )
        rows, pieces = self.model.seq_len // self.parallel.tp, self.parallel.tp_pieces
        if self.parallel.tp > 1 and rows % pieces:
            raise ConfigError(
                f"parallel.tp_pieces={pieces} does not divide model.seq_len / parallel.tp = {rows}",
                remedy="use 2 or 4 pieces, or another model.seq_len",
            )
        wrong = [n for n in self.train.recompute_layers if not 0 <= n < self.model.layers]
        if wrong:
            raise ConfigError(
                f"train.recompute_layers={wrong} of model.layers={self.model.layers}",
                remedy=f"use layers from 0 to {self.model.layers - 1}",
            )

    def _check_tensor_parallel(self) -> None:
        tp, architecture = self.parallel.tp, self.model.architecture
        fault = architecture.fault_of_tp(tp)
        if fault:  # the sizes of an imported model are fixed
            fits = max(n for n in range(1, tp) if not architecture.fault_of_tp(n))
            raise ConfigError(
                fault,
                remedy=f"set parallel.tp={fits}, which fits this model, or give a new model other "
                "sizes",
            )
