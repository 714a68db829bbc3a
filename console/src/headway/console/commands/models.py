"""``headway model``: models from and to Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson
from headway.common.help_pages import page
from headway.common.output import counted, emit
from headway.console.commands.options import RUNS, RunsDir, Step, complete_runs
from headway.console.commands.pages import START, add_group

if TYPE_CHECKING:
    from headway.trainer.client import ExchangeReport

KEYS = "one object: source, target, family, parameters, tensors, dtype, has_tokenizer, step, files"
Target = Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    examples = (
        "headway model import SmolLM2-135M models/smollm",
        "headway run models/smollm/model.toml --set data.source=my_texts",
        "headway model export smollm exported",
    )
    model = add_group(app, "model", "Import and export Hugging Face models.", START, examples)
    page(
        model,
        "import",
        examples=("headway model import SmolLM2-135M models/smollm",),
        json=KEYS,
    )(import_)
    page(
        model,
        examples=(
            "headway model export tiny exported",
            "headway model export tiny exported --step 80 --dtype fp32",
        ),
        json=KEYS,
    )(export)


def import_(
    source: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Hugging Face folder with .safetensors files."),
    ],
    target: Target,
    as_json: AsJson = False,
) -> None:
    """Make a Hugging Face model ready for training.

    Writes OUT/model.toml, which `headway run` takes, a checkpoint of step 0 and the tokenizer. Any
    layout can start from it. Families: gpt2, llama, mistral, qwen2, qwen3 and gpt_neox.
    """
    from headway.console.machine.preflight import check_torch
    from headway.trainer.client import import_model

    check_torch()
    done = import_model(source, target)
    _print(done, as_json, f"train it with `headway run {target}/model.toml`")


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Name of a run, or an imported model's folder.",
            autocompletion=complete_runs,
        ),
    ],
    target: Target,
    step: Step = None,
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="Type of the weights: bf16 or fp32.")
    ] = "bf16",
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder.

    It holds the weights in files of 5 GB at most, config.json and the tokenizer, as
    AutoModelForCausalLM and AutoTokenizer of transformers load them. The run may be live.
    """
    from headway.console.machine.preflight import check_torch
    from headway.trainer.client import export_model

    check_torch()
    done = export_model(model_folder(model, runs_dir), target, step=step, dtype=dtype)
    at = "" if done.step is None else f", step {done.step}"
    _print(done, as_json, f"from {done.source}{at}, in {counted(done.files, 'file')}")


def model_folder(model: str, runs_dir: Path) -> Path:
    """The folder of a run by name, or a folder that is given as a path.

    Raises:
        InputError: there is neither.
    """
    from headway.console.commands.options import GATEWAY, find_run

    is_run = GATEWAY.get() is not None or (runs_dir / model / "run.json").exists()
    if not is_run and Path(model).is_dir():
        return Path(model)
    return find_run(model, runs_dir).path


def _print(done: ExchangeReport, as_json: bool, then: str) -> None:
    size = f"{done.parameters / 1e6:.1f}M parameters"
    lines = [f"{done.target}: {done.family}, {size}, {done.dtype}; {then}"]
    if not done.has_tokenizer:
        lines.append("it has no tokenizer.json: none was found")
    emit(done, as_json, lines)
