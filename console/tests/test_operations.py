"""One table of operations: the shell, Python and buttons say the same,
and destruction is confirmed."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from headway.common.cli import group, run
from headway.common.errors import DeadlineError, InputError
from headway.common.wire.messages.driver import Command
from headway.console.cli import main
from headway.console.commands import options
from headway.console.commands.steering import RESULT_KEYS, RESULTS, SENT, command_of
from headway.console.live.news import News
from headway.console.run import Run
from headway.console.steering.methods import OPERATIONS, Steering
from headway.console.steering.operations import Word, operation
from headway.console.testing import FakeRun
from headway.trainer.client import Request, Texts

Shell = Callable[..., tuple[int, str, str]]

CALLS: dict[str, dict[str, Any]] = {
    "pause": {},
    "resume": {},
    "checkpoint": {},
    "set": {"lr": 3e-4},
    "unset": {"name": "lr"},
    "evaluate": {},
    "sample": {"prompt": "def", "tokens": 8, "temperature": 0.5},
    "extend": {"steps": 20},
    "rollback": {"step": 7},
    "fork": {"name": "other", "step": 7, "changes": ["optim.lr=0.01", "train.steps=50"]},
    "evict": {"node": 0},
    "drain": {"node": 0, "notice_s": 60.0},
    "inject": {"fault": "kill", "rank": 1},
    "stop": {},
}


SENT_TO_THE_DRIVER = sorted(set(CALLS) - {"stop", "fork"})


@pytest.fixture
def fake(steerable: FakeRun) -> FakeRun:
    """A run that every operation can be asked of."""
    return steerable


def test_the_table_is_complete() -> None:
    assert set(CALLS) == set(OPERATIONS)
    for name, row in OPERATIONS.items():
        assert getattr(Run, name).__name__ == row.name == name


@pytest.mark.parametrize("name", SENT_TO_THE_DRIVER)
def test_shell_and_python_send_the_same_message(name: str, fake: FakeRun) -> None:
    arguments = CALLS[name]
    words = shlex.split(OPERATIONS[name].cli_line(fake.folder.path, arguments))
    assert main(words[1:]) == 0, "the line finds the run from anywhere"
    exec(OPERATIONS[name].python_line(arguments), {"run": fake.run})
    OPERATIONS[name].method(fake.run, **arguments)
    own = ("id", "count") if name == "extend" else ("id",)  # each extends what there is then
    sent = [{f: getattr(c, f) for f in c.__struct_fields__ if f not in own} for c in fake.commands]
    assert len(sent) == 3 and sent[0] == sent[1] == sent[2]
    assert sent[0]["operation"] == name


def test_lines_to_copy_name_the_run_and_leave_defaults_out(
    fake: FakeRun, own_roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_roots)
    path = fake.folder.path
    assert (
        OPERATIONS["set"].cli_line(path, {"lr": 3e-4, "force": False})
        == "headway set fake lr=0.0003"
    )
    given = {"fault": "freeze", "target": "agent", "node": 0, "duration_s": 5.0, "rank": None}
    line = "headway inject fake freeze --service agent --node 0 --for 5"
    assert OPERATIONS["inject"].cli_line(path, given) == line
    python = "run.inject('freeze', target='agent', node=0, duration_s=5.0)"
    assert OPERATIONS["inject"].python_line(given) == python
    assert (
        OPERATIONS["set"].python_line({"lr": 3e-4, "force": True})
        == "run.set(lr=0.0003, force=True)"
    )
    monkeypatch.chdir("/")
    assert OPERATIONS["pause"].cli_line(path, {}).startswith("headway pause fake --runs-dir ")


@pytest.mark.parametrize("name", SENT_TO_THE_DRIVER)
def test_without_a_run_the_newest_one_is_meant(name: str, fake: FakeRun, shell: Shell) -> None:
    words = shlex.split(OPERATIONS[name].cli_line(fake.folder.path, CALLS[name]))
    words = [word for word in words[1 : words.index("--runs-dir")] if word != "fake"]
    code, out, err = shell(*words)
    assert (code, err) == (0, "")
    if name not in RESULTS:
        assert out.endswith("sent to fake\n")
    code, out, _ = shell(*words, "--json")
    given = [parameter.name for parameter in OPERATIONS[name].parameters]
    keys = dict.fromkeys([*SENT, *given, *RESULT_KEYS.get(name, ())])
    assert list(json.loads(out)) == list(keys)


def test_an_evaluation_and_a_sample_are_printed_unless_nobody_waits(shell: Shell) -> None:
    assert shell("evaluate")[1] == "validation loss after step 0: 5.0000 nats per token\n"
    code, out, _ = shell("sample", "--prompt", "def function", "--tokens", "2")
    lines = out.splitlines()
    assert code == 0 and lines[0] == "after step 0:" and lines[1].startswith("def function")
    assert shell("evaluate", "--no-wait")[1] == "evaluate: sent to fake\n"


def test_a_live_run_in_the_default_folder_is_asked_for_its_sample(
    fake: FakeRun, own_roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_roots)
    assert main(["sample", "--prompt", "def", "--tokens", "2"]) == 0
    assert [one.operation for one in fake.commands] == ["sample"]


def test_more_steps_for_a_finished_run_are_trained_in_a_fork(fake: FakeRun, shell: Shell) -> None:
    total = fake.run.total_steps
    fake.finish()
    code, out, err = shell("extend", "20")
    assert (code, out) == (2, "")
    assert err.startswith("error: run fake is finished, not live; train on in a new run: `headway ")
    assert "fork fake fake-longer" in err and f"--set train.steps={total + 20}" in err


def test_a_stop_whose_answer_was_lost_counts_once_the_run_has_stopped(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Run.send

    def lose_the_answer(run: Run, command: Command, *, timeout_s: float) -> int:
        send(run, command, timeout_s=timeout_s)
        fake.finish("stopped")  # by the next driver, which reads the command in the journal
        raise DeadlineError("no answer", remedy="send it again")

    monkeypatch.setattr(Run, "send", lose_the_answer)
    assert fake.run.stop() == 1
    assert fake.run.outcome == "stopped"
    with pytest.raises(InputError, match="is stopped, not live"):
        fake.run.stop()


def test_an_extension_shows_in_the_status_and_after_the_end(fake: FakeRun, shell: Shell) -> None:
    shell("extend", "20")
    shell("extend", "5")
    assert "step 0/65" in shell("status")[1]
    fake.finish("stopped")
    assert fake.run.total_steps == 65
    assert "0/65" in shell("runs")[1]


def test_a_fork_that_fails_half_way_leaves_nothing(
    fake: FakeRun, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise InputError("the disk is full", remedy="free some space")

    monkeypatch.setattr("headway.console.steering.forking.inherit", fail)
    assert shell("fork", "other")[0] == 2
    assert [path.name for path in fake.folder.path.parent.iterdir()] == ["fake"]


def test_a_fork_may_take_other_micro_batches_but_not_another_global_batch(
    fake: FakeRun, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the message of a run that is out of memory advises."""
    train = fake.run.config.train
    other = 2 if train.micro_batch_size == 1 else 1
    change = f"train.micro_batch_size={other}"
    monkeypatch.setattr("headway.console.steering.forking.inherit", lambda *_: None)
    code, _, err = shell("fork", "fake", "smaller", "--set", change)
    assert code == 0, err
    forked = Run(fake.folder.path.parent / "smaller").config.train
    assert (forked.micro_batch_size, forked.global_batch_size) == (other, train.global_batch_size)
    wider = f"train.global_batch_size={2 * train.global_batch_size}"
    code, _, err = shell("fork", "fake", "wider", "--set", wider)
    assert code == 2 and "train.global_batch_size" in err


