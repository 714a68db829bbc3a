"""An error of one rank ends a common restore on every rank, with that rank's sentence."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.agreement import end_together
from headway.ckpt_store.client import CheckpointClient
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.testkit.checkpoint_ranks import ranks, save_all
from hypothesis import given
from hypothesis import strategies as st


def together(num_ranks: int, call: Callable[[int, Callable[[int], int]], Any]) -> list[Any]:
    """What each rank gets from ``call(rank, agree)``: all of them at once, as threads."""
    numbers, found = [0] * num_ranks, [None] * num_ranks
    barrier = threading.Barrier(num_ranks)

    def work(rank: int) -> None:
        def agree(value: int) -> int:
            numbers[rank] = value
            barrier.wait(30)
            lowest = min(numbers)
            barrier.wait(30)
            return lowest

        try:
            found[rank] = call(rank, agree)
        except Exception as error:
            found[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


FAULTS = [
    OSError(errno.EMFILE, "Too many open files"),
    PermissionError(errno.EACCES, "Permission denied"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    MemoryError(),
    InputError("it was saved by 4 ranks", remedy="use 4"),
    HeadwayError("no way", remedy="none"),
    ValueError("odd"),
]


@pytest.mark.parametrize("step", [None, 10])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{type(fault).__name__}-{fault}")
def test_any_error_of_one_rank_is_raised_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, step: int | None
) -> None:
    clients = ranks(tmp_path, 3)
    save_all(clients, 10)

    def failing(_info: Any) -> Any:
        raise fault

    monkeypatch.setattr(clients[1], "_read", failing)
    found = together(3, lambda rank, agree: clients[rank].restore(step, agree=agree))
    assert found[1] is fault
    for other in (found[0], found[2]):
        assert isinstance(other, HeadwayError)
        assert str(other).startswith("rank 1: ")
        assert str(fault) in str(other)
        assert isinstance(other, InputError) == isinstance(fault, InputError)


def test_an_error_after_the_choice_is_raised_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = ranks(tmp_path)
    save_all(clients, 10)

    def failing(_step: int) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(clients[0], "_continue_from", failing)
    found = together(2, lambda rank, agree: clients[rank].restore(agree=agree))
    assert isinstance(found[0], PermissionError)
    assert "rank 0: PermissionError" in str(found[1])


def test_damage_of_the_only_checkpoint_is_said_on_all_ranks_with_the_file(tmp_path: Path) -> None:
    clients = ranks(tmp_path)
    save_all(clients, 10)
    blob = tmp_path / "step-00000010.g0" / "rank-1.safetensors"
    raw = bytearray(blob.read_bytes())
    raw[5000] ^= 1
    blob.write_bytes(raw)
    found = together(2, lambda rank, agree: clients[rank].restore(agree=agree))
    assert all(isinstance(error, CorruptError) for error in found)
    assert f"rank 1: {blob}: chunk 0" in str(found[0])


def test_ranks_whose_folder_is_empty_are_named_and_nothing_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = ranks(tmp_path / "shared", 3)
    save_all(clients, 10)
    clients[1].checkpoints = tmp_path / "unmounted"
    real, num_read = clients[0]._read, []

    def counting(info: Any) -> Any:
        num_read.append(info.step)
        return real(info)

    monkeypatch.setattr(clients[0], "_read", counting)
    found = together(3, lambda rank, agree: clients[rank].restore(agree=agree))
    for error in found:
        assert isinstance(error, InputError)
        assert "ranks [1] see no checkpoint in" in str(error)
        assert "others see step 10" in str(error)
    assert num_read == [10]


def test_ranks_of_a_job_that_saves_on_agree_on_a_newer_step_when_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = ranks(tmp_path, keep=1)
    save_all(writers, 10)
    readers = [
        CheckpointClient(tmp_path, rank=rank, world_size=2, read_only=True) for rank in (0, 1)
    ]
    lock, done = threading.Lock(), []
    real = CheckpointClient._read

    def overtaken(info: Any) -> Any:
        state = real(readers[0], info)
        with lock:
            if not done:
                done.append(save_all(writers, 20))
        return state

    # rank 0 has read step 10 when rank 1 finds step 20 alone
    has_read = threading.Event()

    def first(info: Any) -> Any:
        state = overtaken(info)
        has_read.set()
        return state

    def second(info: Any) -> Any:
        has_read.wait(30)
        return real(readers[1], info)

    monkeypatch.setattr(readers[0], "_read", first)
    monkeypatch.setattr(readers[1], "_read", second)
    found = together(2, lambda rank, agree: readers[rank].restore(agree=agree))
    assert [one[0] for one in found] == [20, 20]


@given(st.text(), st.text(), st.integers(0, 3))
def test_any_sentence_arrives(message: str, remedy: str, failed: int) -> None:
    error = InputError(message[:300], remedy=remedy[:300])
    found = together(
        4, lambda rank, agree: end_together(agree, rank, error if rank == failed else None)
    )
    for rank, other in enumerate(found):
        if rank != failed and "\0" not in message + remedy:
            assert type(other) is InputError
            expected = f"rank {failed}: {error.message}".encode(errors="replace").decode()
            assert other.message == expected
            assert other.remedy == error.remedy.encode(errors="replace").decode()


def test_without_an_error_it_costs_one_number() -> None:
    asked: list[int] = []

    def agree(value: int) -> int:
        asked.append(value)
        return value

    end_together(agree, 0, None)
    assert len(asked) == 1
