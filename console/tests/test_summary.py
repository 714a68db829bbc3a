"""The end of a run in figures: each from its own source, and absent when there is none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from headway.console.folder.outputs import checkpoints
from headway.console.live.summary import render, summarise
from headway.console.machine.peak import Peak, cache_file, cached_peak, machine_peak
from headway.console.testing import SMALL, STEP_S, TOKENS, FakeRun
from headway.dataloader import DataConfig, Dataset
from headway.dataloader.prepare import prepare
from headway.launch.cluster import ClusterFolder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(30):
        (folder / f"f{number}.py").write_text(
            f"def function_{number}(x):\n    return x + {number}\n" * 20
        )
    config = DataConfig(
        path=str(folder / "data"), source=str(folder), vocab_size=300, validation_fraction=0.3
    )
    prepare(config, say=print)
    return folder / "data"


def with_corpus(corpus: Path) -> object:
    return dataclasses.replace(SMALL, data=dataclasses.replace(SMALL.data, path=str(corpus)))


def test_an_ended_run_whose_last_step_is_not_on_disk_says_so_and_names_the_newest_that_is(
    own_roots: Path,
) -> None:
    fake = FakeRun(own_roots / "runs")
    fake.advance(5)
    fake.finish("stopped")
    summary = summarise(fake.run)

    def told(*steps: int) -> list[str]:
        rows = [{"step": step, "generation": 0, "total_bytes": 1, "path": "p"} for step in steps]
        lines = render(dataclasses.replace(summary, checkpoints=rows))
        return [line for line in lines if "not durable" in line]

    assert "no checkpoint of the last step 5: there is none" in told()[0]
    assert "the newest is of step 4" in told(2, 4)[0]
    assert told(5) == []


def test_a_finished_run_shows_losses_speed_recovery_sample_and_where_things_are(
    own_roots: Path, corpus: Path
) -> None:
    fake = FakeRun(own_roots / "runs", config=with_corpus(corpus))  # type: ignore[arg-type]
    data = Dataset(corpus)
    assert data.meta is not None
    fake.evaluate(9.0)
    fake.advance(5)
    fake.recover(back_to=4)
    fake.evaluate(5.5)
    fake.sample((data.meta.eod_id, *data.tokenizer.encode("\n\ndef function")))
    fake.finish()
    summary = summarise(fake.run, write_trace=True)
    assert (summary.outcome, summary.step, summary.steps) == ("finished", 5, 40)
    assert (summary.validation_before, summary.validation_after) == (9.0, 5.5)
    assert summary.unigram_nats == data.meta.unigram_nats
    assert summary.tokens_per_s == pytest.approx(TOKENS / STEP_S)
    assert summary.mfu is None, "no peak was measured in this cache"
    assert summary.sample == "def function"
    (recovery,) = summary.recoveries
    assert recovery["repeated"] == 1 and recovery["restore_s"] is not None
    assert (
        Path(summary.trace) == fake.folder.path / "trace.json.gz" and Path(summary.trace).exists()
    )
    text = "\n".join(render(summary))
    for part in (
        "finished after step 5/40",
        "9.000 before, 5.500 after",
        "100,000 tokens/s",
        "1 completed steps done again; rank 1 is lost",
        "  def function",
        "ui.perfetto.dev",
    ):
        assert part in text
    json.dumps(dataclasses.asdict(summary))


def test_a_run_without_anything_says_so_and_invents_nothing(
    fake: FakeRun, own_roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_roots)  # no corpus lies here
    summary = summarise(fake.run)
    assert (summary.loss, summary.mfu, summary.validation_before, summary.unigram_nats) == (
        None,
    ) * 4
    assert (summary.checkpoints, summary.recoveries, summary.sample, summary.trace) == (
        [],
        [],
        "",
        "",
    )
    assert "- before, not measured since" in "\n".join(render(summary))


def test_a_run_that_ended_before_its_first_step_says_why_it_has_no_trace(fake: FakeRun) -> None:
    fake.finish("stopped")
    text = "\n".join(render(summarise(fake.run, write_trace=True)))
    assert "trace            not written: run fake has no records of these steps" in text


@pytest.mark.parametrize("steps", [50, 51])
def test_a_trace_of_some_steps_says_which_and_how_to_get_all(fake: FakeRun, steps: int) -> None:
    summary = dataclasses.replace(summarise(fake.run), step=steps, trace="trace.json.gz")
    text = "\n".join(render(summary))
    is_partial = steps > 50
    assert ("the last 50 steps before the end and each recovery" in text) == is_partial
    assert ("`headway trace fake --steps : -o FILE` writes all" in text) == is_partial


def test_a_stopped_run_says_how_to_resume(
    fake: FakeRun, own_roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_roots)
    assert summarise(fake.run).resume == "", "it is live"
    fake.finish("stopped")
    assert (
        render(summarise(fake.run))[-1]
        == "resume           headway run runs/fake/config.toml --name fake"
    )
    monkeypatch.chdir("/")
    record = json.loads(fake.folder.run_json.read_text())
    fake.folder.run_json.write_text(json.dumps({**record, "cluster": str(own_roots / "cluster")}))
    command = summarise(fake.run).resume
    runs = str(own_roots / "runs").lstrip("/")
    assert command.endswith(f"--name fake --runs-dir {runs}"), "that cluster is gone"
    ClusterFolder.create(own_roots / "cluster", nodes=2)
    command = summarise(fake.run).resume
    assert command.endswith(
        f"--name fake --runs-dir {runs} --cluster {str(own_roots / 'cluster').lstrip('/')}"
    )


def test_checkpoints_are_listed_oldest_first(fake: FakeRun) -> None:
    import numpy as np
    from headway.ckpt_store.client import CheckpointClient

    client = CheckpointClient(fake.folder.checkpoints, keep=2)
    for step in (0, 10, 20):
        client.save(step, {"w": np.full(8, step)})
    listed = checkpoints(fake.run)
    assert [row["step"] for row in listed] == [10, 20]
    assert all(Path(row["path"]).is_dir() and row["total_bytes"] >= 64 for row in listed)


def test_the_peak_is_measured_by_torch_and_kept(own_roots: Path) -> None:
    first = machine_peak(least_s=0.02)
    assert first.device == "cpu" and first.flops["fp32"] > 1e8 and first.flops["bf16"] > 1e6
    assert first.waited >= 0.0
    assert cache_file().is_relative_to(own_roots)
    assert cached_peak() == first


def test_figures_taken_on_a_busy_machine_are_taken_again_and_idle_ones_never(
    own_roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del own_roots
    answers = iter([(4e9, 1e9, 0.5), (2e9, 3e9, 0.01)])

    def measure(*_: object, **__: object) -> object:
        bf16, fp32, waited = next(answers)
        text = json.dumps({"flops": {"bf16": bf16, "fp32": fp32}, "waited": waited})
        return type("Done", (), {"stdout": text})

    monkeypatch.setattr("subprocess.run", measure)
    assert not machine_peak().is_idle
    best = machine_peak()
    assert best.is_idle and best.flops == {"bf16": 4e9, "fp32": 3e9}, "the best of both"
    assert machine_peak() == best, "a third measurement would find no answer"


def test_ranks_share_a_processor_but_each_has_its_gpu() -> None:
    flops = {"bf16": 10.0, "fp32": 4.0}
    assert Peak("cpu", "x", 2, flops).of_run("bf16", 4) == 10.0
    assert Peak("gpu", "x", 2, flops).of_run("bf16", 4) == 40.0
    assert Peak("cpu", "x", 2, flops).of_run("fp64", 1) == 4.0
