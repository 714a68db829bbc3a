"""Each notebook, run from top to bottom without a browser, on a run that takes seconds."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import polars as pl
import pytest
from headway.common.config import load, to_toml
from headway.common.node.janitor import end_run, processes_of
from headway.console import Cluster, Run
from headway.console.machine.preflight import prepare_corpus
from headway.testkit.journal import query
from headway.trainer.config import RunConfig

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "tiny.toml"
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
SMALL = [
    "model.layers=2", "model.hidden=64", "model.heads=2", "model.seq_len=64",
    "launch.nodes=1", "launch.ranks_per_node=4", "launch.spares=0",
    "train.steps=4000", "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=8",
    "ckpt.durable_every=500",
]  # fmt: skip
MAX_CODE_LINES = 30
CELL_LIMIT_S = 240
OUTER_LIMIT_S = 540
"""A killed kernel can keep the runner waiting for ever."""
RUNNER = """
import sys
sys.modules["rfc3987_syntax"] = None  # see conftest.py of the repository
from nbclient.cli import main
main()
"""


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_thin_valid_and_stripped(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert len(notebook.cells) <= 9
    assert "widgets" not in notebook.metadata
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert not any(word in cell.source for word in ("/home/", "/root/", "/work/"))
        assert "def " not in cell.source, "logic belongs into the console, where it is tested"
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    lines = [line for source in code for line in source.splitlines() if line.split("#")[0].strip()]
    assert len(lines) <= MAX_CODE_LINES
    for word in ("environ", "chdir", "import os", "sys.path"):
        assert not any(word in source for source in code), f"{word}: the notebook needs no tricks"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the notebook's runs; what is still running of them ends with the test."""
    folder = tmp_path / "runs"
    # a peak measured under tests is no peak
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    yield folder
    for run in Cluster(folder).runs():
        end_run(run.folder.run_id)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's configuration, so small that it takes seconds; its corpus is there."""
    monkeypatch.chdir(REPOSITORY)  # where the default corpus is
    prepare_corpus(load(RunConfig, [EXAMPLE], SMALL), lambda _line: None)
    corpus = f"data.path={REPOSITORY / 'data' / 'stdlib'}"
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(load(RunConfig, [EXAMPLE], [*SMALL, corpus])))
    return file


def with_paths(name: str, folder: Path, *, runs: Path, config: Path | None = None) -> Path:
    """A copy of a notebook that names other files; each must be in its code, at least once."""
    files = {"../runs": runs} | ({"../examples/tiny.toml": config} if config else {})
    text = (REPOSITORY / "notebooks" / name).read_text()
    for old, file in files.items():
        assert f'\\"{old}\\"' in text, old
        text = text.replace(f'\\"{old}\\"', f'\\"{file}\\"')
    out = folder / name
    out.write_text(text)
    return out


def execute(path: Path, out: Path) -> Any:
    """Run all cells, in processes of their own; returns the notebook with its outputs."""
    command = [sys.executable, "-c", RUNNER, str(path)]
    options = [f"--output={out}", f"--timeout={CELL_LIMIT_S}", "--KernelManager.transport=ipc"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=False, timeout=OUTER_LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return nbformat.read(out, as_version=4)


def outputs_of(notebook: Any) -> list[Any]:
    """All outputs of all cells."""
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def text_of(notebook: Any) -> str:
    """All that the cells printed or showed, as text."""
    outputs = outputs_of(notebook)
    return "\n".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)


def html_of(notebook: Any) -> str:
    """All that the cells showed as HTML."""
    return "\n".join(o.get("data", {}).get("text/html", "") for o in outputs_of(notebook))


@pytest.fixture
def trained(runs: Path, small: Path) -> Run:
    """A real run of a few steps, with an evaluation in the middle, that has ended."""
    steps = ["train.steps=12", "train.eval_every=6", "ckpt.durable_every=6"]
    run = Cluster(runs).launch(small, steps, name="trained")
    assert run.wait(timeout_s=240) == "finished"
    return run


@pytest.mark.timeout(600)
def test_the_notebooks_about_data_performance_and_diagnosis_show_a_run(
    trained: Run, small: Path, tmp_path: Path
) -> None:
    """All on one run, as each run costs seconds."""
    folder = trained.path.parent
    data = execute(
        with_paths("02_data.ipynb", tmp_path, config=small, runs=folder), tmp_path / "02-done.ipynb"
    )
    text = text_of(data)
    for part in (
        "Sources of train: stdlib",
        "Length of train documents",
        "Step 12, rank 0 (replica 0",
        "rank 1 (replica 1",
        ", its end",
        "Most frequent tokens",
        "frequencies of the training tokens",
        "validation after 12 steps",
        "Data of run trained: time per step",
    ):
        assert part in text, part
    orders = trained.data().same_order(step=12).frame
    assert orders["is_same"].all() and orders["replicas"].to_list() == [2, 2, 1, 4, 8]
    assert trained.data().waits().frame["num_steps"].to_list() == [12] * 4
    _looks_tidy(data)

    copy = with_paths("03_performance.ipynb", tmp_path, runs=folder)
    performance = execute(copy, tmp_path / "03-done.ipynb")
    text = text_of(performance)
    for part in (
        "12 of 12 completed steps",
        "The shares add up to 100.0 %",
        "(p-1)/m: Megatron-LM",
        "gradients (reduce-scatter)",
        "Rank by action, ms per step",
        "Slowest steps",
        "first step of a start",
    ):
        assert part in text, part
    assert html_of(performance).count("<svg") == 2
    _looks_tidy(performance)
    _adds_up(trained)

    copy = with_paths("04_diagnosis.ipynb", tmp_path, runs=folder)
    diagnosis = execute(copy, tmp_path / "04-done.ipynb")
    text = text_of(diagnosis)
    for part in (
        "nothing is wrong now",
        "forward and backward: ",
        " among 4 ranks",
        "of the pp group of rank ",
        "Grid: tp 1 x pp 2 x dp 2",
    ):
        assert part in text, part
    assert html_of(diagnosis).count("<iframe") == 3
    _looks_tidy(diagnosis)


