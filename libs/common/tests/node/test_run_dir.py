from __future__ import annotations

import json
from pathlib import Path

import pytest
from headway.common.errors import CorruptError, InputError
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id, shm_root, sock_root


def test_two_nodes_of_a_run_share_nothing_but_the_failpoints(roots: tuple[Path, Path]) -> None:
    run_id = new_run_id()
    zero, one = NodePaths(run_id, 0).create(), NodePaths(run_id, 1).create()
    assert zero.sock_dir == roots[0] / run_id / "n0"
    assert zero.segment("arena", 3) == roots[1] / run_id / "n0" / "arena-3.bin"
    assert zero.socket("zygote") != one.socket("zygote")
    assert zero.shm_dir != one.shm_dir
    assert zero.failpoints == one.failpoints
    assert zero.endpoint("agent") == f"ipc://{roots[0]}/{run_id}/n0/agent.sock"
    for folder in (zero.sock_dir, zero.shm_dir, zero.sock_dir.parent, roots[0], roots[1]):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("roots")
def test_creating_again_keeps_what_is_there_and_segments_are_listed_by_kind() -> None:
    paths = NodePaths(new_run_id(), 0).create()
    for name in ("ring-1.bin", "ring-0.bin", "arena-0.bin", ".ring-2.bin.77"):
        (paths.shm_dir / name).touch()
    paths.create()
    assert [p.name for p in paths.segments("ring")] == ["ring-0.bin", "ring-1.bin"]


def test_the_default_roots_are_per_user_and_socket_paths_are_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HEADWAY_SOCK_ROOT", raising=False)
    monkeypatch.delenv("HEADWAY_SHM_ROOT", raising=False)
    assert str(sock_root()).startswith("/tmp/headway-")
    assert str(shm_root()).startswith("/dev/shm/headway-")
    assert len(str(NodePaths("01234567", 12287).socket("ckpt_store"))) < 100


@pytest.mark.usefixtures("roots")
def test_what_is_no_run_id_node_or_name_is_bad_input() -> None:
    for bad in ("", "0123456", "0123456G", "../../..", "ABCDEF01"):
        with pytest.raises(InputError, match="run id"):
            NodePaths(bad, 0)
    with pytest.raises(InputError, match="node -1"):
        NodePaths("01234567", -1)
    with pytest.raises(InputError, match="file name"):
        NodePaths("01234567", 0).socket("../x")


def test_a_root_that_is_a_link_is_refused(roots: tuple[Path, Path], tmp_path: Path) -> None:
    roots[0].symlink_to(tmp_path)
    with pytest.raises(InputError, match="not a folder of user"):
        NodePaths(new_run_id(), 0).create()
    assert list(tmp_path.iterdir()) == []


def test_a_root_open_to_others_is_closed(roots: tuple[Path, Path]) -> None:
    roots[0].mkdir()
    roots[0].chmod(0o777)
    NodePaths(new_run_id(), 0).create()
    assert roots[0].stat().st_mode & 0o777 == 0o700


def test_a_run_folder_knows_its_id_and_refuses_a_second_run(tmp_path: Path) -> None:
    path, run_id = tmp_path / "runs" / "first", new_run_id()
    run = RunDir.create(path, run_id=run_id)
    assert RunDir(path).run_id == run_id
    record = json.loads(run.run_json.read_text())
    assert record["name"] == run.name == "first"
    assert record["created"].endswith("+00:00")
    assert {folder.stat().st_mode & 0o777 for folder in path.iterdir() if folder.is_dir()} == {
        0o700
    }
    assert (path.stat().st_mode & 0o777, run.run_json.stat().st_mode & 0o777) == (0o700, 0o600)
    with pytest.raises(InputError, match="already holds a run"):
        RunDir.create(path, run_id=new_run_id())
    assert RunDir(path).run_id == run_id


def test_a_folder_without_a_readable_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        _ = RunDir(tmp_path).run_id
    for text in ("{", "[]", "{}", '{"run_id": 5}'):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(CorruptError, match=r"run\.json"):
            _ = RunDir(tmp_path).run_id
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot create"):
        RunDir.create(tmp_path / "file" / "run", run_id=new_run_id())
