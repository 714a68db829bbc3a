"""The targets of Terraform against the rules of checkov; each exception stands where it applies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.infra.aws_account import ROOT, run


@pytest.mark.slow  # it downloads checkov the first time
@pytest.mark.timeout(600)
def test_checkov_finds_nothing_but_what_is_explained(tmp_path: Path) -> None:
    targets = ROOT / "infra" / "terraform" / "targets"
    words: list[str | Path] = [sys.executable]
    words += [ROOT / "infra" / "setup" / "checkov.py", "-d", targets]
    words += ["--framework", "terraform", "--skip-download", "--compact", "--quiet"]
    out, _ = run(words, {**os.environ, "VENV": sys.prefix}, tmp_path)
    assert "Failed checks: 0" in out and "Passed checks: 0" not in out
