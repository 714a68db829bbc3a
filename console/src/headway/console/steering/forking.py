"""A new run that begins at another run's checkpoint, with changed settings."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headway.ckpt_store.client import CheckpointInfo, complete
from headway.common.config import load
from headway.common.errors import InputError
from headway.common.node.run_dir import RunDir, new_run_id
from headway.console.folder.claim import check_name, check_resumable, keep_config
from headway.console.folder.older_version import implied
from headway.console.folder.records import RunRecords
from headway.console.hints import refuse_elsewhere
from headway.controller.client import inherit
from headway.trainer.config import RunConfig


def checkpoint_of(checkpoints: Path, step: int | None) -> CheckpointInfo:
    """The complete checkpoint of ``step``, or the newest.

    Raises:
        InputError: there is none; the available steps are listed.
    """
    found = complete(checkpoints)
    for info in found:
        if step in (None, info.step):
            return info
    if not found:
        raise InputError(
            f"{checkpoints} holds no complete checkpoint",
            remedy="write one with `headway checkpoint --wait`",
        )
    steps = ", ".join(str(info.step) for info in reversed(found))
    raise InputError(
        f"run {checkpoints.parent.name} has no checkpoint of step {step}",
        remedy=f"available steps: {steps}",
    )


def fork(parent: RunRecords, name: str, *, step: int | None, changes: Sequence[str]) -> Path:
    """Make run ``name`` beside ``parent`` and return its folder; see ``Steering.fork``."""
    check_name(name)
    refuse_elsewhere(parent.path)
    own = parent.folder.config
    config = load(RunConfig, [own], [*implied(own), *changes])
    check_resumable(parent, config)
    info = checkpoint_of(parent.folder.checkpoints, step)
    path = parent.path.parent / name
    if path.exists():
        raise InputError(f"there is a run {name!r} already", remedy="choose another name")
    # built aside and renamed: what is killed half-way is not taken for a run
    with tempfile.TemporaryDirectory(prefix=".fork-", dir=path.parent) as aside:
        run = RunRecords(RunDir.create(Path(aside) / name, run_id=new_run_id()).path)
        _copy(info.path, run.folder.checkpoints / info.path.name)
        inherit(run.folder.database, parent.folder.database, info)
        keep_config(run, config)
        run.note(forked_from={"run": parent.name, "step": info.step})
        try:
            run.path.rename(path)
        except OSError as error:
            raise InputError(
                f"{path} was made by another command meanwhile", remedy="choose another name"
            ) from error
    return path


def _copy(source: Path, target: Path) -> None:
    """The checkpoint's files, linked where the file system allows it: no bytes are copied."""
    target.mkdir(parents=True)
    try:
        for entry in sorted(source.iterdir()):
            try:
                os.link(entry, target / entry.name)
            except FileNotFoundError:
                raise
            except OSError:
                shutil.copy2(entry, target / entry.name)
    except FileNotFoundError:
        raise InputError(
            f"{source} was removed meanwhile, as newer checkpoints were written",
            remedy="fork again, from a newer step",
        ) from None
