"""Machines are asked by the command that reaches them, with real processes in their place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError, InputError
from headway.launch.engines.ssh.config import Host, HostsConfig
from headway.launch.engines.ssh.survey import left_on, survey
from headway.launch.join import facts

REACH = """\
#!/bin/sh
name=$1
shift
case $name in
silent) echo "No route to host" >&2; exit 255 ;;
older) echo "prog: error: argument verb: invalid choice: 'inspect'" >&2; exit 2 ;;
greeter) echo "welcome" ;;
unmounted) set -- "$1" "$2" "$3" "$4" "$5" /nowhere/check ;;
elsewhere) mkdir -p {other} && cp {shared}/.check-*/nonce {other} && echo x > {other}/nonce
    set -- "$1" "$2" "$3" "$4" "$5" {other} ;;
esac
[ "$name" = greeter ] || exec sh -c "$*"
"""


def _config(folder: Path, *names: str) -> HostsConfig:
    reach, shared = folder / "reach", folder / "shared"
    shared.mkdir()
    reach.write_text(REACH.format(shared=shared, other=folder / "other"))
    reach.chmod(0o700)
    hosts = tuple(Host(name) for name in names)
    return HostsConfig(str(shared), hosts, sys.executable, (str(reach), "{name}"))


def test_every_machine_that_fails_has_its_line_and_nothing_stays(tmp_path: Path) -> None:
    names = ("sound", "silent", "older", "greeter", "unmounted", "elsewhere")
    config = _config(tmp_path, *names)
    found = {one.name: one.trouble for one in survey(config)}
    assert list(found) == list(names), "in the order of the list"
    assert found["sound"] == ""
    assert found["silent"].startswith("cannot be reached: No route to host (check that it is up")
    assert found["older"] == "has an older Headway (install the same commit on each machine)"
    assert found["greeter"].startswith("printed 'welcome' and not what it has")
    assert found["unmounted"].startswith("does not see /nowhere: No such file or directory (mount")
    assert f"its {config.shared} is another folder" in found["elsewhere"]
    assert "has the machine-id of sound" in found["elsewhere"], "all of them are this machine"
    assert list(Path(config.shared).iterdir()) == []


def test_a_shared_folder_that_cannot_be_made_here_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = HostsConfig(str(tmp_path / "file" / "x"), (Host("a"),), reach=("false", "{name}"))
    with pytest.raises(InputError, match=r"cannot write in \S*/file/x on this machine"):
        survey(config)


def test_a_folder_that_was_absent_is_absent_again(tmp_path: Path) -> None:
    with facts.tested(tmp_path / "a" / "b") as folder:
        assert (folder / facts.NONCE).exists()
    assert list(tmp_path.iterdir()) == []


def test_another_version_may_report_more() -> None:
    mine = json.dumps({**vars(facts.look(None)), "colour": "blue"})
    assert facts.parse(f"a greeting\n{mine}\n").torch
    with pytest.raises(HeadwayError, match=r"printed '\{\}' and not what it has"):
        facts.parse("{}")


def test_what_a_run_has_left_is_listed_by_machine(tmp_path: Path) -> None:
    config = _config(tmp_path, "sound", "silent")
    env = {"HEADWAY_RUN_ID": "0123ab08", "HEADWAY_ROLE": "executor", "HEADWAY_NODE": "0"}
    one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env)
    try:
        silent, sound = left_on(config, ["0123ab08", "0123ab09", "not an id"])
    finally:
        one.kill()
        one.wait()
    assert silent.startswith("silent: not known, as it cannot be reached: No route to host (check")
    assert sound == f"sound: executor of 0123ab08, pid {one.pid}"
