"""What a profile sets, what wins over it, and how long a link may be away with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from headway.trainer.comm import nccl_profile
from headway.trainer.comm.nccl_profile import ENVIRONMENT, Setting, effective, from_files, retries
from headway.trainer.config import ParallelConfig
from structlog.testing import capture_logs

IB = ParallelConfig(nccl_profile="ib")
NO_FILE = {"NCCL_CONF_FILE": "/nowhere"}
PORTS = {
    "mlx5_0/ports/1": ("InfiniBand", "4: ACTIVE", "400 Gb/sec (4X NDR)"),
    "mlx5_1/ports/1": ("InfiniBand", "4: ACTIVE", "200 Gb/sec (4X HDR)"),
    "mlx5_2/ports/1": ("InfiniBand", "1: DOWN", "400 Gb/sec (4X NDR)"),
    "mlx5_3/ports/1": ("InfiniBand", "4: ACTIVE", "100 Gb/sec (4X EDR)"),
    "mlx5_bond_0/ports/1": ("Ethernet", "4: ACTIVE", "25 Gb/sec (1X EDR)"),
    "mlx5_bond_0/ports/2": ("Ethernet", "4: ACTIVE", "25 Gb/sec (1X EDR)"),
}


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Adapters for training, one of them down, one of a slower network, and one for storage."""
    for port, (layer, state, rate) in PORTS.items():
        folder = tmp_path / "sys/class/infiniband" / port
        folder.mkdir(parents=True)
        for name, text in (("link_layer", layer), ("state", state), ("rate", rate)):
            (folder / name).write_text(f"{text}\n")
    return tmp_path / "sys"


def _values(
    parallel: ParallelConfig, tmp_path: Path, environ: dict[str, str] | None = None
) -> dict[str, Setting]:
    found = effective(
        parallel, environ or NO_FILE, sysfs=tmp_path / "sys", etc=tmp_path / "nccl.conf"
    )
    return {one.name: one for one in found}


def test_each_profile_gives_every_variable_a_reason_and_none_sets_nothing(sysfs: Path) -> None:
    names: dict[str, set[str]] = {}
    kinds: tuple[Literal["ib", "roce", "efa"], ...] = ("ib", "roce", "efa")
    for kind in kinds:
        found = nccl_profile.wanted(ParallelConfig(nccl_profile=kind), sysfs)
        assert all(one.reason and one.source == f"profile {kind}" for one in found)
        names[kind] = {one.name for one in found}
    assert nccl_profile.wanted(ParallelConfig(), sysfs) == []
    common = {"NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_HCA"}
    assert names["ib"] == common | {"NCCL_IB_ADAPTIVE_ROUTING"}
    assert names["roce"] == common | {"NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_QPS_PER_CONNECTION"}
    assert not {name for name in names["efa"] if name.startswith("NCCL_IB_")}, "EFA reads none"


@pytest.mark.parametrize(
    ("kind", "ports"),
    [("ib", "=mlx5_0:1,mlx5_1:1"), ("roce", "=mlx5_bond_0:1,mlx5_bond_0:2")],
)
def test_only_active_ports_of_the_profiles_network_are_used(
    kind: Literal["ib", "roce"], ports: str, sysfs: Path
) -> None:
    found = _values(ParallelConfig(nccl_profile=kind), sysfs.parent)
    assert found["NCCL_IB_HCA"].value == ports


def test_where_all_ports_fit_or_none_does_nccl_chooses(tmp_path: Path) -> None:
    assert "NCCL_IB_HCA" not in _values(IB, tmp_path)
    folder = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    folder.mkdir(parents=True)
    assert "NCCL_IB_HCA" not in _values(IB, tmp_path), "a port that cannot be read"
    for name, text in (("link_layer", "InfiniBand"), ("state", "4: ACTIVE"), ("rate", "400 Gb")):
        (folder / name).write_text(text)
    assert "NCCL_IB_HCA" not in _values(IB, tmp_path)
    assert _values(ParallelConfig(nccl_profile="roce"), tmp_path).get("NCCL_IB_HCA") is None


@pytest.mark.parametrize("flap_s", [1.0, 10.0, 60.0])
def test_a_link_may_be_away_for_the_flap(flap_s: float, tmp_path: Path) -> None:
    parallel = ParallelConfig(nccl_profile="roce", flap_s=flap_s)
    found = list(_values(parallel, tmp_path).values())
    assert flap_s <= retries(found).window_s <= 1.3 * flap_s
    assert retries(found).window_s == pytest.approx(parallel.link_window_s)


