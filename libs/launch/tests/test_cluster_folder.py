"""The folder of a cluster: what is in it, who may read it, and that nobody
ever reads half a file."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import RUN_ID
from headway.common.node.testing import python_child
from headway.launch import ClusterFolder
from headway.launch.cluster import ROLES

WRITER = """
import sys
from pathlib import Path
from headway.launch.cluster import ROLES, ClusterFolder
folder, number = ClusterFolder(Path(sys.argv[1])), 0
while True:
    number += 1
    folder.write("nodes/0.run", {"number": number, "padding": "x" * (number % 7) * 20_000})
    if number == 1:
        print("up", flush=True)
"""


def test_a_new_cluster_has_an_id_its_nodes_and_a_key_that_only_its_owner_reads(
    tmp_path: Path,
) -> None:
    cluster = ClusterFolder.create(tmp_path / "c", nodes=3)
    assert RUN_ID.fullmatch(cluster.id) and cluster.nodes == 3
    keys = sorted((tmp_path / "c" / "keys").iterdir())
    assert [key.stem for key in keys] == sorted(ROLES)
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}
    assert len({cluster.key_of(role).secret for role in ROLES}) == len(ROLES)
    for path in ((tmp_path / "c"), *(tmp_path / "c").rglob("*")):
        assert not path.stat().st_mode & 0o077, path


def test_two_clusters_share_neither_id_nor_key(tmp_path: Path) -> None:
    first, second = (ClusterFolder.create(tmp_path / name, nodes=1) for name in "ab")
    assert first.id != second.id
    assert first.public_of(*ROLES).isdisjoint(second.public_of(*ROLES))


def test_a_folder_that_holds_a_cluster_is_not_made_again(tmp_path: Path) -> None:
    cluster = ClusterFolder.create(tmp_path, nodes=1, cluster_id="0badcafe")
    keys = cluster.public_of(*ROLES)
    with pytest.raises(InputError, match=r"already holds a cluster; use another folder"):
        ClusterFolder.create(tmp_path, nodes=2)
    assert (cluster.id, cluster.nodes, cluster.public_of(*ROLES)) == ("0badcafe", 1, keys)


def test_a_creation_that_was_interrupted_is_finished_by_the_next_one(tmp_path: Path) -> None:
    keys = ClusterFolder.create(tmp_path, nodes=1).public_of(*ROLES)
    (tmp_path / "cluster.json").unlink()  # written last
    (tmp_path / "keys" / "agent.key").unlink()
    again = ClusterFolder.create(tmp_path, nodes=2)
    assert again.nodes == 2 and len(keys & again.public_of(*ROLES)) == len(ROLES) - 1


def test_resizing_changes_the_number_of_nodes_and_nothing_else(tmp_path: Path) -> None:
    cluster = ClusterFolder.create(tmp_path, nodes=1)
    before = (cluster.id, cluster.public_of(*ROLES))
    cluster.resize(4)
    assert ClusterFolder(tmp_path).nodes == 4
    assert (cluster.id, cluster.public_of(*ROLES)) == before


def test_a_folder_without_a_cluster_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="holds no cluster; create one with `headway cluster create"
    ):
        _ = ClusterFolder(tmp_path).id
    assert ClusterFolder(tmp_path).address(0) is None
    assert ClusterFolder(tmp_path).read("nodes/0.run") is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    cluster = ClusterFolder.create(tmp_path, nodes=1)
    (tmp_path / "cluster.json").write_text('{"id": "0bad')
    with pytest.raises(InputError, match=r"cluster\.json is not valid JSON"):
        _ = cluster.nodes


def test_an_announced_address_is_found_with_its_process(tmp_path: Path) -> None:
    cluster, me = ClusterFolder.create(tmp_path, nodes=2), ProcessId.current()
    cluster.announce(1, "tcp://127.0.0.1:4711", me)
    address = cluster.address(1)
    assert address is not None
    assert (address.endpoint, address.process) == ("tcp://127.0.0.1:4711", me)
    assert address.process.alive()
    assert cluster.address(0) is None


def test_a_reader_never_sees_half_a_file_even_of_a_killed_writer(tmp_path: Path) -> None:
    cluster, seen = ClusterFolder.create(tmp_path, nodes=1), set()
    for number in range(1, 4):
        with python_child(WRITER, tmp_path) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == "up\n"
            deadline = time.monotonic() + 20.0
            while len(seen) < 10 * number and time.monotonic() < deadline:
                found = cluster.read("nodes/0.run")
                assert found is not None
                seen.add(found["number"])
            writer.kill()
            writer.wait()
        assert json.loads((tmp_path / "nodes" / "0.run").read_text())["number"]
    assert len(seen) >= 30, "the writer wrote nothing meanwhile"


def test_removing_a_file_twice_is_fine(tmp_path: Path) -> None:
    cluster = ClusterFolder.create(tmp_path, nodes=1)
    cluster.write("nodes/0.run", {"run_id": "0badcafe"})
    cluster.remove("nodes/0.run")
    cluster.remove("nodes/0.run")
    assert cluster.read("nodes/0.run") is None


def test_clearing_leaves_the_files_of_others(tmp_path: Path) -> None:
    cluster = ClusterFolder.create(tmp_path, nodes=1)
    (tmp_path / "terraform.tfstate").touch()
    assert cluster.exists
    cluster.clear()
    assert not cluster.exists
    assert [path.name for path in tmp_path.iterdir()] == ["terraform.tfstate"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot make .*file/c: .*; use another folder"):
        ClusterFolder.create(tmp_path / "file" / "c", nodes=1)
