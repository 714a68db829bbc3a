"""The command lines of a node's services."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.ckpt_store.config import StoreConfig
from headway.common.config import diff
from headway.common.errors import HeadwayError, InputError
from headway.common.log import get_logger
from headway.common.log_rotation import ENV_LOG_MIB
from headway.common.node.process import ProcessId, spawn
from headway.common.node.run_dir import NodePaths, RunDir
from headway.common.wire.addresses import LOOPBACK
from headway.controller.executor.leader_services import SINK
from headway.health.client import begin_life
from headway.health.config import NOTIFY_ENV, HealthConfig
from headway.trainer.config import RunConfig

log = get_logger("executor")

MALLOC_ARENAS = os.environ.get("MALLOC_ARENA_MAX", "2")
"""glibc gives threads heaps of their own, whose tops it never returns:
workers would grow with each recovery."""


@dataclass(frozen=True)
class Spec:
    """One service: its command line and its environment."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


class NodeServices:
    """Makes and starts the services of one node of one run."""

    def __init__(self, run: RunDir, config: RunConfig, paths: NodePaths, cluster: Path) -> None:
        self._run, self._config, self._paths, self._cluster = run, config, paths, cluster
        self._run_id, self._logs = paths.run_id, run.logs
        self._log_pattern = f"n{paths.node}[-w]*.log"
        self._rotation = {ENV_LOG_MIB: str(config.launch.log_mib)}

    def begin_life(self) -> None:
        """Mark what an earlier life of the run has left in logs and verdicts as its own."""
        is_leading = self._paths.node == 0  # the node that starts the first driver
        control = self._run.control if is_leading else None
        try:
            begin_life(self._paths.shm_dir, self._logs, self._log_pattern, control)
        except (HeadwayError, OSError) as error:
            log.warning("old log lines and verdicts are not marked as such", reason=str(error))

    def start(self, name: str, epoch: int = -1) -> ProcessId:
        """Start a service; it outlives this process.

        Raises:
            HeadwayError: it cannot be started.
        """
        spec = self.spec(name, epoch)
        # of a sink there is one log per run, which the agent does not search for signs of faults
        log = name if name.startswith(SINK) else f"n{self._paths.node}-{name}"
        return spawn(
            spec.argv,
            log_path=self._logs / f"{log}.log",
            env={**os.environ, **spec.env, **self._rotation, "HEADWAY_ROLE": name},
            cwd=Path.cwd(),
        )

    def spec(self, name: str, epoch: int = -1) -> Spec:
        """What starts a service; ``epoch`` is the driver's."""
        match name:
            case "dataloader":
                endpoint = self._paths.endpoint(name)
                argv = _command("dataloader", "serve", endpoint=endpoint, **self._common())
            case "ckpt_store":
                argv = self._store()
            case "agent":
                argv = self._agent()
            case "zygote":
                argv = _command("trainer", "zygote", run=self._run.path, node=self._paths.node)
                threads = self._env(threads=self._config.launch.threads_per_rank)
                return Spec(name, argv, {"MALLOC_ARENA_MAX": MALLOC_ARENAS, **threads})
            case "driver":
                argv = _command(
                    "controller",
                    "driver",
                    run=self._run.path,
                    cluster=self._cluster,
                    node=self._paths.node,
                    epoch=epoch,
                )
            case "monitor":
                notify = {NOTIFY_ENV: " ".join(self._config.health.notify)}
                argv = [*self._monitor(), *self._metrics(name)]
                return Spec(name, argv, {**self._env(), **notify})
            case _ if name.startswith(SINK):
                argv = _command("console.sinks", run=self._run.path, to=name.removeprefix(SINK))
                return Spec(name, argv, self._env())
            case _:
                raise InputError(f"no service {name!r}", remedy="name one that a node keeps")
        return Spec(name, [*argv, *self._metrics(name)], self._env())

    def _metrics(self, name: str) -> list[str]:
        """The option for the service's metrics port; the driver knows its own."""
        ports = self._config.launch.metrics_ports
        if ports is None or name == "driver":
            return []
        return ["--metrics-port", str(ports.of(name, self._paths.node))]

    def _common(self) -> dict[str, object]:
        return {
            "run_id": self._run_id,
            "node": self._paths.node,
            "executor": self._paths.endpoint("executor"),
            "shm_dir": self._paths.shm_dir,
        }

    def _store(self) -> list[str]:
        serve = _command(
            "ckpt_store",
            "serve",
            endpoint=self._paths.endpoint("ckpt_store"),
            **self._common(),
            checkpoints=self._run.checkpoints,
            world_size=self._config.parallel.world_size,
        )
        return [*serve, *_settings(StoreConfig(), self._config.ckpt)]

    def _agent(self) -> list[str]:
        agent = _command(
            "health",
            "agent",
            endpoint=self._paths.endpoint("agent"),
            **self._common(),
            node_file=self._paths.sock_dir / "monitor.json",
            logs=self._logs,
            log_pattern=self._log_pattern,
            events=self._run.events,
            keep_gib=self._config.events.keep_gib,
            verdicts=self._run.verdicts,
            keys=self._cluster / "keys",
            **self._fabric(),
        )
        needed = (self._run.checkpoints, self._config.data.path)
        mounts = [word for path in needed for word in ("--mount", str(path))]
        return [*agent, *mounts, *_settings(HealthConfig(), self._config.health)]

    def _fabric(self) -> dict[str, object]:
        """The option for the address of the ranks; on loopback no cable can be cut."""
        address = self._config.launch.network.fabric_address
        return {} if address == LOOPBACK else {"fabric_address": address}

    def _monitor(self) -> list[str]:
        monitor = _command(
            "health",
            "monitor",
            bind=self._config.launch.network.endpoint,
            keys=self._cluster / "keys",
            run_id=self._run_id,
            run_dir=self._run.control,
            summaries=self._run.summaries,
            keep_gib=self._config.events.keep_gib,
            node=self._paths.node,
            executor=self._paths.endpoint("executor"),
            grid=f"{self._config.parallel.tp},{self._config.parallel.dp},{self._config.parallel.pp}",
        )
        return [*monitor, *_settings(HealthConfig(), self._config.health)]

    def _env(self, threads: int = 1) -> dict[str, str]:
        pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        return {**self._paths.environment(), **dict.fromkeys(pools, str(threads))}


def _settings(defaults: object, config: object) -> list[str]:
    """``--set`` options for what differs from the defaults, web addresses left out.

    Those contain secrets, and every user of a machine can read its command lines.
    """
    changed = diff(defaults, config)
    changed.pop("notify", None)
    return [word for key, (_, value) in changed.items() for word in ("--set", f"{key}={value}")]


def _command(part: str, *verb: str, **options: object) -> list[str]:
    """``python -m headway.PART VERB`` with its options: ``shm_dir=x`` becomes ``--shm-dir x``."""
    command = [sys.executable, "-m", f"headway.{part}", *verb]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return command
