"""Which engine provides the nodes of a run, by what its folder says."""

from __future__ import annotations

from typing import Any

from headway.common.config import from_dict, to_dict
from headway.common.errors import InputError
from headway.common.node.run_dir import RunDir
from headway.launch.cluster import ClusterFolder
from headway.launch.engine import Engine
from headway.launch.hosts.config import HostsConfig
from headway.launch.hosts.engine import HostsEngine
from headway.launch.joining.bundle import Bundle
from headway.launch.local import LocalEngine


def engine_of(run: RunDir, cluster: ClusterFolder) -> Engine:
    """The engine of a run: of its bundle where machines have joined it, else the local one.

    Raises:
        InputError: the bundle is damaged, or names no engine of this version.
    """
    if not run.bundle.exists():
        return LocalEngine(cluster)
    return of_bundle(Bundle.load(run.bundle))


def of_bundle(bundle: Bundle) -> HostsEngine:
    """The engine that a bundle names.

    Raises:
        InputError: this version has none of that name.
    """
    facts = dict(bundle.engine)
    kind = facts.pop("kind", "")
    if kind != "hosts":
        raise InputError(f"there is no engine {kind!r}", remedy="use the version that made the run")
    return HostsEngine(bundle, from_dict(HostsConfig, facts))


def facts_of(config: HostsConfig) -> dict[str, Any]:
    """What ``cluster.json`` and a bundle keep of the engine."""
    return {"kind": "hosts", **to_dict(config)}
