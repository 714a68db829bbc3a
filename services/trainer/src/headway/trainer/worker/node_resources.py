"""What a rank's session takes from its node: the arena and the streams of data."""

from __future__ import annotations

import time

from headway.common.errors import HeadwayError
from headway.common.node.arena import Arena
from headway.common.node.arena_file import open_or_replace
from headway.common.plan.placement import Placement
from headway.common.wire.messages.dataloader import StreamSpec
from headway.dataloader.client import DataClient
from headway.dataloader.config import stream_spec
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import Split
from headway.trainer.state.layout_check import difference
from headway.trainer.worker.control_hooks import RankContext

CLAIM_LIMIT_S = 5.0  # the rank's earlier process was killed; the kernel may take a moment


class NodeResources:
    """What a rank's session takes from its node: the arena and the streams of data.

    The session holds this object, so it must not refer to the session: a worker that takes another
    rank frees the old model by reference counting, before it builds the new one.
    """

    def __init__(self, context: RankContext, rank: int) -> None:
        self._context, self._rank, self._config = context, rank, context.config
        self.arena: Arena | None = None

    def open_arena(self, slot_bytes: int, layout: bytes) -> Arena:
        """The rank's arena, as the last process left it or empty; see ``ArenaFactory``."""
        self.arena = open_or_replace(
            self._context.paths.segment("arena", self._rank),
            run_id=self._context.run_dir.run_id,
            rank=self._rank,
            slot_bytes=slot_bytes,
            layout=layout,
            claim=self._claim,
            difference=difference,
        )
        return self.arena

    def _claim(self, arena: Arena) -> None:
        give_up_s = time.monotonic() + CLAIM_LIMIT_S
        while True:
            try:
                return arena.claim()
            except HeadwayError:
                self._context.fence.check()
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(0.02)

    def open_data(self, split: Split, start: int, generation: int, fingerprint: str) -> DataClient:
        """A client of the node's data daemon; see ``DataFactory``."""
        config, readers = self._config, data_readers(self._config, self._rank)
        dp_rank = config.parallel.grid.coordinates(self._rank).dp
        return DataClient(
            self._context.paths.endpoint("dataloader"),
            spec=replica_stream(
                config, split, start, generation, dp_rank, len(readers), fingerprint
            ),
            reader=readers.index(self._rank),
            timeout_s=config.data.wait_timeout_s,
            abort=lambda: self._context.fence.is_fenced(generation),
            copy=False,  # a batch is converted before the next is taken
        )


def data_readers(config: RunConfig, rank: int) -> list[int]:
    """Return the ranks of this node that read the same stream.

    They are all tp ranks of the first and last stages of a replica, and with
    ``model.document_end`` also those of the stages between, which need the borders.
    """
    grid = config.parallel.grid
    placement = Placement(grid, config.launch.ranks_per_node)
    place = grid.coordinates(rank)
    return [
        other
        for other in placement.ranks_of(placement.node_of(rank))
        if (c := grid.coordinates(other)).dp == place.dp
        and (config.model.every_stage_reads or c.pp in grid.stage_map.ends)
    ]


def replica_stream(
    config: RunConfig,
    split: Split,
    start: int,
    generation: int,
    dp_rank: int,
    readers: int,
    fingerprint: str = "",
) -> StreamSpec:
    """Return the specification of one replica's stream.

    Validation repeats its first ``eval_batches`` global batches forever.
    """
    train = config.train
    return stream_spec(
        config.data.path,
        split=split,
        seed=config.data.seed,
        seq_len=config.model.seq_len,
        micro_batch_size=train.micro_batch_size,
        global_batch_size=train.global_batch_size,
        dp_rank=dp_rank,
        dp_size=config.parallel.dp,
        generation=generation,
        start_sample=start,
        cycle_samples=train.eval_batches * train.global_batch_size if split == "validation" else 0,
        ring_slots=config.data.ring_slots,
        num_readers=readers,
        fingerprint=fingerprint,
    )
