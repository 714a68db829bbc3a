"""What a launch refuses before any process starts, and how it names runs."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from headway.common.config import load, to_toml
from headway.common.errors import InputError
from headway.common.node.run_dir import RunDir, new_run_id
from headway.console.cluster import Cluster
from headway.console.folder import config_origins
from headway.console.lifecycle import launch as launch_module
from headway.console.machine import preflight
from headway.console.run import Run
from headway.console.testing import SMALL, FakeRun
from headway.controller.journal.journal import Journal
from headway.dataloader import DataConfig
from headway.dataloader.prepare import prepare
from headway.trainer.config import RunConfig

Launch = Callable[..., Run]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for number in range(30):
        (folder / f"f{number}.py").write_text(f"value_{number} = {number}\n" * 40)
    config = DataConfig(str(folder / "data"), str(folder), vocab_size=300, validation_fraction=0.3)
    prepare(config, say=print)
    return folder / "data"


@pytest.fixture
def config(corpus: Path) -> RunConfig:
    return dataclasses.replace(SMALL, data=dataclasses.replace(SMALL.data, path=str(corpus)))


@pytest.fixture
def launch(own_roots: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Everything of a launch but the nodes."""
    monkeypatch.setattr(launch_module, "start", lambda *_: None)
    return Cluster(own_roots / "runs").launch


def end(run: Run, outcome: str) -> None:
    journal = Journal(run.folder.database)
    journal.set_facts(outcome=outcome)
    journal.close()


def test_an_unfinished_run_is_resumed_and_a_finished_one_gets_the_next_number(
    launch: Launch, config: RunConfig
) -> None:
    lines: list[str] = []
    first = launch(config, base="tiny", report=lines.append)
    assert first.name == "tiny" and "starting run tiny" in lines
    assert launch(config, base="tiny", report=lines.append).path == first.path
    assert "resuming run tiny" in lines
    end(first, "finished")
    second = launch(config, base="tiny")
    end(second, "stopped")
    assert launch(config, base="tiny").name == second.name == "tiny-2"
    end(second, "finished")
    assert launch(config, base="tiny").name == "tiny-3"
    assert launch(config, base="tin").name == "tin", "a longer name is another base"


def test_a_name_that_is_taken_or_no_folder_name_is_refused(
    launch: Launch, config: RunConfig
) -> None:
    run = launch(config, name="mine")
    assert launch(config, name="mine").path == run.path
    end(run, "finished")
    with pytest.raises(InputError, match="'mine' is taken"):
        launch(config, name="mine")
    for name in ("../mine", "", ".hidden", "a b"):
        with pytest.raises(InputError, match="folder's name"):
            launch(config, name=name)


def test_a_live_run_is_not_started_twice(fake: FakeRun, launch: Launch, config: RunConfig) -> None:
    with pytest.raises(InputError, match="fake is live"):
        launch(config, name=fake.folder.name)


def test_a_resumed_run_may_get_longer_but_not_another_shape(
    launch: Launch, config: RunConfig
) -> None:
    launch(config, name="mine")
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=99))
    assert launch(longer, name="mine").config.train.steps == 99
    size = config.train.micro_batch_size
    other = dataclasses.replace(
        config, train=dataclasses.replace(config.train, micro_batch_size=2 * size)
    )
    launch(other, name="mine")  # as the message of a run that is out of memory advises
    wider = dataclasses.replace(config, model=dataclasses.replace(config.model, hidden=64))
    with pytest.raises(InputError, match=r"mine is unfinished and has model\.hidden=32, not 64"):
        launch(wider, name="mine")
    assert Run(launch(longer, name="mine").path).config.model.hidden == 32


