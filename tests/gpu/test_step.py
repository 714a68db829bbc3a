"""Whole steps on a device: against those of a CPU, twice the same, never waiting, truly timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import awaits_device, device_times
from headway.common.plan.schedule.actions import COMPUTE, Kind
from headway.testkit.trainer.sessions import one_rank
from headway.testkit.trainer.steady import SteadyPart
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.device.deterministic import make_deterministic
from headway.trainer.device.device_recorder import recorder_for
from headway.trainer.device.recorder import Recorder
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session

NUM_STEPS = 3
BOUNDS = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 0.02}
"""Of the losses, relative. After the first step, weights differ too."""
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "parallel-selective": {"model": {"block": "parallel"}, "train": {"recompute": "selective"}},
    "buckets-full": {"parallel": {"vp": 2}, "train": {"recompute": "full"}},
}


def config_of(name: str, dtype: str, **train: Any) -> RunConfig:
    config = one_rank()
    wide = {"hidden": 128, "heads": 2, "ffn": 320, "vocab_size": 512, "seq_len": 128}
    tables: dict[str, dict[str, Any]] = {"model": {**wide, "init_std": 0.08}, "train": {}}
    for table, fields in VARIANTS[name].items():
        tables[table] = {**tables.get(table, {}), **fields}
    tables["train"] |= {"dtype": dtype, **train}
    changes = {table: replace(getattr(config, table), **new) for table, new in tables.items()}
    return replace(config, **changes)


class Results(StepHooks):
    def __init__(self) -> None:
        self.seen: list[StepResult] = []

    def on_step(self, result: StepResult) -> None:
        self.seen.append(result)


def train(config: RunConfig, device: str, recorder: Recorder | None = None) -> list[StepResult]:
    session = Session(
        config, 0, data_factory=synthetic(config, 0), recorder=recorder, device=device
    )
    results = Results()
    session.join(Groups.alone())
    try:
        session.load("init")
        session.run(results, NUM_STEPS)
    finally:
        session.leave()
        session.close()
    return results.seen


@cache
def of_cpu(name: str) -> list[StepResult]:
    return train(config_of(name, "fp64"), "cpu")


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", VARIANTS)
def test_losses_and_norms_follow_those_of_the_cpu_in_fp64(
    device: str, name: str, dtype: str
) -> None:
    if device == "cpu" and dtype == "fp64":
        pytest.skip("it is what others are compared with")
    wanted = of_cpu("parallel-selective" if "parallel" in name else "plain")
    found = train(config_of(name, dtype), device)
    assert len(found) == len(wanted) == NUM_STEPS
    for one, other in zip(found, wanted, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=BOUNDS[dtype])
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=5 * BOUNDS[dtype])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", VARIANTS)
def test_the_host_waits_in_norm_only(device: str, name: str) -> None:
    """torch raises at an operation that waits for the device. A CPU's host cannot wait for one:
    there ``test_steady_step.py`` lists the operations."""
    modes: list[bool] = []

    def switch(on: bool) -> None:
        modes.append(on)
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("error" if on else "default")

    recorder = SteadyPart(switch)
    try:
        results = train(config_of(name, "bf16"), device, recorder)
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert len(results) == recorder.num_steps == NUM_STEPS
    assert modes.count(True) >= 2 * NUM_STEPS


def test_deterministic_algorithms_give_the_same_bits_twice(device: str) -> None:
    """In a process of its own, since the setting is read when CUDA starts."""
    command = [sys.executable, __file__, device]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert len(first) == NUM_STEPS
    assert first == second


def test_flight_records_show_when_the_device_worked(device: str, tmp_path: Path) -> None:
    writer = FlightWriter.create(tmp_path / "flight", 0)
    reader = FlightReader(tmp_path / "flight")
    train(config_of("plain", "fp32"), device, recorder_for(writer, torch.device(device)))
    raw = reader.snapshot()
    early = raw["step"] < NUM_STEPS - 1
    assert not awaits_device(raw[early]).any()
    assert (raw["device"][early] > 0).all() == (device == "cuda")
    shown = device_times(raw)[early]
    for step in range(NUM_STEPS - 1):
        mine = shown[shown["step"] == step]
        (whole,) = mine[mine["kind"] == Kind.STEP]
        computed = mine[np.isin(mine["kind"], [int(kind) for kind in COMPUTE])]
        computed = computed[computed["start_ns"] >= whole["start_ns"]]  # not an evaluation's
        assert len(computed) == 16, "8 forwards and 8 backwards"
        assert (computed["end_ns"] <= whole["end_ns"]).all()
        assert (computed["end_ns"][:-1] <= computed["start_ns"][1:]).all(), "one after the other"
    writer.close()
    reader.close()


def _twice(device: str) -> list[list[str]]:
    make_deterministic()
    config = config_of("plain", "bf16", deterministic=True)
    found = [train(config, device) for _ in range(2)]
    return [[f"{one.loss.hex()} {one.grad_norm.hex()}" for one in results] for results in found]


if __name__ == "__main__":
    print(json.dumps(_twice(sys.argv[1])), flush=True)
