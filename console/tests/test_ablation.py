"""The ladder of an ablation: its variants, their figures, and how it is measured and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.common.config import load
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.console.ablation import measure as measuring
from headway.console.ablation import place
from headway.console.ablation.figures import Gain, gain, ranking
from headway.console.ablation.ladder import Ladder, climb, turns
from headway.console.ablation.record import FILE, Record
from headway.console.ablation.rungs import READ_AHEAD, RUNGS, choose, value_of
from headway.console.ablation.shown import Ablation
from headway.trainer.client import Outcome, Trial
from headway.trainer.config import RunConfig

EIGHT = """
[model]
layers = 8
seq_len = 64
window = 8
[parallel]
tp = 2
pp = 2
dp = 2
schedule = "interleaved"
vp = 2
[launch]
ranks_per_node = 8
[train]
dtype = "fp32"
"""
ONE = "[train]\ndevice = 'cpu'\ndtype = 'fp32'\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "eight.toml"
    path.write_text(EIGHT)
    return path


@pytest.fixture
def one(tmp_path: Path) -> Path:
    path = tmp_path / "one.toml"
    path.write_text(ONE)
    return path


def stand_in(file: Path, *names: str, steps: int = 12) -> Ladder:
    return climb(file, [], choose(names), steps=steps, stand_in=True)


# ----- rungs and variants


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_every_setting_of_a_rung_exists_and_differs_without_it(rung: Any, file: Path) -> None:
    config = load(RunConfig, [file])
    keys = {switch.key for switch in rung.switches} - {READ_AHEAD}
    for key in keys:
        assert hasattr(value_of(config, key.rpartition(".")[0]), key.rpartition(".")[2]), key
    assert any(off != on for off, on in (switch.values(config) for switch in rung.switches))


@pytest.mark.parametrize("key", ["interface", "fabric"])
def test_a_layout_for_machines_is_refused_and_one_of_its_machines_is_not(
    file: Path, key: str
) -> None:
    machines = ["launch.nodes=2", "launch.ranks_per_node=4"]
    assert climb(file, machines, choose(["pp"]), steps=4, stand_in=True).variants, "emulated nodes"
    with pytest.raises(InputError, match=f"launch.nodes=2 with launch.{key}='eth0'") as refused:
        climb(file, [*machines, f"launch.{key}=eth0"], choose(["pp"]), steps=4, stand_in=True)
    assert "all 8 ranks on this machine" in refused.value.message
    assert "launch.nodes=1" in refused.value.remedy
    own = ["launch.nodes=1", "launch.ranks_per_node=8", f"launch.{key}=eth0"]
    assert climb(file, own, choose(["pp"]), steps=4, stand_in=True).variants


def test_far_more_ranks_than_cpus_are_refused(file: Path) -> None:
    config = climb(file, [], choose(["pp"]), steps=4, stand_in=True).variants[0].config
    place.check_fits_here(config, num_cpus=1)
    many = ["parallel.dp=8", "launch.ranks_per_node=32", "train.global_batch_size=64"]
    many.append("train.device=cpu")
    with pytest.raises(InputError, match="all 32 ranks on this machine, whose CPUs can share 16"):
        place.check_fits_here(load(RunConfig, [file], many), num_cpus=1)


def test_the_baseline_has_all_off_and_a_rung_takes_the_value_of_the_file(file: Path) -> None:
    ladder = stand_in(file, "window", "pp")
    baseline, window, pp, both = ladder.variants
    assert [v.name for v in ladder.variants] == ["baseline", "window", "pp", "window + pp"]
    assert baseline.config.model.window == 64  # all tokens
    assert window.config.model.window == 8 and both.config.model.window == 8
    assert not window.config.parallel.overlap_p2p and pp.config.parallel.overlap_p2p
    for variant in ladder.variants:  # off, although they were not chosen
        assert not variant.config.parallel.overlap_grad_reduce
        assert variant.config.model.block == "serial"


def test_every_variant_trains_on_as_many_tokens(file: Path) -> None:
    ladder = stand_in(file, steps=8)
    tokens = {v.name: v.config.train.steps * v.tokens_per_step for v in ladder.variants}
    assert len(set(tokens.values())) == 1
    warmups = {v.warmup_steps * v.tokens_per_step for v in ladder.variants}
    assert len(warmups) == 1
    lamb = next(v for v in ladder.variants if v.rungs == ("lamb",))
    assert lamb.config.optim.name == "lamb" and lamb.config.train.steps == 3


def test_a_rung_that_does_not_apply_is_left_out_with_the_reason(one: Path, file: Path) -> None:
    ladder = climb(one, [], choose(()), steps=4, stand_in=False)
    assert {"tp", "pp", "dp"} <= set(ladder.left_out)
    assert ladder.left_out["pp"] == "parallel.pp is 1"
    assert "data" in {rung.name for rung in ladder.rungs}
    assert stand_in(file).left_out == {"data": "a stand-in reads no data"}
    with pytest.raises(InputError, match=r"no rung applies .*pp: parallel.pp is 1"):
        climb(one, [], choose(["pp"]), steps=4, stand_in=False)


def test_without_a_compiler_fused_kernels_are_left_out(
    one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    ladder = climb(one, [], choose(()), steps=4, stand_in=False)
    assert "no-such-compiler" in ladder.left_out["kernels"]


def test_bad_names_and_steps_are_refused_with_a_remedy(file: Path) -> None:
    with pytest.raises(InputError, match=r"no rung 'windows'.*did you mean 'window'"):
        choose(["windows"])
    with pytest.raises(InputError, match="twice"):
        choose(["tp", "tp"])
    with pytest.raises(InputError, match=r"--steps 6 is not a multiple of 4.*use 4"):
        stand_in(file, steps=6)


def test_every_other_round_is_in_the_opposite_order(file: Path) -> None:
    variants = stand_in(file, "tp", "pp").variants
    order = [(number, variant.name) for number, variant in turns(variants, 2)]
    names = [variant.name for variant in variants]
    assert order == [*((0, name) for name in names), *((1, name) for name in reversed(names))]


# ----- figures


def test_a_drift_of_the_machine_does_not_change_a_gain() -> None:
    """Caught: a ratio of medians, which this drift would make 1.5."""
    slow = {0: 100.0, 1: 50.0, 2: 25.0}
    fast = {number: 1.1 * rate for number, rate in slow.items()}
    found = gain(fast, slow)
    assert found is not None
    assert found.median == pytest.approx(0.1) and found.spread == pytest.approx(0.0, abs=1e-12)
    assert not found.is_within_spread


def test_a_gain_below_the_spread_is_chance() -> None:
    base = dict.fromkeys(range(5), 100.0)
    noisy = dict(enumerate((101.0, 95.0, 108.0, 103.0, 99.0)))
    found = gain(noisy, base)
    assert found is not None and found.is_within_spread
    assert str(found) == "+1.0 % ±5.9"
    single = gain({0: 200.0}, {0: 100.0})
    assert single is not None and single.spread is None and single.is_within_spread


def test_only_common_rounds_are_compared() -> None:
    found = gain({0: 110.0, 2: 120.0}, {0: 100.0, 1: 5.0})
    assert found is not None and found.rounds == 1 and found.median == pytest.approx(0.1)
    assert gain({0: 1.0}, {1: 1.0}) is None


def test_the_ranking_joins_what_is_not_apart() -> None:
    gains = {
        "tp": Gain(0.049, 0.01, 5),
        "pp": Gain(0.20, 0.01, 5),
        "dp": Gain(0.05, 0.01, 5),
    }
    assert ranking(gains) == "pp > tp ~ dp"
    swapped = {**gains, "tp": Gain(0.051, 0.01, 5)}
    assert ranking(swapped) == "pp > tp ~ dp", "chance must not change the order"


# ----- measuring


class Played:
    """A runner whose trials take as long as ``seconds`` says, without training."""

    def __init__(self, seconds: Callable[[Trial], float]) -> None:
        self.seconds, self.trials = seconds, list[Trial]()

    def run(self, trial: Trial) -> Outcome:
        self.trials.append(trial)
        each = self.seconds(trial)
        return Outcome([9.0, *[each] * (trial.config["train"]["steps"] - 1)], 3.0, 1 << 20)


def overlapping(trial: Trial) -> float:
    """Seconds of a step: pp takes a fifth off, dp nothing, and a batch takes its size."""
    factor = trial.config["train"]["global_batch_size"] / 8
    return factor * (0.8 if trial.config["parallel"]["overlap_p2p"] else 1.0)


def recorded(ladder: Ladder, rounds: int = 3) -> Record:
    return measuring._new_record(ladder, rounds, stand_in=True)


def test_a_measured_ladder_says_what_each_rung_gave(file: Path, tmp_path: Path) -> None:
    ladder = stand_in(file, "pp", "dp", "lamb")
    record, lines = recorded(ladder), list[str]()
    measuring.measure(record, ladder.variants, Played(overlapping), tmp_path, lines.append)
    assert len(lines) == 3 * 6 and lines[0].startswith("1/18  baseline: ")
    found = Ablation.read(tmp_path)
    alone = {rung: found.record.alone(rung) for rung in found.record.titles}
    assert alone["pp"] is not None and alone["pp"].median == pytest.approx(0.25)
    assert alone["dp"] is not None and alone["dp"].is_within_spread
    assert alone["lamb"] is not None and alone["lamb"].median == pytest.approx(0.0)
    text = repr(found)
    assert "STAND-IN" in text and "so perhaps chance: dp, lamb." in text
    assert "+25.0 % ±0.0" in text and "pp > dp ~ lamb" in text
    assert "MFU" not in text and not found.record.interrupted
    table = json.loads((tmp_path / FILE).read_text())
    assert table["stand_in"] and table["note"].startswith("STAND-IN")
    assert table["gains"]["pp"]["alone"]["median"] == pytest.approx(0.25)
    assert len(table["variants"][0]["trials"]) == 3
    assert {"processor", "versions", "date"} <= set(table["machine"])
    assert table["config"]["train"]["seed"] == 1234


def test_the_picture_has_a_bar_per_rung_and_says_that_it_is_a_stand_in(
    file: Path, tmp_path: Path
) -> None:
    ladder = stand_in(file, "pp", "dp")
    record = recorded(ladder)
    measuring.measure(record, ladder.variants, Played(overlapping), tmp_path, lambda _: None)
    html = Ablation(record, tmp_path).write_picture().read_text()
    assert html.count("<rect") == 1 + 2 * 2 + 4  # the baseline, two per rung, the legend
    assert "STAND-IN" in html and "pipeline overlap: +25.0 %" in html


def test_a_variant_that_fails_is_given_up_and_the_rest_is_measured(
    file: Path, tmp_path: Path
) -> None:
    ladder = stand_in(file, "pp", "dp")
    record = recorded(ladder)

    class Failing(Played):
        def run(self, trial: Trial) -> Outcome:
            parallel = trial.config["parallel"]
            if parallel["overlap_grad_reduce"] and not parallel["overlap_p2p"]:
                self.trials.append(trial)
                return Outcome(error="RuntimeError: out of cheese")
            return super().run(trial)

    runner = Failing(overlapping)
    measuring.measure(record, ladder.variants, runner, tmp_path, lambda _: None)
    assert len(runner.trials) == 3 * 4 - 2, "a variant that failed is not tried again"
    shown = repr(Ablation(record, tmp_path))
    assert "dp failed: RuntimeError: out of cheese" in shown
    assert record.alone("dp") is None and record.on_top("dp") is not None


def test_a_baseline_that_fails_ends_the_ablation(file: Path, tmp_path: Path) -> None:
    ladder = stand_in(file, "pp")

    class Broken:
        def run(self, trial: Trial) -> Outcome:
            del trial
            return Outcome(error="no memory")

    with pytest.raises(HeadwayError, match="the baseline cannot be trained: no memory"):
        measuring.measure(recorded(ladder), ladder.variants, Broken(), tmp_path, lambda _: None)


def test_an_interrupted_ablation_keeps_what_was_measured_and_says_so(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[str]()

    class Interrupted(Played):
        def __init__(self) -> None:
            super().__init__(overlapping)

        def run(self, trial: Trial) -> Outcome:
            if len(self.trials) == 2:
                raise KeyboardInterrupt
            return super().run(trial)

        def __enter__(self) -> Interrupted:
            return self

        def __exit__(self, *_: object) -> None:
            closed.append("closed")

    monkeypatch.setattr(measuring, "TrialRunner", Interrupted)
    out = tmp_path / "out"
    found = measuring.ablate(file, rungs=["pp", "dp"], stand_in=True, out=out)
    assert closed == ["closed"]
    assert "INTERRUPTED after 2 of 20 trials" in repr(found)
    kept = Ablation.read(out).record
    assert kept.interrupted and kept.alone("pp") is not None and kept.alone("dp") is None


def test_a_folder_that_exists_is_refused_before_anything_runs(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--out .* exists"):
        measuring.ablate(file, stand_in=True, out=tmp_path)


def test_a_file_that_is_no_ablation_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no"):
        Ablation.read(tmp_path)
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(CorruptError, match="is not an ablation"):
        Ablation.read(tmp_path)
