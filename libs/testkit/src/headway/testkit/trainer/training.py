"""Jobs that train: a rank's part of a layout, and its report.

Whole tensors are put together from all reports.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from headway.common.config import from_dict
from headway.common.node.arena import Arena
from headway.common.node.failpoints import add_where, configure
from headway.testkit.trainer.jobs import join
from headway.testkit.trainer.pool import WorkerContext, WorkerPool
from headway.testkit.trainer.sessions import arena_at
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted
from headway.trainer.config import RunConfig
from headway.trainer.device.choose import take_device
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session, Source

TIMEOUT_S = 20.0
Array = npt.NDArray[Any]


class Journal(StepHooks):
    """Writes down every loss, bit for bit.

    Also what was committed by then, and the gradients of one step.
    """

    def __init__(self, session: Session, grads_of: int, progress: Path, arena: Path) -> None:
        self.losses: dict[int, str] = {}
        self.norms: dict[int, str] = {}
        self.evals: dict[int, str] = {}
        self.committed: dict[int, int] = {}
        self.grads: list[Array] = []
        self._session, self._grads_of, self._progress = session, grads_of, progress
        self._arena = arena

    def on_step(self, result: StepResult) -> None:
        """Note loss and norm; copy the gradients if it is the step asked for."""
        self.losses[result.step] = result.loss.hex()
        self.norms[result.step] = result.grad_norm.hex()
        if self._arena.exists():
            with Arena.open(self._arena) as arena:
                self.committed[result.step] = arena.committed
                for info in arena.wanted():
                    arena.release(info)  # as the store does when it has made it durable
        if result.step == self._grads_of:
            self.grads = [flat.grad_shard.cpu().numpy().copy() for flat in self._session.flats]
        self._progress.write_text(str(result.step))

    def on_eval(self, step: int, loss: float, sequence: int = 0) -> None:
        """Note the validation loss."""
        del sequence
        self.evals[step] = loss.hex()


def train(
    context: WorkerContext,
    *,
    config: dict[str, Any],
    rank: int,
    generation: int,
    folder: str,
    until: int,
    source: Source = "init",
    step: int = 0,
    grads_of: int = 0,
    arena: bool = False,
    keep: str = "",
    failpoints: str = "",
    on_gpu: bool = False,
    spoiled: tuple[int, int] = (0, 0),
    counted: Sequence[int] = (),
) -> dict[str, Any]:
    """Train ``rank``'s part up to ``until`` completed steps; says how it ended.

    ``on_gpu`` uses NCCL; ranks that share a GPU each pretend to be on another host, because NCCL
    refuses two ranks of one host on one device.
    ``spoiled``: first and last + 1 of the samples that make a spike. ``counted``: see
    ``SyntheticSource``.
    ``keep`` names a session that outlives the job, as a survivor's does; without
    it a new one is made.
    """
    run = from_dict(RunConfig, config)
    if failpoints:
        configure(Path(failpoints))
        add_where(rank=rank)
    place = Path(folder)
    session = context.kept.get(keep) if keep else None
    if session is None:
        opener = arena_at(arena_path(place, rank), rank) if arena else None
        session = Session(
            run,
            rank,
            data_factory=synthetic(run, rank, range(*spoiled), counted),
            open_arena=opener,
            device=_gpu(rank) if on_gpu else "cpu",
        )
        if keep:
            context.kept[keep] = session
    progress = place / f"progress-{generation}-{rank}"
    journal = Journal(session, grads_of, progress, arena_path(place, rank))

    def restore() -> None:
        session.load(source, step, _durable(place, rank, step) if source == "durable" else None)

    why = run_generation(context, session, rank, generation, folder, restore, journal, until)
    if why == "done":
        _report(place / f"rank-{rank}.npz", session, journal)
    if not keep:
        session.close()
    return {
        "why": why,
        "step": session.step,
        "losses": {str(k): v for k, v in journal.losses.items()},
        "norms": {str(k): v for k, v in journal.norms.items()},
        "evals": {str(k): v for k, v in journal.evals.items()},
        "committed": {str(k): v for k, v in journal.committed.items()},
    }


def run_generation(
    context: WorkerContext,
    session: Session,
    rank: int,
    generation: int,
    folder: str,
    restore: Callable[[], None],
    hooks: StepHooks,
    until: int,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Join ``generation``, ``restore``, train to ``until`` completed steps, and leave it.

    Returns ``done``, or the error of the training or of a peer that ended it.
    """
    why = "done"
    try:
        groups = build_groups(
            context, session.config, rank, generation, folder, timeout_s, session.device
        )
        session.join(groups)
        del groups
        restore()
        session.run(hooks, until)
    except (Aborted, RuntimeError) as error:
        why = f"{type(error).__name__}: {error}"
    finally:
        context.fence.leave(broken=why != "done")
        session.leave()
    return why


def arena_path(folder: Path, rank: int) -> Path:
    """Where a job keeps its rank's arena."""
    return folder / f"arena-{rank}.bin"


@dataclass
class Trained:
    """What a whole layout came to: curves by step, whole tensors by name."""

    losses: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)
    evals: dict[int, float] = field(default_factory=dict)
    grads: dict[str, Array] = field(default_factory=dict)
    params: dict[str, Array] = field(default_factory=dict)


