"""The trainer alone: torchrun, a prepared corpus, no other service."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from headway.dataloader.config import DataConfig
from headway.dataloader.prepare import prepare

VOCAB = 320

CONFIG = """
[model]
layers = 4
hidden = 24
heads = 4
vocab_size = {vocab}
seq_len = 16

[parallel]
{parallel}

[launch]
ranks_per_node = {ranks}

[train]
steps = 3
global_batch_size = 8
eval_batches = 1
sample_tokens = 4
dtype = "fp32"

[data]
path = "{data}"
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few thousand made-up words, prepared as a user would."""
    folder = tmp_path_factory.mktemp("corpus")
    text, draw = folder / "text", random.Random(3)
    text.mkdir()
    for number in range(20):
        words = ("".join(draw.choices("abcdefgh", k=draw.randrange(2, 7))) for _ in range(300))
        (text / f"{number}.txt").write_text(" ".join(words))
    target = folder / "prepared"
    prepare(
        DataConfig(path=str(target), source=str(text), vocab_size=VOCAB, validation_fraction=0.2)
    )
    return target


def _config(folder: Path, corpus: Path, ranks: int, parallel: str) -> Path:
    path = folder / f"config-{ranks}.toml"
    text = CONFIG.format(ranks=ranks, vocab=VOCAB, parallel=parallel, data=corpus)
    path.write_text(text)
    return path


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ, OMP_NUM_THREADS="1")
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, env=env, timeout=100
    )


def _losses(output: str) -> list[str]:
    """Every loss, of steps and validation: the only numbers with four decimals."""
    return re.findall(r"\b\d\.\d{4}\b", output)


def test_torchrun_trains_as_one_process_does(tmp_path: Path, corpus: Path) -> None:
    alone = _run("-m", "headway.trainer", "train", _config(tmp_path, corpus, 1, ""))
    assert alone.returncode == 0, alone.stderr
    assert len(_losses(alone.stdout)) == 5 and "sample" in alone.stdout
    grid = _config(tmp_path, corpus, 4, "tp = 2\npp = 2")
    together = _run(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"),
        *("-m", "headway.trainer", "train", grid),
    )
    assert together.returncode == 0, together.stderr
    pairs = zip(_losses(alone.stdout), _losses(together.stdout), strict=True)
    assert all(abs(float(a) - float(b)) < 2e-4 for a, b in pairs)


def test_a_world_of_another_size_is_refused_with_the_command_to_use(
    tmp_path: Path, corpus: Path
) -> None:
    refused = _run("-m", "headway.trainer", "train", _config(tmp_path, corpus, 4, "tp = 2\npp = 2"))
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines()[-1] == (
        "error: the configuration has 4 ranks, 1 were started; "
        "use torchrun --nproc-per-node 4 -m headway.trainer train ..."
    )


def test_missing_data_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    refused = _run("-m", "headway.trainer", "train", _config(tmp_path, tmp_path / "none", 1, ""))
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1 and "headway data prepare" in refused.stderr


def test_help_imports_no_torch() -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from headway.trainer.cli import app\n"
        "result = CliRunner().invoke(app, ['--help']); assert result.exit_code == 0, "
        "result.output\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules, 'help imports too much'"
    )
    checked = _run("-c", program)
    assert checked.returncode == 0, checked.stderr
