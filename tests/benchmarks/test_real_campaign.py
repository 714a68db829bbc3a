"""Real injections are judged: whom verdicts named, whom they have cost, and how late they were."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from headway.common.config import load
from headway.common.wire.messages.health import Evidence, Verdict
from headway.controller.faults.faults import FAULTS
from headway.controller.faults.network import NETWORK
from headway.health.client import diagnose_folder
from headway.trainer.config import RunConfig

from benchmarks.campaign.peers.dumps import PREFIX, played_cases
from benchmarks.campaign.peers.side_by_side import Answer, answer
from benchmarks.campaign.real.judge import BY_NAME, figures, missed, wrong_with
from benchmarks.campaign.real.kinds import INJECTIONS, OF_HARDWARE, agrees, is_accusing, refused
from benchmarks.campaign.real.own_cores import part
from benchmarks.campaign.real.said import accused
from benchmarks.campaign.real.tier import plan

ROOT = Path(__file__).resolve().parents[2]
CRASH = Verdict(id="a", revision=1, kind="crash", is_open=True, run_id="r", node=0, rank=2)


def said(**change: Any) -> dict[str, Any]:
    right = {"text": "crash of rank 2", "kind": "crash", "cause": "unknown", "is_right": True}
    return {**right, "accuses": "target", "after_s": 0.4, "steps": 1, **change}


INNOCENT = said(text="silence of rank 0", kind="silence", is_right=False, accuses="innocent")
OF_NOBODY = said(text="unexplained_hang", is_right=False, accuses="nobody")


def row(injection: str = "kill", *verdicts: dict[str, Any], **change: Any) -> dict[str, Any]:
    facts = {"layout": "tp2-dp2", "number": 3, "injection": injection, "target": "rank 2"}
    facts |= {
        "innocents": [],
        "is_target_ended": False,
        "hang_limit_s": 2.0,
        "step_s": 0.2,
        "error": "",
    }
    return {**facts, "error": "", "said": list(verdicts), **change}


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        (row("kill", INNOCENT), "silence of rank 0 was accused"),
        (row("kill", said(), INNOCENT), "silence of rank 0 was accused"),
        (row("kill"), "nothing right was said"),
        (row("hang", OF_NOBODY), "nothing right was said"),
        (row("kill", OF_NOBODY, said()), "the first verdict was unexplained_hang"),
        (row("kill", said(), innocents=["rank 1"]), "ended beside its target: rank 1"),
        (
            row("flip", said(), is_target_ended=True),
            "its target was ended although it worked",
        ),
        (row("kill", said(), error="not healthy"), "the run did not step again: not healthy"),
        (row("hang", said(after_s=7.1)), "named after 7.1 s, not 7.0 s"),
        (row("slow 1.2x", said(steps=21)), "named after 21 steps, not 20"),
        (row("debugger", said()), "crash of rank 2, where nothing is wrong"),
        (
            row("nan", said(), tensor="head.weight", is_layer_right=False),
            "the tensor is not named as head.weight",
        ),
    ],
)
def test_what_is_wrong_after_an_injection_is_found(judged: dict[str, Any], words: str) -> None:
    judged = {"is_layer_right": False, **judged}
    assert words in wrong_with(judged)
    assert any(text.endswith(words) for text in missed([judged])), "it fails the campaign"


def test_nothing_is_missed_if_all_is_right() -> None:
    rows = [
        row("kill", said()),
        row("hang", said(after_s=6.9)),
        row("slow", said(steps=20)),
        row("slow", said(text="slow_rank of node 1", is_right=False), said(steps=18)),
        row("nan", said(), tensor="head.weight", is_layer_right=True),
        row("locked_journal"),
        row("flip", said()),
    ]
    rows = [{"is_layer_right": False, **one} for one in rows]
    assert missed(rows) == []
    found = figures(rows)
    assert (found["to_be_named"], found["named_right"], found["precision"]) == (6, 1.0, 1.0)
    assert found["nan_with_layer"] == "1 of 1"


def test_a_service_that_was_replaced_before_anybody_waited_needs_no_verdict() -> None:
    healed = row("freeze dataloader", is_target_ended=True)
    assert missed([healed]) == []
    assert (figures([healed])["to_be_named"], figures([healed])["healed_before"]) == (0, 1)
    assert missed([row("freeze dataloader")]), "it is frozen still"
    assert missed([{**healed, "said": [INNOCENT]}])


@pytest.mark.parametrize(
    ("injection", "change", "is_right"),
    [
        ("kill", {}, True),
        ("kill", {"rank": 1}, False),
        ("kill", {"kind": "silence"}, False),
        ("skip", {"kind": "unexplained_hang", "rank": -1, "cause": "collective_mismatch"}, True),
        ("skip", {"kind": "unexplained_hang", "rank": -1, "cause": "network"}, False),
        ("freeze node", {"kind": "node_silent", "rank": -1}, True),
        ("freeze node", {"kind": "node_silent", "rank": -1, "node": 1}, False),
        ("counter", {"kind": "network_fault", "rank": -1, "name": "mlx5_3/1", "node": 1}, True),
        ("counter", {"kind": "network_fault", "rank": -1, "name": "mlx5_0/1"}, False),
        ("slow 1.2x", {"kind": "slow_rank", "rank": -1}, True),
        ("slow 1.2x", {"kind": "slow_rank", "rank": -1, "node": 1}, False),
        ("slow", {"kind": "slow_rank", "rank": -1}, False),
    ],
)
def test_a_verdict_is_right_by_its_kind_cause_and_subject(
    injection: str, change: dict[str, Any], is_right: bool
) -> None:
    verdict = msgspec.structs.replace(CRASH, **change)
    assert agrees(BY_NAME[injection], verdict, (2,), 0) is is_right


@pytest.mark.parametrize(
    ("injection", "change", "whom"),
    [
        ("kill", {}, "target"),
        ("kill", {"kind": "silence"}, "target"),
        ("kill", {"rank": 3}, "innocent"),
        ("kill", {"rank": -1}, "target"),
        ("kill", {"rank": -1, "node": 1}, "innocent"),
        ("kill", {"rank": -1, "node": -1}, "nobody"),
        (
            "skip",
            {"kind": "unexplained_hang", "rank": -1, "cause": "collective_mismatch"},
            "nobody",
        ),
    ],
)
def test_whoever_else_a_verdict_is_about_is_an_innocent(
    injection: str, change: dict[str, Any], whom: str
) -> None:
    verdict = msgspec.structs.replace(CRASH, **change)
    assert accused(BY_NAME[injection], verdict, (2,), 0) == whom


def test_cores_are_divided_so_that_some_are_left() -> None:
    cores = len(os.sched_getaffinity(0))
    assert part(1) == min(1.0, 0.8 * cores)
    assert part(4 * cores) * 4 * cores == pytest.approx(0.8 * cores)


def test_a_victim_and_what_is_over_accuse_nobody() -> None:
    row = Evidence(source="proc", name="state", value="gone", unix_s=0.0)
    assert is_accusing(msgspec.structs.replace(CRASH, evidence=(row,)))
    assert not is_accusing(msgspec.structs.replace(CRASH, kind="peer_lost"))
    assert not is_accusing(msgspec.structs.replace(CRASH, is_open=False))


def test_every_fault_is_injected_or_refused_with_a_reason() -> None:
    config = load(RunConfig, [ROOT / "examples/tiny.toml"])
    without = refused(config)
    assert all(without.values())
    assert {one.fault for one in INJECTIONS} | set(without) == set(FAULTS)
    assert set(NETWORK) <= set(without), "ranks of emulated nodes have no network"


def test_a_plan_has_every_injection_equally_often() -> None:
    chosen = plan(random.Random(0), INJECTIONS, 2 * len(INJECTIONS))
    hardware = [one.fault in OF_HARDWARE for one in chosen]
    assert hardware == sorted(hardware) and any(hardware), "it explains what comes later"
    assert set(Counter(one.name for one in chosen).values()) == {2}
    with pytest.raises(ValueError, match="'nothing' cannot be injected here; use some of: kill"):
        plan(random.Random(0), INJECTIONS, 3, ["nothing"])


@pytest.mark.parametrize(
    ("named", "expected"),
    [((1, 2), "exact"), ((0, 1, 2), "victims too"), ((1,), "not all"), ((0,), "others"),
     ((), "nothing")],
)  # fmt: skip
def test_answers_of_peers_are_told_apart(named: tuple[int, ...], expected: Answer) -> None:
    assert answer(named, (1, 2)) == expected


def test_the_dumps_of_a_played_hang_show_its_culprits(tmp_path: Path) -> None:
    for case in played_cases(tmp_path, 6, 0, 16):
        assert sorted(one.name for one in case.folder.iterdir())[0] == f"{PREFIX}0"
        found = diagnose_folder(case.folder).found
        assert {one.rank for one in found[0].culprits} == case.culprits, case
