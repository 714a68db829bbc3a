"""``headway inject``: what it names, and what it sends."""

from __future__ import annotations

from headway.console.cli import main
from headway.console.steering.methods import FAULTS as KNOWN
from headway.console.testing import FakeRun
from headway.controller.faults.faults import FAULTS


def test_inject_knows_every_fault_and_how_long_it_lasts(fake: FakeRun) -> None:
    names = list(FAULTS)
    assert f"{', '.join(names[:-1])} or {names[-1]}" == KNOWN
    words = ("inject", "fake", "silent_node", "--target", "node", "--node", "0", "--for", "7")
    assert main([*words, "--runs-dir", str(fake.folder.path.parent)]) == 0
    (sent,) = fake.commands
    assert (sent.fault, sent.name, sent.node, sent.duration_s) == ("silent_node", "node", 0, 7.0)
