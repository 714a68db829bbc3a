"""Every verb of the command line on one living run; those that work as processes of their own."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from headway.ckpt_store.client import newest
from headway.console.live.summary import recovery_rows
from headway.console.run import Run
from headway.console.trace.slices import DRIVER
from headway.testkit.journal import query
from headway.trainer.optim.schedule import learning_rate

NAME = "verbs"
SHAPE = ("parallel.tp=1", "parallel.pp=2", "parallel.dp=1", "launch.nodes=2",
         "launch.ranks_per_node=1",
         "launch.spares=1", "launch.standbys=1", "train.global_batch_size=4", "train.steps=1000000",
         "ckpt.durable_every=1000000")  # fmt: skip


class Live:
    """The run and the command."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.wait_until = machine.wait_until
        self.headway(
            "run", "examples/tiny.toml", "--name", NAME, "--detach", *machine.settings(SHAPE)
        )
        self.run = Run(machine.runs / NAME)
        self.wait_until(lambda: self.step() > 0, "the first step")

    def headway(self, *words: str, code: int = 0) -> str:
        """By a process of its own."""
        return str(self.machine.headway(*words, "--runs-dir", self.machine.runs, code=code))

    def verb(self, *words: str, code: int = 0) -> str:
        return str(self.machine.in_process(*words, "--runs-dir", self.machine.runs, code=code))

    def status(self) -> dict[str, Any]:
        return dict(self.wait_until(lambda: self.machine.status(NAME), "the driver answers"))

    def step(self) -> int:
        return int(self.status()["step"])

    def pids(self) -> dict[int, int]:
        return {row["rank"]: row["pid"] for row in self.status()["ranks"]}

    def wait_running(self, generation: int) -> None:
        def runs() -> bool:
            status = self.status()
            return status["phase"] == "running" and status["generation"] >= generation

        self.wait_until(runs, f"generation {generation} runs")


@pytest.fixture(scope="module")
def live(make_machine: Any) -> Iterator[Live]:
    found = Live(make_machine())
    yield found
    if not found.run.outcome:
        found.headway("stop", NAME)
        assert found.run.outcome == "stopped"
    found.machine.assert_clean(NAME)


@pytest.mark.timeout(240)
def test_status_tells_ranks_nodes_and_services(live: Live) -> None:
    status = live.wait_until(
        lambda: json.loads(live.headway("status", NAME, "--json"))["status"], "the driver answers"
    )
    assert status["phase"] == "running"
    assert [(row["rank"], row["node"], row["status"]) for row in status["ranks"]] == [
        (0, 0, "running"), (1, 1, "running")]  # fmt: skip
    assert status["nodes"] == {"0": "active", "1": "active", "2": "spare"}
    assert {"dataloader", "ckpt_store", "agent", "zygote", "driver", "monitor"} <= set(
        status["services"]["0"]
    )
    rows = json.loads(live.verb("runs", "--json"))
    assert [(row["name"], row["state"]) for row in rows] == [(NAME, "live")]
    assert f"run {NAME}: step" in live.verb("status", NAME)


def test_a_paused_run_makes_no_step_until_it_is_resumed(live: Live) -> None:
    live.verb("pause", NAME, "--wait")
    live.wait_until(lambda: live.status()["paused"], "the run is paused")
    held = live.step()
    live.headway("status", NAME)  # takes far longer than nodes need to report a step
    assert live.step() == held
    live.verb("resume", NAME, "--wait")
    live.wait_until(lambda: live.step() > held, "steps go on")
    assert not live.status()["paused"]


def test_a_set_learning_rate_is_that_of_the_following_steps_until_it_is_unset(live: Live) -> None:
    live.verb("set", NAME, "lr=0.000321", "--wait")
    after = live.step()
    rates = live.wait_until(
        lambda: query(live.run, "SELECT lr FROM metrics WHERE step > ?", (after,)),
        "a step was reported",
    )
    assert {row[0] for row in rates} == {0.000321}
    live.verb("unset", NAME, "lr", "--wait")
    after, optim = live.step(), live.run.config.optim
    rates = live.wait_until(
        lambda: query(live.run, "SELECT step, lr FROM metrics WHERE step > ?", (after,)),
        "a step was reported",
    )
    steps = live.run.config.train.steps
    assert rates == [(step, learning_rate(optim, step, steps)) for step, _ in rates]


def test_checkpoint_makes_the_present_state_durable(live: Live) -> None:
    before = newest(live.run.folder.checkpoints)
    asked_at = live.step()
    sequence = json.loads(live.verb("checkpoint", NAME, "--wait", "--json"))["sequence"]
    assert sequence > 0
    found = live.wait_until(lambda: newest(live.run.folder.checkpoints), "a checkpoint is complete")
    assert found.step >= asked_at
    assert before is None or found.step > before.step


