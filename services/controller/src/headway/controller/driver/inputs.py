"""The inputs of the driver's decisions.

The journal keeps them so that the decisions can be made again.

What no decision rests on is left out, see ``InputRecorder``. Together with the time of each, in the
core's own clock, the rest determines the same decisions as the whole stream.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from headway.common.decide import Action, words
from headway.common.errors import InputError
from headway.common.wire import codec
from headway.common.wire.message import Message, by_tag
from headway.common.wire.messages.driver import NodeBeat, Relay, Seals, WorkerGone
from headway.common.wire.messages.executor import ToWorker
from headway.controller.decisions import events
from headway.controller.decisions.events import Answer, Input, Send, Start, Tick, VerdictReceived
from headway.controller.decisions.state import RunState
from headway.controller.journal.file import JournalFile
from headway.trainer.config import RecoveryConfig

MAX_TEXT = 2000
"""Characters of one decision in the journal: those about all ranks of a large run are longer."""
_MESSAGES: dict[str, type[Message]] = by_tag([NodeBeat, Relay, Seals, WorkerGone])
_OWN = {
    one.__name__: one
    for module in (events, words)
    for one in vars(module).values()
    if isinstance(one, type) and one.__module__ == module.__name__
}


def encode(event: Input | Start) -> bytes:
    """One event as bytes: a message as it is on the wire, the driver's own by name and fields."""
    if isinstance(event, Relay) and event.store is not None:
        # no decision rests on the secret
        opened = msgspec.structs.replace(event.store, secret="")  # type: ignore[type-var]
        event = msgspec.structs.replace(event, store=opened)  # type: ignore[type-var]
    if isinstance(event, Message):
        return msgspec.msgpack.encode({"message": codec.encode(event)})
    return msgspec.msgpack.encode(_plain(event))


def decode(data: bytes) -> Any:
    """The event again.

    Raises:
        InputError: it was written by another version.
    """
    try:
        row = msgspec.msgpack.decode(data)
        if "message" in row:
            return codec.decode(row["message"], _MESSAGES)
        return _own(row)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"an input of the driver cannot be read: {error}",
            remedy="use the version of Headway that ran it",
        ) from error


def _plain(event: Any) -> dict[str, Any]:
    fields = {
        name: _plain(value) if type(value).__name__ in _OWN else value
        for name, value in vars(event).items()
    }
    return {"event": type(event).__name__, **msgspec.to_builtins(fields, str_keys=False)}


def _own(row: dict[str, Any]) -> Any:
    kind = _OWN[row["event"]]
    hints = typing.get_type_hints(kind)
    fields = {
        name: _own(value)
        if isinstance(value, dict) and "event" in value
        else msgspec.convert(value, hints[name])
        for name, value in row.items()
        if name != "event"
    }
    return kind(**fields)


class InputRecorder:
    """Hands the inputs that matter to ``write(clock, event, decided)``.

    They come in the order of their times.

    Left out are ticks and pulses that decided nothing, but for those that later decisions rest on:
    of each node the first pulse of its newest step (progress is timed by it) and the newest pulse
    (silence is), and all ticks while a stop is awaited. A verdict that repeats until it can be
    decided is left out too.
    """

    def __init__(self, state: RunState, write: Callable[[float, bytes, str], None]) -> None:
        self._state, self._write = state, write
        self._pulses: dict[int, list[tuple[float, NodeBeat]]] = {}
        self._phase = state.phase

    def handle(self, event: Input, now: float) -> list[Action]:
        """Let the state decide on ``event``, and record what it decided upon."""
        actions = self._state.handle(event, now)
        is_quiet = not actions and self._state.phase == self._phase
        self._phase = self._state.phase
        if is_quiet and isinstance(event, Tick) and not self._awaits_stop():
            return actions
        if is_quiet and isinstance(event, NodeBeat) and event.workers is None:
            self._keep(event)
            return actions
        if isinstance(event, VerdictReceived) and all(_is_put_off(action) for action in actions):
            return actions
        pulses = [pulse for kept in self._pulses.values() for pulse in kept]
        for clock, pulse in sorted(pulses, key=lambda one: one[0]):
            self._write(clock, encode(pulse), "")
        self._pulses.clear()
        self._write(self._state.clock_s, encode(event), decided(actions))
        return actions

    def _awaits_stop(self) -> bool:
        return any(command.operation == "stop" for command in self._state.commands[-8:])

    def _keep(self, pulse: NodeBeat) -> None:
        kept = self._pulses.setdefault(pulse.node, [])
        newest = (self._state.clock_s, pulse)
        if kept and kept[0][1].step == pulse.step:
            kept[1:] = [newest]
        else:
            kept[:] = [newest]


def _is_put_off(action: Action) -> bool:
    return isinstance(action, Answer) and not action.taken


def decided(actions: list[Action]) -> str:
    """Return what was decided, as text that can be compared.

    A long one ends with a digest of the whole.
    """
    text = "; ".join(_one_line(action) for action in actions)
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}... {xxhash.xxh3_64_hexdigest(text.encode())}"


def _one_line(action: Action) -> str:
    if isinstance(action, Send):
        message = action.message
        if isinstance(message, ToWorker):
            message = msgspec.structs.replace(message, store_secret="")  # type: ignore[type-var]
        return f"send node {action.node} {message!r}"
    return repr(action)


@dataclass(frozen=True)
class Replayed:
    """One decision made again: ``now`` equals ``then`` unless the code decides otherwise today."""

    epoch: int
    clock: float
    event: str
    then: str
    now: str


def begin_text(limits: RecoveryConfig) -> str:
    """What is kept beside ``Start``: the limits that the decisions were made under."""
    return msgspec.json.encode(limits).decode()


def replay(database: Path) -> Iterator[Replayed]:
    """Make every decision of a run again from its recorded inputs, which are only read.

    Raises:
        InputError: the run has no recorded inputs, or another version's.
    """
    state: RunState | None = None
    for epoch, clock, data, then in _recorded(database):
        event = decode(data)
        if isinstance(event, Start):
            state = RunState(event, msgspec.json.decode(then, type=RecoveryConfig), 0.0)
            continue
        if state is None:
            raise InputError(
                f"{database} lacks the first input of epoch {epoch}",
                remedy="the run's events are in `headway logs` and in the table `events`",
            )
        state.clock_s = clock
        now = decided(state.handle(event, 0.0))
        if then or now:
            yield Replayed(epoch, clock, type(event).__name__, then, now)


def _recorded(database: Path) -> list[tuple[int, float, bytes, str]]:
    file = JournalFile(database)
    rows = file.rows("inputs")
    if file.damage:
        raise InputError(
            f"the inputs in {database} cannot be read: {file.damage}",
            remedy="the run's events are in `headway logs`",
        )
    if not rows:
        raise InputError(
            f"{database} has no recorded inputs", remedy="replay a run that a driver has led"
        )
    return rows