def test_a_resumed_run_keeps_the_ranks_of_its_chunks(launch: Launch, config: RunConfig) -> None:
    """Interleaved and zb-v have the same numbers of ranks and chunks, and place them otherwise."""

    def under(schedule: Literal["interleaved", "zb-v"]) -> RunConfig:
        parallel = dataclasses.replace(config.parallel, schedule=schedule, tp=1, pp=2, dp=1, vp=2)
        ranks = dataclasses.replace(config.launch, nodes=1, ranks_per_node=2)
        model = dataclasses.replace(config.model, layers=4)
        return dataclasses.replace(config, parallel=parallel, launch=ranks, model=model)

    launch(under("interleaved"), name="mine")
    with pytest.raises(InputError, match=r"parallel\.schedule='interleaved', not 'zb-v'"):
        launch(under("zb-v"), name="mine")


def test_a_model_may_be_written_in_another_way_when_its_run_resumes(
    launch: Launch, config: RunConfig
) -> None:
    def named(preset: Literal["llama", "mistral", "qwen3"]) -> RunConfig:
        return dataclasses.replace(config, model=dataclasses.replace(config.model, preset=preset))

    launch(named("mistral"), name="mine")
    assert launch(named("llama"), name="mine").config.model.preset == "llama"
    with pytest.raises(InputError, match=r"mine is unfinished and has model\.norm_eps=1e-05"):
        launch(named("qwen3"), name="mine")


def test_the_resolved_configuration_stands_in_the_run_folder(
    launch: Launch, config: RunConfig
) -> None:
    run = launch(config, base="tiny")
    assert load(RunConfig, [run.folder.config]) == config
    assert run.config == config


def test_a_given_corpus_must_be_there(launch: Launch, config: RunConfig, own_roots: Path) -> None:
    absent = dataclasses.replace(
        config, data=dataclasses.replace(config.data, path=str(own_roots / "no"))
    )
    with pytest.raises(
        InputError, match=r"no prepared data at .*no; run `headway data prepare --out"
    ):
        launch(absent)
    missing = dataclasses.replace(
        absent, data=dataclasses.replace(absent.data, source=str(own_roots / "txt"))
    )
    with pytest.raises(InputError, match="txt"):
        launch(missing)
    assert not list((own_roots / "runs").glob("*")), "nothing was begun"


def test_a_corpus_of_another_source_is_refused(
    launch: Launch,
    config: RunConfig,
    corpus: Path,
    own_roots: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(source: str) -> RunConfig:
        return dataclasses.replace(config, data=dataclasses.replace(config.data, source=source))

    refusal = r"was prepared from '.*' \(corpus [0-9a-f]{16}\), but data\.source is '/nope/corpus'"
    with pytest.raises(InputError, match=refusal):
        launch(asked("/nope/corpus"), base="tiny")
    assert not list((own_roots / "runs").glob("*")), "nothing was begun"
    monkeypatch.setattr(
        preflight.subprocess, "run", lambda *_, **__: pytest.fail("the corpus is read again")
    )
    launch(asked(str(corpus.parent)), base="tiny")
    monkeypatch.chdir(corpus.parent)
    launch(asked("."), base="tiny")


def test_the_default_folder_with_another_corpus_is_refused(
    launch: Launch, config: RunConfig, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(corpus, tmp_path / "data" / "stdlib")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"but data\.source is 'stdlib'"):
        launch(dataclasses.replace(config, data=DataConfig()))


@pytest.mark.parametrize("failure", [InputError("node 0 carries run other"), KeyboardInterrupt()])
def test_a_new_run_whose_start_fails_leaves_no_folder_and_a_resumed_one_keeps_its_own(
    failure: BaseException,
    launch: Launch,
    config: RunConfig,
    own_roots: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise failure

    kept = launch(config, name="kept")
    monkeypatch.setattr(launch_module, "start", fail)
    for name in ("new", "kept"):
        with pytest.raises(type(failure)):
            launch(config, name=name)
    assert [path.name for path in (own_roots / "runs").iterdir()] == ["kept"]
    assert kept.config == config


def test_the_second_of_two_starts_of_one_name_is_told_so(
    launch: Launch, config: RunConfig, own_roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    def start_again(*_: object) -> None:
        with pytest.raises(
            InputError, match="run tiny is being started by another command; watch it"
        ):
            launch(config, base="tiny", report=lines.append)

    monkeypatch.setattr(launch_module, "start", start_again)
    assert launch(config, base="tiny").path == own_roots / "runs" / "tiny"
    assert not any("resuming" in line for line in lines)


def test_a_folder_with_other_things_is_neither_used_nor_removed(
    launch: Launch, config: RunConfig, own_roots: Path
) -> None:
    (own_roots / "runs" / "notes").mkdir(parents=True)
    (own_roots / "runs" / "notes" / "mine.txt").write_text("")
    with pytest.raises(InputError, match="notes already exists and is not a run folder"):
        launch(config, name="notes")
    assert (own_roots / "runs" / "notes" / "mine.txt").exists()


def test_a_truncated_corpus_is_found_before_the_run(
    launch: Launch, config: RunConfig, corpus: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(corpus, tmp_path / "damaged")
    with (damaged / "train.bin").open("r+b") as file:
        file.truncate(100)
    broken = dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(damaged)))
    with pytest.raises(InputError, match=r"train\.bin"):
        launch(broken)


def test_a_corpus_with_more_tokens_than_the_model_is_refused(
    launch: Launch, config: RunConfig
) -> None:
    small = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=256))
    with pytest.raises(InputError, match=r"model\.vocab_size=256; set model\.vocab_size="):
        launch(small)


