"""What keeps a machine from a common run, by what it and the others report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from headway.common import installed
from headway.launch.engines.remote.judge import Answer, judge
from headway.launch.engines.remote.survey import network_of, surveyed
from headway.launch.join.facts import MachineFacts

NOW_S = 1_000_000.0


def _answer(number: int, **different: Any) -> Answer:
    facts = MachineFacts(
        host=f"m{number}",
        uid=f"uid-{number}",
        version=installed.version(),
        source=installed.source(),
        torch="2.13.0",
        gpus=8,
        shm_bytes=64 << 30,
        unix_s=NOW_S + 0.2,
        address=f"10.1.2.{number}",
    )
    return Answer(replace(facts, **different), NOW_S, NOW_S + 0.5)


def _troubles(*answers: Answer) -> list[list[str]]:
    found = judge({one.facts.host: one for one in answers}, "/mnt/x")
    return [[str(trouble) for trouble in found[one.facts.host]] for one in answers]


def test_equal_machines_are_in_order() -> None:
    assert _troubles(*(_answer(number) for number in range(3))) == [[], [], []]


ODD = {
    "version": ({"version": "0.0.1"}, "has Headway 0.0.1 (source"),
    "source": ({"source": "abcd"}, "install the same commit on each machine"),
    "torch": ({"torch": "2.1"}, "has torch 2.1, the others 2.13.0 (install the same torch"),
    "no torch": ({"torch": ""}, "has no torch"),
    "gpus": ({"gpus": 7}, "has 7 GPUs, the others 8 (repair it"),
    "shm": ({"shm_bytes": 64 << 20}, "its /dev/shm has 64 MiB, a small run needs 1024 (enlarge"),
    "late": ({"unix_s": NOW_S + 900.5}, "its clock is +900 s off this machine's"),
    "early": ({"unix_s": NOW_S - 900}, "its clock is -900 s off this machine's (set it"),
    "folder": ({"trouble": "does not see /mnt/x: gone"}, "does not see /mnt/x: gone (mount"),
    "copy": ({"uid": "uid-0"}, "has the machine-id of m0 (list each machine once"),
}


@pytest.mark.parametrize("odd", ODD)
def test_the_one_that_differs_is_named_whatever_the_others_are(odd: str) -> None:
    different, expected = ODD[odd]
    *others, found = _troubles(_answer(0), _answer(1), _answer(2, **different))
    assert others == [[], []]
    assert len(found) == 1 and expected in found[0]


def test_a_clock_counts_only_as_far_as_the_answer_proves_it() -> None:
    slow = replace(_answer(0, unix_s=NOW_S + 700), answered_unix_s=NOW_S + 600)
    assert slow.clock_off_s == 100.0 and _troubles(slow) == [[]]


def test_a_folder_in_which_the_answer_is_not_found_is_another_one() -> None:
    [[found]] = _troubles(replace(_answer(0), has_nonce=False))
    assert found.startswith("its /mnt/x is another folder than this machine's")


def test_several_troubles_are_one_line() -> None:
    [one] = surveyed({"gpu-1": _answer(0, shm_bytes=0, torch="")}, "/mnt/x")
    assert one.line().startswith("gpu-1: has no torch (") and "; its /dev/shm has 0" in one.line()


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (("10.1.2.3",), "10.1.2.0/24"),
        (("10.1.2.3", "10.1.2.200"), "10.1.2.0/24"),
        (("10.1.2.3", "10.1.5.3"), "10.1.0.0/21"),
        (("10.1.2.3", ""), ""),
    ],
)
def test_the_network_of_a_run_has_all_machines(addresses: tuple[str, ...], network: str) -> None:
    answers = {f"m{k}": _answer(k, address=one) for k, one in enumerate(addresses)}
    assert network_of(surveyed(dict(answers), "/mnt/x")) == network
