"""A worker's rank: it joins each generation, restores its state and trains."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from headway.ckpt_store import StoreWatch
from headway.ckpt_store.client import CheckpointInfo, check_part, newest, read_part, read_shard
from headway.common.errors import CorruptError, HeadwayError
from headway.common.log import get_logger
from headway.common.node.flight import FlightWriter
from headway.common.node.process import return_free_memory
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.messages.worker import Assign, Restore
from headway.trainer.comm import nccl_profile
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.ctas import Ctas
from headway.trainer.comm.groups import Groups, build
from headway.trainer.comm.store import StoreEndpoint
from headway.trainer.device.choose import take_device
from headway.trainer.device.deterministic import make_deterministic
from headway.trainer.device.device_recorder import DeviceRecorder, recorder_for
from headway.trainer.device.locality import bind_near, pci_address, unbind
from headway.trainer.device.position import DevicePosition
from headway.trainer.errors import BadCheckpointError, DivergedError
from headway.trainer.session.session import Session
from headway.trainer.worker.control_hooks import ControlHooks, RankContext
from headway.trainer.worker.failures import is_out_of_memory
from headway.trainer.worker.link import WorkerStatus
from headway.trainer.worker.memory import MemoryWatch
from headway.trainer.worker.node_resources import NodeResources

SHOW_RESTORED_S = 1.0
MEMORY_WAIT_S = 5.0  # the memory of processes that were killed is free again within seconds

log = get_logger("rank")


class Rank:
    """The rank of a worker, with model, buffers and arena.

    It is created when a worker gets a rank and kept over generations.
    """

    def __init__(self, context: RankContext, rank: int) -> None:
        self._context, self.rank, self.config = context, rank, context.config
        self._node = NodeResources(context, rank)
        if self.config.train.deterministic:
            make_deterministic()
        self._device = torch.device("cpu")
        if self.config.train.device == "gpu":
            nccl_profile.apply(self.config.parallel)
            self._device = take_device(rank)
        self._cpus = bind_near(pci_address(self._device)) if self._device.type == "cuda" else None
        self._store = StoreWatch(context.paths.endpoint("ckpt_store"))
        self._flight = FlightWriter.create(context.paths.segment("flight", rank), rank)
        self.count_life, self.waiting = self._flight.count_life, self._flight.waiting
        self._shown_at_s = 0.0
        self._memory = MemoryWatch(self.config, rank, self._device)
        self._recorder = recorder_for(self._flight, self._device)
        self._session = Session(
            self.config,
            rank,
            data_factory=self._node.open_data,
            open_arena=self._node.open_arena,
            recorder=self._recorder,
            device=self._device,
            store_moved=self._store.moved,
        )

    def serve(self, assign: Assign, lookup: Callable[[int], StoreEndpoint]) -> None:
        """Join the generation, restore, and train to the end of the run.

        It leaves the groups in every case.

        Raises:
            Aborted: the generation was fenced. RuntimeError: a peer failed.
            RefusedError: the run cannot continue, for example because it has diverged.
        """
        channels = Channels(self.waiting)
        generation, context = assign.generation, self._context
        position: DevicePosition | None = None
        try:
            context.fence.enter(generation, channels)
            self._read_doubted(assign.restore)
            groups = self._join(generation, channels, lookup)
            if isinstance(self._recorder, DeviceRecorder):
                position = DevicePosition(self._recorder, self._device)
            self._restore_twice(assign, groups)
            context.link.report_kept(self._session.step)
            context.view.status = "restored"
            context.link.beat_now()
            try:
                hooks = ControlHooks(
                    context, generation, assign.answered, after_step=self._after_step
                )
                self._session.run(hooks)
            except DivergedError as error:
                raise error.with_way_back(self._restore_hint(error.first_step)) from None
            if self._session.is_complete and self.config.train.sample_tokens:
                self._sample(hooks)
            if self._session.spike is not None:
                self._wait_for_store()
                # the first rank that raises ends the run: not before all checkpoints are durable
                self._session.groups.meet()
                raise self._session.spike
            self._session.groups.meet()
            self._wait_for_store()
        finally:
            if position is not None:
                position.close()
            self._session.leave()
            channels.close()

    def _join(
        self, generation: int, channels: Channels, lookup: Callable[[int], StoreEndpoint]
    ) -> Groups:
        """Meet the other ranks; the flight ring shows in which generation, and for how long.

        The monitor must not take what it sees meanwhile for a fault of the generation before.
        """
        context, network = self._context, self.config.launch.network
        self._recorder.set_generation(generation)
        with self._flight.record(Kind.JOIN):
            return build(
                generation,
                self.config.parallel.grid,
                self.rank,
                host=network.fabric_address,
                ports=network.ports,
                announce=lambda endpoint: context.announce(generation, endpoint),
                lookup=lambda: lookup(generation),
                channels=channels,
                timeout_s=self.config.recovery.group_timeout_s,
                first_timeout_s=self.config.recovery.first_step_timeout_s,
                join_timeout_s=(
                    self.config.limits.join_timeout_s if self._device.type == "cuda" else None
                ),
                device=self._device,
                joins_ends=self.config.exchanges_table,
                table=self._flight.table,
                ctas=Ctas.of(self.config.parallel),
            )

    def _after_step(self, view: WorkerStatus) -> None:
        if view.status != "running":  # the first step of the generation
            self._session.groups.limit(self.config.recovery.group_timeout_s)
        self._memory.after_step(view)

    def close(self) -> None:
        """Release everything, because the worker takes another rank."""
        if self._cpus is not None:
            unbind(self._cpus)  # the next rank may have another GPU
        self._session.close()
        self._store.close()
        if self._node.arena is not None:
            self._node.arena.close()

    def _restore_twice(self, assign: Assign, groups: Groups) -> None:
        """Join the groups and restore, once more if memory ran out.

        A process that was ended a moment ago may still hold its memory, on a GPU or in RAM.
        """
        try:
            self._session.join(groups)
            self._restore(assign)
            return
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.warning("out of memory while restoring: tried once more", error=str(error)[:200])
        end_s = time.monotonic() + MEMORY_WAIT_S
        while time.monotonic() < end_s:
            self._restored(0)
            time.sleep(0.1)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            self._session.rehearse_again()
        self._session.join(groups)
        self._restore(assign)

    def _restore(self, assign: Assign) -> None:
        restore = assign.restore
        source = restore.source
        self._session.ready_snapshots()  # an arena error must not be blamed on the checkpoint
        self._restored(0)
        if source == "durable":
            try:
                state = self._read_checkpoint(restore.step, restore.folder)
                self._session.load(source, restore.step, state, skip_to=restore.skip_to)
                del state
            except CorruptError as error:
                raise self._bad(error, restore.step, self.rank) from error
        else:
            self._session.load(
                source, restore.step, skip_to=restore.skip_to, progress=self._restored
            )
        return_free_memory()
        self._memory.begin()
        log.info("restored", generation=assign.generation, source=source, step=restore.step)

    def _restored(self, nbytes: int) -> None:
        """Note that ``nbytes`` more of the state are there.

        Beats report it, so that the driver waits for the rest, and the flight ring shows it to the
        monitor.
        """
        self._context.fence.check()
        view = self._context.view
        view.restored_bytes += nbytes
        if time.monotonic() - self._shown_at_s > SHOW_RESTORED_S:
            self._shown_at_s = time.monotonic()
            with self._flight.record(Kind.RESTORE, step=view.step, nbytes=view.restored_bytes):
                pass

    def _restore_hint(self, first_skipped: int) -> str:
        """Describe which checkpoint a diverged run can go back to."""
        try:
            found = newest(
                self._context.run_dir.checkpoints,
                self.config.parallel.world_size,
                max_step=first_skipped - 1,
            )
        except (OSError, HeadwayError) as error:
            return f"which is the newest cannot be read: {error}"
        if found is None:
            return "there is none yet"
        return f"the newest is of step {found.step}"

    def _read_doubted(self, restore: Restore) -> None:
        """Read a part that another reader could not read, before the ranks join.

        Its own rank then does not try again before this one has. Bytes that take too long count as
        good.

        Raises:
            BadCheckpointError: this rank cannot read it either.
        """
        if restore.reader != self.rank or restore.source != "durable":
            return
        until_s = time.monotonic() + self.config.recovery.group_timeout_s / 2

        def progress(nbytes: int) -> bool:
            self._restored(nbytes)
            return time.monotonic() < until_s

        try:
            info = self._checkpoint(restore.step, restore.folder)
            check_part(info, restore.doubted, progress=progress)
        except CorruptError as error:
            raise self._bad(error, restore.step, restore.doubted) from error

    def _bad(self, error: CorruptError, step: int, part: int) -> BadCheckpointError:
        node = self._context.paths.node
        return BadCheckpointError(error, step=step, rank=self.rank, part=part, node=node)

    def _read_checkpoint(self, step: int, folder: str) -> tuple[npt.NDArray[np.uint8], bytes]:
        info = self._checkpoint(step, folder)
        self._session.check_layout(read_part(info, self.rank).layout, f"checkpoint {info.path}")
        return read_shard(info, self.rank, progress=self._restored)

    def _checkpoint(self, step: int, folder: str) -> CheckpointInfo:
        info = newest(
            self._context.run_dir.checkpoints, self.config.parallel.world_size, max_step=step
        )
        if info is None or str(info.path) != folder:
            raise CorruptError(
                f"checkpoint {folder} no longer exists", remedy="an older one is used"
            )
        return info

    def _sample(self, hooks: ControlHooks) -> None:
        prompt = [json.loads((Path(self.config.data.path) / "meta.json").read_text())["eod_id"]]
        tokens = self._session.sample(prompt, self.config.train.sample_tokens)
        hooks.on_sample(0, self._session.step, prompt, tokens)

    def _wait_for_store(self) -> None:
        """Wait until the last checkpoint is on disk, or the store makes no progress."""
        arena, step = self._node.arena, self._session.step
        if arena is None or not self._session.is_last_wanted:
            return
        with self._flight.record(Kind.FLUSH, step=step):
            is_done = self._store.wait(lambda: not arena.busy(), check=self._context.fence.check)
        status = self._store.ask()
        mine = [a.durable_step for a in status.arenas if a.rank == self.rank] if status else []
        if not is_done or (mine and mine[0] < step):
            log.warning(
                "the last step is not durable",
                step=step,
                durable_step=status.complete_step if status else None,
                checkpoints=str(self._context.run_dir.checkpoints),
                error=status.last_error if status else "the checkpoint store does not answer",
            )
