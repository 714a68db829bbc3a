"""Runs of older versions, whose files lack settings that are newer than they are."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from headway.common.config import to_toml
from headway.console.cli import main
from headway.console.folder.records import RunRecords
from headway.console.testing import FakeRun


@pytest.mark.parametrize("given", [None, 2])
def test_a_run_of_before_buckets_has_one_whatever_the_default_is(
    fake: FakeRun, given: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    parallel = dataclasses.replace(fake.config.parallel, tp=1, pp=2, dp=2, vp=1, buckets=2)
    launch = dataclasses.replace(fake.config.launch, nodes=1, ranks_per_node=4)
    model = dataclasses.replace(fake.config.model, layers=4)
    config = dataclasses.replace(fake.config, parallel=parallel, launch=launch, model=model)
    text = to_toml(config)
    if given is None:
        text, number = re.subn(r"\nbuckets = 2\n", "\n", text)
        assert number == 1
    fake.folder.config.write_text(text)
    assert RunRecords(fake.folder.path).config.parallel.buckets == (given or 1)
    runs = str(fake.folder.path.parent)
    assert main(["run", fake.folder.name, "--runs-dir", runs, "--dry-run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["parallel"]["buckets"] == (given or 1)
