"""The folder of a node belongs to one user, on machines that have several."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.launch.engines.slurm.config import SlurmConfig
from headway.launch.engines.ssh.config import Host, HostsConfig
from headway.launch.join import scratch
from headway.launch.join.ticket import Ticket

Give = Callable[[Path], None]
OTHER = 1001


@pytest.fixture
def to_another_user(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Has a folder belong to another user than this process, or this process be another one."""

    def give(path: Path) -> None:
        if os.getuid() == 0:
            os.lchown(path, OTHER, OTHER)
        else:
            another = os.getuid() + 1
            monkeypatch.setattr(os, "getuid", lambda: another)

    return give


def _ticket(folder: str, **changes: object) -> Ticket:
    return Ticket("0123abcd", 1, "token", "/control", folder, **changes)  # type: ignore[arg-type]


def test_each_user_of_a_machine_has_a_folder(tmp_path: Path) -> None:
    """It is the machine's user that counts, not the console's."""
    configs = (SlurmConfig("/x"), HostsConfig("/x", (Host("a"),)))
    assert {one.scratch for one in configs} == {"/var/tmp/headway-{uid}"}
    folder = _ticket(f"{tmp_path}/headway-{{uid}}").folder
    assert folder == tmp_path / f"headway-{os.getuid()}" / "0123abcd-n1"
    scratch.make(folder)
    scratch.make(folder)
    assert {stat.S_IMODE(one.stat().st_mode) for one in (folder, folder.parent)} == {0o700}


def test_a_scratch_that_exists_keeps_its_rights(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk").chmod(0o1777)
    (tmp_path / "scratch").symlink_to(tmp_path / "disk")  # as machines have them for large disks
    scratch.make(tmp_path / "scratch" / "n1")
    assert stat.S_IMODE((tmp_path / "disk").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "disk" / "n1").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["scratch", "scratch/n1"])
def test_a_folder_that_another_user_has_made_is_not_taken(
    tmp_path: Path, name: str, to_another_user: Give
) -> None:
    """Who owns it could put a configuration and links of their own in it."""
    folder = tmp_path / "scratch" / "n1"
    folder.mkdir(parents=True)
    to_another_user(tmp_path / name)
    for act in (scratch.make, scratch.check):
        with pytest.raises(InputError, match="is not a folder of user") as error:
            act(folder)
        assert "`scratch` in the cluster's file" in error.value.remedy


def test_a_link_in_place_of_a_nodes_folder_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "n1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is not a folder of user"):
        scratch.make(tmp_path / "n1")


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a folder away")
@pytest.mark.parametrize("verb", ["start", "restart", "end", "log", "records"])
def test_nothing_of_another_users_folder_is_used(tmp_path: Path, verb: str) -> None:
    ticket = _ticket(str(tmp_path / "scratch"))
    ticket.folder.mkdir(parents=True)
    os.chown(ticket.folder, OTHER, OTHER)
    words = [sys.executable, "-m", "headway.launch.machine", verb]
    done = subprocess.run(words, input=ticket.to_json(), text=True, capture_output=True)
    assert done.returncode == InputError.exit_code
    assert f"{ticket.folder} is not a folder of user 0" in done.stderr
