"""Evaluations, samples and extensions that are asked for while a rank trains, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.config import from_dict
from headway.common.errors import InputError
from headway.common.wire.messages.executor import StepMetrics
from headway.common.wire.messages.worker import Steer
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.sessions import arena_at
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted
from headway.trainer.config import RunConfig, check_sample
from headway.trainer.optim.schedule import learning_rate
from headway.trainer.session.hooks import StepResult
from headway.trainer.session.session import Session
from headway.trainer.worker.control_hooks import ControlHooks
from headway.trainer.worker.link import WorkerStatus

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLE = Steer(sequence=1, operation="sample", value=0.8, count=4, tokens=(1, 2))


class _Link:
    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        self.sent.append(message)

    def keep(self, message: object) -> None:
        self.sent.append(("kept", message))

    def beat_now(self) -> None:
        """No executor listens."""


class _Context:
    """What ``ControlHooks`` needs of a worker, without its process."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.view, self.link = config, WorkerStatus(), _Link()
        self.view.rank = 0
        self.commands: list[Steer] = []


class _Hooks(ControlHooks):
    """Receives ``commands[step]`` when that step has ended; keeps what happened, in order."""

    def __init__(self, config: RunConfig, commands: dict[int, tuple[Steer, ...]]) -> None:
        self.context = _Context(config)
        super().__init__(self.context, 0)  # type: ignore[arg-type]
        self.planned = commands
        self.happened: list[tuple[object, ...]] = []
        self.breaks_at = -1
        self.rounds = 0

    def command_seq(self) -> int:
        self.rounds += 1
        if self.rounds == 40 and any(c.operation == "pause" for c in self.context.commands):
            number = len(self.context.commands) + 1
            self.context.commands.append(Steer(sequence=number, operation="resume"))
        return super().command_seq()

    def on_step(self, result: StepResult) -> None:
        self.happened.append(("step", result.step, result.lr))
        self.context.commands += self.planned.get(result.step, ())

    def on_eval(self, step: int, loss: float, sequence: int = 0) -> None:
        del sequence
        if step == self.breaks_at:
            raise Aborted
        self.happened.append(("evaluation", step, loss))

    def on_sample(self, sequence: int, step: int, prompt: list[int], tokens: list[int]) -> None:
        self.happened.append(("sample", step, sequence, *prompt, *tokens))

    def steps(self) -> list[object]:
        return [one[1] for one in self.happened if one[0] == "step"]

    def of(self, what: str) -> list[tuple[object, ...]]:
        return [one for one in self.happened if one[0] == what]


def _config() -> RunConfig:
    settings = small_run("fp32", world_size=1)
    settings["train"] |= {"steps": 10, "eval_every": 0}
    return from_dict(RunConfig, settings)


def _session(folder: Path | None = None) -> Session:
    config = _config()
    opener = arena_at(folder / "arena-0.bin") if folder is not None else None
    return Session(config, 0, data_factory=synthetic(config, 0), open_arena=opener)


def _run(hooks: _Hooks, session: Session | None = None, until: int | None = None) -> None:
    session = session or _session()
    session.join(Groups.alone())
    session.load("init")
    session.run(hooks, until)
    session.leave()


def test_an_evaluation_is_made_once_between_two_steps_and_changes_no_step() -> None:
    plain = _Hooks(_config(), {})
    _run(plain)
    hooks = _Hooks(_config(), {3: (Steer(sequence=1, operation="evaluate"),)})
    _run(hooks)
    assert [one[1] for one in hooks.of("evaluation")] == [0, 5, 10]
    kinds = [one[0] for one in hooks.happened]
    assert kinds[5:8] == ["step", "evaluation", "step"], "heard after step 3, agreed in step 4"
    assert hooks.of("evaluation")[::2] == plain.of("evaluation")
    assert hooks.of("step") == plain.of("step")
    assert hooks.context.view.applied == 1


def test_a_sample_follows_its_prompt_and_depends_on_the_weights_only() -> None:
    hooks = _Hooks(_config(), {3: (SAMPLE,)})
    _run(hooks)
    ((_, step, sequence, *tokens),) = hooks.of("sample")
    assert (step, sequence, tokens[:2], len(tokens)) == (5, 1, [1, 2], 6)
    again = _Hooks(_config(), {3: (SAMPLE,)})
    _run(again)
    assert hooks.of("sample") == again.of("sample")


