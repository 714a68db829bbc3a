"""A run listens where it is told to, on a node with a network of its own, and nowhere else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from headway.console.run import Run
from headway.testkit.bed import Bed
from headway.testkit.journal import query

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"
PORTS = range(21000, 21050)


@pytest.mark.timeout(300)
def test_services_and_store_listen_on_the_named_network_and_ports_only(
    machine: Any, cache: Path, tmp_path: Path
) -> None:
    if reason := Bed.missing():
        pytest.skip(f"no separate nodes here: {reason}")
    settings = machine.settings(
        machine.two_ranks, "train.steps=100000", "launch.interface=eth0",
        f"launch.ports={PORTS[0]}-{PORTS[-1]}",
    )  # fmt: skip
    (tmp_path / "disks").mkdir()
    with Bed(tmp_path / "disks", nodes=1, visible=[machine.corpus, cache, TINY]) as bed:
        node = bed.node(0)

        def headway(*words: str | Path, **options: Any) -> Any:
            command = [sys.executable, "-m", "headway.console", *words, "--runs-dir", "runs"]
            env = {"HEADWAY_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
            return node.run(command, env=env, timeout_s=120, **options)

        headway("run", TINY, "--name", "a", "--detach", *settings)
        run = Run(node.root / "home" / "runs" / "a")
        machine.wait_until(lambda: query(run, "SELECT step FROM metrics"), "the first step")
        found = bed.listening()
        assert {one.address for one in found} == {node.address}
        ours = [one for one in found if one.port in PORTS]
        # an executor, the driver, the monitor and the store; the rest are gloo's
        assert len(ours) == 4, found
        headway("stop", "a", "--now")
        assert bed.listening() == []

        missing = headway("run", TINY, "--name", "b", *settings[:-4],
            "--set", "launch.interface=eth7", check=False)  # fmt: skip
        assert missing.returncode == 2
        assert "no interface or address 'eth7'" in missing.stderr + missing.stdout
