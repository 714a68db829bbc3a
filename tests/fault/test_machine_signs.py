"""Signs of a broken machine become verdicts that name the hardware, and cost the run nothing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.polling import wait_until
from headway.common.wire.messages.health import Verdict
from headway.console.run import Run
from headway.health.journal import read_verdicts

from benchmarks.drill import look
from benchmarks.drill.rig import Rig

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 30.0
PORT = "class/infiniband/mlx5_3/ports/1"
FILES = {
    f"sys/{PORT}/state": "4: ACTIVE",
    f"sys/{PORT}/phys_state": "5: LinkUp",
    f"sys/{PORT}/rate": "400 Gb/sec (4X NDR)",
    f"sys/{PORT}/link_layer": "InfiniBand",
    f"sys/{PORT}/counters/link_downed": "25",
    "kernel.log": "[    0.000000] Linux version 6.1",
    "gpus": "0 00000000:3B:00.0 0 0 5 16 0 4",
}
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
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for a fake NVML")
    folder = tmp_path_factory.mktemp("machine")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    library = folder / "libnvidia-ml.so.1"
    source = ROOT / "services/health/tests/nvml_fake.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("HEADWAY_KMSG", str(folder / "kernel.log"))
        patch.setenv("HEADWAY_SYSFS_ROOT", str(folder / "sys"))
        patch.setenv("HEADWAY_NVML", str(library))
        patch.setenv("FAKE_NVML", str(folder / "gpus"))
        with Rig() as rig:
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
