"""Notebook 01 in JupyterLab and Chromium, with a run that takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from headway.common.config import load, to_toml
from headway.common.node.janitor import end_run
from headway.console import Cluster
from headway.testkit.browser import (
    ConsolePage,
    Lab,
    NotebookPage,
    Theme,
    Watch,
    missing,
    open_browser,
)
from headway.trainer.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "01_launch_and_steer.ipynb"
LAUNCH = 1
"""The cell that launches the run and shows the console."""
SMALL = (
    "model.layers=2", "model.hidden=32", "model.heads=2", "model.seq_len=32",
    "model.vocab_size=512", "parallel.pp=1", "parallel.dp=2", "launch.nodes=1",
    "launch.ranks_per_node=2", "launch.spares=0", "launch.standbys=1", "train.global_batch_size=4",
    "train.dtype=fp32", "train.steps=100000", "train.eval_batches=1", "train.eval_every=0",
    "train.sample_tokens=0", "ckpt.durable_every=5000",
)  # fmt: skip
"""Two ranks, no pipeline: the processor is the browser's."""


@dataclass(frozen=True)
class Stage:
    """All that a test needs."""

    machine: Any
    """tests.conftest.Machine: where the run's processes are."""
    folder: Path
    """Where the notebook is; a checkout's ``notebooks`` would be such a folder."""
    notebook: NotebookPage
    console: ConsolePage
    watch: Watch


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest, make_machine: Callable[[], Any], corpus: Path
) -> Iterator[Stage]:
    """The notebook is open in the light theme, its launch cell has run, and the console shows the
    first steps."""
    if reason := missing():
        pytest.skip(reason)
    machine = make_machine()
    folder, own = machine.folder / "checkout" / "notebooks", machine.folder / "lab"
    folder.mkdir(parents=True)
    own.mkdir()
    config = load(RunConfig, [ROOT / "examples/tiny.toml"], [*SMALL, f"data.path={corpus}"])
    (folder.parent / "examples").mkdir()
    (folder.parent / "examples" / "tiny.toml").write_text(to_toml(config))
    text = NOTEBOOK.read_text()
    assert "run.wait(" in text  # this run has many steps left
    (folder / "01.ipynb").write_text(text.replace("run.wait(", "run.stop(); run.wait("))
    watch = Watch()
    with Lab(own, folder, Theme.LIGHT, machine.env) as lab, open_browser(own / "chrome") as page:
        watch.follow(page)
        notebook = NotebookPage(page, lab.url("01.ipynb"))
        notebook.run_cell(LAUNCH)
        console = ConsolePage(page)
        try:
            console.wait("d.step >= 3 && d.points >= 3 && d.bars >= 10", 120)
            yield Stage(machine, folder, notebook, console, watch)
        finally:
            if request.session.testsfailed:
                page.screenshot(path=machine.folder / "page.png")
            for run in Cluster(folder.parent / "runs").runs():
                end_run(run.folder.run_id)


@pytest.fixture(scope="module")
def recovered(stage: Stage) -> Stage:
    """Rank 1 was killed by its button, and the run has recovered."""
    console = stage.console
    console.choose_rank(1)
    console.open_drills()
    console.press("kill rank")
    console.wait("d.bands >= 1 && d.generation >= 1 && d.phase === 'running'")
    console.wait("d.recovering === 'false'")
    return stage


@pytest.fixture(scope="module")
def quiet(recovered: Stage) -> Stage:
    """The run is paused, so that the processor is the browser's; pictures are still taken."""
    recovered.console.press("pause")
    recovered.console.wait("d.paused === 'true'")
    return recovered
