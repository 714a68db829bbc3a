"""What a node says while its zygote imports torch."""

from __future__ import annotations

from headway.testkit.simulation.lone_node import LoneNode


def test_a_node_that_loads_torch_says_so_with_the_time_since_the_start() -> None:
    node = LoneNode()
    node.run(0.1)
    seen: list[float] = []
    while not node.guardian.services.is_serving("zygote"):
        trouble = node.guardian.trouble()
        assert "zygote" not in trouble
        if (loading_s := node.guardian.loading_s) is not None:
            assert "torch is being loaded" in trouble
            seen.append(loading_s)
        node.run(0.1)
    assert seen and seen == sorted(seen) and seen[-1] > 0.0
    assert node.guardian.loading_s is None
