"""A service that takes longer to start than it may, as on a machine too busy to load torch."""

from __future__ import annotations

from headway.testkit.trainer.node_model import Node


def test_each_start_that_takes_too_long_gives_the_next_one_twice_the_time() -> None:
    node = Node()
    node.run(1.0)
    tried = []
    for _ in range(3):
        process = node.guardian.services.process("dataloader")
        assert process is not None
        node.processes[process].is_hung = True
        begun_s = node.now
        while node.guardian.services.process("dataloader") in (process, None):
            node.run(0.5)
        tried.append((node.now - begun_s) // 30 * 30)
    assert tried == [60.0, 120.0, 240.0]
    assert node.guardian.trouble() == "dataloader is starting again: it sent no beat for 240 s"
    node.run(15.0)
    assert node.is_whole