def test_the_notebook_about_data_needs_no_run(small: Path, tmp_path: Path) -> None:
    copy = with_paths("02_data.ipynb", tmp_path, config=small, runs=tmp_path / "none")
    text = text_of(execute(copy, tmp_path / "done.ipynb"))
    assert "Most frequent tokens" in text and "Data of run" not in text


@pytest.mark.timeout(600)
def test_the_notebook_about_ablation_measures_a_ladder(tmp_path: Path) -> None:
    file = tmp_path / "ablate.toml"
    settings = (
        "model.hidden=64", "model.heads=2", "model.seq_len=64", "model.vocab_size=512",
        "parallel.dp=1", "launch.ranks_per_node=4",
    )  # fmt: skip
    file.write_text(to_toml(load(RunConfig, [REPOSITORY / "examples" / "ablate.toml"], settings)))
    copy = tmp_path / "05_ablation.ipynb"
    text = (REPOSITORY / "notebooks" / copy.name).read_text()
    changes = {
        "../examples/ablate.toml": str(file),
        r"[\"tp\", \"pp\", \"dp\", \"lamb\"]": r"[\"pp\", \"dp\"]",
        "rounds=3": "rounds=2, steps=4",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    copy.write_text(text)
    notebook = execute(copy, tmp_path / "done.ipynb")
    text = text_of(notebook)
    reason = "left out: dp (parallel.dp is 1)"
    for part in (reason, "STAND-IN", "gain on top", "pipeline overlap"):
        assert part in text, part
    assert html_of(notebook).count("<svg") == 1
    _looks_tidy(notebook)


def _adds_up(run: Run) -> None:
    """Nothing is lost or counted twice, and the records are those of the schedule."""
    found = run.performance()
    shares = found.lost_time().frame
    assert shares["share"].sum() == pytest.approx(1.0, abs=1e-9)
    assert shares["share"].min() >= 0, "without a peak nothing is subtracted"
    last = pl.col("end_ns").filter(~pl.col("broken")).max()
    steps = run.events().filter(pl.col("action") == "STEP")
    spans = steps.group_by("rank").agg((last - pl.col("start_ns").min()) * 1e-9)
    totals = found.ledger.group_by("rank").agg(pl.col("total").sum())
    both = dict(spans.rows()), dict(totals.rows())
    assert both[0] == pytest.approx(both[1])
    passes = found.actions().frame.filter(pl.col("label").is_in(["forward", "backward"]))
    assert passes["num_per_step"].to_list() == [4.0] * 4, "two stages, without evaluations"
    theory, replayed, measured = found.bubble().frame["bubble"]
    assert theory == pytest.approx(1 / 4) and min(replayed, measured) > 0
    assert found.communication().frame["hidden"].is_between(0, 1).all()


def _looks_tidy(notebook: Any) -> None:
    """Every table has a HTML form; no figure has float noise; no colour breaks a dark theme."""
    html = html_of(notebook)
    assert not re.search(r"\d\.\d{6,}|\de-\d\d", re.sub(r"<[^>]+>", " ", html))
    assert "background:#" not in html and "color:black" not in html
    shown = [o for o in outputs_of(notebook) if o.get("output_type") != "stream"]
    assert all("text/html" in o["data"] for o in shown)


@pytest.mark.timeout(600)
def test_launch_and_steer_recovers_from_three_faults_and_trains_to_the_end(
    runs: Path, small: Path, tmp_path: Path
) -> None:
    small.write_text(small.read_text().replace("steps = 4000", "steps = 250"))
    copy = with_paths("01_launch_and_steer.ipynb", tmp_path, config=small, runs=runs)
    notebook = execute(copy, tmp_path / "done.ipynb")
    text = text_of(notebook)
    assert "RunConsole" in text, "the live console is shown"
    assert "3: 'replaced'" in text and "0: 'replaced'" in text and text.count("same process") == 2
    assert "recovery " in text and "finished after step 250/250" in text
    (run,) = Cluster(runs).runs()
    assert run.name == "notebook" and run.outcome == "finished"
    assert run.recoveries().height == 2
    # a busy machine may replace a driver that it has kept from renewing its lease, too
    assert run.journal()["name"].to_list().count("adopted") >= 1
    assert "checkpoint       step" in text
    rates = query(run, "SELECT lr FROM metrics ORDER BY generation, step")
    assert rates[-1] == (5e-4,)
    assert processes_of(run.folder.run_id) == []
    assert (run.path / "trace.json.gz").exists()
    assert notebook.cells[-1].outputs, "the runs are compared after the end"
