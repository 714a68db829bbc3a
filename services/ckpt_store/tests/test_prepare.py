"""What a checkpoint cannot keep is refused by its path: before the first step, and by a save."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headway.ckpt_store.client import CheckpointClient, newest
from headway.common.errors import InputError

torch = pytest.importorskip("torch")


class Labelled(torch.Tensor):  # type: ignore[misc]
    """A tensor that carries more than its numbers."""


def looped() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["again"] = state
    return state


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "complex": (lambda: torch.zeros(2, dtype=torch.complex64), "a tensor of complex64"),
    "float8": (lambda: torch.zeros(2, dtype=torch.float8_e4m3fn), "a tensor of float8_e4m3fn"),
    "subclass": (lambda: torch.zeros(2).as_subclass(Labelled), "a Labelled of shape"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "not dense in memory"),
    "meta": (lambda: torch.zeros(2, device="meta"), "on the meta device"),
    "object": (object, "is a object, which cannot be saved"),
    "set": (lambda: {1}, "is a set"),
    "complex array": (lambda: np.zeros(2, np.complex128), "an array of complex128"),
    "long double": (lambda: np.zeros(2, np.longdouble), "an array of "),
    "masked": (lambda: np.ma.masked_array([1, 2], [0, 1]), "a MaskedArray, of which only"),
    "swapped": (lambda: np.zeros(2, ">f4"), "an array of >f4"),
    "time": (lambda: np.datetime64("2020-01-01"), "a datetime64 of datetime64"),
    "huge": (lambda: 10**5000, "is a int, which cannot be saved"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused_before_the_first_step_and_by_a_save_in_the_same_words(
    tmp_path: Path, kind: str
) -> None:
    make, what = REFUSED[kind]
    client = CheckpointClient(tmp_path)
    client.save(1, {"w": torch.ones(2)})
    state = {"model": {"w": torch.ones(2), "odd": [0, make()]}}
    errors = []
    for call in (lambda: client.prepare(state), lambda: client.save(2, state)):
        with pytest.raises(InputError, match=r"the state's model\.odd\.1 is ") as caught:
            call()
        assert what in str(caught.value)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert client.restore()[0] == 1  # type: ignore[index]
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000001.g0"]


def test_a_state_that_contains_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains itself"):
        CheckpointClient(tmp_path).prepare(looped())


@pytest.fixture
def mesh() -> Iterator[Any]:
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_a_dtensor_is_refused_by_its_path_with_what_to_save_instead(
    tmp_path: Path, mesh: Any
) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    weight = distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
    client = CheckpointClient(tmp_path)
    for value in (weight, torch.nn.Parameter(weight)):
        for call in (client.prepare, lambda state: client.save(1, state)):
            with pytest.raises(InputError, match=r"model\.w is a DTensor.*full_tensor"):
                call({"model": {"w": value}})
    assert newest(tmp_path) is None


def test_what_can_be_kept_is_measured_and_not_copied(tmp_path: Path) -> None:
    huge = torch.empty(1).expand(1 << 40)  # 4 TiB if it were copied
    client = CheckpointClient(tmp_path, read_only=True)
    assert client.prepare({"w": huge, "p": torch.nn.Parameter(torch.ones(3))}) == (1 << 42) + 64
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "value",
    [np.float64(1.5), np.float32(2.5), np.int64(3), np.bool_(True), np.float16(0.1), np.array(7)],
    ids=repr,
)
def test_numbers_of_numpy_come_back_as_what_they_were(tmp_path: Path, value: Any) -> None:
    client = CheckpointClient(tmp_path)
    client.save(1, {"loss": value})
    _, state = client.restore()  # type: ignore[misc]
    assert type(state["loss"]) is type(value)
    assert state["loss"] == value
