"""How fast do many nodes join, and how fast is their driver's death healed?

``python -m benchmarks.joined [--nodes 1536]``

As ``benchmarks.beats``, with a key of its own for each node, which it makes and which the driver
admits when the node joins with its token. Then the driver is killed: a node notices that the lease
is not renewed, claims it and starts another driver, which knows the nodes by the journal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import zmq
from headway.common.config import to_toml
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import private_roots
from headway.common.polling import wait_until
from headway.common.wire.addresses import Network
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import Joined
from headway.launch.cluster import ClusterFolder
from headway.launch.joining import tokens
from headway.launch.joining.bundle import Bundle
from headway.launch.joining.client import this_machine
from headway.launch.lease import FileLease, Holder, LeaseWatch
from headway.trainer.control.node.clock_offset import ClockOffset

from benchmarks.beats import Node, configuration, cores, until_running
from benchmarks.hardware import hardware

JOIN_LIMIT_S, LIMIT_CORES, HEAL_LIMIT_S = 30.0, 0.3, 5.0
AT_ONCE = 32


class Rig:
    """A run without machines, and drivers for it."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.run = RunDir.create(folder / "run", run_id=new_run_id())
        config = configuration(nodes)
        self.run.config.write_text(to_toml(config))
        self.silent_s = config.recovery.driver_silent_s
        NodePaths(self.run.run_id, 0).create()
        self.cluster = ClusterFolder.create(folder / "cluster", nodes=nodes)
        shared = folder / "shared"
        (shared / "control").mkdir(parents=True)
        (self.run.path / "control").symlink_to(shared / "control")
        self.bundle = Bundle(
            run_id=self.run.run_id,
            name="run",
            nodes=nodes,
            config=self.run.config.read_text(),
            network=Network(),
            engine={"kind": "hosts", "shared": str(shared), "hosts": [{"name": "nowhere"}]},
            shared=str(shared),
            secret=tokens.new_secret(),
        )
        self.bundle.save(self.run.bundle)
        self.lease = FileLease(self.run.control, lambda _: True)
        self._log = folder / "driver.log"

    def start(self, after: int) -> tuple[subprocess.Popen[bytes], Holder]:
        """Claim the epoch after ``after`` and start its driver; returns once it listens."""
        epoch = self.lease.claim(after)
        assert epoch == after + 1
        command = [sys.executable, "-m", "headway.trainer", "driver", "--run", str(self.run.path)]
        command += ["--cluster", str(self.cluster.path), "--node", "0", "--epoch", str(epoch)]
        with self._log.open("ab") as log:
            driver = subprocess.Popen(command, stdout=log, stderr=log)

        def leads() -> bool:
            holder = self.lease.look().holder
            return holder is not None and holder.epoch == epoch

        assert wait_until(leads, 60.0, every_s=0.01), self._log.read_text()[-2000:]
        holder = self.lease.look().holder
        assert holder is not None
        return driver, holder

    def join(self, node: int, keys: KeyPair, holder: Holder) -> None:
        """Have one node join, as its machine would."""
        token = tokens.mint(self.bundle.secret, self.run.run_id, node)
        question = this_machine(node, keys.public, token=token)
        question = msgspec.structs.replace(question, uid=f"machine-{node}")
        server_key = holder.server_key.encode()
        with Client(holder.join_endpoint, keys=keys, server_key=server_key) as client:
            client.call(question, Joined, timeout_s=JOIN_LIMIT_S)

    def follow(self, keys: Sequence[KeyPair], holder: Holder) -> list[Node]:
        """The executors, connected to a driver."""
        nodes = [Node(number, self.run.run_id, holder, own) for number, own in enumerate(keys)]
        for node in nodes:
            node.clock = ClockOffset()
        return nodes


def measure(folder: Path, nodes: int, seconds: float) -> dict[str, float | int]:
    """Join, beat, lose the driver."""
    zmq.Context.instance().set(zmq.MAX_SOCKETS, 16384)
    rig, keys = Rig(folder, nodes), [KeyPair.generate() for _ in range(nodes)]
    driver, holder = rig.start(0)
    try:
        begin_s = time.monotonic()
        keys[0] = rig.cluster.key_of("executor")  # of the driver's own node, which it knows
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda node: rig.join(node, keys[node], holder), range(1, nodes)))
        joined_s = time.monotonic() - begin_s
        executors = rig.follow(keys, holder)
        until_running(executors, holder, rig.cluster)
        running_s = time.monotonic() - begin_s
        used = cores(psutil.Process(driver.pid), executors, seconds)

        begin_s = time.monotonic()
        driver.kill()
        driver.wait()
        watch = LeaseWatch()
        while watch.see(rig.lease.look(), time.monotonic()) < rig.silent_s:
            time.sleep(0.05)
        driver, holder = rig.start(1)
        led_s = time.monotonic() - begin_s
        for executor in executors:
            executor.follow(holder, keys[executor.number])
        until_running(executors, holder, rig.cluster)
        healed_s = time.monotonic() - begin_s
    finally:
        driver.kill()
        driver.wait()
    return {
        "nodes": nodes,
        "joined_s": joined_s,
        "running_s": running_s,
        "cores": used,
        "led_again_s": led_s,
        "healed_s": healed_s,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns 0 when all limits hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1536)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    with private_roots(), tempfile.TemporaryDirectory(prefix="headway-joined-") as folder:
        row = measure(Path(folder), options.nodes, options.seconds)
    print(", ".join(f"{key} {value:.3g}" for key, value in row.items()), flush=True)
    if options.out:
        facts = {
            "command": "python -m benchmarks.joined",
            "date": time.strftime("%Y-%m-%d"),
            "hardware": hardware(),
            **row,
        }
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    limits = {"joined_s": JOIN_LIMIT_S, "cores": LIMIT_CORES, "healed_s": HEAL_LIMIT_S}
    return int(any(row[key] > limit for key, limit in limits.items()))


if __name__ == "__main__":
    sys.exit(main())
