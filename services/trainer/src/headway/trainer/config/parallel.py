"""The table ``[parallel]``: how the model spreads over ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from headway.common.config_checks import at_least, within
from headway.common.errors import ConfigError
from headway.common.plan.grid import Grid
from headway.trainer.config.link_retries import LinkRetries

MOST_CTAS = 64
"""Most thread blocks of a communicator, since NCCL 2.25."""
LINK_MARGIN = 1.25
"""An adapter that resends late, and ranks that move again, have a quarter of the window more."""


@dataclass(frozen=True)
class ParallelConfig:
    """How the model spreads over ranks; ``tp * pp * dp`` is the world size."""

    tp: int = 1
    """Tensor-parallel ranks, with sequence parallelism."""
    pp: int = 1
    """Pipeline stages."""
    dp: int = 1
    """Data-parallel replicas; each keeps a part of the optimizer state."""
    vp: int | None = None
    """Model chunks per pipeline rank: above 1 with the interleaved schedule, or with 1f1b at pp 1,
    where they are the buckets of data parallelism; always 2 with zb-v. None means 2 with zb-v, 4
    buckets if pp is 1 and dp is not (at most one per layer), else 1."""
    buckets: int | None = None
    """Buckets of whole layers into which a chunk's parameters and gradients are cut, each of which
    is gathered and reduced by itself, under the computation of the others; at most one per layer.
    None means 4 per pipeline rank if there are replicas and stages, else 1. Other bits if dp > 2,
    where the order of sums depends on them."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"] = "1f1b"
    """Order of a pipeline rank's forward and backward passes. With zb-v the first rank has the
    embedding and the head; it idles least with 2 pp - 1 micro-batches or more."""
    overlap_grad_reduce: bool = True
    """Go on while a bucket's gradients are reduced, which starts behind the last of them; off waits
    for each reduction at once. Same bits either way."""
    grad_reduce: Literal["master", "bf16"] = "master"
    """The type in which gradients are summed over replicas: that in which they were added up, fp32
    or fp64, or bf16, for half the traffic or less and 2 bytes a parameter more memory. A value is
    then off by up to 2^-8 of each replica's, and as much for each addition."""
    overlap_param_gather: bool = True
    """Gather a bucket's parameters for the next step while later buckets are updated, data load and
    earlier buckets compute; off begins the step with it and waits for it at once. Same bits either
    way."""
    overlap_p2p: bool = True
    """Send in the background and post receives early; off waits for each message at once."""
    stage_layers: tuple[int, ...] = ()
    """Layers of each of the ``pp * vp`` stages in order; the last may have none. Empty splits them
    by ``head_layers``."""
    head_layers: float = 0.0
    """Time of the head and loss in layers' time, as measured; stages are cut such that the slowest
    is as fast as possible. 0 gives equal stages."""
    tp_pieces: int = 1
    """Pieces into which a tensor-parallel collective and the matrix product next to it are cut, so
    that one piece travels while the other is multiplied; 1 keeps both whole. It must divide the
    positions of a rank, ``model.seq_len / tp``. Other bits."""
    tp_keep: Literal["pieces", "whole"] = "pieces"
    """What a layer keeps of the activations that it has gathered, until its weight gradients are
    computed: this rank's piece, which is gathered again, or the whole, ``tp`` times as much memory
    for less traffic. Same bits. What ``train.recompute`` makes again is gathered again."""
    nccl_profile: Literal["none", "ib", "roce", "efa"] = "none"
    """NCCL's settings for the network between machines: InfiniBand, RoCE or EFA, or none but NCCL's
    defaults. What the environment or NCCL's files set wins. `headway doctor CONFIG` prints them."""
    flap_s: float = 10.0
    """How long a link may be away without a recovery, with ``nccl_profile``: the retries of the
    network adapters and the automatic ``recovery.hang_act_s`` are chosen for it. At most 120."""
    pair_ctas: int = 4
    """Thread blocks, hence SMs, that the communicator of a pair of stages may occupy on a GPU: a
    receive that is posted ahead spins on them until its message comes. ``NCCL_MAX_CTAS`` wins."""
    cta_policy: Literal["default", "efficiency", "zero"] = "default"
    """How NCCL, since 2.27, weighs its speed against the SMs that all its communicators take:
    ``efficiency`` takes as few as give a decent speed, ``zero`` none wherever it can."""

    def __post_init__(self) -> None:
        within(self, "parallel", 0.0, math.inf, "head_layers")
        at_least(self, "parallel", 1, "tp", "pp", "dp", "vp", "buckets", "tp_pieces", "pair_ctas")
        if self.pair_ctas > MOST_CTAS:
            raise ConfigError(
                f"parallel.pair_ctas={self.pair_ctas} is above {MOST_CTAS}, NCCL's highest",
                remedy="use 1 to 8, or measure more",
            )
        LinkRetries.outlasting(self.flap_s)

    @property
    def num_chunks(self) -> int:
        """Model chunks per pipeline rank."""
        return 1 if self.vp is None else self.vp

    @property
    def num_buckets(self) -> int:
        """Buckets of each chunk that has as many layers."""
        return 1 if self.buckets is None else self.buckets

    @property
    def is_v(self) -> bool:
        """Whether chunks are placed in a V; see ``StageMap``."""
        return self.schedule == "zb-v"

    @property
    def grid(self) -> Grid:
        """The ranks' coordinates."""
        return Grid(tp=self.tp, pp=self.pp, dp=self.dp, vp=self.num_chunks, is_v=self.is_v)

    @property
    def link_window_s(self) -> float:
        """How long NCCL waits for a link that is away; 0 without a profile.

        EFA resends on its own terms, so there it is ``flap_s``.
        """
        if self.nccl_profile == "none":
            return 0.0
        if self.nccl_profile == "efa":
            return self.flap_s
        return LinkRetries.outlasting(self.flap_s).window_s

    @property
    def link_wait_s(self) -> float:
        """How long ranks may make no progress because of a link; 0 without a profile."""
        return LINK_MARGIN * self.link_window_s

    @property
    def world_size(self) -> int:
        """Number of worker processes."""
        return self.tp * self.pp * self.dp
