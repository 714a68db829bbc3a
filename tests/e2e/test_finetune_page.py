"""The commands of docs/howto/finetune.md, one after the other, on a tiny model."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.trainer.tests.exchange.test_exchange_refusals import folder_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "finetune.md"
MODEL = {
    "model_type": "qwen2",
    "hidden_size": 48,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
}
SMALL = (
    "model.seq_len=32",
    "train.dtype=fp32",
    "train.global_batch_size=8",
    "train.eval_batches=1",
    "train.eval_every=0",
    "train.sample_tokens=0",
    "ckpt.durable_every=2",
)
FURTHER = 4
"""Steps of the resumed run."""


def _commands() -> Iterator[list[str]]:
    """The lines of the page's blocks of commands."""
    text = PAGE.read_text().replace("\\\n", " ")
    for block in re.findall(r"(?ms)^```\n(.*?)^```", text):
        yield from (shlex.split(line) for line in block.splitlines())


def _carry_out(machine: Any, words: list[str], *settings: str) -> str:
    more = [word for one in settings for word in ("--set", one)]
    done = subprocess.run(
        [*words, *more],
        env=machine.env,
        cwd=machine.folder,
        capture_output=True,
        text=True,
        timeout=120.0,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(400)
def test_an_imported_model_is_tuned_resumed_and_exported_as_the_page_says(machine: Any) -> None:
    folder = machine.folder
    downloaded = folder_of(folder / "Qwen2.5-1.5B", MODEL)
    shutil.copy(machine.corpus / "tokenizer.json", downloaded)
    shutil.copytree(machine.corpus.parent / "text", folder / "my_texts")
    commands = list(_commands())
    assert [words[:2] for words in commands].count(["headway", "run"]) == 3
    small: tuple[str, ...] = ()
    said: dict[str, str] = {}
    for words in commands:
        verb, is_resumed = words[1], words[1:3] == ["run", "tuned"]
        if verb == "watch":  # follows the run until it ends
            machine.stepping("tuned", beyond=2)
            continue
        if verb == "run" and not small:
            end = json.loads((folder / "data" / "mine" / "meta.json").read_text())["eod_id"]
            small = (*SMALL, f"model.document_end={end}")
        if is_resumed:
            steps = _newest(folder) + FURTHER
            words = [*words, "--json"]
            settings: tuple[str, ...] = (f"train.steps={steps}",)
        else:
            settings = (*small, "train.steps=1000000") if verb == "run" else ()
        said[verb] = _carry_out(machine, words, *settings)
    summary = json.loads(said["run"].splitlines()[-1])
    assert (summary["outcome"], summary["step"]) == ("finished", steps)
    config = tomllib.loads((machine.runs / "tuned" / "config.toml").read_text())
    assert config["train"]["init_from"] == str(folder / "models" / "qwen")
    assert config["train"]["micro_batch_size"] == 2
    assert said["sample"].strip()
    exported = json.loads((folder / "exported" / "config.json").read_text())
    assert exported["model_type"] == "qwen2" and exported["num_key_value_heads"] == 2


def _newest(folder: Path) -> int:
    """The step of the newest checkpoint of the run."""
    found = (folder / "runs" / "tuned" / "checkpoints").glob("step-*.g*")
    return max(int(re.sub(r"\D", "", path.name.partition(".")[0])) for path in found)
