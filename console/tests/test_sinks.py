"""Every step of a run's history is in a sink once, whatever happens to the run and the exporter."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from headway.common.errors import InputError
from headway.common.polling import wait_until
from headway.console.commands import exporting as command
from headway.console.machine import preflight
from headway.console.sinks import CLASSES, exporter
from headway.console.sinks.export import exporting
from headway.console.testing import SMALL, FakeRun
from headway.health.config import HealthConfig
from headway.trainer.config import SINKS, LaunchConfig
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

Shell = Callable[..., tuple[int, str, str]]
LOSS, VALIDATION = "train/loss", "validation/loss"


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """What a command sets up for its process ends with the test."""
    yield
    structlog.reset_defaults()


def shown(out: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value) as TensorBoard shows them."""
    seen = EventAccumulator(str(out), size_guidance={"scalars": 0, "tensors": 0})
    seen.Reload()
    found = {}
    for tag in seen.Tags()["tensors"]:
        events = seen.Tensors(tag)
        if events[0].tensor_proto.float_val:
            found[tag] = [(event.step, event.tensor_proto.float_val[0]) for event in events]
    for tag in seen.Tags()["scalars"]:
        found[tag] = [(event.step, event.value) for event in seen.Scalars(tag)]
    return found


def written(out: Path, tag: str = LOSS) -> list[int]:
    """The steps of a tag in all event files, also those that were rewound."""
    return [
        event.step
        for path in sorted(out.glob("events.*"))
        for event in EventFileLoader(str(path)).Load()
        if any(value.tag == tag for value in event.summary.value)
    ]


