"""`make up` and its companions on every target: what they refuse, and a target of one machine."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from headway.launch.cluster import ClusterFolder

DOOR = Path(__file__).resolve().parents[2] / "infra" / "terraform"
REMEDY = "check that it is up and that you can log in without a password"

pytestmark = pytest.mark.skipif(
    shutil.which("terraform") is None, reason="no terraform on the PATH"
)


class Door:
    """The scripts behind make's targets, for a cluster in a folder that is absent at first."""

    def __init__(self, machine: Any) -> None:
        self.cluster, self.bin = machine.folder / "cluster", machine.folder / "bin"
        self.bin.mkdir()
        self.shared, self.hosts = machine.folder / "shared", machine.folder / "hosts.toml"
        self.shared.mkdir()
        self._reach, self._broken = self.bin / "reach", self.bin / "broken"
        self._script(self._reach, 'shift; exec sh -c "$*"')
        # as on a full disk, while there is a file of that name
        real = shutil.which("headway", path=machine.env["PATH"])
        is_broken = f'[ -e {self._broken} ] && [ "$2" = create ]'
        failing = f'{is_broken} && {{ echo "error: no space left" >&2; exit 1; }}'
        self._script(self.bin / "headway", f'{failing}\nexec {real} "$@"')
        path = f"{self.bin}{os.pathsep}{machine.env['PATH']}"
        self.env = {**machine.env, "PATH": path, "CLUSTER_DIR": str(self.cluster)}
        self._folder = machine.folder
        self.list_hosts("a")

    def _script(self, path: Path, text: str) -> None:
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o700)

    def list_hosts(self, *names: str) -> None:
        rows = "".join(f'[[hosts]]\nname = "{name}"\n' for name in names)
        reach = f'reach = ["{self._reach}", "{{name}}"]'
        self.hosts.write_text(
            f'shared = "{self.shared}"\npython = "{sys.executable}"\n{reach}\n{rows}'
        )

    def silence(self) -> None:
        self._script(self._reach, 'echo "No route to host" >&2; exit 255')

    def answer(self) -> None:
        self._script(self._reach, 'shift; exec sh -c "$*"')

    @contextmanager
    def broken(self) -> Iterator[None]:
        self._broken.touch()
        yield
        self._broken.unlink()

    def __call__(self, verb: str, target: str, *words: str, code: int = 0, **env: str) -> Any:
        done = subprocess.run([DOOR / f"{verb}.sh", target, *words], env={**self.env, **env},
                              cwd=self._folder, capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def refuses(self, verb: str, *words: str, code: int = 2, **env: str) -> str:
        """The one line that it prints."""
        done = self(verb, *words, code=code, **env)
        assert len(done.stderr.splitlines()) == 1 and not done.stdout, done
        return str(done.stderr)


@pytest.fixture
def door(machine: Any) -> Door:
    return Door(machine)


def test_bad_words_are_refused_in_one_line_and_leave_nothing(door: Door) -> None:
    wrong = "error: NODES=0 is not a number of nodes; use a whole number from 1 on\n"
    assert door.refuses("up", "local", "0") == wrong
    assert "NODES=3x is not a number" in door.refuses("up", "local", NODES="3x")
    assert "no target 'nowhere'; use one of: " in door.refuses("up", "nowhere")
    assert door.refuses("up", "ssh") == (
        "error: HOSTS is not set; name a file: make up TARGET=ssh HOSTS=FILE\n"
    )
    assert "SLURM is not set; name a file" in door.refuses("up", "slurm")
    assert "/no.toml does not exist" in door.refuses("up", "ssh", HOSTS="no.toml")
    assert "NODE is not set; name one: make ssh" in door.refuses("ssh", "local")
    assert "holds no cluster" in door.refuses("status", "local", code=1)
    said = door.refuses("up", "ssh", "5", HOSTS=str(door.hosts))
    assert "5 nodes are asked for, hosts.toml lists 1 machines; add machines" in said
    assert not door.cluster.exists()


def test_a_machine_that_fails_the_check_keeps_all_from_being_created(door: Door) -> None:
    door.list_hosts("a", "b")
    said = door.refuses("up", "ssh", code=1, HOSTS="hosts.toml")
    assert said.startswith("b: has the machine-id of a (list each machine once; ")
    door.silence()
    done = door("up", "ssh", code=1, HOSTS="hosts.toml")
    assert [line[:21] for line in done.stderr.splitlines()] == [
        "a: cannot be reached:", "b: cannot be reached:",
    ]  # fmt: skip
    assert not door.cluster.exists() and not list(door.shared.iterdir())


def test_who_comes_second_is_told_so_in_one_line(door: Door) -> None:
    door.cluster.mkdir()
    busy = f"error: another `make up` or `make down` changes {door.cluster}; wait until it has"
    with (door.cluster / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert door.refuses("up", "ssh", HOSTS="hosts.toml").startswith(busy)
    # from another machine, which sees only the state
    door("up", "ssh", HOSTS="hosts.toml")
    with (door.cluster / "terraform.tfstate").open("r+") as state:
        fcntl.lockf(state, fcntl.LOCK_EX)
        done = door("down", "ssh", code=2)
    assert done.stderr.startswith(busy) and len(done.stderr.splitlines()) == 1
    door("down", "ssh")
    assert not door.cluster.exists()


@pytest.mark.timeout(400)
def test_a_cluster_of_machines_is_created_repaired_and_removed(door: Door) -> None:
    with door.broken():
        assert "no space left" in door("up", "ssh", code=1, HOSTS="hosts.toml").stdout
    assert not ClusterFolder(door.cluster).exists
    created = door("up", "ssh")  # the file is remembered
    *_, command = created.stdout.splitlines()
    words = shlex.split(command)
    assert words[:2] == ["headway", "run"] and words[3:5] == ["--cluster", str(door.cluster)]
    assert words[5] == "--set" and words[6].startswith("launch.interface=")
    cluster = ClusterFolder(door.cluster)
    before = cluster.id
    assert door("status", "ssh").stdout.splitlines() == [
        f"{door.cluster}: 1 nodes, no drift", "no run",
    ]  # fmt: skip
    assert door("ssh", "ssh", "0", "echo", "it", "works").stdout == "it works\n"
    assert "so there are no logs" in door.refuses("logs", "ssh")

    door.silence()
    assert door("status", "ssh", code=2).stdout.splitlines() == [
        f"{door.cluster}: 1 nodes, drifted",
        f"drift: a: cannot be reached: No route to host ({REMEDY})",
        "no run",
        'drift: terraform_data.machine["a"] must be replaced',
        "repair: make up TARGET=ssh",
    ]
    assert door.refuses("up", "ssh", code=1).startswith("a: cannot be reached: ")
    door.answer()
    assert " 0 added, 0 changed, 0 destroyed" in door("up", "ssh").stdout
    assert cluster.id == before, "it is what it was"

    (door.cluster / "cluster.json").unlink()
    assert "terraform_data.cluster must be replaced" in door("status", "ssh", code=2).stdout
    door("up", "ssh")
    assert cluster.exists and json.loads((door.cluster / "machines.json").read_text())

    cluster.note("0123ab09", door.cluster / "gone")
    env = {"HEADWAY_RUN_ID": "0123ab09", "HEADWAY_ROLE": "rank", "HEADWAY_NODE": "0"}
    stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env)
    try:
        said = door("down", "ssh", code=1)
        assert f"a: rank of 0123ab09, pid {stray.pid}" in said.stdout and cluster.exists
        assert "error: the lines above are left; end it and repeat `make down`" in said.stderr
    finally:
        stray.kill()
        stray.wait()
    door("down", "ssh")
    assert not door.cluster.exists() and not list(door.shared.iterdir())