def test_environment_wins_over_files_own_file_over_etc_and_all_over_the_profile(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own.conf"
    own.write_text("#NCCL_IB_SL=7\nNCCL_IB_TIMEOUT=22\nNCCL_IB_TC=1\nnonsense\nNCCL_DEBUG=WARN\n")
    (tmp_path / "nccl.conf").write_text("NCCL_IB_TIMEOUT=20\nNCCL_IB_RETRY_CNT=6\nNCCL_IB_TC=2")
    environ = {"NCCL_CONF_FILE": str(own), "NCCL_IB_TC": "3", "HOME": "/x"}
    found = _values(ParallelConfig(nccl_profile="roce"), tmp_path, environ)
    etc = str(tmp_path / "nccl.conf")
    for name, value, source in (
        ("NCCL_IB_TC", "3", ENVIRONMENT),
        ("NCCL_IB_TIMEOUT", "22", str(own)),
        ("NCCL_IB_RETRY_CNT", "6", etc),
        ("NCCL_IB_SL", "3", "profile roce"),
        ("NCCL_DEBUG", "WARN", str(own)),
    ):
        assert (found[name].value, found[name].source) == (value, source)
    assert found["NCCL_IB_TC"].beaten == (("1", str(own)), ("2", etc))
    assert found["NCCL_IB_TIMEOUT"].beaten == (("20", etc),)
    assert found["NCCL_IB_SL"].beaten == found["NCCL_IB_RETRY_CNT"].beaten == ()
    assert found["NCCL_IB_TC"].reason and not found["NCCL_DEBUG"].reason
    assert "HOME" not in found
    assert retries(list(found.values())).window_s == pytest.approx(4.096e-6 * 2**22 * 6)


def test_a_file_that_is_missing_is_ignored_as_nccl_does(tmp_path: Path) -> None:
    assert from_files(NO_FILE, tmp_path / "none") == []
    assert from_files({"NCCL_CONF_FILE": str(tmp_path)}, tmp_path / "none") == []


@pytest.mark.parametrize(
    ("text", "number"), [("18", 18), (" 0x12", 18), ("18s", 18), ("many", 0), ("-1", -1)]
)
def test_integers_are_read_as_nccl_reads_them(text: str, number: int) -> None:
    assert retries([Setting("NCCL_IB_TIMEOUT", text)]).timeout == number


def test_an_empty_value_leaves_nccls_default() -> None:
    assert (
        retries([Setting("NCCL_IB_TIMEOUT", ""), Setting("NCCL_IB_RETRY_CNT", "3")]).timeout == 20
    )


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without NCCL's variables; what the code sets is undone."""
    for name in [*(name for name in os.environ if name.startswith("NCCL_")), *_names()]:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_CONF_FILE", "/nowhere")


def _names() -> list[str]:
    return [one.name for one in nccl_profile.wanted(IB)]


@pytest.mark.usefixtures("clean")
def test_a_worker_sets_what_nobody_has_set_and_logs_what_it_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_IB_TIMEOUT", "22")
    with capture_logs() as logs:
        nccl_profile.apply(IB)
    assert os.environ["NCCL_IB_TIMEOUT"] == "22", "the user's own setting wins"
    assert os.environ["NCCL_IB_RETRY_CNT"] == "5"
    [left] = [line for line in logs if line["event"] == "NCCL setting kept"]
    assert (left["name"], left["source"]) == ("NCCL_IB_TIMEOUT", ENVIRONMENT)
    with capture_logs() as logs:
        nccl_profile.apply(IB)  # the worker takes another rank
    assert [line["event"] for line in logs] == ["NCCL setting kept"]
    nccl_profile.apply(ParallelConfig())


def test_a_rank_on_a_gpu_has_its_profile_before_torch_starts_cuda() -> None:
    """In a process of its own: the order of the two calls in the constructor of ``Rank``."""
    program = """
import os
from types import SimpleNamespace
from headway.common.config import from_dict
from headway.trainer.config import RunConfig
from headway.trainer.worker import rank
def take(_):
    raise SystemExit(0 if os.environ.get("NCCL_IB_RETRY_CNT") == "5" else 1)
rank.take_device, rank.NodeResources = take, lambda *_: None
config = from_dict(RunConfig, {"train": {"device": "gpu"}, "parallel": {"nccl_profile": "ib"}})
rank.Rank(SimpleNamespace(config=config), 0)
"""
    environ: dict[str, Any] = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
    done = subprocess.run([sys.executable, "-c", program], env=environ, check=False)
    assert done.returncode == 0
