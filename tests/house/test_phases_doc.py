"""docs/protocol.md shows the phases as the table of transitions has them, and nothing else runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.decide import Action
from headway.controller.decisions.phases.transitions import TRANSITIONS, ImpossibleTransitionError
from headway.controller.decisions.state import PHASES, RunState
from headway.testkit.phases import renewed
from headway.testkit.simulation.by_hand import Hand

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"


def test_the_page_shows_the_transitions_of_today() -> None:
    text = PAGE.read_text()
    assert text == renewed(text), "run `python -m headway.testkit.phases docs/protocol.md`"


def test_every_phase_can_be_entered_and_left() -> None:
    live = set(PHASES) - {"over"}
    assert {before for before, _ in TRANSITIONS} == live
    assert {after for _, after in TRANSITIONS} == set(PHASES)


def test_no_other_transition_is_entered() -> None:
    state: RunState = Hand().run().state
    for phase in ("reading", "choosing", "beginning", "joining", "running"):
        with pytest.raises(ImpossibleTransitionError, match=f"from running to {phase}"):
            state.enter(phase)
    actions: list[Action] = state.finish("stopped")
    assert actions and state.phase == "over"
    with pytest.raises(ImpossibleTransitionError, match="from over to gathering"):
        state.enter("gathering")
