"""Weights & Biases, offline: files that ``wandb sync`` uploads whenever there is a network.

The run keeps its id over restarts and resumes. W&B never forgets a row: steps that a recovery
rewound are there twice, with another ``run/generation``, and ``run/rewound_to`` marks the place.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import wandb
from headway.common.errors import HeadwayError
from headway.console.sinks.items import Item, Rewind, Scalars, Settings, Text

PROJECT = "headway"
IN_USE_S = 10.0
"""How long an earlier session of the run may take to end."""


class WandbOffline:
    """A ``Sink``; ``state`` holds ``rows`` and ``sessions``: row count and finished folders.

    wandb keeps rows in memory until the end of a session, so what a killed exporter had written is
    removed and written again. Rows are numbered over all sessions.
    """

    commits_at_end = True

    def __init__(self, out: Path, *, run_id: str, name: str, state: Mapping[str, Any]) -> None:
        self._rows = int(state.get("rows", 0))
        self._sessions = [str(session) for session in state.get("sessions", ())]
        folders = list(out.glob(f"wandb/offline-run-*-{run_id}"))
        for folder in folders:
            if folder.name not in self._sessions:
                shutil.rmtree(folder)
        wait_for_a_free_name(run_id, {folder.name for folder in folders})
        # wandb's own process inherits the environment, and must not pass for the exporter
        os.environ.pop("HEADWAY_ROLE", None)
        # one process of wandb per exporter: a shared one keeps the runs of a client that was killed
        os.environ.pop("WANDB_SERVICE", None)
        self._run = _session(out, run_id, name)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def write(self, items: list[Item]) -> None:
        """Hand the items to wandb's own process."""
        for item in items:
            match item:
                case Scalars():
                    self._log({"step": item.step, **item.values})
                case Text():
                    self._log({"step": item.step, item.tag: item.text})
                case Settings():
                    self._run.config.update(dict(item.values), allow_val_change=True)
                case Rewind():
                    self._log({"step": item.step, "run/rewound_to": item.step - 1})

    def _log(self, row: dict[str, Any]) -> None:
        self._run.log(row, step=self._rows, commit=True)
        self._rows += 1

    def commit(self) -> dict[str, Any]:
        """How many rows wandb has in the folders of all sessions so far."""
        session = Path(self._run.dir).parent.name
        return {"rows": self._rows, "sessions": [*self._sessions, session]}

    def close(self) -> None:
        """Let wandb finish its files."""
        self._run.finish()


def wait_for_a_free_name(run_id: str, taken: Collection[str]) -> None:
    """wandb names the folder of a session after the second, and would overwrite an earlier one.

    ``taken`` holds the names of removed folders, too: wandb's own process may outlive a killed
    exporter by a moment, and still write to the folder that it was given.
    """
    while f"offline-run-{time.strftime('%Y%m%d_%H%M%S')}-{run_id}" in taken:
        time.sleep(0.05)


def _session(out: Path, run_id: str, name: str) -> Any:
    """Begin to write; what a killed exporter has left with wandb's own process ends first."""
    deadline = time.monotonic() + IN_USE_S
    while True:
        try:
            return _init(out, run_id, name)
        except Exception as error:  # wandb raises plain ones, too
            if "in use" not in str(error) or time.monotonic() > deadline:
                raise HeadwayError(
                    f"wandb could not start a run: {error}",
                    remedy=f"see {out}/wandb/debug.log, or use the sink tensorboard",
                ) from error
        time.sleep(0.5)


def _init(out: Path, run_id: str, name: str) -> Any:
    return wandb.init(
        project=PROJECT,
        dir=str(out),
        id=run_id,
        name=name,
        resume="allow",
        mode="offline",
        settings=wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
        ),
    )
