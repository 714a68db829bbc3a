"""The command line: what people and scripts read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import headway.ckpt_store
import numpy as np
import pytest
from headway.ckpt_store.client import CheckpointClient

README = Path(__file__).parents[1] / "README.md"


def ckpt(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway.ckpt_store", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    client = CheckpointClient(tmp_path / "checkpoints", keep=9)
    for step in (10, 20, 30, 40):
        client.save(step, {"weight": np.full(1000, step)})
    return tmp_path


def parsed(*arguments: str | Path) -> Any:
    done = ckpt(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ls_lists_steps_of_a_run_folder_or_its_checkpoints_folder(saved: Path) -> None:
    rows = parsed("ls", saved)
    assert [(row["step"], row["status"]) for row in rows] == [
        (s, "complete") for s in (10, 20, 30, 40)
    ]
    assert parsed("ls", saved / "checkpoints") == rows
    assert "step  40  g0  complete  1/1 ranks" in ckpt("ls", saved).stdout


def test_ls_tells_unfinished_unreadable_and_superseded_steps(saved: Path) -> None:
    folder = saved / "checkpoints"
    (folder / "step-00000040.g0" / "MANIFEST.json").unlink()
    (folder / "step-00000030.g0" / "MANIFEST.json").write_text("{")
    CheckpointClient(folder).restore(step=10)
    rows = {row["step"]: row["status"] for row in parsed("ls", saved)}
    assert rows == {10: "complete", 20: "superseded", 30: "superseded", 40: "superseded"}


def test_show_names_the_tensors(saved: Path) -> None:
    facts = parsed("show", saved, "--step", "20")
    assert (facts["step"], facts["world_size"]) == (20, 1)
    assert [tensor["name"] for tensor in facts["tensors"]] == ["weight"]
    assert "weight  int64 [1000]" in ckpt("show", saved).stdout


def test_verify_exits_0_when_sound_and_1_naming_file_and_chunk_when_not(saved: Path) -> None:
    assert ckpt("verify", saved, "--all").returncode == 0
    blob = saved / "checkpoints" / "step-00000030.g0" / "rank-0.safetensors"
    raw = bytearray(blob.read_bytes())
    raw[-1] ^= 1
    blob.write_bytes(raw)
    assert ckpt("verify", saved).returncode == 0
    done = ckpt("verify", saved, "--all")
    assert done.returncode == 1
    assert "rank-0.safetensors: chunk 0" in done.stdout
    assert ckpt("verify", saved, "--step", "30").returncode == 1


def test_gc_says_what_would_go_and_removes_it(saved: Path) -> None:
    assert parsed("gc", saved, "--keep", "2", "--dry-run")["removed"] == [
        "step-00000010.g0",
        "step-00000020.g0",
    ]
    assert len(parsed("ls", saved)) == 4
    parsed("gc", saved, "--keep", "2")
    assert [row["step"] for row in parsed("ls", saved)] == [30, 40]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ls", "/nowhere"], "/nowhere is not a folder"),
        (["show", ".", "--step", "77"], "no complete checkpoint of step 77"),
        (["show", ".", "--rank", "9"], "has no rank 9"),
        (["verify", "/"], "holds no complete checkpoint"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy_and_exit_code_2(
    saved: Path, arguments: list[str], said: str
) -> None:
    done = ckpt(*[str(saved) if argument == "." else argument for argument in arguments])
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert ";" in done.stderr


def test_help_loads_neither_torch_nor_numpy_nor_sockets() -> None:
    script = (
        "import contextlib, runpy, sys\nsys.argv = ['ckpt_store', '--help']\n"
        "with contextlib.suppress(SystemExit):\n"
        "    runpy.run_module('headway.ckpt_store', run_name='__main__')\n"
        "print(sorted({'torch', 'numpy', 'zmq'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
    assert "serve" in done.stdout


def test_only_the_torch_client_imports_torch() -> None:
    script = (
        "import sys, headway.ckpt_store.server, headway.ckpt_store.client, headway.ckpt_store.cli\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_every_public_name_is_there() -> None:
    for name in headway.ckpt_store.__all__:
        assert getattr(headway.ckpt_store, name) is not None


def test_the_examples_of_the_readme_save_and_restore_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    alone, _ = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(alone.splitlines()) < 30
    for expected in ("started at step 0", "started at step 30"):
        done = subprocess.run(
            [sys.executable, "-c", alone], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
        assert "bit-equal True" in done.stdout


def test_the_example_with_several_ranks_runs_under_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    _, ranks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(ranks)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for start in (0, 20):
        done = subprocess.run(
            [*command, "train.py"], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr
        for rank in range(2):
            assert f"rank {rank} started at step {start}" in done.stdout
    steps = [path.name for path in sorted((tmp_path / "checkpoints").glob("step-*"))]
    assert steps == ["step-00000039.g0", "step-00000040.g0"]


def test_a_folder_without_one_readable_manifest_is_listed_all_the_same(saved: Path) -> None:
    for manifest in saved.glob("checkpoints/*/MANIFEST.json"):
        manifest.write_text("{")
    assert {row["status"] for row in parsed("ls", saved)} == {"unreadable"}