def test_an_evaluation_and_a_sample_are_made_now(live: Live) -> None:
    evaluated = json.loads(live.verb("evaluate", NAME, "--json"))
    assert evaluated["step"] > 0 and evaluated["loss"] > 0
    live.verb("pause", NAME, "--wait")
    prompt = ("--prompt", "def main(", "--tokens", "4")
    first, second = (json.loads(live.verb("sample", NAME, *prompt, "--json")) for _ in range(2))
    assert live.status()["paused"], "it is made while the run is held"
    live.verb("resume", NAME, "--wait")
    assert first["text"] == second["text"], "the same weights write the same text"
    assert first["step"] == second["step"]
    assert live.run.samples()["prompt"].to_list() == ["def main(", "def main("]
    assert evaluated["step"] in live.run.evaluations()["step"]


def test_a_run_that_is_rolled_back_makes_the_same_steps_again(live: Live) -> None:
    before = live.status()["generation"]
    (checkpoint,) = live.run.checkpoints().tail(1).to_dicts()
    step = checkpoint["step"]
    live.wait_until(lambda: live.step() > step + 4, "some steps after the checkpoint")
    live.verb("rollback", NAME, str(step))
    live.wait_running(before + 1)
    live.wait_until(lambda: live.step() > step + 4, "the same steps again")
    metrics = live.wait_until(
        lambda: _attempts(live.run, step, before), "the steps of both generations are journaled"
    )
    for first, again in metrics:
        assert first == again


def _attempts(run: Run, step: int, generation: int) -> list[tuple[Any, Any]]:
    """(loss, norm, rate) of four steps in a generation and in a later one, once both are there."""
    sql = (
        "SELECT step, loss, grad_norm, lr FROM metrics WHERE step BETWEEN ? AND ? "
        "AND generation {} ? ORDER BY step"
    )
    first = query(run, sql.format("="), (step, step + 3, generation))
    again = query(run, sql.format(">"), (step, step + 3, generation))
    return list(zip(first, again, strict=True)) if len(first) == len(again) == 4 else []


def test_an_extension_is_known_to_driver_and_journal(live: Live) -> None:
    steps = live.status()["steps"]
    live.verb("extend", NAME, "25", "--wait")
    assert live.status()["steps"] == steps + 25 == live.run.total_steps


def test_an_injected_kill_replaces_that_worker_alone(live: Live) -> None:
    pids, generation = live.pids(), live.status()["generation"]
    live.verb("inject", NAME, "kill", "--rank", "1")
    live.wait_running(generation + 1)
    now = live.pids()
    assert now[0] == pids[0]
    assert now[1] != pids[1]


def test_an_injected_kill_of_a_service_touches_no_worker(live: Live) -> None:
    pids, status = live.pids(), live.status()
    old = status["services"]["0"]["dataloader"]
    live.verb("inject", NAME, "kill", "--service", "dataloader", "--node", "0")
    live.wait_until(
        lambda: live.status()["services"]["0"].get("dataloader", old) != old, "a new dataloader"
    )
    step = live.step()
    live.wait_until(lambda: live.step() > step + 2, "it steps with the new one")
    assert live.pids() == pids
    assert live.status()["generation"] == status["generation"]


def test_a_drained_node_gives_its_rank_to_the_spare_after_a_checkpoint(live: Live) -> None:
    before, status = newest(live.run.folder.checkpoints), live.status()
    live.verb("drain", NAME, "1")
    live.wait_running(status["generation"] + 1)
    found = newest(live.run.folder.checkpoints)
    assert found is not None and found.step >= status["step"], "made when it was asked for"
    assert before is None or before.step < found.step
    now = live.status()
    assert {row["rank"]: row["node"] for row in now["ranks"]} == {0: 0, 1: 2}
    assert now["nodes"]["1"] == "lost"
    assert now["ranks"][0]["pid"] == status["ranks"][0]["pid"]
    assert not now["services"].get("1"), "a node without ranks is not listed"
    text = live.verb("status", NAME)
    assert "node 1 lost\n" in text and "cannot start" not in text
    (recovery,) = [row for row in recovery_rows(live.run) if row["generation"] == now["generation"]]
    assert recovery["reason"] == "node 1 is lost: evicted"
    assert recovery["step"] >= status["step"], "nothing from before the request is repeated"
    assert "no spare is ready for node 2" in live.verb("evict", NAME, "2", code=2)
    assert "no spare is ready for node 2" in live.verb("drain", NAME, "2", code=2)


@pytest.mark.timeout(240)
def test_a_node_that_left_is_started_again_and_is_the_spare_of_the_next(live: Live) -> None:
    gone = [number for number, status in live.status()["nodes"].items() if status == "lost"]
    assert gone == ["1"], "drained by the test before"
    text = live.headway("node", "start", "--run", NAME, "--node", "1")
    assert text.startswith(f"node 1 is up in run {NAME}, pid ")
    assert live.status()["nodes"]["1"] == "spare"
    generation = live.status()["generation"]
    live.wait_until(lambda: not live.status()["troubles"], "the spare is ready")
    live.verb("evict", NAME, "2")
    live.wait_running(generation + 1)
    live.wait_until(lambda: live.status()["nodes"]["2"] == "lost", "it has left")
    assert {row["rank"]: row["node"] for row in live.status()["ranks"]} == {0: 0, 1: 1}
    cluster = str(live.run.cluster_folder)
    words = ("node", "start", "--cluster", cluster, "--node", "2", "--json")
    facts = json.loads(live.headway(*words))
    assert (facts["cluster"], facts["node"]) == (cluster, 2)
    assert live.status()["nodes"] == {"0": "active", "1": "active", "2": "spare"}
    again = json.loads(live.verb(*words))
    assert again["pid"] == facts["pid"], "a node that runs is left alone"


