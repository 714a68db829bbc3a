"""The block of a user's own on the page about models can be trained as it is printed there."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from headway.testkit.trainer.models import Part, random_batch, tiny_model

PAGE = Path(__file__).resolve().parents[4] / "docs" / "howto" / "models.md"


def test_the_printed_block_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"(?ms)^```py\n(.*?)^```", PAGE.read_text())
    assert code is not None
    (tmp_path / "printed_block.py").write_text(f"import torch\n\n\n{code[1]}")
    monkeypatch.syspath_prepend(tmp_path)
    model = replace(tiny_model(), block="printed_block:Mixer")
    part = Part(model)
    part.run(random_batch(model))
    part.chunk.finish_grads(0)
    grads = part.grads()
    assert all(f"layers.1.{name}.weight" in grads for name in ("norm", "up", "down"))
    assert all(float(grad.abs().max()) > 0 for grad in grads.values())
    sys.modules.pop("printed_block")
