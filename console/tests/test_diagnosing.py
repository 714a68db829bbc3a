"""``headway diagnose``: which of runs and folders is meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.console.commands.diagnosing import diagnose


def test_a_path_that_leads_nowhere_is_not_taken_for_the_name_of_a_run(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere" / "x")
    with pytest.raises(InputError, match="does not exist"):
        diagnose(nowhere, runs_dir=tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        diagnose(nowhere, what_if=True, runs_dir=tmp_path)
    with pytest.raises(InputError, match="holds no run 'x'"):
        diagnose("x", runs_dir=tmp_path)