def test_both_are_made_while_the_run_is_paused() -> None:
    pause = Steer(sequence=1, operation="pause")
    evaluate = Steer(sequence=2, operation="evaluate")
    hooks = _Hooks(_config(), {3: (pause,)})
    before = hooks.on_pause

    def on_pause(is_paused: bool) -> None:
        before(is_paused)
        if is_paused:
            hooks.context.commands.append(evaluate)
        hooks.happened.append(("pause", is_paused))

    hooks.on_pause = on_pause  # type: ignore[method-assign]
    _run(hooks)
    happened = [one[:2] for one in hooks.happened]
    start = happened.index(("pause", True))
    assert happened[start : start + 3] == [("pause", True), ("evaluation", 5), ("pause", False)]
    assert hooks.steps() == list(range(10))


def test_one_that_a_failure_interrupted_is_made_by_the_next_generation(tmp_path: Path) -> None:
    evaluate = Steer(sequence=1, operation="evaluate")
    hooks = _Hooks(_config(), {3: (evaluate,)})
    hooks.breaks_at = 5
    session = _session(tmp_path)
    session.join(Groups.alone())
    session.load("init")
    with pytest.raises(Aborted):
        session.run(hooks)
    session.leave()
    assert hooks.context.view.applied == 0, "nobody must believe that it was done"
    hooks.breaks_at = -1
    session.join(Groups.alone())
    session.load("arena", session.ready_snapshots().sealed)
    session.run(hooks)
    session.leave()
    assert [one[1] for one in hooks.of("evaluation")] == [0, 5, 10]
    assert hooks.context.view.applied == 1


def test_an_extended_run_makes_the_steps_of_a_run_that_was_configured_so_long() -> None:
    extend = Steer(sequence=1, operation="extend", count=14)
    hooks = _Hooks(_config(), {3: (extend,)})
    _run(hooks)
    assert hooks.steps() == list(range(14))
    rates = [one[2] for one in hooks.of("step")]
    optim = _config().optim
    assert rates == [learning_rate(optim, s, 10 if s < 5 else 14) for s in range(14)]
    assert [one[1] for one in hooks.of("evaluation")] == [0, 14], "no end at step 10"


@pytest.mark.parametrize(
    ("prompt", "count", "temperature", "message"),
    [
        ((), 4, 0.8, "no token"),
        ((1, 10**6), 4, 0.8, "token 1000000 of the prompt is not in the vocabulary"),
        ((1,), 0, 0.8, "cannot write 0 tokens"),
        ((1,) * 8, 10**6, 0.8, "a prompt of 8 tokens and 1000000 more exceed the model's"),
        ((1,), 4, -0.1, "temperature -0.1 is out of range"),
        ((1,), 4, float("nan"), "temperature nan is out of range"),
    ],
)
def test_what_no_model_can_write_is_refused(
    prompt: tuple[int, ...], count: int, temperature: float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_sample(prompt, count, temperature, _config())


def test_what_an_earlier_generation_answered_is_not_made_again() -> None:
    hooks = _Hooks(_config(), {3: (SAMPLE, Steer(sequence=2, operation="evaluate"))})
    hooks._answered = 1
    _run(hooks)
    assert hooks.of("sample") == []
    assert [one[1] for one in hooks.of("evaluation")] == [0, 5, 10]
    assert hooks.context.view.applied == 2


def test_a_run_that_was_extended_after_its_last_step_trains_on() -> None:
    session = _session()
    first = _Hooks(_config(), {})
    _run(first, session)
    again = _Hooks(_config(), {})
    again.context.commands = [Steer(sequence=1, operation="extend", count=12)]
    session.join(Groups.alone())
    session.run(again)
    session.leave()
    assert again.steps() == [10, 11]


def test_one_rank_reports_and_the_last_of_each_of_eight_nodes_keeps_the_same() -> None:
    def sent(rank: int, ranks_per_node: int) -> object:
        settings = small_run("fp32", world_size=40)
        settings["parallel"] = {"dp": 40}
        settings["train"] |= {"global_batch_size": 80}
        settings["launch"] = {"nodes": 40 // ranks_per_node, "ranks_per_node": ranks_per_node}
        context = _Context(from_dict(RunConfig, settings))
        context.view.rank = rank
        hooks = ControlHooks(context, 3, after_step=lambda _: None)  # type: ignore[arg-type]
        hooks.on_step(StepResult(7, 2.5, 1.0, 1e-3, 8, False, 0, 0.1))
        for message in context.link.sent:
            match message:
                case StepMetrics(generation=3, step=7):
                    return "reports"
                case ("kept", StepMetrics(generation=3, step=7)):
                    return "keeps"
        return "neither"

    who = {rank: sent(rank, 4) for rank in range(40)}
    assert [rank for rank, what in who.items() if what == "reports"] == [0]
    assert [rank for rank, what in who.items() if what == "keeps"] == list(range(3, 32, 4))
    assert [sent(rank, 1) for rank in range(3)] == ["reports", "keeps", "keeps"]
