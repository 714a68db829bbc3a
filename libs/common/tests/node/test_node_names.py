from __future__ import annotations

import headway.common.node as node


def test_every_public_name_loads_and_none_is_missing() -> None:
    assert sorted(node.__all__) == sorted(node._HOMES)
    for name in node.__all__:
        assert getattr(node, name).__module__ == f"headway.common.node.{node._HOMES[name]}"