def test_logs_are_found_by_name_rank_and_level(live: Live) -> None:
    lines = [
        json.loads(line)
        for line in live.verb("logs", NAME, "--name", "driver", "--json").splitlines()
    ]
    assert lines
    assert {line["file"] for line in lines} <= {f"n{node}-driver" for node in range(3)}
    assert any(line["event"] == "generation" for line in lines)
    assert len(live.verb("logs", NAME, "--tail", "5").splitlines()) == 5
    quiet = live.verb("logs", NAME, "--level", "warning", "--tail", "100000", "--json").splitlines()
    assert {json.loads(line)["level"] for line in quiet} <= {"warning", "error", "critical"}


def test_a_trace_holds_slices_of_every_rank(live: Live) -> None:
    out = live.machine.folder / "trace.json.gz"
    # a trace of all steps takes as long as this run is old
    steps = ("--steps", f"{max(0, live.step() - 100)}:")
    reply = json.loads(live.verb("trace", NAME, *steps, "-o", str(out), "--json"))
    events = json.loads(gzip.decompress(out.read_bytes()))
    events = events["traceEvents"] if isinstance(events, dict) else events
    slices = [event for event in events if event.get("ph") == "X"]
    assert reply["slices"] == sum(event["ph"] != "M" for event in events)
    ranks = range(live.run.config.parallel.world_size)
    assert {event["pid"] for event in slices} - {DRIVER} == set(ranks)
    whole = {event["pid"] for event in slices if event["name"].startswith("step ")}
    assert whole == set(ranks), "each has whole steps"


@pytest.mark.parametrize("words", [
    ("set", NAME, "lr=-1"), ("set", NAME, "lr=99"), ("unset", NAME, "batch"),
    ("set", NAME, "batch=4"), ("inject", NAME, "kill", "--rank", "9"),
    ("inject", NAME, "burn", "--rank", "0"), ("inject", NAME, "kill"), ("evict", NAME, "7"),
    ("drain", NAME, "7"), ("drain", NAME, "1", "--notice", "-1"),
    ("inject", NAME, "kill", "--service", "nope", "--node", "0"),
    ("inject", NAME, "kill", "--service", "worker"),
    ("status", "nobody"), ("pause", "nobody"), ("logs", NAME, "--level", "loud")],
    ids=" ".join)  # fmt: skip
def test_a_wrong_verb_is_one_line_with_a_remedy_and_code_2(
    live: Live, words: tuple[str, ...]
) -> None:
    text = live.verb(*words, code=2)
    assert text.startswith("error: ")
    assert len(text.splitlines()) == 1
    assert ";" in text


def test_stop_ends_the_run_with_a_checkpoint_and_later_commands_are_refused(live: Live) -> None:
    asked_at = live.step()
    live.headway("stop", NAME)
    assert live.run.outcome == "stopped" and not live.run.live
    found = newest(live.run.folder.checkpoints)
    assert found is not None
    assert found.step >= asked_at
    text = live.verb("pause", NAME, code=2)
    assert "not live" in text
    assert json.loads(live.verb("runs", "--json"))[0]["state"] == "stopped"


@pytest.mark.timeout(240)
def test_a_fork_continues_from_the_checkpoint_as_its_parent_did(live: Live) -> None:
    checkpoints = live.run.checkpoints()["step"].to_list()
    step = next(s for s in checkpoints if live.run.metrics()["step"].max() >= s + 3)
    one_node = ("launch.nodes=1", "launch.ranks_per_node=2", "launch.spares=0")
    sets = [word for one in ("train.eval_every=1000", *one_node) for word in ("--set", one)]
    live.verb("fork", NAME, "forked", "--step", str(step), *sets)
    run = Run(live.machine.runs / "forked")
    assert (run.state, run.forked_from) == ("not started", {"run": NAME, "step": step})
    live.verb("extend", NAME, "1", code=2)
    config = str(run.folder.config)
    live.headway("run", config, "--name", "forked", "--detach")
    live.wait_until(lambda: run.completed_steps >= step + 4, "four steps of the fork")
    live.verb("stop", "forked", "--now")
    columns = ["step", "loss", "grad_norm"]
    parent = live.run.metrics().filter(pl.col("step").is_between(step, step + 3))
    assert run.metrics().head(4).select(columns).rows() == parent.select(columns).rows()
    assert (run.config.train.eval_every, live.run.config.train.eval_every) == (1000, 0)
    live.machine.assert_clean("forked")