@pytest.mark.parametrize(("path", "what"), [("runs", "runs"), ("/dev/shm", "/dev/shm")])
def test_a_full_disk_or_memory_is_told_before_the_run(
    path: str, what: str, launch: Launch, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(asked: Path) -> object:
        free = 10 << 20 if str(asked).endswith(path) else 1 << 40
        return type("Usage", (), {"free": free})

    monkeypatch.setattr(preflight.shutil, "disk_usage", usage)
    with pytest.raises(InputError, match=f"{what} has 10 MiB free"):
        launch(config)


def test_a_folder_cluster_that_is_too_small_is_refused(
    launch: Launch, config: RunConfig, own_roots: Path
) -> None:
    from headway.launch.cluster import ClusterFolder

    del launch
    ClusterFolder.create(own_roots / "cluster", nodes=1)
    bigger = dataclasses.replace(config, launch=dataclasses.replace(config.launch, spares=1))
    with pytest.raises(InputError, match=r"needs 2 nodes, .* has 1"):
        Cluster(own_roots / "runs", folder=own_roots / "cluster").launch(bigger)


def test_runs_are_listed_in_order_and_the_newest_is_the_default(own_roots: Path) -> None:
    cluster = Cluster(own_roots / "runs")
    with pytest.raises(InputError, match="no run in"):
        cluster.run()
    for name in ("b", "a"):
        folder = RunDir.create(own_roots / "runs" / name, run_id=new_run_id())
        folder.config.write_text(to_toml(SMALL))
    assert {run.name for run in cluster.runs()} == {"a", "b"}
    assert repr(cluster.run("a")) == "Run('a', not started)"
    for name, remedy in (("c", "the newest is [ab]"), ("aa", "did you mean a?")):
        with pytest.raises(InputError, match=rf"holds no run '{name}'; .*{remedy}"):
            cluster.run(name)


def test_a_launch_from_a_file_remembers_where_each_setting_comes_from(
    launch: Launch, config: RunConfig, tmp_path: Path
) -> None:
    file = tmp_path / "my model.toml"
    file.write_text(to_toml(config))
    run = launch(file, ["train.steps=7"])
    assert run.name == "my-model"
    origins = config_origins.of_run(run)
    assert origins["train.steps"] == "command line"
    assert origins["data.path"] == str(file)
