"""The driver remembers which verdicts it has noted, and not more of them than fit."""

from __future__ import annotations

from headway.controller.driver.noted import MAX_NOTED, Noted


def test_a_verdict_is_noted_once_for_each_revision() -> None:
    noted = Noted()
    assert [noted.is_new("v", revision) for revision in (1, 1, 2, 1)] == [True, False, True, False]
    assert noted.knows("v") and not noted.knows("w")


def test_what_a_peer_invents_does_not_let_it_grow() -> None:
    noted = Noted()
    for number in range(3 * MAX_NOTED):
        assert noted.is_new(f"v{number}", 1)
    assert len(noted) == MAX_NOTED
    assert not noted.is_new(f"v{3 * MAX_NOTED - 1}", 1), "the newest are remembered"