def texts(out: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(out.glob("events.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "text":
                    found.setdefault(value.tag, []).append(value.tensor.string_val[0].decode())
    return found


def export(fake: FakeRun) -> Path:
    """Export what is new; returns the folder."""
    with exporting(fake.run, "tensorboard") as exported:
        return exported.update().out


# ---- what is exported -------------------------------------------------------------------------
def test_a_run_is_exported_by_completed_steps_with_its_configuration(fake: FakeRun) -> None:
    fake.evaluate(6.5)
    fake.advance(3)
    fake.skip()
    fake.advance(1)
    fake.evaluate(5.5)
    out = export(fake)
    found = shown(out)
    assert [step for step, _ in found[LOSS]] == [
        1,
        2,
        3,
        5,
    ]  # a loss that is not finite is left out
    assert found[LOSS][0][1] == pytest.approx(6.0)
    assert found[VALIDATION] == [(0, 6.5), (5, 5.5)]
    assert [value for _, value in found["train/skipped_steps"]] == [0, 0, 0, 1, 1]
    assert found["train/tokens_per_second"][0] == (1, pytest.approx(100_000))
    names = ("gradient_norm", "learning_rate", "step_seconds")
    assert {len(found[f"train/{name}"]) for name in names} == {5}
    (config,) = texts(out)["config"]
    assert "global_batch_size = 4" in config


def test_of_web_addresses_only_the_host_is_exported(own_roots: Path) -> None:
    url = "https://bot:pw@chat.example.com:8443/hooks/T0KEN?key=k3y"
    fake = FakeRun(own_roots / "runs", config=replace(SMALL, health=HealthConfig(notify=(url,))))
    try:
        (config,) = texts(export(fake))["config"]
    finally:
        fake.close()
    assert '"https://chat.example.com:8443"' in config
    assert not any(word in config for word in ("bot", "pw@", "T0KEN", "k3y"))


def test_a_second_export_adds_only_what_is_new(fake: FakeRun) -> None:
    for _ in range(3):
        fake.advance(2)
        out = export(fake)
    before = sorted(out.iterdir())
    export(fake)
    assert written(out) == [1, 2, 3, 4, 5, 6]
    assert sorted(out.iterdir()) == before, "an export without anything new leaves no file"
    assert len(texts(out)["config"]) == 1


def test_steps_that_a_recovery_took_back_are_replaced_by_those_that_followed(fake: FakeRun) -> None:
    fake.advance(5)
    fake.evaluate(5.0)
    out = export(fake)
    fake.recover(back_to=3)
    fake.advance(3)
    fake.evaluate(4.0)
    export(fake)
    found = shown(out)
    assert [step for step, _ in found[LOSS]] == [1, 2, 3, 4, 5, 6, 7]
    assert found["run/generation"][2:5] == [(3, 0), (4, 1), (5, 1)]
    assert found[VALIDATION] == [(7, 4.0)], "that of step 5 was rewound"
    assert [value for _, value in found["run/recoveries"]] == [0, 0, 0, 1, 1, 1, 1]
    assert written(out) == [1, 2, 3, 4, 5, 4, 5, 6, 7], "nothing that was written is removed"
    (sentence,) = texts(out)["recovery"]
    assert sentence.startswith("rank 1 is lost: killed; all ranks stepped again after ")
    assert "from 3 completed steps (arena)" in sentence


def test_a_validation_loss_at_the_place_of_a_checkpoint_survives_going_back_to_it(
    fake: FakeRun,
) -> None:
    fake.advance(4)
    fake.evaluate(5.0)
    fake.advance(2)
    out = export(fake)
    fake.recover(back_to=4)
    export(fake)
    assert shown(out)[VALIDATION] == [(4, 5.0)]


def test_steps_that_are_reported_again_are_not_written_again(fake: FakeRun) -> None:
    fake.advance(3)
    out = export(fake)
    fake.step = 1  # a new driver stores what its predecessor did not acknowledge
    fake.advance(3)
    export(fake)
    assert written(out) == [1, 2, 3, 4]


# ---- what goes wrong --------------------------------------------------------------------------
def spawn(fake: FakeRun) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headway.console.sinks", "--run", str(fake.folder.path)]
    log = (fake.folder.logs / "sink.log").open("ab")
    with log:
        return subprocess.Popen([*command, "--to", "tensorboard"], stderr=log)


def end(child: subprocess.Popen[bytes], number: int) -> int:
    child.send_signal(number)
    return child.wait(60)


def test_an_exporter_that_is_killed_again_and_again_leaves_no_gap_and_nothing_twice(
    fake: FakeRun,
) -> None:
    out = fake.folder.sinks / "tensorboard"
    for kill in range(3):
        child = spawn(fake)
        known = len(written(out))
        stop = threading.Event()

        def train(stop: threading.Event = stop) -> None:
            while not stop.wait(0.002):
                fake.advance()

        thread = threading.Thread(target=train)
        thread.start()
        try:
            assert wait_until(lambda known=known: len(written(out)) > known + 20, 60)  # type: ignore[misc]
            time.sleep(0.05 * kill)  # somewhere in its loop
        finally:
            end(child, signal.SIGKILL)
            stop.set()
            thread.join()
    child = spawn(fake)
    assert wait_until(lambda: bool(written(out)) and max(written(out)) == fake.step, 60)
    fake.finish()
    assert child.wait(60) == 0, "it ends with its run"
    assert written(out) == list(range(1, fake.step + 1))


def test_an_exporter_that_is_asked_to_end_takes_the_last_steps(fake: FakeRun) -> None:
    out = fake.folder.sinks / "tensorboard"
    child = spawn(fake)
    fake.advance(1)
    assert wait_until(lambda: bool(written(out)), 60)
    fake.advance(5)
    assert end(child, signal.SIGTERM) == 0
    assert written(out) == [1, 2, 3, 4, 5, 6]


def test_what_a_full_disk_did_not_take_is_written_later(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.advance(4)
    write, left = os.write, [1500]

    def limited(descriptor: int, data: Any) -> int:
        if left[0] <= 0:
            raise OSError(28, "No space left on device")
        done = write(descriptor, data[: left[0]])
        left[0] -= done
        return done

    with exporting(fake.run, "tensorboard") as exported:
        monkeypatch.setattr("headway.console.sinks.event_files.os.write", limited)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                exported.update()
        monkeypatch.undo()
        fake.advance(1)
        done = exported.update()
    assert written(done.out) == [1, 2, 3, 4, 5]
    assert done.last_step == 5


def test_two_exports_into_one_folder_are_refused_and_into_two_are_not(
    fake: FakeRun, tmp_path: Path
) -> None:
    fake.advance(2)
    with exporting(fake.run, "tensorboard"):
        with (
            pytest.raises(InputError, match=rf"process {os.getpid()} exports to .* already"),
            exporting(fake.run, "tensorboard"),
        ):
            pass
        with exporting(fake.run, "tensorboard", tmp_path / "other") as exported:
            assert exported.update().steps == 2


def test_the_export_of_another_run_is_not_continued(fake: FakeRun, own_roots: Path) -> None:
    fake.advance(1)
    out = export(fake)
    other = FakeRun(own_roots / "runs", "other")
    try:
        with (
            exporting(other.run, "tensorboard", out) as exported,
            pytest.raises(InputError, match="holds the export of another run"),
        ):
            exported.update()
    finally:
        other.close()


def test_an_exporter_ends_when_its_run_is_deleted(
    fake: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "POLL_S", 0.01)
    monkeypatch.setattr(exporter, "RETRY_S", (0.01, 0.01))
    monkeypatch.setattr(exporter, "GONE_S", 0.05)
    run = fake.run
    fake.advance(1)
    with exporting(run, "tensorboard") as exported:
        fake.close()
        fake.folder.path.rename(tmp_path / "away")
        exporter.follow(run, exported, is_ended=lambda: False, wait=time.sleep)
    assert not (fake.folder.path / "run.json").exists()


def test_a_journal_whose_rows_were_renumbered_is_read_on(fake: FakeRun) -> None:
    def renumber(by: int) -> None:
        with contextlib.closing(sqlite3.connect(fake.folder.database)) as database, database:
            database.execute("UPDATE metrics SET rowid = rowid + ?", (by,))

    fake.advance(5)
    renumber(100)
    out = export(fake)
    renumber(-100)  # the copy that is put back for a journal that was removed may do so
    fake.advance(2)
    export(fake)
    assert written(out) == [1, 2, 3, 4, 5, 6, 7]


# ---- the command ------------------------------------------------------------------------------
def test_the_command_prints_what_it_did(shell: Shell, fake: FakeRun, tmp_path: Path) -> None:
    fake.advance(2)
    fake.evaluate(5.0)
    code, out, _ = shell("export", "fake", "--to", "tensorboard", "--json")
    assert code == 0
    assert json.loads(out) == {
        "run": "fake",
        "sink": "tensorboard",
        "out": str(fake.folder.sinks / "tensorboard"),
        "steps": 2,
        "evaluations": 1,
        "recoveries": 0,
        "last_step": 2,
    }
    code, out, _ = shell("export", "fake", "--out", str(tmp_path / "tb"))
    assert code == 0
    assert f"see them with `tensorboard --logdir {tmp_path / 'tb'}`" in out


def test_following_ends_with_the_run(shell: Shell, fake: FakeRun) -> None:
    fake.advance(2)
    timer = threading.Timer(1.0, lambda: (fake.advance(3), fake.finish()))
    timer.start()
    code, out, _ = shell("export", "fake", "--follow", "--json")
    timer.join()
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert rows[-1]["last_step"] == 5


def test_an_unknown_sink_is_refused_with_the_nearest_name(shell: Shell) -> None:
    code, _, err = shell("export", "fake", "--to", "tensorbord")
    assert (code, err.strip()) == (
        2,
        "error: there is no sink 'tensorbord'; did you mean 'tensorboard'?",
    )
    with pytest.raises(InputError, match=r"no sink 'wandbb'.*did you mean 'wandb'"):
        LaunchConfig(sinks=("wandbb",))


def test_a_sink_that_is_not_installed_is_refused_with_the_line_that_installs_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda _name: None)
    code, _, err = shell("export", "fake", "--to", "tensorboard")
    assert code == 2
    assert "pip install './console[tensorboard]'" in err


def test_configuration_completion_and_classes_name_the_same_sinks() -> None:
    assert SINKS == command.SINKS == tuple(CLASSES)


def test_two_sinks_do_not_share_a_folder(fake: FakeRun, shell: Shell, tmp_path: Path) -> None:
    fake.advance(5)
    out = str(tmp_path / "out")
    assert shell("export", "--to", "tensorboard", "--out", out)[0] == 0
    before = sorted(path.name for path in Path(out).iterdir())
    code, _, err = shell("export", "--to", "wandb", "--out", out)
    assert code == 2 and "holds an export to tensorboard; choose another --out" in err
    assert sorted(path.name for path in Path(out).iterdir()) == before
