"""A run that exports: every service is scraped, TensorBoard has every step, over faults too."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from headway.common.node.janitor import processes_of
from headway.common.node.process import ProcessId
from headway.console.run import Run
from headway.trainer.config import MetricsPorts
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

NAME = "exporting"
SHAPE = ("parallel.tp=1", "parallel.pp=1", "parallel.dp=2", "launch.nodes=2",
         "launch.ranks_per_node=1", "launch.spares=0", "launch.standbys=1",
         "train.global_batch_size=4", "train.steps=1000000", "ckpt.durable_every=100",
         'launch.sinks=["tensorboard"]')  # fmt: skip
SERVICES = {"driver", "monitor", "executor", "dataloader", "ckpt_store", "agent"}
UNITS = re.compile(
    r"_(seconds|bytes|ratio|total|nats|cores|step|steps|per_second)$"
    r"|_(nodes|ranks|verdicts|snapshots|workers|rings|threads)$"  # what is counted
)
UNITLESS = {
    "headway_run_generation", "headway_run_driver_epoch", "headway_run_paused",
    "headway_run_phase", "headway_run_gradient_norm", "headway_run_learning_rate",
    "headway_executor_service_up", "headway_node_load1",
}  # fmt: skip
"""States, numbers of something and figures without a unit."""


def free_range(number: int) -> int:
    """The first of so many ports that nobody uses now."""
    for first in range(21000, 32000, number):
        try:
            for port in range(first, first + number):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def scrape(port: int) -> dict[str, float]:
    """Series -> value; empty where nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError):
        return {}
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def process(run: Run, role: str) -> ProcessId:
    """The one process of a run that was started as ``role``."""
    found = [
        one
        for one in processes_of(run.folder.run_id)
        if f"HEADWAY_ROLE={role}".encode()
        in Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0")
    ]
    (only,) = found
    return only


def targets(run: Run) -> list[dict[str, Any]]:
    path = run.folder.metrics_targets
    return list(json.loads(path.read_text())) if path.exists() else []


@pytest.mark.timeout(400)
def test_every_service_is_scraped_and_every_step_exported_over_kills(machine: Any) -> None:
    first = free_range(10)
    ports = MetricsPorts(first, 2)
    words = ["run", "examples/tiny.toml", "--name", NAME, "--runs-dir", machine.runs, "--detach"]
    settings = machine.settings(SHAPE, f"launch.metrics_port={first}")
    machine.headway(*words, *settings)
    run = Run(machine.runs / NAME)

    _every_service_answers(machine, run, ports)

    # A second run with the same ports is refused before it starts.
    other = machine.headway(
        "run", "examples/tiny.toml", "--name", "other", *words[4:], *settings, code=2
    )
    assert f"metrics port {first} for the driver cannot be used: Address already in use" in other
    assert not (machine.runs / "other").exists()

    _figures_are_back_after_kills(machine, run, ports.of("driver"))

    # The run ends, nothing is left, and TensorBoard shows every step of its history once.
    machine.headway("stop", NAME, "--runs-dir", machine.runs, "--yes")
    machine.assert_clean(NAME)
    shown = EventAccumulator(str(run.folder.sinks / "tensorboard"), size_guidance={"scalars": 0})
    shown.Reload()
    assert [event.step for event in shown.Scalars("train/loss")] == list(
        range(1, run.completed_steps + 1)
    )
    assert shown.Scalars("validation/loss")[0].step == 0
    log = (run.folder.logs / "sink-tensorboard.log").read_text()
    assert "exporting" in log and "Traceback" not in log


def _every_service_answers(machine: Any, run: Run, ports: MetricsPorts) -> None:
    """Under the labels that Prometheus gives it."""
    listed = machine.wait_until(lambda: targets(run), "the file of targets")
    assert {(row["labels"]["service"], row["labels"]["node"]) for row in listed} == {
        ("driver", "0"), ("monitor", "0"),
        *((name, node) for name in SERVICES - {"driver", "monitor"} for node in "01"),
    }  # fmt: skip
    assert {row["labels"]["run"] for row in listed} == {NAME}
    for row in listed:
        port = int(row["targets"][0].partition(":")[2])
        found = machine.wait_until(lambda port=port: scrape(port), str(row))
        assert all(name.startswith("headway_") for name in found), row
        assert not [name for name in found if "rank=" in name], "no series per rank"
        names = {name.partition("{")[0] for name in found} - UNITLESS
        assert not [name for name in names if not UNITS.search(name)], "each ends in its unit"
    driver = ports.of("driver")
    machine.wait_until(lambda: scrape(driver).get("headway_run_step", 0) > 5, "steps of the driver")
    found = scrape(driver)
    assert found['headway_run_phase{phase="running"}'] == 1
    assert sum(value for name, value in found.items() if "_run_phase" in name) == 1
    assert found['headway_run_nodes{state="active"}'] == 2
    assert 0 < found["headway_run_loss_nats"] < 10
    assert 0 < found["headway_run_mfu_ratio"] < 1
    assert found["headway_run_recoveries_total"] == 0
    assert scrape(ports.of("executor", 1))['headway_executor_workers{role="rank"}'] == 1
    assert scrape(ports.of("monitor"))["headway_monitor_ranks"] == 2
    assert scrape(ports.of("dataloader"))["headway_dataloader_batches_total"] > 0


def _figures_are_back_after_kills(machine: Any, run: Run, driver: int) -> None:
    """The exporter, a rank and the driver are killed; ``driver`` is the port of its figures."""
    exporter = process(run, "sink-tensorboard")
    exporter.kill(signal.SIGKILL)
    machine.headway("inject", NAME, "kill", "--rank", "1", "--runs-dir", machine.runs, "--yes")
    machine.wait_until(
        lambda: scrape(driver).get("headway_run_recoveries_total") == 1, "the recovery is counted"
    )
    process(run, "driver").kill(signal.SIGKILL)
    machine.wait_until(
        lambda: scrape(driver).get("headway_run_driver_epoch", 0) > 1, "the next driver's metrics"
    )
    assert scrape(driver)["headway_run_recoveries_total"] == 1
    home = str(run.status().services and json.loads((run.path / "driver.json").read_text())["node"])
    machine.wait_until(
        lambda: targets(run)[0]["labels"] == {"run": NAME, "node": home, "service": "driver"},
        "the targets name the driver's node",
    )
    machine.wait_until(lambda: process(run, "sink-tensorboard") != exporter, "the next exporter")
