"""What a machine makes of the bundle, and whether it can take part."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path
from typing import Any

import pytest
from headway.common.errors import InputError
from headway.common.node.run_dir import RunDir
from headway.common.wire.addresses import Network
from headway.launch.join import folder, needs
from headway.launch.join.bundle import Bundle
from headway.launch.join.corpus import Corpus
from headway.launch.join.folder import NodeFolder
from headway.launch.join.ticket import Ticket
from headway.launch.lease.file import FileLease
from headway.launch.machine.__main__ import take_part


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    shared = tmp_path / "shared"
    for name in ("control", "checkpoints"):  # the console has made them
        (shared / name).mkdir(parents=True)
    return Bundle("0123abcd", "a", 2, "[train]\n", Network(), {}, str(shared), "ab" * 32, "k" * 40)


def test_a_node_has_folders_of_its_own_and_links_to_what_is_shared(
    tmp_path: Path, bundle: Bundle
) -> None:
    node = NodeFolder(tmp_path / "node")
    for _ in range(2):  # twice is as good as once
        node.path.mkdir(exist_ok=True)
        node.install(bundle, 1, keys=node.key(), is_first=False)
    run = RunDir(node.path / "runs" / "a")
    assert run.run_id == bundle.run_id and run.config.read_text() == bundle.config
    assert run.control.resolve() == bundle.control.resolve()
    assert run.checkpoints == bundle.checkpoints.resolve()
    assert run.database.parent == run.control
    assert node.cluster.id == bundle.run_id and node.cluster.nodes == 2
    assert node.cluster.key_of("executor") == node.cluster.key_of("agent") == node.key()
    assert node.cluster.public_of("console") == {b"k" * 40}
    assert node.cluster.read("nodes/1.run") == {
        "run_dir": str(run.path), "run_id": bundle.run_id, "is_fresh": False
    }  # fmt: skip


def test_a_machine_that_lost_the_shared_folder_neither_joins_nor_leads_alone(
    tmp_path: Path, bundle: Bundle
) -> None:
    node = NodeFolder(tmp_path / "node")
    node.path.mkdir()
    node.install(bundle, 0, keys=node.key(), is_first=True)
    run = RunDir(node.path / "runs" / "a")
    (tmp_path / "shared").rename(tmp_path / "gone")
    assert run.control == run.path / "control", "never the run's own folder"
    with pytest.raises(OSError, match="No such file"):
        FileLease(run.control).claim(0)
    with pytest.raises(InputError, match=r"this machine does not see .*control"):
        node.install(bundle, 0, keys=node.key(), is_first=True)
    assert not (tmp_path / "shared").exists()


def test_only_the_user_can_read_what_is_secret(tmp_path: Path, bundle: Bundle) -> None:
    node = NodeFolder(tmp_path / "node")
    node.path.mkdir()
    node.install(bundle, 1, keys=node.key(), is_first=True)
    secret = [path for path in node.path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(secret) > 6
    open_ones = [str(path) for path in secret if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert open_ones == []


def test_it_has_joined_until_the_machine_starts_anew_or_the_run_ends(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeFolder(tmp_path / "node")
    assert not node.has_joined(1, "")
    node.path.mkdir()
    node.install(bundle, 1, keys=node.key(), is_first=False)
    assert node.has_joined(1, "")
    with monkeypatch.context() as patched:
        patched.setattr(folder, "boot_id", lambda: "another")
        assert not node.has_joined(1, "")
    node.cluster.remove("nodes/1.run")
    assert not node.has_joined(1, "")
    node.install(bundle, 1, keys=node.key(), is_first=False)
    node.leave()  # before its processes end: a start in between must ask the driver
    assert not node.has_joined(1, "")
    node.leave()


def test_a_machine_without_the_shared_folder_writes_nothing(tmp_path: Path, bundle: Bundle) -> None:
    (tmp_path / "shared").rename(tmp_path / "elsewhere")
    data = tmp_path / "shared" / "data"
    wanted = dataclasses.replace(bundle, corpus=Corpus(str(data), "0" * 64, ("--source", "stdlib")))
    ticket = Ticket.of(wanted, 0, str(tmp_path / "scratch"), is_first=True)
    with pytest.raises(InputError, match=r"does not see .*/control; check that the shared"):
        take_part(NodeFolder(ticket.folder), ticket, 5.0)
    assert not (tmp_path / "shared").exists() and not Path(ticket.folder).exists()


def test_damage_is_named(bundle: Bundle) -> None:
    for text in ("", "[]", "{}", bundle.to_json()[:-20], bundle.to_json().replace("nodes", "n")):
        with pytest.raises(InputError, match="the file does not describe a run"):
            Bundle.from_json(text, source="the file")
        with pytest.raises(InputError, match="not a valid ticket"):
            Ticket.from_json(text)
    with pytest.raises(InputError, match="cannot read"):
        Bundle.load(Path("/no/such/bundle.json"))


def test_a_machine_without_the_gpus_or_the_shared_memory_is_refused(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "GPUS", tmp_path / "gpus")
    with pytest.raises(InputError, match="has 0 GPUs, a node of the run needs 2"):
        needs.check(dataclasses.replace(bundle, gpus=2))
    for name in ("0000:01:00.0", "0000:02:00.0"):  # as the driver of NVIDIA lists them
        (tmp_path / "gpus" / name).mkdir(parents=True)
    needs.check(dataclasses.replace(bundle, gpus=2, shm_bytes=1))
    with pytest.raises(InputError, match=f"the snapshots of a node need {1 << 40} MiB"):
        needs.check(dataclasses.replace(bundle, shm_bytes=1 << 60))


@pytest.mark.parametrize(
    ("device", "missing"),
    [("gpu", r"a C compiler \(gcc or clang\)"), ("cpu", r"C\+\+ compiler g\+\+")],
)
def test_a_machine_without_a_compiler_is_refused_where_ranks_compile(
    device: str, missing: str, tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    needs.check(bundle)
    with pytest.raises(InputError, match=f"compile kernels .*{missing} is missing; install one"):
        needs.check(dataclasses.replace(bundle, compiles_on=device))


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"corpus": Corpus("/no/such/corpus", "0" * 64)}, "has no corpus in"),
        ({"gpus": 1 << 20}, "a node of the run needs 1048576"),
        ({"shm_bytes": 1 << 60}, "MiB free, the snapshots of a node need"),
        ({"network": Network(interface="eth77")}, "eth77"),
    ],
)
def test_a_machine_that_cannot_take_part_installs_nothing(
    tmp_path: Path, bundle: Bundle, changes: dict[str, Any], refusal: str
) -> None:
    wanted = dataclasses.replace(bundle, **changes)
    ticket = Ticket.of(wanted, 0, str(tmp_path / "scratch"), is_first=True)
    node = NodeFolder(ticket.folder)
    with pytest.raises(InputError, match=refusal):
        take_part(node, ticket, 5.0)
    assert not node.path.exists(), "with its key"
    fit = Ticket.of(bundle, 0, str(tmp_path / "scratch"), is_first=True)
    take_part(node, fit, 5.0)
    assert node.has_joined(0, ""), "once it is repaired"
