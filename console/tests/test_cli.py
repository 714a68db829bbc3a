"""The command line: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from headway.common.wire.addresses import Network
from headway.console import run as run_module
from headway.console.cli import main
from headway.console.commands import watching
from headway.console.testing import FakeRun
from headway.launch.engines.choose import facts_of
from headway.launch.engines.ssh.config import Host, HostsConfig
from headway.launch.join import tokens
from headway.launch.join.bundle import Bundle
from headway.launch.join.ticket import Ticket

REPOSITORY = Path(__file__).parents[2]
TINY = str(REPOSITORY / "examples" / "tiny.toml")
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """(exit code, stdout, stderr) of one command."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def fake_call(fake: FakeRun, call: Call) -> Call:
    """A command about the fake run."""
    runs = str(fake.folder.path.parent)
    return lambda *arguments: call(*arguments, "--runs-dir", runs)


def test_help_lists_own_and_service_commands_without_importing_any_service() -> None:
    program = (
        "import sys; from headway.console.cli import main; code = main(['--help']); "
        "heavy = {'torch', 'polars', 'numpy', 'zmq', 'headway.dataloader.cli', "
        "'headway.health.cli'}; "
        "sys.exit(f'imported {heavy & set(sys.modules)}' if heavy & set(sys.modules) else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    named = "run runs status watch logs pause resume stop checkpoint set evict inject trace doctor "
    named += "node cluster"
    for name in [*named.split(), "data", "ckpt", "health"]:
        assert f"\n  {name} " in done.stdout, name


@pytest.mark.parametrize("service", ["data", "ckpt", "health"])
def test_a_services_commands_are_mounted_as_its_own_module_has_them(
    service: str, call: Call
) -> None:
    code, out, _ = call(service, "--help")
    assert code == 0
    assert {"data": "prepare", "ckpt": "verify", "health": "check"}[service] in out
    code, _, err = call(service, "nonsense")
    assert code == 2 and "nonsense" in err


@pytest.mark.parametrize(
    ("arguments", "named", "remedy"),
    [
        (["run", TINY, "--set", "train.stpes=3"], "train.stpes", "did you mean train.steps"),
        (["run", TINY, "--set", "parallel.dp=3"], "= 6", "equal"),
        (["run", TINY, "--nodes", "3"], "launch.nodes", "equal"),
        (["run", TINY, "--set", "model.layers=3"], "model.layers=3", "multiple"),
        (["run", TINY, "--set", "train.steps=many"], "train.steps", "int"),
        (["run", "absent.toml"], "absent.toml", "path"),
        (["status"], "no run", "headway run"),
        (["status", "nothing"], "nothing", "headway run"),
        (["logs", "--level", "loud"], "no run", "headway run"),
        (
            ["node", "start", "--cluster", "nowhere", "--node", "0"],
            "nowhere",
            "headway cluster create",
        ),
        (["frobnicate"], "frobnicate", "--help"),
        (["run"], "CONFIG", "--help"),
        (["run", TINY, "--frobnicate"], "--frobnicate", "--help"),
    ],
)
def test_bad_input_is_one_line_with_the_value_and_the_remedy_and_exits_2(
    arguments: list[str],
    named: str,
    remedy: str,
    call: Call,
    own_roots: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(own_roots)
    code, out, err = call(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert named in err and remedy in err


def test_no_command_at_all_shows_the_help_and_exits_2(call: Call) -> None:
    code, _, err = call()
    assert code == 2 and "Usage: headway" in err


def test_dry_run_prints_a_configuration_that_reads_back_equal(call: Call, tmp_path: Path) -> None:
    from headway.common.config import load
    from headway.trainer.config import RunConfig

    code, out, _ = call("run", TINY, "--set", "train.steps=7", "--spares", "2", "--dry-run")
    assert code == 0
    (tmp_path / "printed.toml").write_text(out)
    printed = load(RunConfig, [tmp_path / "printed.toml"])
    assert printed.train.steps == 7 and printed.launch.spares == 2
    assert printed == load(RunConfig, [Path(TINY)], ["train.steps=7", "launch.spares=2"])
    assert "predicted tensors of a rank" in out and "at most" not in out, "the process uses more"
    assert "on a CPU the process uses more" in out
    code, out, _ = call("run", TINY, "--dry-run", "--json")
    assert json.loads(out)["parallel"]["dp"] == 2


def test_a_dry_run_shows_what_a_step_sends_in_nodes_and_between_them(call: Call) -> None:
    apart = ["launch.nodes=2", "launch.ranks_per_node=2", "parallel.tp=2", "parallel.dp=2"]
    settings = [word for each in (*apart, "parallel.pp=1") for word in ("--set", each)]
    code, out, _ = call("run", TINY, *settings, "--dry-run", "--json")
    assert code == 0
    traffic = json.loads(out)["traffic"]
    assert traffic["tensor parallel"]["nvlink"] > 0 == traffic["tensor parallel"]["leaf"]
    assert traffic["data parallel"]["leaf"] > 0 == traffic["data parallel"]["nvlink"]
    assert {row["spine"] for row in traffic.values()} == {0}
    code, out, _ = call("run", TINY, *settings, "--dry-run")
    total = sum(row["leaf"] for row in traffic.values()) / 2**20
    assert "# total" in out and f"  {total:.1f}  " in out


def test_a_run_is_resumed_by_its_name(fake: FakeRun, fake_call: Call) -> None:
    code, out, _ = fake_call("run", "fake", "--dry-run", "--json")
    assert code == 0 and json.loads(out)["train"]["steps"] == fake.config.train.steps
    code, _, err = fake_call("run", "nobody", "--dry-run")
    assert code == 2 and "nobody" in err


def test_a_start_that_is_terminated_is_taken_back_and_says_so(
    call: Call, own_roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    monkeypatch.setattr("headway.console.cluster.Cluster.launch", launch)
    # without a handler of the command's own nothing happens
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        code, _, err = call("run", TINY, "--runs-dir", str(own_roots / "runs"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 130 and "launch cancelled, nothing left running" in err


def test_status_shows_ranks_and_progress_of_the_newest_run(fake: FakeRun, fake_call: Call) -> None:
    fake.advance(3)
    code, out, _ = fake_call("status")
    assert code == 0
    assert "step 3/40" in out and "generation 0" in out and "node 0 active: dataloader" in out
    code, out, _ = fake_call("status", "fake", "--json")
    told = json.loads(out)
    assert (told["step"], told["paused"]) == (3, False)
    assert [rank["rank"] for rank in told["status"]["ranks"]] == [0, 1]


def test_status_counts_ranks_and_lists_them_on_request(
    fake: FakeRun, fake_call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "FEW_RANKS", 1)
    monkeypatch.setattr(run_module, "PAGE_RANKS", 1)  # each page holds one of the two
    _, out, _ = fake_call("status", "fake")
    assert "pid" not in out
    assert "2 ranks: 2 running; --ranks lists them" in out
    _, out, _ = fake_call("status", "fake", "--ranks", "--json")
    assert [rank["rank"] for rank in json.loads(out)["status"]["ranks"]] == [0, 1]
    assert [rank.rank for rank in fake.run.ranks()] == [0, 1]


def test_status_says_what_the_run_waits_for_and_which_steps_were_skipped(
    fake: FakeRun, fake_call: Call
) -> None:
    fake.advance(2)
    fake.skip()
    _, out, _ = fake_call("status", "fake")
    assert "1 step skipped, last at step 2" in out
    fake.advance(1)
    fake.skip(float("inf"))
    fake.waiting = "rank 1 has no worker yet"
    _, out, _ = fake_call("status", "fake")
    assert "2 steps skipped, last at step 4" in out
    assert "running: rank 1 has no worker yet" in out
    fake.troubles = {0: "dataloader does not run: cannot be started"}
    assert "node 0: dataloader does not run: cannot be started" in fake_call("status", "fake")[1]
    fake.advance(1)
    fake.recover(back_to=2)  # the steps are done again, and this time they are finite
    fake.advance(4)
    told = json.loads(fake_call("status", "fake", "--json")[1])
    assert (told["skipped"], told["last_skipped"]) == (0, None)


@pytest.mark.parametrize("operation", ["pause", "resume", "checkpoint"])
def test_a_steering_command_reaches_the_driver(
    operation: str, fake: FakeRun, fake_call: Call
) -> None:
    code, out, _ = fake_call(operation, "fake", "--wait", "--json")
    assert code == 0
    assert json.loads(out) == {
        "run": "fake",
        "operation": operation,
        "sequence": 1,
        "applied": True,
    }
    assert [command.operation for command in fake.commands] == [operation]


def test_set_and_inject_carry_their_values(fake: FakeRun, fake_call: Call) -> None:
    assert fake_call("set", "fake", "lr=3e-4")[0] == 0
    assert fake_call("set", "fake", "lr", "1.0", "--force")[0] == 0
    assert fake_call("unset", "fake", "lr")[0] == 0
    assert fake_call("inject", "fake", "kill", "--rank", "1")[0] == 0
    assert fake_call("inject", "fake", "stop", "--service", "dataloader", "--node", "0")[0] == 0
    assert [command.force for command in fake.commands[:2]] == [False, True]
    sent = [(c.operation, c.name, c.value, c.fault, c.rank, c.node) for c in fake.commands]
    assert sent == [
        ("set", "lr", 3e-4, "", -1, -1),
        ("set", "lr", 1.0, "", -1, -1),
        ("unset", "lr", 0.0, "", -1, -1),
        ("inject", "worker", 0.0, "kill", 1, -1),
        ("inject", "dataloader", 0.0, "stop", -1, 0),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["set", "fake", "lr"],
        ["set", "fake", "lr=fast"],
        ["set", "fake", "lr=-1"],
        ["set", "fake", "lr=nan"],
        ["set", "fake", "lr=inf"],
        ["set", "fake", "lr=0.11"],
        ["set", "fake", "lr", "0"],
        ["set", "fake", "colour=3"],
        ["unset", "fake", "colour"],
        ["inject", "fake", "kill"],
        ["inject", "fake", "kill", "--rank", "0", "--service", "agent"],
        ["inject", "fake", "kill", "--rank", "7"],
        ["trace", "fake", "--steps", "x"],
        ["logs", "fake", "--level", "loud"],
        ["logs", "fake", "--rank", "99"],
        ["logs", "fake", "--name", "zzz"],
    ],
)
def test_impossible_orders_are_refused_before_they_are_sent(
    arguments: list[str], fake: FakeRun, fake_call: Call
) -> None:
    code, _, err = fake_call(*arguments)
    assert code == 2 and err.startswith("error: ")
    assert fake.commands == []


def test_steps_back_to_front_are_called_that(fake_call: Call) -> None:
    code, _, err = fake_call("trace", "fake", "--steps", "5:2")
    assert code == 2 and err == "error: --steps '5:2' is an inverted range; write 2:5\n"


def test_what_the_driver_refuses_as_bad_input_exits_2(fake_call: Call) -> None:
    code, _, err = fake_call("evict", "fake", "7")
    assert code == 2 and err == "error: node 7 is not there; see `headway status`\n"
    assert fake_call("evict", "fake", "0")[0] == 0


def test_an_ended_run_takes_no_orders(fake: FakeRun, fake_call: Call) -> None:
    fake.finish()
    code, _, err = fake_call("pause", "fake")
    assert code == 2 and "not live" in err


def test_a_second_stop_says_that_the_run_is_stopped(fake: FakeRun, fake_call: Call) -> None:
    fake.finish("stopped")
    code, _, err = fake_call("stop", "fake")
    assert code == 2 and "run fake is stopped" in err


def test_status_of_a_run_whose_cluster_was_removed_says_interrupted(
    fake: FakeRun, fake_call: Call
) -> None:
    fake.advance(2)
    driver = (fake.folder.path / "driver.json").read_text()
    fake.close()
    (fake.folder.path / "driver.json").write_text(re.sub(r'"pid": \d+', '"pid": 4194305', driver))
    (fake.cluster.path / "keys" / "console.key").unlink()
    code, out, err = fake_call("status", "fake")
    assert (code, err) == (0, "") and "step 2/40" in out and "interrupted" in out


@pytest.mark.parametrize("verb", ["ls", "verify", "gc", "show"])
def test_ckpt_verbs_take_the_name_of_a_run(
    verb: str, fake: FakeRun, call: Call, own_roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np
    from headway.ckpt_store.client import CheckpointClient

    CheckpointClient(fake.folder.checkpoints).save(7, {"w": np.full(8, 1)})
    monkeypatch.chdir(own_roots)
    assert call("ckpt", verb, "fake", "--json") == call("ckpt", verb, "runs/fake", "--json")
    assert call("ckpt", verb, "--json") == call("ckpt", verb, "runs/fake", "--json"), "the newest"
    code, _, err = call("ckpt", verb, "absent")
    assert code == 2 and "absent is not a folder" in err


def test_a_cluster_is_made_resized_and_removed_leaving_foreign_files(
    call: Call, own_roots: Path
) -> None:
    folder = own_roots / "cluster"
    assert call("cluster", "create", str(folder), "--nodes", "2")[0] == 0
    first = json.loads((folder / "cluster.json").read_text())
    (folder / "terraform.tfstate").write_text("{}")
    code, out, _ = call("cluster", "create", str(folder), "--nodes", "3", "--json")
    assert code == 0 and json.loads(out) == {"cluster": str(folder), "id": first["id"], "nodes": 3}
    code, _, err = call("node", "start", "--cluster", str(folder), "--node", "3")
    assert code == 2 and "use 0 to 2" in err
    for _ in range(2):
        assert call("cluster", "remove", str(folder))[0] == 0
        assert call("node", "stop", "--cluster", str(folder), "--node", "0")[0] == 0
    assert [path.name for path in folder.iterdir()] == ["terraform.tfstate"]


def test_a_ticket_admits_one_node_of_a_run_on_machines(fake: FakeRun, fake_call: Call) -> None:
    words = ("node", "ticket", "--run", fake.folder.path.name, "--node")
    code, _, err = fake_call(*words, "1")
    assert code == 2 and "is not on several machines" in err
    facts = facts_of(HostsConfig("/shared", (Host("a"), Host("b")), "python", scratch="/scratch"))
    secret, shared = tokens.new_secret(), str(fake.folder.path)
    Bundle("0123abcd", "a", 2, "", Network(), facts, shared, secret).save(fake.folder.bundle)
    code, out, _ = fake_call(*words, "1")
    made = Ticket.from_json(out)
    assert code == 0 and (made.node, made.scratch, made.bundle) == (1, "/scratch", "")
    tokens.check(made.token, secret, "0123abcd", 1)
    code, out, err = fake_call(*words, "2")
    assert (code, out) == (2, "") and "use 0 to 1" in err
    fake.finish()
    code, out, err = fake_call(*words, "1")
    assert (code, out) == (2, "") and "is not live" in err
