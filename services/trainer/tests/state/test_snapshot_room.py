"""Shared memory of a run: two slots, a third while the store reads; what happens if that is full.

The arenas are real files, in a small tmpfs of the test's own where it has to be full.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.config import from_dict
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.sessions import arena_at, arena_of
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session
from headway.trainer.state.slot_layout import offsets

pytestmark = pytest.mark.usefixtures("one_thread")
MIB = 1 << 20


def _session(folder: Path, **ckpt: int) -> Session:
    settings = small_run("fp32", world_size=1)
    settings["train"]["eval_every"] = 0
    settings["ckpt"] = {"durable_every": 1000, **ckpt}
    config = from_dict(RunConfig, settings)
    opener = arena_at(folder / "arena-0.bin")
    return Session(config, 0, data_factory=synthetic(config, 0), open_arena=opener)


class _Store(StepHooks):
    """Notes after each step what is sealed, wanted and used; releases at the steps of ``at``."""

    def __init__(self, session: Session, at: set[int]) -> None:
        self._session, self._at = session, at
        self.wanted: dict[int, list[int]] = {}
        self.sealed: dict[int, int] = {}
        self.slots: dict[int, float] = {}
        self.losses: list[float] = []

    def on_step(self, result: StepResult) -> None:
        self.losses.append(result.loss)
        self._session.ready_snapshots().finish()
        arena = arena_of(self._session)
        self.wanted[result.step] = [info.step for info in arena.wanted()]
        self.sealed[result.step] = arena.sealed()[-1].step
        self.slots[result.step] = arena.path.stat().st_blocks * 512 / arena._shape.stride
        if result.step in self._at:
            for info in arena.wanted():
                arena.release(info)
        self.after(result)

    def after(self, result: StepResult) -> None:
        """For a test that changes something between two steps."""


def _train(session: Session, hooks: StepHooks, until: int) -> None:
    session.join(Groups.alone())
    session.load("init")
    session.run(hooks, until)
    session.leave()
    session.close()


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs with room for two and a half slots."""
    session = _session(tmp_path)
    session.join(Groups.alone())
    size = offsets(session.flats)[1]
    session.leave()
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={int(2.5 * size) + MIB // 4}", "headway-test"]
    mounted = subprocess.run([*mount, str(folder)], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_run_uses_two_slots_and_a_third_only_until_the_store_has_read(tmp_path: Path) -> None:
    session = _session(tmp_path, durable_every=4)
    store = _Store(session, {4, 8})
    _train(session, store, 10)
    assert {step: steps for step, steps in store.wanted.items() if steps} == {4: [4], 8: [8]}
    used = [int(store.slots[step]) for step in range(10)]
    assert used == [2, 2, 2, 3, 3, 2, 2, 3, 3, 2]


def test_without_memory_for_a_third_slot_checkpoints_wait_and_snapshots_do_not(
    small_tmpfs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    session = _session(small_tmpfs, durable_every=4)

    class Enlarging(_Store):
        def after(self, result: StepResult) -> None:
            if result.step == 12:
                grow = ["mount", "-o", f"remount,size={64 * MIB}", str(small_tmpfs)]
                subprocess.run(grow, check=True)

    store = Enlarging(session, {16})
    _train(session, store, 17)
    wanted = {step: steps for step, steps in store.wanted.items() if steps}
    assert next(iter(wanted.values()))[0] > 12, "nothing was marked before there was room"
    assert all(store.sealed[step] == step + 1 for step in range(17)), "a snapshot was lost"
    assert capfd.readouterr().out.count("checkpoints are postponed") == 1
    undisturbed = _session(small_tmpfs / "other")
    (small_tmpfs / "other").mkdir()
    reference = _Store(undisturbed, set())
    _train(undisturbed, reference, 17)
    assert store.losses == reference.losses
