"""Engines that provide nodes: the local one emulates them on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.launch.cluster import ClusterFolder
    from headway.launch.engine import Engine, NodeLost
    from headway.launch.engines.local import LocalEngine

__all__ = ["ClusterFolder", "Engine", "LocalEngine", "NodeLost"]

__getattr__, __dir__ = lazy(
    __name__,
    cluster="ClusterFolder",
    engine="Engine NodeLost",
    **{"engines.local": "LocalEngine"},
)
