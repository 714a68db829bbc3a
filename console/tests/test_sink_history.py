"""What is exported does not depend on when it is read; Weights & Biases gets each step once."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from headway.common.polling import wait_until
from headway.console.sinks import position, wandb_offline
from headway.console.sinks.export import exporting
from headway.console.sinks.items import Item, Rewind, Scalars, Settings, Text
from headway.console.sinks.journal_reader import HistoryReader
from headway.console.testing import FakeRun
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LOSS = "train/loss"


class Memory:
    """What a sink shows that forgets what was taken back."""

    def __init__(self) -> None:
        self.losses: dict[int, int] = {}
        self.evaluations: set[int] = set()

    def write(self, items: list[Item]) -> None:
        for item in items:
            match item:
                case Scalars(values={"validation/loss": _}):
                    assert item.step not in self.evaluations
                    self.evaluations.add(item.step)
                case Scalars(values={"run/generation": generation}):
                    assert item.step not in self.losses
                    self.losses[item.step] = int(generation)
                case Rewind():
                    self.losses = {s: g for s, g in self.losses.items() if s < item.step}
                    self.evaluations = {s for s in self.evaluations if s < item.step}
                case Settings() | Text() | Scalars():
                    pass


MOVES = st.lists(
    st.tuples(st.sampled_from(["advance", "recover", "evaluate", "read"]), st.integers(1, 5)),
    max_size=14,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES, page=st.integers(1, 4))
def test_the_exported_course_does_not_depend_on_when_it_was_read(
    own_roots: Path, moves: list[tuple[str, int]], page: int
) -> None:
    fake = FakeRun(own_roots / "runs", f"r{time.monotonic_ns()}")
    patch = pytest.MonkeyPatch()
    patch.setattr("headway.console.sinks.journal_reader.PAGE", page)
    memory, at = Memory(), position.Position("")
    history: dict[int, int] = {}
    evaluations: set[int] = set()
    try:
        for move, number in [*moves, ("read", 0)]:
            match move:
                case "advance":
                    fake.advance(number)
                    history |= dict.fromkeys(range(fake.step - number + 1, fake.step + 1), 0)
                    history |= dict.fromkeys(
                        range(fake.step - number + 1, fake.step + 1), fake.generation
                    )
                case "recover":
                    back_to = max(0, fake.step - number)
                    fake.recover(back_to=back_to)
                    history = {s: g for s, g in history.items() if s <= back_to}
                    history[fake.step] = fake.generation
                    evaluations = {s for s in evaluations if s <= back_to}
                case "evaluate":
                    fake.evaluate(1.0)
                    evaluations.add(fake.step)
                case "read":
                    reader = HistoryReader(fake.run, at)  # as a restarted exporter has it
                    is_more = True
                    while is_more:
                        items, is_more = reader.read()
                        memory.write(items)
        assert (memory.losses, memory.evaluations) == (history, evaluations)
    finally:
        patch.undo()
        fake.close()


BLOCK, HEADER = 32768, 7
"""Of the files that wandb writes: LevelDB's log format behind 7 bytes of its own."""


def records(path: Path) -> Iterator[bytes]:
    """The records of a file, which may lie in pieces over several blocks."""
    data, at, record = path.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B"
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of all offline files, in order."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted(out.glob("wandb/offline-run-*/*.wandb")):
        for data in records(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            items = record.history.item
            if items:
                keys = [item.key or "/".join(item.nested_key) for item in items]
                values = [json.loads(item.value_json) for item in items]
                found.append(dict(zip(keys, values, strict=True)))
    return found


def _written(out: Path, losses: int) -> list[dict[str, Any]]:
    """``rows_of`` once there are so many losses, or after 20 s: wandb's own process may write the
    end of a file a moment after the session has ended."""
    assert wait_until(lambda: sum(LOSS in row for row in rows_of(out)) >= losses, 20.0)
    return rows_of(out)


def test_a_resumed_offline_run_keeps_its_id_and_repeats_no_step(fake: FakeRun) -> None:
    fake.advance(3)
    for _ in range(2):
        with exporting(fake.run, "wandb") as exported:
            out = exported.update().out
        if not fake.generation:
            fake.recover(back_to=2)
            fake.advance(1)
    files = list(out.glob("wandb/offline-run-*/*.wandb"))
    assert [path.name for path in files] == 2 * [f"run-{fake.folder.run_id}.wandb"]
    rows = _written(out, 5)
    assert [row["step"] for row in rows if LOSS in row] == [1, 2, 3, 3, 4]
    assert [row["step"] for row in rows if "run/rewound_to" in row] == [3]
    assert [row["_step"] for row in rows] == list(range(len(rows)))


def test_a_killed_follower_loses_no_row_for_wandb(fake: FakeRun) -> None:
    command = [sys.executable, "-m", "headway.console.sinks", "--run", str(fake.folder.path)]
    fake.advance(3)
    with subprocess.Popen([*command, "--to", "wandb"], stderr=subprocess.DEVNULL) as child:
        try:
            wandb = fake.folder.sinks / "wandb" / "wandb"
            assert wait_until(lambda: list(wandb.glob("offline-run-*/*.wandb")), 90)
        finally:
            child.kill()
    fake.advance(2)
    with exporting(fake.run, "wandb") as exported:
        out = exported.update().out

    rows = _written(out, 5)
    assert [row["step"] for row in rows if LOSS in row] == [1, 2, 3, 4, 5]
    assert [row["_step"] for row in rows] == list(range(len(rows)))


def test_the_name_of_a_removed_session_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two processes of wandb would write to one file: the killed exporter's lives longer."""
    seconds = iter(["20261122_164726", "20261122_164726", "20261122_164727"])
    clock = SimpleNamespace(strftime=lambda _: next(seconds), sleep=lambda _: None)
    monkeypatch.setattr(wandb_offline, "time", clock)
    wandb_offline.wait_for_a_free_name("6ca26861", {"offline-run-20261122_164726-6ca26861"})
    assert list(seconds) == [], "it waited for the next second"
