"""What a run reads: sources, lengths, tokens, the samples of a rank, their order, its waits."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from headway.common.config import to_toml
from headway.common.errors import ConfigError, InputError
from headway.console import TrainingData
from headway.console.analysis.corpus import document_lengths, length_histogram, sources
from headway.console.analysis.sample_order import run_stream, samples_of
from headway.console.testing import SMALL, FakeRun
from headway.dataloader import DataClient, DataConfig, Dataset
from headway.dataloader.prepare import prepare
from headway.trainer.config import LaunchConfig, ParallelConfig, RunConfig, TrainConfig

WORDS = ["ring", "batch", "token", "daemon", "rank", "node", "slot", "step", "loss", "shard"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 documents in two folders and at the top; those in ``long`` have most of the words."""
    root = tmp_path_factory.mktemp("texts")
    for number in range(40):
        folder = root / ("long" if number % 4 == 0 else "short" if number % 4 < 3 else "")
        folder.mkdir(exist_ok=True)
        words = (
            WORDS[(number + 3 * k) % 10] + str(k % 7) for k in range(200 if number % 4 == 0 else 9)
        )
        (folder / f"{number:02}.txt").write_text(" ".join(words))
    return root


@pytest.fixture(scope="module")
def corpus(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, prepared."""
    path = tmp_path_factory.mktemp("data") / "corpus"
    prepare(DataConfig(path=str(path), source=str(texts), vocab_size=300))
    return path


@pytest.fixture
def config(corpus: Path) -> RunConfig:
    """Three stages by two replicas by two tensor-parallel ranks, on that corpus."""
    return RunConfig(
        model=dataclasses.replace(SMALL.model, layers=3),
        parallel=ParallelConfig(pp=3, dp=2, tp=2),
        launch=LaunchConfig(nodes=1, ranks_per_node=12),
        train=TrainConfig(steps=40, global_batch_size=8, micro_batch_size=2),
        data=DataConfig(path=str(corpus)),
    )


def test_sources_are_the_top_of_the_folder_by_their_tokens(config: RunConfig) -> None:
    found = TrainingData(config).sources().frame
    assert found["part"].to_list()[0] == "long/"
    assert set(found["part"]) == {"long/", "short/", "(files at the top)"}
    assert found["share"].sum() == pytest.approx(1.0)
    data = Dataset(config.data.path)
    assert found["tokens"].sum() == data.split("train").num_tokens
    assert found["documents"].sum() == data.split("train").num_sequences


def test_lines_of_a_jsonl_file_are_one_part_and_without_names_all_is_one() -> None:
    lengths = np.array([3, 4, 5])
    found = sources(["a.jsonl#1", "a.jsonl#2", "b.txt"], lengths, "mine")
    assert found.drop("share").rows() == [("a.jsonl", 2, 7), ("(files at the top)", 1, 5)]
    assert found["share"].to_list() == pytest.approx([7 / 12, 5 / 12])
    assert sources(None, lengths, "mine").rows() == [("mine", 3, 12, 1.0)]


def test_lengths_are_counted_by_doubling() -> None:
    found = length_histogram(np.array([1, 2, 3, 4, 7, 16]))
    assert found["from_tokens"].to_list() == [1, 2, 4, 8, 16]
    assert found["documents"].to_list() == [1, 2, 2, 0, 1]
    assert found["share"].sum() == pytest.approx(1) == pytest.approx(found["tokens_share"].sum())
    assert length_histogram(np.array([], np.int64)).is_empty()


def test_splits_and_frequent_tokens_are_those_of_the_files(config: RunConfig) -> None:
    data = TrainingData(config)
    meta = Dataset(config.data.path).meta
    assert meta is not None
    for row in data.splits().frame.to_dicts():
        split = meta.splits[row["split"]]
        assert (row["documents"], row["tokens"]) == (split.documents, split.tokens)
        assert row["bytes_per_token"] == pytest.approx(split.text_bytes / split.tokens)
    tokens = data.dataset.split("train")
    whole = np.concatenate([tokens.sequence(k) for k in range(tokens.num_sequences)])
    counts = np.bincount(whole)
    frequent = data.frequent_tokens(400).frame
    assert frequent["count"].sum() == len(whole)
    assert frequent["cumulative"][-1] == pytest.approx(1.0)
    assert frequent["count"][0] == counts.max() and frequent["id"][0] == counts.argmax()
    (eod,) = frequent.filter(frequent["id"] == meta.eod_id).to_dicts()
    assert eod["text"] == "end of text" and eod["count"] == tokens.num_sequences
    assert document_lengths(data.dataset).sum() == len(whole)


def test_a_rank_reads_what_its_client_gets(config: RunConfig) -> None:
    data, grid = TrainingData(config), config.parallel.grid
    for rank in (0, 2, 11):
        dp_rank = grid.coordinates(rank).dp
        start = 5 * config.train.global_batch_size
        samples = samples_of(config, rank=rank, step=5)
        with DataClient(None, spec=run_stream(config, dp_rank=dp_rank, start=start)) as client:
            batches = [client.next() for _ in range(client.spec.num_micro_batches)]
        assert samples == [b.sample + row for b in batches for row in range(2)]
        rows = [row for batch in batches for row in batch.tokens]
        for number, row in enumerate(rows):
            view = data.sample(rank, step=5, number=number)
            text = "".join(part.text for part in view.parts)
            assert text.startswith(data.dataset.tokenizer.decode(row.tolist())[:-8])
            assert f"sample {samples[number]:,}, number" in view.title
            assert sum(part.num_tokens for part in view.parts) == config.model.seq_len + 1


def test_documents_of_a_sample_are_named_and_their_end_is_marked(config: RunConfig) -> None:
    data = TrainingData(config)
    view = data.sample(rank=2, step=3, with_end=True)
    ends = [part for part in view.parts if part.is_end]
    assert ends and ends[0].document.endswith(".txt") and ", its end" in ends[0].heading
    assert "short/" in repr(data.sample(step=0, with_end=True)) + repr(view)
    html = view._repr_html_()
    assert html.count("<pre") == len(view.parts) and ends[0].document in html
    middle = data.sample(rank=4, step=3)
    assert "read no data themselves" in middle.note and not data.sample(rank=8).note


def test_what_cannot_be_read_is_refused_with_a_remedy(config: RunConfig) -> None:
    data = TrainingData(config)
    with pytest.raises(InputError, match="rank 0 reads 4 samples per step"):
        data.sample(number=4)
    with pytest.raises(InputError, match="step -1 is below 0"):
        data.sample(step=-1)
    with pytest.raises(ConfigError, match="rank 12 is outside"):
        data.sample(rank=12)
    for method in (data.loss_curve, data.waits):
        with pytest.raises(InputError, match="this data has no run"):
            method()


@pytest.mark.parametrize("step", [0, 1, 700])
def test_the_global_batch_is_the_same_after_a_resume_and_on_other_grids(
    config: RunConfig, step: int
) -> None:
    found = TrainingData(config).same_order(step).frame
    assert found["is_same"].all()
    assert found["replicas"].to_list() == [2, 2, 1, 4]
    assert found["tokens"].to_list() == [8 * config.model.seq_len] * 4
    first = step * 8
    assert found["first_samples"][3] == f"{first}, {first + 2}, {first + 4}, {first + 6}"


def test_another_order_would_be_seen(config: RunConfig) -> None:
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, seed=7))
    digests = {TrainingData(c).same_order(9).frame["digest"][0] for c in (config, other)}
    assert len(digests) == 2


def test_position_counts_epochs_and_repetition(config: RunConfig) -> None:
    long = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=4000))
    data = TrainingData(long)
    epoch = (data.dataset.split("train").num_tokens - 1) // config.model.seq_len
    (row,) = data.position().frame.to_dicts()
    assert row["samples"] == 32000 and row["tokens"] == 32000 * config.model.seq_len
    assert row["epochs"] == pytest.approx(32000 / epoch) and row["unread"] == 0
    assert row["repeated"] == 32000 - epoch


def test_with_a_batch_ramp_steps_have_their_own_samples(config: RunConfig) -> None:
    """Micro-batches of 2 on 2 replicas: steps of 4, 4, 8, 8, ... samples."""
    ramp = dataclasses.replace(config.train, batch_ramp=(4, 4, 8))
    ramped = dataclasses.replace(config, train=ramp)
    read = [samples_of(ramped, rank=0, step=step) for step in range(4)]
    assert read == [[0, 1], [4, 5], [8, 9, 12, 13], [16, 17, 20, 21]]
    data = TrainingData(ramped)
    frame = data.same_order(3).frame
    assert frame["tokens"].to_list() == [8 * config.model.seq_len] * frame.height
    assert frame["is_same"].all() and frame.height >= 4
    (row,) = data.position().frame.to_dicts()
    assert row["samples"] == 4 + 4 + 38 * 8
    assert "4 growing by 4 over 8 samples to 8 sequences" in repr(data)


def test_a_configuration_file_is_enough_and_its_corpus_is_prepared(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "run.toml"
    file.write_text(to_toml(SMALL))
    lines: list[str] = []
    overrides = [f"data.source={texts}"]
    data = TrainingData.of(file, overrides, report=lines.append)
    assert "preparing corpus" in lines[0]
    assert str(texts) in repr(data) and "order: seed 1234" in repr(data)
    lines.clear()
    again = TrainingData.of(file, overrides, report=lines.append)
    assert lines == [] and repr(again) == repr(data)
    with pytest.raises(InputError, match="no prepared data"):
        TrainingData(SMALL)


def test_a_run_shows_its_losses_beside_the_baselines_and_its_waits(
    own_roots: Path, corpus: Path
) -> None:
    config = dataclasses.replace(SMALL, data=DataConfig(path=str(corpus)))
    made = FakeRun(own_roots / "runs", "mine", config)
    try:
        data = made.run.data()
        with pytest.raises(InputError, match="run mine has no step yet"):
            data.loss_curve()
        made.advance(3)
        made.evaluate(5.5)
        table = data.baselines().frame
        meta = data.dataset.meta
        assert meta is not None
        assert table["nats"].to_list() == pytest.approx([math.log(512), meta.unigram_nats, 5.5])
        assert table["what"].to_list()[-1] == "this run, validation after 3 steps"
        per_token = meta.splits["validation"].text_bytes / meta.splits["validation"].tokens
        assert table["bits"][-1] == pytest.approx(5.5 / math.log(2) / per_token)
        svg = data.loss_curve()._repr_html_()
        assert svg.count("<polyline") == 2 and "frequencies of the training tokens" in svg
        assert data.position().frame["steps"].to_list() == [3, 40]
        assert data.waits().frame.is_empty(), "a made-up run reads no data"
        assert "(nothing)" in repr(data.waits()) and repr(data).startswith("run: mine")
    finally:
        made.close()
