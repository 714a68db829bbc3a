"""Imported models train as ``transformers`` computes it in fp64, under layouts in which a loss, a
gradient or a norm is easily summed wrongly. ``make_oracle.py`` has written the numbers."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest
from headway.testkit.trainer.pool import WorkerPool
from headway.testkit.trainer.training import train_layout
from headway.trainer.exchange.importing import import_model

from tests.golden.oracle_cases import CASES, STEPS, save

ORACLE = json.loads((Path(__file__).parent / "oracle.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_every_layout_trains_an_imported_model_as_transformers_does(
    pool: WorkerPool, tmp_path: Path, name: str
) -> None:
    case, expected = CASES[name], ORACLE[name]
    save(case, tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours")
    model = tomllib.loads((tmp_path / "ours" / "model.toml").read_text())["model"]
    for index, layout in enumerate(case.layouts):
        config = case.run(model, tmp_path / "ours", layout)
        world = math.prod(layout.get(axis, 1) for axis in ("tp", "pp", "dp"))
        folder = tmp_path / str(index)
        found = train_layout(pool, config, world, folder, STEPS, counted=case.counted)
        for curve in ("losses", "norms"):
            values = list(getattr(found, curve).values())
            assert values == pytest.approx(expected[curve], rel=1e-9), f"{curve}, {layout}"
