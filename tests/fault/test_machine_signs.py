"""Signs of a broken machine become verdicts that name the hardware, and cost the run nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.polling import wait_until
from headway.common.wire.messages.health import Verdict
from headway.console.run import Run
from headway.health.journal import read_verdicts

from benchmarks.drill import look
from benchmarks.drill.rig import Rig
from benchmarks.drill.signs import stand_ins

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 30.0
LAYOUT = (
    "parallel.tp=1", "parallel.pp=1", "parallel.dp=1", "launch.nodes=1",
    "launch.ranks_per_node=1", "launch.spares=0",
)  # fmt: skip
SIGNS = [
    ("kernel", "gpu_lost", "0000:3b:00"),
    ("counter", "nic_flap", "mlx5_3/1"),
    ("gpu", "gpu_memory_error", "0000:3b:00.0"),
]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for a fake NVML")
    with pytest.MonkeyPatch.context() as patch, stand_ins(), Rig() as rig:
        patch.chdir(ROOT)
        launched = rig.launch("signs", *LAYOUT)
        yield launched
        rig.finish(launched)


def of_rule(run: Run, rule: str) -> list[Verdict]:
    found = read_verdicts(run.folder.path / "verdicts.jsonl")
    return [one for one in found if one.id.startswith(f"finding:{rule}:")]


@pytest.mark.parametrize(("fault", "rule", "name"), SIGNS)
def test_a_sign_of_a_broken_machine_names_it_and_ends_nobody(
    run: Run, fault: str, rule: str, name: str
) -> None:
    before = look.healthy(run, 4)
    assert of_rule(run, rule) == [], "what was there before is a baseline"
    run.inject(fault, target="node", node=0)
    assert wait_until(lambda: bool(of_rule(run, rule)), LIMIT_S, every_s=0.05)
    verdict = of_rule(run, rule)[0]
    assert name in verdict.remedy or any(name in row.value for row in verdict.evidence)
    assert (verdict.node, verdict.action) == (0, "observe")
    after = look.healthy(run, before.step + 6)
    assert (after.generation, after.ranks[0].pid) == (before.generation, before.ranks[0].pid)
