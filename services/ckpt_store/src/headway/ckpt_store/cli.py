"""``headway ckpt``: list, show, verify and remove checkpoints. ``--json`` on every command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from headway.common.cli import AsJson, group
from headway.common.help_pages import page
from headway.common.output import Table, emit, mebibytes

if TYPE_CHECKING:
    from headway.ckpt_store.folder import CheckpointInfo

app = group("List, show, verify and remove durable checkpoints.", name="ckpt")

PATH = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        show_default=False,
        help="A folder of checkpoints, or of a run; with `headway ckpt` also a run's name. The "
        "working folder by default.",
    ),
]
STEP = Annotated[int | None, typer.Option(help="The checkpoint of this step; newest by default.")]
FACTS = "path, step, generation, run_id, world_size, total_bytes, kept"


@page(
    app,
    "ls",
    examples=("{command} runs/tiny",),
    json="list: step, generation, status, ranks, world_size, bytes, kept",
)
def list_checkpoints(path: PATH = Path(), as_json: AsJson = False) -> None:
    """List complete checkpoints and unfinished attempts, oldest first."""
    from headway.ckpt_store.folder import is_superseded, look

    folder = _folder(path)
    view = look(folder)
    infos = _readable(folder)
    rows: list[dict[str, Any]] = []
    for attempt in view.attempts:
        info = infos.get(attempt.key)
        status = "unfinished"
        if is_superseded(*attempt.key, view.marks):
            status = "superseded"
        elif attempt.is_complete and info is not None:
            status = "damaged" if attempt.is_damaged else "complete"
        elif attempt.is_complete:
            status = "unreadable"
        rows.append(
            {
                "step": attempt.step,
                "generation": attempt.generation,
                "status": status,
                "ranks": len(attempt.ranks),
                "world_size": info.world_size if info else attempt.world_size,
                "bytes": info.total_bytes if info else None,
                "kept": attempt.is_marked,
            }
        )
    cells = [
        (
            "step",
            row["step"],
            f"g{row['generation']}",
            row["status"],
            f"{row['ranks']}/{row['world_size'] or '?'} ranks",
            mebibytes(row["bytes"]),
            "kept" if row["kept"] else "",
        )
        for row in rows
    ]
    emit(rows, as_json, [Table(cells) if rows else f"{folder} has no checkpoint yet"])


@page(
    app,
    examples=("{command} runs/tiny", "{command} runs/tiny --step 100 --rank 2"),
    json=f"one object: {FACTS}, rank, file_bytes, data_start, extra_bytes, tensors",
)
def show(
    path: PATH = Path(),
    step: STEP = None,
    rank: Annotated[int, typer.Option(help="The rank whose tensors are listed; 0 by default.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show one checkpoint, and the tensors of one rank."""
    from headway.ckpt_store.folder import find
    from headway.ckpt_store.verify import read_part

    info = find(_folder(path), step)
    part = read_part(info, rank)
    tensors = part.layout.get("tensors", [])
    facts = {
        **_facts(info),
        "rank": rank,
        "file_bytes": part.file_bytes,
        "data_start": part.data_start,
        "extra_bytes": len(part.extra),
        "tensors": tensors,
    }
    lines = [f"{name:<12} {value}" for name, value in facts.items() if name != "tensors"]
    for tensor in tensors:
        field = f"|{tensor['field']}" if tensor.get("field") else ""
        shape = tensor.get("global_shape", "")
        lines.append(f"  {tensor['name']}{field}  {tensor['dtype']} {shape}")
    emit(facts, as_json, lines)


@page(
    app,
    "verify",
    examples=("{command} runs/tiny", "{command} runs/tiny --all"),
    json=f"list: {FACTS}, problems",
)
def verify_checkpoints(
    path: PATH = Path(),
    step: STEP = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every complete checkpoint, not only the newest.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read every byte back and compare digests.

    Exits 1 if anything is wrong. A checkpoint that a rank could not read earlier and that is intact
    now counts again.
    """
    from headway.ckpt_store.folder import complete, find, forget_damage
    from headway.ckpt_store.verify import verify

    folder = _folder(path)
    rows, is_sound = [], True
    wanted = complete(folder, with_damaged=True)
    if not every:
        wanted = [find(folder, step)] if step is not None else wanted[:1] or [find(folder)]
    for info in wanted:
        problems = verify(info)
        is_sound = is_sound and not problems
        if not problems:
            forget_damage(info)
        rows.append({**_facts(info), "problems": [problem.message for problem in problems]})
    lines = []
    for row in rows:
        verdict = "sound" if not row["problems"] else "CORRUPT"
        size = mebibytes(row["total_bytes"])
        lines.append(f"step {row['step']}  g{row['generation']}  {size}  {verdict}")
        lines += [f"  {problem}" for problem in row["problems"]]
    emit(rows, as_json, lines)
    if not is_sound:
        raise typer.Exit(1)


@page(
    app,
    "gc",
    examples=("{command} runs/tiny --keep 2 --dry-run", "{command} runs/tiny --keep 2"),
    json="one object: removed, dry_run",
)
def clear_up(
    path: PATH = Path(),
    keep: Annotated[
        int, typer.Option(min=1, help="Number of complete checkpoints to keep; 3 by default.")
    ] = 3,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be removed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old checkpoints, after verifying the newest.

    Pinned ones are kept.
    """
    from headway.ckpt_store.client import apply_retention
    from headway.ckpt_store.folder import look
    from headway.ckpt_store.manifest import step_dir_name
    from headway.ckpt_store.retention import removable

    folder = _folder(path)
    if dry_run:
        names = [step_dir_name(*key) for key in removable(look(folder), keep)]
    else:
        names = [removed.name for removed in apply_retention(folder, keep, deep=True)]
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {name}" for name in names]
    emit({"removed": names, "dry_run": dry_run}, as_json, lines or ["nothing to remove"])


def _readable(folder: Path) -> dict[tuple[int, int], CheckpointInfo]:
    from headway.ckpt_store.folder import complete
    from headway.common.errors import CorruptError

    try:
        return {(info.step, info.generation): info for info in complete(folder, with_damaged=True)}
    except CorruptError:  # they are listed as unreadable below
        return {}


def _folder(path: Path) -> Path:
    from headway.common.errors import InputError

    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if not folder.is_dir():
        raise InputError(
            f"{path} is not a folder",
            remedy="give a run folder or its checkpoints folder",
        )
    return folder


def _facts(info: CheckpointInfo) -> dict[str, Any]:
    return {
        "path": str(info.path),
        "step": info.step,
        "generation": info.generation,
        "run_id": info.run_id,
        "world_size": info.world_size,
        "total_bytes": info.total_bytes,
        "kept": info.is_marked,
    }
