"""CheckpointClient: states of any shape come back as they were, from a folder
and through a daemon."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headway.ckpt_store import daemon_client
from headway.ckpt_store.client import CheckpointClient
from headway.ckpt_store.folder import newest
from headway.common.errors import CorruptError, DeadlineError, HeadwayError, InputError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

torch = pytest.importorskip("torch")

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9)
)
arrays = hnp.arrays(
    st.sampled_from(["f4", "f8", "i8", "u1", "?"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
states = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(-3, 300), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and torch.equal(one, two)
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two or (isinstance(one, float) and math.isnan(one) and math.isnan(two))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=states)
def test_any_nested_state_of_plain_values_and_arrays_comes_back(tmp_path: Path, state: Any) -> None:
    client = CheckpointClient(tmp_path)
    found = newest(tmp_path)
    step = found.step + 1 if found else 0
    client.save(step, state)
    restored = client.restore()
    assert restored is not None
    assert restored[0] == step
    assert same(restored[1], state)


def trained() -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(7, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3).bfloat16()
    )
    optimizer = torch.optim.AdamW(model[:2].parameters())
    model[:2](torch.randn(4, 7)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def test_model_and_optimizer_of_torch_come_back_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = trained()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lr": 3e-4,
        "rng": torch.get_rng_state(),
    }
    CheckpointClient(tmp_path).save(12, state)
    step, restored = CheckpointClient(tmp_path).restore()  # type: ignore[misc]
    assert step == 12
    assert same(restored["optimizer"], optimizer.state_dict())
    assert same(restored["model"], dict(model.state_dict()))
    model.load_state_dict(restored["model"])
    optimizer.load_state_dict(restored["optimizer"])


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int16", "bool", "uint8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5)])
def test_tensors_of_every_dtype_and_shape_come_back(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(getattr(torch, dtype))
    view = torch.arange(24).reshape(4, 6).t()[1:3]  # not contiguous
    CheckpointClient(tmp_path).save(0, [tensor, view])
    _, restored = CheckpointClient(tmp_path).restore()  # type: ignore[misc]
    assert same(restored, [tensor, view])


def test_tensors_are_readable_by_name_without_headway(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model, _ = trained()
    CheckpointClient(tmp_path).save(0, {"model": model.state_dict()})
    tensors = load_file(next(tmp_path.glob("*/rank-0.safetensors")))
    assert torch.equal(tensors["model.2.weight"], model[2].weight)
    assert tensors["model.2.weight"].shape == (3, 5)


@pytest.mark.parametrize("bad", [object(), {1.5: 1}, np.array(["text"]), lambda: 1, {1, 2}, 1j])
def test_what_has_no_plain_form_is_refused_by_its_path(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(InputError, match=r"outer\.inner"):
        CheckpointClient(tmp_path).save(0, {"outer": {"inner": bad}})
    assert newest(tmp_path) is None


def test_restore_passes_over_a_corrupt_checkpoint_and_the_next_save_begins_a_new_generation(
    tmp_path: Path,
) -> None:
    client = CheckpointClient(tmp_path)
    for step in (1, 2):
        client.save(step, {"x": np.full(100, step)})
    blob = tmp_path / "step-00000002.g0" / "rank-0.safetensors"
    blob.write_bytes(blob.read_bytes()[:4096] + bytes(blob.stat().st_size - 4096))
    again = CheckpointClient(tmp_path)
    step, state = again.restore()  # type: ignore[misc]
    assert step == 1
    assert state["x"].tolist() == [1] * 100
    again.save(2, {"x": np.full(100, 22)})
    step, state = CheckpointClient(tmp_path).restore()  # type: ignore[misc]
    assert (step, state["x"][0]) == (2, 22)


def test_when_nothing_is_readable_restore_fails_and_with_nothing_saved_it_says_none(
    tmp_path: Path,
) -> None:
    assert CheckpointClient(tmp_path).restore() is None
    CheckpointClient(tmp_path).save(1, {"x": np.ones(100)})
    blob = next(tmp_path.glob("*/rank-0.safetensors"))
    blob.write_bytes(bytes(blob.stat().st_size))
    with pytest.raises(CorruptError):
        CheckpointClient(tmp_path).restore()


def test_going_back_to_an_older_step_leaves_the_newer_ones_behind(tmp_path: Path) -> None:
    client = CheckpointClient(tmp_path)
    for step in (1, 2, 3):
        client.save(step, step)
    assert client.restore(step=1) == (1, 1)
    assert CheckpointClient(tmp_path).restore() == (1, 1)
    client.save(2, "another two")
    assert CheckpointClient(tmp_path).restore() == (2, "another two")


def test_saving_another_content_under_a_complete_step_is_refused(tmp_path: Path) -> None:
    client = CheckpointClient(tmp_path)
    client.save(1, "one")
    client.save(1, "one")
    with pytest.raises(HeadwayError, match="is complete"):
        client.save(1, "two")


def test_a_step_counts_when_all_ranks_have_saved_it_and_needs_their_number_to_restore(
    tmp_path: Path,
) -> None:
    clients = [CheckpointClient(tmp_path, rank=rank, world_size=2) for rank in (0, 1)]
    clients[1].save(5, "from one")
    assert clients[1].restore() is None
    clients[0].save(5, "from zero")
    assert [client.restore() for client in clients] == [(5, "from zero"), (5, "from one")]
    with pytest.raises(InputError, match="saved by 2 ranks"):
        CheckpointClient(tmp_path).restore()


def test_a_folder_keeps_as_many_as_asked(tmp_path: Path) -> None:
    client = CheckpointClient(tmp_path, keep=2)
    for step in range(5):
        client.save(step, step)
    kept = sorted(path.name for path in tmp_path.iterdir() if path.name != ".ranks")
    assert kept == ["step-00000003.g0", "step-00000004.g0"]


def test_through_a_daemon_a_state_is_saved_restored_and_may_change_its_shape(cluster: Any) -> None:
    daemon = cluster.start()
    with CheckpointClient(daemon.endpoint) as client:
        for step, size in ((1, 1000), (2, 1000), (3, 5000)):
            state = {"w": torch.full((size,), float(step)), "note": "x" * 100_000 * (step == 3)}
            client.save(step, state)
            state["w"].zero_()  # the snapshot is a copy
        client.wait(3)
        step, restored = client.restore()  # type: ignore[misc]
        assert step == 3
        assert torch.equal(restored["w"], torch.full((5000,), 3.0))
        assert client.restore(step=2)[1]["w"][0] == 2.0  # type: ignore[index]


def test_a_client_killed_right_after_save_has_lost_nothing(
    cluster: Any, until: Callable[..., None]
) -> None:
    daemon = cluster.start()
    until(lambda: daemon.status())
    script = (
        "import os, sys, numpy as np\n"
        "from headway.ckpt_store.client import CheckpointClient\n"
        "CheckpointClient(sys.argv[1]).save(7, {'x': np.arange(100_000)})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert (
        subprocess.run([sys.executable, "-c", script, daemon.endpoint], check=False).returncode
        == -9
    )
    until(lambda: newest(cluster.checkpoints) is not None)
    step, state = CheckpointClient(cluster.checkpoints).restore()  # type: ignore[misc]
    assert (step, state["x"].sum()) == (7, np.arange(100_000).sum())


def test_with_a_dead_daemon_a_save_is_given_up_and_says_so(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = cluster.start()
    assert daemon.status()  # it is up
    with CheckpointClient(daemon.endpoint) as client:
        client.save(1, {"w": np.ones(1000)})
        client.wait(1)
        daemon.kill()
        assert client.save(2, {"w": np.ones(1000)}).is_stored  # the next daemon finds it
        monkeypatch.setattr(daemon_client, "STALL_LIMIT_S", 0.2)
        saved = client.save(3, {"w": np.ones(1000)})
        assert not saved.is_stored
        assert "has not written the snapshot before" in saved.problem
        cluster.start()
        client.wait(2)
        assert client.save(4, {"w": np.ones(1000)}).is_stored


def test_wait_ends_early_for_a_step_that_was_given_up(cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    daemon = cluster.start(checkpoints=folder)
    assert daemon.status()  # it is up
    with CheckpointClient(daemon.endpoint) as client:
        folder.rmdir()
        folder.write_text("a file where the folder was")
        client.save(5, {"w": np.ones(1000)})
        with pytest.raises(DeadlineError, match="step 5 was given up"):
            client.wait(5, timeout_s=60)


def test_through_daemons_too_a_step_holds_parts_of_one_start_only(
    cluster: Any, until: Callable[..., None]
) -> None:
    daemons = [cluster.start(node) for node in (0, 1)]
    for daemon in daemons:
        assert daemon.status()  # both are up

    def clients() -> list[CheckpointClient]:
        return [
            CheckpointClient(daemon.endpoint, rank=rank, world_size=2)
            for rank, daemon in enumerate(daemons)
        ]

    one, two = clients()
    for client in (one, two):
        client.save(10, {"life": 1})
    one.wait(10)  # each daemon writes its part when it gets to it
    two.save(20, {"life": 1})  # killed before rank 0 saved
    until(lambda: (cluster.checkpoints / "step-00000020.g0" / "rank-1.json").exists())
    one.close()
    two.close()
    one, two = clients()
    assert [client.restore() for client in (one, two)] == [(10, {"life": 1})] * 2
    one.save(20, {"life": 2})
    until(lambda: (cluster.checkpoints / "step-00000020.g0" / "rank-0.json").exists())
    assert not (cluster.checkpoints / "step-00000020.g0" / "MANIFEST.json").exists()
    two.save(20, {"life": 2})
    one.wait(20)
    assert [client.restore() for client in (one, two)] == [(20, {"life": 2})] * 2
    one.close()
    two.close()
