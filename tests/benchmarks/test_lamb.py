"""The comparison of optimizers runs, on equal samples, and reports its best rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import lamb


def test_both_optimizers_train_on_the_same_number_of_samples(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(lamb, "MODEL", {**lamb.MODEL, "layers": 1, "hidden": 32, "seq_len": 32})
    monkeypatch.setattr(lamb, "FACTORS", (1, 2))
    monkeypatch.setattr(lamb, "EVAL_SAMPLES", 64)
    out = tmp_path / "lamb.json"
    monkeypatch.setattr(lamb, "RATES", {"adamw": (2e-3,), "lamb": (1e-2, 2e-2)})
    lamb.main(["--samples", "64", "--data", str(corpus), "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [(row["optimizer"], row["batch"]) for row in rows] == [
        *(("adamw", 16), ("adamw", 32)),
        *(("lamb", 16), ("lamb", 16), ("lamb", 32), ("lamb", 32)),
    ]
    assert len({row["loss"] for row in rows}) == 6 and all(5 < row["loss"] < 10 for row in rows)
    table = capsys.readouterr().out.splitlines()[-4:]
    assert all("at the end of the list" in line for line in table)
    configs = [lamb.configuration("lamb", batch, 1e-2, 12_800, str(corpus)) for batch in (16, 64)]
    assert {config.train.steps * config.train.global_batch_size for config in configs} == {12_800}
