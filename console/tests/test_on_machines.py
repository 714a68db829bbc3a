"""A run on machines as a fresh console sees it: live, silent or dead; how it is started again and
ended."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.common.config import to_toml
from headway.common.errors import HeadwayError, InputError
from headway.common.node.run_dir import RunDir
from headway.console.cli import main
from headway.console.folder import presence
from headway.console.folder.claim import StillRunningError, claimed, keep_config
from headway.console.lifecycle import launch, machines
from headway.console.lifecycle.ending import Ending
from headway.console.run import Run
from headway.console.testing import SMALL, touch_corpus
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.choose import facts_of
from headway.launch.engines.remote.engine import MachinesEngine
from headway.launch.engines.ssh.config import Host, HostsConfig
from headway.launch.join.bundle import Bundle
from headway.launch.lease.base import Holder, LeaseTerm
from headway.launch.lease.file import FileLease

REACH = """\
#!/bin/sh
echo "$1 $5" >> "$0.calls"
cat > /dev/null
grep -qx "$1" "$0.dead" && { echo "No route to host" >&2; exit 255; }
test "$5" = log && cat "$0.log"
echo done
"""


class Fleet:
    """Three machines behind a command that notes what it is asked, and a run on two of them."""

    def __init__(self, folder: Path) -> None:
        self._reach = folder / "reach"
        self._reach.write_text(REACH)
        self._reach.chmod(0o700)
        self.die()
        hosts = tuple(Host(name) for name in ("a", "b", "c"))
        reach = (str(self._reach), "{name}")
        self.hosts = HostsConfig(shared=str(folder / "shared"), hosts=hosts, reach=reach)
        self.cluster = ClusterFolder.create(
            folder / "cluster", nodes=3, engine=facts_of(self.hosts)
        )
        touch_corpus(folder / "corpus")
        self.config = dataclasses.replace(
            SMALL,
            data=dataclasses.replace(SMALL.data, path=str(folder / "corpus")),
            launch=dataclasses.replace(
                SMALL.launch, nodes=2, ranks_per_node=1, spares=1, interface="127.0.0.0/8"
            ),
        )
        self.folder = RunDir.create(folder / "runs" / "big", run_id="abcd1234")
        keep_config(self.run, self.config)

    @property
    def run(self) -> Run:
        """As a console sees it that has just begun."""
        return Run(self.folder.path)

    @property
    def lease(self) -> FileLease:
        return FileLease(self.folder.control)

    def prepare(self) -> Bundle:
        return machines.prepare(self.run, self.cluster, self.hosts, print)

    def start(self) -> None:
        launch.start_on_machines(self.run, self.cluster, self.hosts, print)

    def lead(self, epoch: int = 1, *, is_over: bool = False) -> LeaseTerm:
        """A driver on another machine has led the run."""
        assert self.lease.claim(epoch - 1) == epoch
        holder = Holder(epoch, 0, 999, 1, "tcp://127.0.0.1:1", "k" * 40, space="elsewhere")
        tenure = LeaseTerm(self.lease, dataclasses.replace(holder, is_over=is_over))
        self.lease.publish(tenure.me)
        return tenure

    def die(self, *names: str) -> None:
        """From now on these machines are not reached."""
        self._reach.with_suffix(".dead").write_text("".join(f"{name}\n" for name in names))

    def says(self, log: str) -> None:
        """What machines answer when their logs are asked for."""
        self._reach.with_suffix(".log").write_text(log)

    @property
    def calls(self) -> list[str]:
        noted = self._reach.with_suffix(".calls")
        return sorted(noted.read_text().splitlines()) if noted.exists() else []

    def headway(self, *words: str) -> int:
        return main([*words, "--runs-dir", str(self.folder.path.parent)])


@pytest.fixture
def fleet(own_roots: Path) -> Fleet:
    return Fleet(own_roots)


class Renewing:
    """A lease that is renewed while it is open."""

    def __init__(self, tenure: LeaseTerm) -> None:
        self._tenure, self._ended = tenure, threading.Event()
        self._thread = threading.Thread(target=self._renew)
        self._thread.start()

    def _renew(self) -> None:
        while not self._ended.wait(0.05):
            self._tenure.renew()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture
def renew() -> Iterator[Callable[[LeaseTerm], None]]:
    begun: list[Renewing] = []
    yield lambda tenure: begun.append(Renewing(tenure))
    for one in begun:
        one.close()


# ---- whether it lives ---------------------------------------------------------------------------
def test_a_run_that_may_be_taken_over_is_unreachable_and_not_resumed(
    fleet: Fleet, renew: Callable[[LeaseTerm], None], capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.prepare()
    fleet.lead()
    assert (fleet.run.state, fleet.run.live) == ("unreachable", True)
    assert fleet.headway("status", "big") == 0 and fleet.headway("runs") == 0
    assert capsys.readouterr().out.count("unreachable") == 2
    said: list[str] = []

    def take_over(line: str) -> None:
        said.append(line)
        renew(fleet.lead(2))

    with pytest.raises(InputError, match="run big is live"), claimed(fleet.folder.path, take_over):
        pass
    [line] = said
    assert "waiting up to 60 s to see whether another one takes over" in line
    view = fleet.lease.look()
    assert view.holder is not None and view.holder.epoch == 2 and fleet.run.state == "live"
    assert fleet.calls == []


def test_a_run_that_nobody_takes_over_is_resumed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.prepare()
    fleet.lead()
    monkeypatch.setattr(presence, "TAKEOVER_S", 1.5)
    said: list[str] = []
    with claimed(fleet.folder.path, said.append) as (_, resumed):
        assert resumed and len(said) == 1
        fleet.prepare()
    assert fleet.lease.look().holder is None and fleet.run.state == "not started"


def test_a_run_that_is_over_is_not_waited_for(fleet: Fleet) -> None:
    fleet.prepare()
    fleet.lead(is_over=True)
    said: list[str] = []
    with claimed(fleet.folder.path, said.append) as (_, resumed):
        assert resumed and said == []


def test_who_watches_sees_a_takeover_and_the_end(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(presence, "is_led", lambda _: False)
    monkeypatch.setattr(presence.time, "monotonic", lambda: now_s[0])
    fleet.prepare()
    observer = presence.Observer()

    def look() -> str:
        now_s[0] += 1.0
        return observer.look(fleet.lease, has_outcome=False)

    assert look() == "gone", "no driver has ever led it"
    fleet.lead()
    assert [look() for _ in range(4)] == ["led", "led", "silent", "silent"]
    fleet.lead(2)
    assert look() == "led"
    seen = [look() for _ in range(62)]
    assert seen.count("silent") == presence.TAKEOVER_S - presence.ENDED_S and seen[-1] == "gone"


# ---- its start ----------------------------------------------------------------------------------
def test_a_start_that_fails_ends_only_what_it_has_tried(fleet: Fleet) -> None:
    fleet.die("a")
    with pytest.raises(HeadwayError, match="a cannot be reached: No route to host"):
        fleet.start()
    assert fleet.calls == ["a end", "a start"]


def test_a_driver_that_does_not_start_is_quoted_from_its_machine(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "START_LIMIT_S", 0.0)
    error = "error: cannot listen on 10.0.0.5: the ports 7000-7003 are all in use"
    fleet.says(
        f"==> n0-agent.log <==\nx\n\n==> n0-driver.log <==\nbegun\n{error}\n\n==> z.log <==\n"
    )
    with pytest.raises(HeadwayError, match="did not start within 0 s") as caught:
        fleet.start()
    assert caught.value.remedy == f"n0-driver.log ends with: {error}"
    ended = [call for call in fleet.calls if call.endswith("end")]
    assert ended == ["a end", "b end", "c end"]
    fleet.die("a")
    monkeypatch.setattr(MachinesEngine, "start_first", lambda _: None)
    monkeypatch.setattr(MachinesEngine, "start_all", lambda *_: None)
    with pytest.raises(StillRunningError) as caught:
        fleet.start()
    cause = caught.value.__cause__
    assert isinstance(cause, HeadwayError)
    assert cause.remedy == "its log is on a: a cannot be reached: No route to host"


@pytest.mark.parametrize("failure", [OSError(122, "Disk quota exceeded"), KeyboardInterrupt()])
def test_machines_that_were_given_are_given_back_where_the_start_goes_no_further(
    fleet: Fleet, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[bool] = []

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(Bundle, "save", fail)
    monkeypatch.setattr(MachinesEngine, "release", lambda _: released.append(True))
    with pytest.raises(type(failure)):
        fleet.start()
    assert released == [True] and fleet.calls == []


def test_a_run_that_came_back_while_machines_were_waited_for_is_left_alone(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide = machines.choose.provide

    def slowly(*words: object, **named: object) -> object:
        fleet.lead()
        return provide(*words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(machines.choose, "provide", slowly)
    with pytest.raises(InputError, match="another driver took over run big while"):
        fleet.start()
    assert fleet.calls == [] and fleet.lease.look().holder is not None


# ---- its end ------------------------------------------------------------------------------------
def test_a_machine_that_force_did_not_reach_is_named_and_can_be_ended_later(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.prepare()
    fleet.lead()
    fleet.die("b")
    assert fleet.headway("stop", "big", "--now") == 1
    out = capsys.readouterr().out
    assert "could not end node 1 on b: b cannot be reached: No route to host" in out
    assert "repeat `headway stop big" in out
    assert fleet.run.state == "unreachable"
    fleet.die()
    assert fleet.headway("stop", "big", "--now") == 0
    assert "could not" not in capsys.readouterr().out
    assert not fleet.run.live, "nobody has to be waited for"
    assert fleet.calls == [f"{name} end" for name in "aabbcc"]


def _noted(fleet: Fleet) -> None:
    fleet.cluster.note(fleet.folder.run_id, fleet.folder.path)
    fleet.prepare()
    fleet.lead()


def test_the_keys_of_a_run_that_may_be_live_are_not_removed(
    fleet: Fleet,
    renew: Callable[[LeaseTerm], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    _noted(fleet)
    renew(fleet.lead(2))
    assert main(["cluster", "remove", str(fleet.cluster.path)]) == 2
    assert "has the keys of big, live on other machines" in capsys.readouterr().err
    assert fleet.cluster.exists and fleet.run.state == "live" and fleet.calls == []


def test_draining_a_cluster_ends_its_runs_on_machines(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    _noted(fleet)
    folder = str(fleet.cluster.path)
    assert main(["cluster", "drain", folder, "--limit", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "run big: no driver has answered for 0.1 s; ended" in out
    assert fleet.calls == ["a end", "b end", "c end"]
    assert main(["cluster", "drain", folder]) == 0 and capsys.readouterr().out == ""
    assert main(["cluster", "remove", folder]) == 0 and not fleet.cluster.exists


def test_a_start_on_machines_is_noted_by_the_cluster(fleet: Fleet) -> None:
    fleet.die("a")
    with pytest.raises(HeadwayError):
        fleet.start()
    assert fleet.cluster.noted() == {"abcd1234": fleet.folder.path}


def _file(fleet: Fleet, *names: str) -> str:
    """A hosts.toml of the fleet with these machines only."""
    path = fleet.cluster.path.parent / "hosts.toml"
    hosts = tuple(Host(name) for name in names)
    path.write_text(to_toml(dataclasses.replace(fleet.hosts, hosts=hosts)))
    return str(path)


def test_a_machine_that_a_live_run_uses_is_given_up_after_the_run_only(
    fleet: Fleet, renew: Callable[[LeaseTerm], None], capsys: pytest.CaptureFixture[str]
) -> None:
    _noted(fleet)
    renew(fleet.lead(2))
    create = ("cluster", "create", str(fleet.cluster.path), "--hosts")
    assert main([*create, _file(fleet, "a", "b", "c", "d")]) == 0, "one more is fine"
    assert main([*create, _file(fleet, "a", "c", "d")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: b is used by run big, which is live; stop it first: ")
    assert "or use --drain (`make up` DRAIN=1)" in said
    assert fleet.cluster.nodes == 4 and fleet.calls == []


def test_a_machine_that_goes_takes_its_runs_with_it_where_that_is_wanted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _noted(fleet)
    ended: list[str] = []

    def end(run: Run, **_: object) -> Ending:
        ended.append(run.name)
        monkeypatch.setattr(Run, "live", False)
        return Ending(run.name, "stopped", 5)

    monkeypatch.setattr("headway.console.lifecycle.ending.end", end)
    file = _file(fleet, "a", "c")
    assert main(["cluster", "create", str(fleet.cluster.path), "--hosts", file, "--drain"]) == 0
    assert ended == ["big"] and "run big is stopped; the newest checkpoint is of step 5" in (
        capsys.readouterr().out
    )
    assert fleet.cluster.nodes == 2
