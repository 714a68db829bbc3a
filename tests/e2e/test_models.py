"""A run becomes a Hugging Face model and a Hugging Face model becomes a run, by the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headway.testkit.trainer.huggingface import HAS_TRANSFORMERS, WHY_NOT, load_saved, quiet

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "models"
STEPS = 12
SHORT = (f"train.steps={STEPS}", "ckpt.durable_every=6", "model.layers=4", "train.eval_every=12")


@pytest.fixture(scope="module")
def trained(make_machine: Any) -> Any:
    """A machine with an ended run ``qwen3``: tied tables over two pipeline ranks, windows, GQA."""
    machine = make_machine()
    example = EXAMPLES / "qwen3.toml"
    words = ["run", example, "--runs-dir", machine.runs, *machine.settings(SHORT), "--json"]
    machine.summary = json.loads(machine.headway(*words).splitlines()[-1])
    assert machine.summary["step"] == STEPS
    return machine


def _sample(machine: Any, *words: Any) -> dict[str, Any]:
    fixed = ("--temperature", "0", "--tokens", "8", "--runs-dir", machine.runs, "--json")
    found: dict[str, Any] = json.loads(machine.in_process("sample", *words, *fixed))
    return found


@pytest.mark.timeout(300)
def test_a_trained_model_is_exported_for_transformers_and_trained_on_from_there(
    trained: Any, tmp_path: Path
) -> None:
    machine, out, back = trained, tmp_path / "exported", tmp_path / "imported"
    made = ("model", "export", "qwen3", out, "--dtype", "fp32", "--runs-dir", machine.runs)
    done = json.loads(machine.headway(*made, "--json"))
    assert (done["family"], done["step"], done["has_tokenizer"]) == ("qwen3", STEPS, True)
    machine.in_process(*made, code=2)  # the folder is not empty now

    # a text by this process alone, from the run and from the exported folder
    written = _sample(machine, "qwen3", "--prompt", "ab")
    assert written["step"] == STEPS and len(written["texts"]) == 1

    # another layout continues from the exported weights
    machine.in_process("model", "import", out, back)
    layout = ("parallel.tp=2", "launch.nodes=1", "launch.ranks_per_node=2", "launch.spares=0")
    further = [
        *("train.steps=4", "train.eval_every=4", "train.eval_batches=1", "train.dtype=fp32"),
        *("train.global_batch_size=8", f"data.path={machine.corpus}", *layout),
    ]
    sets = [word for one in further for word in ("--set", one)]
    words = ["run", back / "model.toml", "--name", "further", "--runs-dir", machine.runs]
    summary = json.loads(machine.headway(*words, *sets, "--json").splitlines()[-1])
    assert summary["outcome"] == "finished" and summary["step"] == 4
    loss = machine.summary["validation_after"]
    assert loss < 6.0, "drawn weights begin at ln 512 = 6.24"
    assert summary["validation_before"] == pytest.approx(loss, abs=1e-5)  # fp32, another layout
    same = _sample(machine, back, "--prompt", "<|endoftext|>ab")
    assert same["texts"] == written["texts"]


@pytest.mark.timeout(300)
@pytest.mark.skipif(not HAS_TRANSFORMERS, reason=WHY_NOT)
def test_transformers_loads_an_exported_run_and_writes_the_same_text(
    trained: Any, tmp_path: Path
) -> None:
    import transformers

    machine, out = trained, tmp_path / "exported"
    made = ("model", "export", "qwen3", out, "--dtype", "fp32", "--runs-dir", machine.runs)
    machine.in_process(*made)
    with quiet():
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        model = load_saved(out)
        prompt = tokenizer("<|endoftext|>abc de", return_tensors="pt")["input_ids"]
        tokens = model.generate(prompt, max_new_tokens=8, do_sample=False)[0]
        text = tokenizer.decode(tokens[prompt.shape[1] :], skip_special_tokens=True)
    written = _sample(machine, "qwen3", "--prompt", "abc de")
    assert text and written["texts"] == [text]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["model", "export", "qwen3", "out", "--step", "7"], "no complete checkpoint of step 7"),
        (["model", "export", "qwen3", "out", "--dtype", "fp8"], "dtype 'fp8' is unknown"),
        (["model", "import", "no-such-folder", "out"], "no-such-folder is not a folder"),
        (["sample", "qwen3", "--count", "0"], "cannot write 0 texts"),
        (["sample", "qwen3", "--top-p", "0"], "top_p=0"),
        (["sample", "qwen3", "--prompt", "a\udcff"], "the prompt is not valid UTF-8"),
        (["sample", "no-such-run"], "no run 'no-such-run'"),
    ],
    ids=" ".join,
)
def test_bad_requests_are_one_line(trained: Any, words: list[str], wanted: str) -> None:
    extra = [] if words[1] == "import" else ["--runs-dir", trained.runs]
    said = trained.in_process(*words, *extra, code=2)
    assert wanted in said and said.count("\n") == 1
