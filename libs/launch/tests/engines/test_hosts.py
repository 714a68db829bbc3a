"""The list of machines, and the command that reaches one of them."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path

import pytest
from headway.common.errors import ConfigError, DeadlineError, HeadwayError, InputError
from headway.common.node.process import ProcessId
from headway.common.polling import wait_until
from headway.common.wire.addresses import Network
from headway.launch.engine import NodeLost
from headway.launch.engines.choose import facts_of, of_bundle
from headway.launch.engines.remote.config_file import read_config
from headway.launch.engines.remote.reach import UnreachableError
from headway.launch.engines.ssh.config import SSH, Host, HostsConfig
from headway.launch.engines.ssh.machines import HostMachines
from headway.launch.join import records, tokens
from headway.launch.join.bundle import Bundle
from headway.launch.join.ticket import Ticket

HERE = ("sh", "-c", 'exec sh -c "$*"', "{name}")
"""Runs the words on this machine, by way of a shell as sshd does."""


def _config(reach: tuple[str, ...] = HERE, **more: object) -> HostsConfig:
    return HostsConfig("/mnt/x", (Host("a"), Host("b")), sys.executable, reach, **more)  # type: ignore[arg-type]


def test_a_file_with_names_only_uses_ssh(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text('shared = "/mnt/x"\n[[hosts]]\nname = "gpu-01"\n[[hosts]]\nname = "u@gpu-02"\n')
    found = read_config(HostsConfig, file)
    assert [host.name for host in found.hosts] == ["gpu-01", "u@gpu-02"]
    assert found.reach == SSH


BAD = {
    'shared = "x"\n[[hosts]]\nname = "a"': "not an absolute path",
    'shared = "/x"\nhosts = []': "hosts is empty",
    'shared = "/x"\n[[hosts]]\nname = "-oProxyCommand=x"': "is not a valid host name",
    'shared = "/x"\n[[hosts]]\nname = "a"\n[[hosts]]\nname = "a"': "listed twice",
    'shared = "/x"\nreach = ["ssh"]\n[[hosts]]\nname = "a"': "does not contain {name}",
    'shared = "/x"\nfence = ["off"]\n[[hosts]]\nname = "a"': "does not contain {name}",
    'shared = "/x"\nreplace = ["on"]\n[[hosts]]\nname = "a"': "replace does not contain {name}",
    'shared = "/x"\nhots = 1\n[[hosts]]\nname = "a"': "hots",
    '[[hosts]]\nname = "a"': "shared",
}


@pytest.mark.parametrize(("text", "expected"), BAD.items(), ids=BAD.values())
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "hosts.toml").write_text(text + "\n")
    with pytest.raises(ConfigError, match=expected) as error:
        read_config(HostsConfig, tmp_path / "hosts.toml")
    assert error.value.remedy


def _program(folder: Path, text: str) -> tuple[str, ...]:
    file = folder / "reach"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o700)
    return (str(file), "{name}")


def test_words_and_input_arrive_unchanged(tmp_path: Path) -> None:
    echo = _program(tmp_path, 'echo "$1"; shift; for w in "$@"; do echo "<$w>"; done; cat')
    config = dataclasses.replace(_config(echo), python="/with a blank/python")
    found = HostMachines(config).call(0, "log", "in\n", limit_s=20.0)
    assert found.splitlines() == [
        "a", "<'/with a blank/python'>", "<-m>", "<headway.launch.machine>", "<log>", "in"
    ]  # fmt: skip


def test_a_failure_is_its_last_line(tmp_path: Path) -> None:
    fails = _program(tmp_path, "echo noise >&2; echo 'error: no room; make some' >&2; exit 1")
    with pytest.raises(HeadwayError, match=r"^a: no room; make some") as error:
        HostMachines(_config(fails)).call(0, "log", "", limit_s=20.0)
    assert not isinstance(error.value, (InputError, UnreachableError))


def test_a_refusal_stays_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a: wrong"):
        HostMachines(_config(_program(tmp_path, "echo 'error: wrong' >&2; exit 2"))).start(
            0, "", kill_hung=False
        )


@pytest.mark.parametrize("text", ["echo 'no route' >&2; exit 255", "sleep 60"])
def test_a_machine_that_is_not_reached_is_unknown_not_failed(tmp_path: Path, text: str) -> None:
    limit_s = 0.5 if "sleep" in text else 20.0
    with pytest.raises(UnreachableError):
        HostMachines(_config(_program(tmp_path, text))).call(0, "log", "", limit_s=limit_s)


def test_a_command_that_is_absent_is_named() -> None:
    with pytest.raises(DeadlineError, match="no-such-program cannot be run"):
        HostMachines(_config(("no-such-program", "{name}"))).call(0, "log", "", limit_s=5.0)


def test_only_a_fence_that_succeeds_confirms(tmp_path: Path) -> None:
    assert not HostMachines(_config()).cut_off(0, limit_s=5.0), "there is none"
    for code, is_sure in ((0, True), (1, False)):
        fence = _program(tmp_path, f'test "$1" = a && exit {code}')
        assert HostMachines(_config(fence=fence)).cut_off(0, limit_s=5.0) is is_sure
    absent = HostMachines(_config(fence=("no-such-program", "{name}")))
    assert not absent.cut_off(0, limit_s=5.0)


def test_a_bad_machine_is_reported_once_with_the_reason_in_one_line(tmp_path: Path) -> None:
    HostMachines(_config()).report_bad(0, "no command for it", limit_s=5.0)
    drain = ("sh", "-c", f'echo "$@" >> {tmp_path}/bad', "sh", "Name={name}", "Reason={reason}")
    of_bundle(_bundle(tmp_path, _config(drain=drain))).report_bad(1, "Xid 79;\n$(reboot)")
    assert (tmp_path / "bad").read_text() == "Name=b Reason=Xid 79; $(reboot)\n"
    broken = HostMachines(_config(drain=("sh", "-c", "echo no operator >&2; exit 1", "{name}")))
    with pytest.raises(HeadwayError, match="a: no operator"):
        broken.report_bad(0, "Xid 79", limit_s=5.0)


REPLACE = r"""
[ "$1" = b ] && [ "$2" = "Xid 79; \$(reboot)" ] || exit 3
{ sleep 600; } &
echo $! > "$0.pid"
"""


def test_a_machine_is_replaced_by_its_name_and_what_stays_in_the_background_is_left_alone(
    tmp_path: Path,
) -> None:
    replace = (_program(tmp_path, REPLACE)[0], "{name}", "{reason}")
    engine = of_bundle(_bundle(tmp_path, _config(replace=replace)))
    assert engine.replaces == "lost"
    assert engine.replace_machine(1, "Xid 79;\n$(reboot)") == ""
    os.kill(int((tmp_path / "reach.pid").read_text()), signal.SIGKILL)


def test_a_replacement_that_fails_is_its_last_line(tmp_path: Path) -> None:
    fails = _config(replace=_program(tmp_path, "echo no capacity >&2; exit 1"))
    with pytest.raises(HeadwayError, match="a: no capacity"):
        HostMachines(fails).replace(0, "lost")
    absent = _config(replace=("no-such-program", "{name}"))
    with pytest.raises(HeadwayError, match="no-such-program cannot be run"):
        HostMachines(absent).replace(0, "lost")


def test_a_replacement_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.launch.engines.ssh.machines.REPLACE_LIMIT_S", 1.0)
    hangs = _config(replace=_program(tmp_path, 'sleep 600 & echo $! > "$0.pid"; wait'))
    with pytest.raises(HeadwayError, match="a: the replace command ran longer than 1 s"):
        HostMachines(hangs).replace(0, "lost")
    child = ProcessId.of(int((tmp_path / "reach.pid").read_text()))
    assert child is None or wait_until(child.is_terminating, 10.0)


def test_without_a_command_no_machine_is_replaced(tmp_path: Path) -> None:
    assert of_bundle(_bundle(tmp_path, _config())).replaces == "nothing"


# ---- the engine on this machine -----------------------------------------------------------------
def _bundle(folder: Path, config: HostsConfig) -> Bundle:
    network, secret = Network(), tokens.new_secret()
    return Bundle("0123abcd", "a", 2, "", network, facts_of(config), str(folder), secret)


def test_the_engine_is_the_one_that_the_bundle_names(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path, _config())
    again = Bundle.from_json(bundle.to_json(), source="it")
    assert again == bundle and of_bundle(again).name_of(1) == "b"
    with pytest.raises(NodeLost, match="none for node 2"):
        of_bundle(again).name_of(2)
    with pytest.raises(InputError, match="unknown engine 'other'"):
        of_bundle(Bundle("0123abcd", "a", 2, "", Network(), {"kind": "other"}, "/x", "ab"))


def test_a_secret_is_not_in_what_is_logged_or_in_arguments(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path, _config())
    assert bundle.secret not in repr(bundle)
    ticket = Ticket("0123abcd", 0, "the-token", "/c", "/s", bundle.to_json())
    assert "the-token" not in repr(ticket) and bundle.secret not in repr(ticket)
    echo = _program(tmp_path, 'echo "$@" >> "$0.words"; cat > /dev/null')
    of_bundle(_bundle(tmp_path, _config(echo))).start_node(1, kill_hung=True)
    words = (tmp_path / "reach.words").read_text()
    assert "start --kill-hung" in words and "token" not in words


def test_stopping_names_machines_that_are_not_reached(tmp_path: Path) -> None:
    text = 'echo "$1 $5" >> "$0.words"; cat > /dev/null; test "$1" = b || exit 255'
    engine = of_bundle(_bundle(tmp_path, _config(_program(tmp_path, text))))
    assert engine.stop() == ["node 0 on a: a cannot be reached: no output"]
    assert sorted((tmp_path / "reach.words").read_text().split()) == ["a", "b", "end", "end"]
    assert engine.stop([1]) == [], "only what is named"
    with pytest.raises(UnreachableError):
        engine.lose_node(0)
    assert not engine.fence(0, epoch=2) and engine.fence(1, epoch=2)


def test_a_machine_that_is_reached_keeps_its_power_whatever_it_answers(tmp_path: Path) -> None:
    asked = _program(tmp_path, 'cat > "$0.ticket"; echo "error: it does not end" >&2; exit 1')
    fence = ("sh", "-c", f'echo "$0" > {tmp_path}/off', "{name}")
    assert not of_bundle(_bundle(tmp_path, _config(asked, fence=fence))).fence(1, epoch=3)
    assert not (tmp_path / "off").exists()
    ticket = Ticket.from_json((tmp_path / "reach.ticket").read_text())
    assert (ticket.node, ticket.epoch) == (1, 3), "drivers from epoch 3 on are left alone"


def test_a_machine_that_is_not_reached_is_cut_off_before_it_is_given_up(tmp_path: Path) -> None:
    reach = _program(tmp_path, "exit 255")
    fence = ("sh", "-c", f'echo "$0" > {tmp_path}/off', "{name}")
    engine = of_bundle(_bundle(tmp_path, _config(reach, fence=fence)))
    engine.lose_node(1)
    assert (tmp_path / "off").read_text() == "b\n"


@pytest.mark.parametrize("code", [126, 127])
def test_a_machine_that_cannot_start_a_program_is_cut_off_before_it_is_given_up(
    tmp_path: Path, code: int
) -> None:
    reach = _program(tmp_path, f"echo 'sh: Input/output error' >&2; exit {code}")
    fence = ("sh", "-c", f'echo "$0" > {tmp_path}/off', "{name}")
    engine = of_bundle(_bundle(tmp_path, _config(reach, fence=fence)))
    with pytest.raises(UnreachableError, match=r"b cannot run .*python.*: sh: Input/output error"):
        engine.logs(1)
    engine.lose_node(1)
    assert (tmp_path / "off").read_text() == "b\n"


def test_nothing_runs_as_a_machine_without_a_ticket(capfd: pytest.CaptureFixture[str]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "headway.launch.machine", "start"],
        {**os.environ},
        file_actions=[(os.POSIX_SPAWN_DUP2, null, 0)],
    )
    _, status = os.waitpid(pid, 0)
    os.close(null)
    assert os.waitstatus_to_exitcode(status) == 2
    assert "not a valid ticket" in capfd.readouterr().err


def test_records_of_a_node_that_ends_while_they_are_asked_for(tmp_path: Path) -> None:
    """It saves them in the shared folder and removes its own, before or while the command runs."""
    log = tmp_path / "node" / "logs" / "n0.log"
    log.parent.mkdir(parents=True)
    log.write_text("a line\n")
    (tmp_path / "records").mkdir()
    (tmp_path / "packed").write_text(records.pack(tmp_path / "node"))
    reach = _program(
        tmp_path,
        f'cat > /dev/null; test "$1" = a && number=0 || number=1; '
        f"cp {tmp_path}/packed {tmp_path}/records/n$number.txt; exit $number",
    )
    engine = of_bundle(_bundle(tmp_path, _config(reach)))
    assert engine.fetch_records(tmp_path / "here") == []
    assert (tmp_path / "here" / "logs" / "n0.log").read_text() == "a line\n"
    gone = of_bundle(_bundle(tmp_path / "other", _config(_program(tmp_path, "exit 1"))))
    assert len(gone.fetch_records(tmp_path / "there")) == 2, "nothing is kept, and none answers"