def test_what_came_after_a_rollback_is_not_of_the_present_course(
    fake: FakeRun, shell: Shell
) -> None:
    fake.advance(10)
    fake.evaluate(4.0)
    shell("rollback", "7", "--yes")
    metrics = fake.run.metrics()
    assert metrics["step"].to_list() == list(range(8))
    assert metrics["generation"].to_list() == [0] * 7 + [1]
    assert fake.run.metrics(repeated=True).height == 11
    assert fake.run.evaluations().is_empty()
    news = [line for _, line in News(fake.run, since=0).read()]
    assert news[-1].startswith("the run is rolled back to step 7 on request; back after")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rollback", "8"), "run fake has no checkpoint of step 8; available steps: 7"),
        (("fork", "fake"), "there is a run 'fake' already; choose another name"),
        (("fork", "a b"), "cannot be a folder's name"),
        (("fork", "other", "--step", "8"), "no checkpoint of step 8"),
        (("fork", "other", "--set", "model.hidden=64"), "has model.hidden=32, not 64"),
        (("fork", "other", "--set", "optim.rate=1"), "optim.rate"),
        (("sample", "--prompt", "def " * 200), "exceed the model's 128"),
        (("sample", "--tokens", "0"), "cannot write 0 tokens"),
        (("sample", "--prompt", "a\udcff"), "the prompt is not valid UTF-8"),
        (("fork", "x" * 300), "use up to 100 letters"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_refused_and_leaves_nothing(
    words: tuple[str, ...], message: str, fake: FakeRun, shell: Shell
) -> None:
    code, _, err = shell(*words)
    assert code == 2 and message in err and err.count("\n") == 1
    assert fake.commands == []
    assert [path.name for path in fake.folder.path.parent.iterdir()] == ["fake"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evict"], "expected [RUN] NODE, got 'nothing'; for example `headway evict 1`"),
        (["evict", "a", "b", "c"], "expected [RUN] NODE, got 'a b c'"),
        (["evict", "fake"], "node must be a whole number, not 'fake'"),
        (["set"], "expected [RUN] lr=VALUE"),
        (["set", "lr"], "expected KEY=VALUE, got 'lr'; for example `headway set lr=3e-4`"),
        (["set", "colour=3"], "cannot set 'colour'; only lr can be set on a live run"),
        (["set", "lr=fast"], "lr must be a number, not 'fast'"),
        (["inject", "kill"], "nothing to break; give --rank R, or --service NAME with --node N"),
        (["inject", "kill", "--rank", "0", "--service", "agent"], "two things to break"),
        (["inject", "kill", "--rank", "2"], "rank 2 is not in run fake; use 0 to 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_are_refused_with_an_example(
    words: list[str], said: str, fake: FakeRun, shell: Shell
) -> None:
    code, out, err = shell(*words)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1
    assert fake.commands == []


def test_python_never_guesses_a_rank_either(fake: FakeRun) -> None:
    with pytest.raises(InputError, match="nothing to break"):
        fake.run.inject("kill")
    with pytest.raises(InputError, match="use 0 to 1"):
        fake.run.inject("kill", rank=5)
    assert fake.commands == []


# ---- a new operation is one method --------------------------------------------------------------
@pytest.fixture
def defragment() -> Iterator[str]:
    """An operation that this file adds; what it sends is one of the words that messages know."""

    @operation("headway defragment 40", asks=lambda a: f"defragment {a['run']} from {a['step']}?")
    def defragment(
        self: Steering,
        step: Annotated[int, Word("The step.", "STEP")],
        *,
        keep: Annotated[bool, Word("Keep newer checkpoints.")] = False,
    ) -> int:
        """Defragment the checkpoints."""
        return self.command("checkpoint", node=step, force=keep)

    OPERATIONS["defragment"] = defragment.operation  # type: ignore[attr-defined]
    yield "defragment"
    del OPERATIONS["defragment"]


def test_a_new_operation_needs_only_its_method(
    defragment: str, fake: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    app: typer.Typer = group("Of this test.")
    app.command(defragment)(command_of(OPERATIONS[defragment]))
    app.command("other")(lambda: None)
    runs = ["--runs-dir", str(fake.folder.path.parent)]
    assert run(app, "test", [defragment, "fake", "40", "--keep", "--json", *runs]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["operation"], done["step"], done["keep"]) == ("defragment", 40, True)
    (sent,) = fake.commands
    assert (sent.operation, sent.node, sent.force) == ("checkpoint", 40, True)
    line = OPERATIONS[defragment].cli_line(fake.folder.path, {"step": 40, "keep": True})
    assert line.startswith("headway defragment fake 40 --keep --runs-dir ")
    assert OPERATIONS[defragment].python_line({"step": 40}) == "run.defragment(40)"


# ---- one question before anything is ended or broken --------------------------------------------
DESTRUCTIVE = {
    "rollback": (
        ["rollback", "7"],
        r"go back to step 7 of run fake\? Its newer checkpoints are removed",
    ),
    "stop": (["stop", "--no-wait"], r"stop run fake\?"),
    "evict": (["evict", "0"], r"take node 0 out of run fake for good\?"),
    "inject a worker": (
        ["inject", "kill", "--rank", "1"],
        r"inject kill into the worker of rank 1 of run fake\?",
    ),
    "inject a service": (
        ["inject", "stop", "--service", "agent"],
        r"inject stop into agent of the driver's node of run fake\?",
    ),
}


@pytest.mark.parametrize("case", DESTRUCTIVE)
@pytest.mark.parametrize("answer", [False, True])
def test_on_a_terminal_it_is_asked_once(
    case: str, answer: bool, fake: FakeRun, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, question = DESTRUCTIVE[case]
    asked: list[str] = []

    def ask(text: str, **_: object) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr(options.typer, "confirm", ask)
    monkeypatch.setattr(options.sys.stdin, "isatty", lambda: True, raising=False)
    code, _, err = shell(*words)
    assert len(asked) == 1 and re.fullmatch(question, asked[0])
    assert (code, len(fake.commands)) == ((0, 1) if answer else (1, 0))
    assert answer or "nothing was done" in err
    shell(*words, "--yes")
    assert len(asked) == 1, "--yes answers it"


@pytest.mark.parametrize("case", DESTRUCTIVE)
def test_without_a_terminal_nothing_is_asked(
    case: str, fake: FakeRun, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options.sys.stdin, "isatty", lambda: False, raising=False)
    monkeypatch.setattr(options.typer, "confirm", lambda *_, **__: pytest.fail("it asks"))
    assert shell(*DESTRUCTIVE[case][0])[0] == 0
    assert len(fake.commands) == 1


def test_every_command_that_asks_takes_yes(capsys: pytest.CaptureFixture[str]) -> None:
    asking = [name for name, row in OPERATIONS.items() if row.asks] + ["stop"]
    groups = [("cluster", verb) for verb in ("create", "drain", "remove")] + [("node", "stop")]
    for words in [*((name,) for name in asking), *groups]:
        main([*words, "--help"])
        assert "--yes" in capsys.readouterr().out, words


def test_the_signature_of_a_command_is_that_of_its_method() -> None:
    shown = inspect.signature(command_of(OPERATIONS["inject"])).parameters
    assert list(shown) == [
        "words", "rank", "target", "node", "duration_s", "yes", "runs_dir", "as_json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "option"),
    [(("--top-p", "0.5"), "--top-p 0.5"), (("--count", "2"), "--count 2"), (("--step", "7"), "7")],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_live_run_samples_with_its_own_options_only(
    words: tuple[str, ...], option: str, fake: FakeRun, shell: Shell
) -> None:
    code, _, err = shell("sample", *words)
    assert code == 2 and f"{option} cannot be used with fake, which is live" in err
    assert fake.commands == []


def test_an_ended_run_is_sampled_from_its_checkpoint_without_a_driver(
    fake: FakeRun, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, Request]] = []

    def write(model: Path, request: Request) -> Texts:
        asked.append((model, request))
        return Texts(model, 7, request.prompt, (" one", " two"))

    monkeypatch.setattr("headway.trainer.client.write_texts", write)
    monkeypatch.setattr(Run, "live", False)
    fake.finish()
    words = ("sample", "--prompt", "a", "--count", "2", "--top-p", "0.5", "--seed", "3")
    code, out, _ = shell(*words)
    assert code == 0 and out.splitlines()[1:] == ["a one", "a two"]
    found = json.loads(shell(*words, "--json")[1])
    assert list(found) == ["model", "step", "prompt", "texts"]
    path, request = asked[0]
    assert path == fake.folder.path
    assert request == Request(prompt="a", count=2, top_p=0.5, seed=3)
