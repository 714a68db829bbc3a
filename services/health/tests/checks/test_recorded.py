"""Recorded measurements of good and bad machines: who passes, and what is named where one fails.

Each file in ``recorded/CHECK`` is what the check's ``judge`` was called with on some machine, with
where it is from, and for a bad one the words by which its finding must name the fault.
"""

from __future__ import annotations

import importlib
import pkgutil
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import headway.health.checks
import msgspec
import pytest
from headway.health.checks.base import CheckSettings, Finding
from headway.health.runner import SUITES

RECORDED = Path(__file__).with_name("recorded")
FILES = sorted(RECORDED.glob("*/*.json"))


class Record(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    """How it was measured, or what it was composed of."""
    subject: str
    """Part of the finding's message; empty of a good machine."""
    measured: Any


def judged(check: ModuleType, measured: Any) -> Finding:
    wanted = typing.get_type_hints(check.judge)["measured"]
    finding: Finding = check.judge(msgspec.convert(measured, wanted), CheckSettings())
    return finding


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_machine_passes_or_its_fault_is_named(path: Path) -> None:
    record = msgspec.json.decode(path.read_bytes(), type=Record)
    check = importlib.import_module(f"headway.health.checks.{path.parent.name}")
    finding = judged(check, record.measured)
    is_good = path.stem.startswith("good")
    assert finding.ok is is_good, finding.message
    assert record.source and bool(record.subject) is not is_good
    assert record.subject in finding.message
    assert bool(finding.remedy) is not is_good, "what to do about it"


@pytest.mark.parametrize("name", SUITES["full"])
def test_every_check_has_a_good_and_a_bad_recording(name: str) -> None:
    stems = [path.stem for path in FILES if path.parent.name == name]
    assert any(stem.startswith("good") for stem in stems)
    assert any(stem.startswith("bad") for stem in stems)


def test_every_recording_and_every_file_of_a_check_is_in_the_full_suite() -> None:
    names = {found.name for found in pkgutil.iter_modules(headway.health.checks.__path__)}
    assert names - {"base"} == set(SUITES["full"]) == {path.parent.name for path in FILES}


@pytest.mark.parametrize("name", SUITES["full"])
def test_a_check_judges_by_what_it_measured_alone(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its measurement survives being written down: both give the same finding."""
    check = importlib.import_module(f"headway.health.checks.{name}")
    judge, calls = check.judge, []

    def spy(measured: Any, settings: CheckSettings) -> Finding:
        calls.append(measured)
        found: Finding = judge(measured, settings)
        return found

    monkeypatch.setattr(check, "judge", spy)
    settings = CheckSettings(mounts=(tmp_path,), disk=tmp_path, memory_bytes=1 << 20)
    finding = check.check(settings)
    if finding.ok is None:
        pytest.skip(finding.message)
    written = msgspec.json.decode(msgspec.json.encode(calls[0]))
    wanted = typing.get_type_hints(judge)["measured"]
    assert judge(msgspec.convert(written, wanted), settings) == finding
