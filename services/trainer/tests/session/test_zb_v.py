"""ZB-V trains, validates and samples as one process does, and as other schedules do."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from headway.common.config import from_dict
from headway.common.errors import ConfigError
from headway.common.plan.memory import predict_all
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.testkit.trainer.layouts import BARS, small_run
from headway.testkit.trainer.synthetic import synthetic
from headway.testkit.trainer.training import assemble, distance, piece_key
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.config.memory import memory_shape
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.session.build import build_model
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, SAMPLED = 3, 6


@dataclass
class Found(StepHooks):
    """What one rank has seen and holds."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    evals: list[float] = field(default_factory=list)
    text: list[int] = field(default_factory=list)
    pieces: dict[str, Any] = field(default_factory=dict)
    """Master weights by name, as ``assemble`` takes them."""

    def on_step(self, result: StepResult) -> None:
        self.losses.append(result.loss)
        self.norms.append(result.grad_norm)

    def on_eval(self, step: int, loss: float, sequence: int = 0) -> None:
        del step, sequence
        self.evals.append(loss)


def config_of(
    dtype: str = "fp64", family: str = "", clip: float = 2.0, **parallel: Any
) -> RunConfig:
    """Eight layers, so that four pipeline ranks have two chunks each."""
    degrees = [parallel.get(axis, 1) for axis in ("tp", "pp", "dp")]
    settings = small_run(dtype, parallel=parallel, world_size=math.prod(degrees), family=family)
    settings["model"]["layers"] = 8
    settings["train"] |= {"steps": STEPS, "eval_every": 2}
    settings["optim"] |= {"warmup_steps": 1, "clip_grad": clip}
    return from_dict(RunConfig, settings)


def train(config: RunConfig) -> list[Found]:
    def member(groups: Groups) -> Found:
        rank, found = groups.every_rank.rank, Found()
        session = Session(config, rank, data_factory=synthetic(config, rank))
        session.join(groups)
        session.load("init")
        session.run(found)
        found.text = session.sample([1, 2, 3], SAMPLED)
        entries = [entry for flat in session.flats for entry in flat.layout_entries()]
        masters = [entry for entry in entries if entry["field"] == "master"]
        found.pieces["layout"] = json.dumps(masters)
        for flat in session.flats:
            state = flat.state.numpy()
            for entry in flat.layout_entries():
                if entry["field"] == "master":
                    start = entry["offset"] // state.itemsize
                    stop = start + entry["flat_stop"] - entry["flat_start"]
                    found.pieces[piece_key("param", entry)] = state[start:stop].copy()
        session.leave()
        return found

    if config.parallel.world_size == 1:
        return [member(Groups.alone())]
    return over_gloo(config.parallel.grid, member, joins_ends=config.exchanges_table)


def assert_equal(config: RunConfig, alone: RunConfig) -> None:
    (expected,), found = train(alone), train(config)
    for one in found:
        for curve in ("losses", "norms", "evals"):
            theirs, ours = getattr(expected, curve), getattr(one, curve)
            assert np.allclose(ours, theirs, rtol=0, atol=BARS["fp64"]), curve
        assert one.text == expected.text
    params = assemble([one.pieces for one in found], "param")
    worst, name = distance(params, assemble([expected.pieces], "param"))
    assert worst < BARS["fp64"], f"{name} differs by {worst:.1e} of its norm"


@pytest.mark.parametrize("family", ["", "tied llama"])
@pytest.mark.parametrize(
    "degrees",
    [{"pp": 2}, {"pp": 4}, {"tp": 2, "pp": 2}, {"pp": 2, "dp": 2}, {"dp": 2}],
    ids=str,
)
def test_in_fp64_every_number_and_sample_is_that_of_one_process(
    degrees: dict[str, int], family: str
) -> None:
    """Tied tables too: embedding and head are on one rank, so nothing is exchanged."""
    config = config_of(family=family, schedule="zb-v", **degrees)
    assert config.parallel.num_chunks == 2 and not config.exchanges_table
    assert_equal(config, config_of(family=family))


@pytest.mark.parametrize("pp", [2, 4])
def test_losses_are_those_of_gpipe_bit_for_bit(pp: int) -> None:
    """Gradients are summed in the order of micro-batches by either; no step is clipped, because the
    norm is a sum over chunks."""
    found = [
        train(config_of("fp32", clip=1e9, pp=pp, schedule=name))[0] for name in ("zb-v", "gpipe")
    ]
    assert found[0].losses == found[1].losses and found[0].evals == found[1].evals


def test_fewer_micro_batches_than_stages_give_the_same_numbers() -> None:
    config, alone = config_of(pp=4, schedule="zb-v"), config_of()
    few = [
        dataclasses.replace(one, train=dataclasses.replace(one.train, global_batch_size=4))
        for one in (config, alone)
    ]
    assert few[0].num_micro_batches == 2
    assert_equal(*few)


@pytest.mark.parametrize("family", ["", "tied llama"])
def test_the_first_rank_is_predicted_to_hold_both_tables_and_all_ranks_as_many_activations(
    family: str,
) -> None:
    config = config_of(pp=4, schedule="zb-v", family=family)
    predicted = predict_all(memory_shape(config))
    for rank, memory in enumerate(predicted):
        place = config.parallel.grid.coordinates(rank)
        _, flats = build_model(config, place, TensorParallel(), torch.device("cpu"))
        assert memory.parameters == sum(flat.params.nbytes for flat in flats)
        assert memory.gradients == sum(flat.grads.nbytes for flat in flats)
    assert [memory.in_flight for memory in predicted] == [8] * 4
    assert predicted[0].parameters > predicted[1].parameters == predicted[3].parameters


def test_another_number_of_chunks_than_two_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"parallel.vp=4 with parallel.schedule='zb-v'"):
        config_of(pp=2, vp=4, schedule="zb-v")
    with pytest.raises(ConfigError, match="not divisible by pp x vp = 12"):
        config_of(pp=6, schedule="zb-v")
