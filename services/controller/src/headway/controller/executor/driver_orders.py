"""What an executor does about each message of the driver."""

from __future__ import annotations

from collections.abc import Callable

from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.node.process import ProcessId
from headway.common.node.seals import read_seals
from headway.common.wire.addresses import LOOPBACK
from headway.common.wire.loop import Throttle
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import Seals
from headway.common.wire.messages.executor import (
    CheckNode,
    DriverBeat,
    Inject,
    KillWorker,
    ReadSeals,
    RestartService,
    SaveSnapshots,
    StopRun,
    ToWorker,
)
from headway.common.wire.messages.worker import Abort, StoreAddress
from headway.controller.executor.last_save import LastSave
from headway.controller.executor.node_events import (
    DriverReported,
    ServiceBlamed,
    Trouble,
    WorkerUnwanted,
)
from headway.controller.executor.node_run import NodeRun
from headway.controller.faults import faults

log = get_logger("executor")


class DriverOrders:
    """Carries out what the newest driver known orders, and refuses what others do.

    Args:
        to_worker: sends a message to a worker; gets the identity of its socket.
        to_driver: sends a note to the driver.
        end: ends the run on this node; gets the outcome.
        report_change: sends a beat, if the driver does not know what is so now.
    """

    def __init__(
        self,
        *,
        to_worker: Callable[[bytes, Message], object],
        to_driver: Callable[[Message], object],
        end: Callable[[str], object],
        report_change: Callable[[], object],
    ) -> None:
        self._send, self._to_driver = to_worker, to_driver
        self._end, self._report_change = end, report_change
        self._save: LastSave | None = None
        self._throttle = Throttle()

    def take(self, run: NodeRun, message: Message) -> None:
        """Take in a message for the run that the node carries."""
        run_id, epoch = getattr(message, "run_id", ""), getattr(message, "epoch", -1)
        if not run.guardian.obeys(run_id, epoch):
            suppressed = self._throttle.admit(type(message).__name__)
            if suppressed is not None:
                log.warning(
                    "refused an order of another run or of an older driver",
                    message=type(message).__name__,
                    run_id=run_id,
                    epoch=epoch,
                    current=run.guardian.epoch,
                    suppressed=suppressed,
                )
            return
        match message:
            case DriverBeat():
                self._beat(run, message)
            case ToWorker():
                self._to_worker(run, message)
            case KillWorker():
                run.handle(WorkerUnwanted(message.worker))
            case ReadSeals():
                self._to_driver(seals(run, message.generation))
            case RestartService():
                run.handle(ServiceBlamed(message.service, message.reason, message.pid))
            case SaveSnapshots() if self._save is None or not self._save.is_alive():
                self._save = LastSave(run.paths.endpoint("ckpt_store"), limit_s=0.0)
            case CheckNode():
                run.check.begin(message.number)
            case StopRun():
                self._end(message.outcome)
            case Inject():
                try:
                    log.warning("injected", hit=inject(run, message), rank=message.rank)
                except (HeadwayError, OSError) as error:
                    log.warning("nothing was injected", reason=str(error))
            case _:
                pass

    def _beat(self, run: NodeRun, beat: DriverBeat) -> None:
        run.compare_clock(beat)
        run.outbox.acknowledge(beat.acknowledged)
        run.outbox.measured = beat.measured
        if not len(run.outbox):
            run.handle(Trouble("metrics", ""))
        run.handle(DriverReported(beat))
        if beat.active:
            run.check.give_way()
        self._report_change()

    def _to_worker(self, run: NodeRun, message: ToWorker) -> None:
        peer = run.peers.get(message.worker)
        if peer is not None and message.worker in run.guardian.workers.members:
            for part in messages_of(message):
                self._send(peer, part)


def messages_of(order: ToWorker) -> list[Message]:
    """The parts of ``order`` that are set, in the order in which a worker needs them."""
    found: list[Message] = [] if order.assign is None else [order.assign]
    if order.store_generation >= 0:
        found.append(
            StoreAddress(
                generation=order.store_generation,
                host=order.store_host,
                port=order.store_port,
                secret=order.store_secret,
            )
        )
    if order.steer is not None:
        found.append(order.steer)
    if order.abort_generation is not None:
        found.append(Abort(generation=order.abort_generation))
    return found


def seals(run: NodeRun, generation: int) -> Seals:
    """Which snapshots the arenas of the node hold, and which arenas cannot be used."""
    arenas = run.paths.segments("arena")
    sealed, damaged = read_seals(arenas, run_id=run.paths.run_id)
    return Seals(
        node=run.node,
        generation=generation,
        sealed=sealed,
        damaged=damaged,
        run_id=run.run.run_id,
    )


def inject(run: NodeRun, order: Inject) -> str:
    """Break something on purpose, for drills; returns what was done.

    Raises:
        InputError: an unknown fault or target, or the node does not run that.
        OSError, HeadwayError: it failed.
    """
    members = run.guardian.workers.members.values()
    parts = faults.Parts(
        services={**_keepers(run), **run.guardian.services.processes()},
        workers={one.beat.rank: one.process for one in members if one.beat.rank >= 0},
        standbys=[one.process for one in members if one.beat.rank < 0],
    )
    address = run.config.launch.network.fabric_address
    fabric = "" if address == LOOPBACK else address
    places = faults.Places(run.run.path, run.paths.shm_dir, run.cluster.path, fabric)
    return faults.carry_out(order, parts, places)


def _keepers(run: NodeRun) -> dict[str, ProcessId]:
    """This executor and its init, if that one runs."""
    init = run.cluster.init(run.node)
    found = {"executor": ProcessId.current()}
    return found if init is None or init.is_terminating() else {"init": init, **found}