def train_layout(
    pool: WorkerPool,
    config: Mapping[str, Any],
    world: int,
    folder: Path,
    until: int,
    **options: Any,
) -> Trained:
    """Run one layout on the pool's first ``world`` workers and put its tensors together."""
    folder.mkdir(parents=True, exist_ok=True)
    args = [
        {
            "config": dict(config),
            "rank": rank,
            "generation": pool.next_generation(),
            "folder": str(folder),
            "until": until,
            **options,
        }
        for rank in range(world)
    ]
    for arg in args:
        arg["generation"] = args[0]["generation"]
    reports = pool.run(f"{__name__}:train", args)
    for report in reports:
        if report["why"] != "done":
            raise AssertionError(f"a rank left: {report['why']}")
    return collect(reports, folder)


def collect(reports: Sequence[Mapping[str, Any]], folder: Path) -> Trained:
    """Curves from the reports, which all ranks must agree on, and tensors from their files."""
    for report in reports[1:]:
        for curve in ("losses", "norms", "evals"):
            assert report[curve] == reports[0][curve], f"ranks disagree on {curve}"
    curves = {
        curve: {int(step): float.fromhex(value) for step, value in reports[0][curve].items()}
        for curve in ("losses", "norms", "evals")
    }
    pieces = [np.load(folder / f"rank-{rank}.npz") for rank in range(len(reports))]
    has_grads = any(name.startswith("grad/") for name in pieces[0].files)
    grads = assemble(pieces, "grad") if has_grads else {}
    return Trained(**curves, grads=grads, params=assemble(pieces, "param"))


def assemble(reports: Sequence[Mapping[str, Array]], kind: str) -> dict[str, Array]:
    """Return whole tensors from every rank's flat pieces.

    Copies of one element must be equal bit for bit.
    """
    local: dict[tuple[str, int], Array] = {}
    filled: dict[tuple[str, int], Array] = {}
    shapes: dict[str, dict[str, Any]] = {}
    for report in reports:
        for entry in json.loads(str(report["layout"])):
            name, tp_rank = entry["name"], entry["tp_rank"]
            shape = list(entry["global_shape"])
            if entry["tp_dim"] is not None:
                shape[entry["tp_dim"]] //= entry["tp_size"]
            shapes[name] = entry
            piece = report[piece_key(kind, entry)]
            key = (name, tp_rank)
            if key not in local:
                local[key] = np.zeros(int(np.prod(shape)), piece.dtype).reshape(shape)
                filled[key] = np.zeros(local[key].size, bool)
            target, seen = local[key].reshape(-1), filled[key]
            where = slice(entry["flat_start"], entry["flat_stop"])
            if entry.get("copy"):
                assert np.array_equal(target[where], piece), f"copies of {name} differ"
                continue
            assert not seen[where].any(), f"{name} is held twice"
            target[where], seen[where] = piece, True
    assert all(seen.all() for seen in filled.values()), "a piece of a tensor is held by nobody"
    return {name: _whole(name, entry, local) for name, entry in shapes.items()}


def piece_key(kind: str, entry: Mapping[str, Any]) -> str:
    """The name of a tensor's piece in a rank's report."""
    return f"{kind}/{entry['name']}/{entry['flat_start']}"


def _whole(name: str, entry: Mapping[str, Any], local: Mapping[tuple[str, int], Array]) -> Array:
    parts = [local[name, tp_rank] for tp_rank in range(entry["tp_size"])]
    if entry["tp_dim"] is not None:
        return np.concatenate(parts, entry["tp_dim"])
    for part in parts[1:]:
        assert np.array_equal(part, parts[0]), f"replicas of {name} differ"
    return parts[0]


def distance(found: Mapping[str, Array], expected: Mapping[str, Array]) -> tuple[float, str]:
    """Largest difference of a tensor, relative to the expected tensor's norm, and its name."""
    assert found.keys() == expected.keys()
    worst = (0.0, "")
    for name, value in expected.items():
        norm = float(np.linalg.norm(value)) or 1.0
        worst = max(worst, (float(np.linalg.norm(found[name] - value)) / norm, name))
    return worst


def build_groups(
    context: WorkerContext,
    run: RunConfig,
    rank: int,
    generation: int,
    folder: str,
    timeout_s: float = TIMEOUT_S,
    device: torch.device | None = None,
) -> Groups:
    """Enter ``generation`` and build its groups."""
    return join(
        context,
        run.parallel.grid,
        rank,
        generation,
        folder,
        timeout_s,
        device=device,
        joins_ends=run.exchanges_table,
    )


def _gpu(rank: int) -> torch.device:
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_HOSTID": f"headway-test-{rank}"}
    return take_device(rank)


def _durable(folder: Path, rank: int, step: int) -> tuple[npt.NDArray[np.uint8], bytes]:
    """A snapshot as the checkpoint store would hand it out: a copy, read-only."""
    with Arena.open(arena_path(folder, rank), writable=False) as arena:
        data, extra = arena.view(step)
        copy = data.copy()
    copy.flags.writeable = False
    return copy, extra


def _report(path: Path, session: Session, journal: Journal) -> None:
    arrays: dict[str, Any] = {}
    entries = []
    for index, flat in enumerate(session.flats):
        for entry in flat.layout_entries():
            if entry["field"] != "master":
                continue
            entries.append(entry)
            start = entry["offset"] // flat.state.element_size()
            where = slice(start, start + entry["flat_stop"] - entry["flat_start"])
            arrays[piece_key("param", entry)] = flat.master.cpu().numpy()[where]
            if journal.grads:
                arrays[piece_key("grad", entry)] = journal.grads[index][where]
    np.savez(path, layout=json.dumps(entries), **arrays)
