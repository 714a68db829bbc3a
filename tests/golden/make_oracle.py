"""Write ``oracle.json``: what training each model of ``oracle_cases`` must give.

    python -m tests.golden.make_oracle

The oracle is ``transformers``' own model in fp64, whole, in one process, with an AdamW of a few
lines. A step's loss is the sum over the labels that count in all micro-batches, divided by their
number; the norm is over all parameters, each once.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from headway.common.config import from_dict
from headway.testkit.trainer.synthetic import SyntheticSource
from headway.trainer.config import RunConfig
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from tests.golden.oracle_cases import CASES, LR, STEPS, WEIGHT_DECAY, Case, save

RESULT = Path(__file__).parent / "oracle.json"


@contextlib.contextmanager
def all_fp64() -> Iterator[None]:
    """``transformers`` computes softmax, angles and norms in fp32, whatever the model's type."""
    narrow, to_float = torch.float32, torch.Tensor.float
    torch.set_default_dtype(torch.float64)
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.float = torch.float32 = narrow
        torch.Tensor.float = to_float  # type: ignore[method-assign]
        torch.set_default_dtype(narrow)


def train(model: Any, batches: list[tuple[torch.Tensor, ...]], clip: float) -> dict[str, Any]:
    """Losses and norms of a few steps of AdamW, which decays matrices only."""
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    losses, norms = [], []
    for update, (tokens, labels, mask) in enumerate(batches, 1):
        model.zero_grad()
        logits = model(input_ids=tokens, use_cache=False).logits
        each = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        loss = (each * mask.flatten()).sum() / mask.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        losses.append(loss.item())
        norms.append(norm.item())
        with torch.no_grad():
            for p, (mean, square) in zip(model.parameters(), moments, strict=True):
                grad = p.grad * min(1.0, clip / norm.item())
                mean.lerp_(grad, 1 - 0.9)
                square.lerp_(grad * grad, 1 - 0.95)
                root = (square / (1 - 0.95**update)).sqrt() + 1e-8
                p.mul_(1 - LR * WEIGHT_DECAY * (p.ndim > 1))
                p.sub_(LR * mean / (1 - 0.9**update) / root)
    return {"losses": losses, "norms": norms}


def oracle(case: Case, folder: Path) -> dict[str, Any]:
    """The numbers of one case."""
    save(case, folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    run = from_dict(RunConfig, case.run({"vocab_size": config.vocab_size}, folder, {}))
    source = SyntheticSource(run, 0, "train", 0, counted=case.counted)
    batches = []
    for _ in range(STEPS):
        taken = [source.next() for _ in range(case.sequences)]
        batches.append(
            tuple(
                torch.cat([torch.from_numpy(getattr(one, key)).long() for one in taken])
                for key in ("tokens", "labels", "mask")
            )
        )
    with all_fp64():
        model: Any = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation="eager"
        )
        assert not model.load_state_dict(weights, strict=False).unexpected_keys
        return train(model.double().eval(), batches, case.clip)


def main() -> None:
    """All cases."""
    with tempfile.TemporaryDirectory() as place:
        found = {name: oracle(case, Path(place) / name) for name, case in CASES.items()}
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
