"""``headway diagnose --html``, and the same from Python, on a run and on folders of dumps."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from headway.common.errors import InputError
from headway.common.wire import codec
from headway.common.wire.messages.summaries import StepSum, StepSummary
from headway.console.analysis.rank_times import PASSES
from headway.console.cli import main
from headway.console.pictures.page import Page
from headway.console.testing import FakeRun
from headway.health.store.summary_file import framed

from console.tests.conftest import Shell

CASES = Path(__file__).parents[2] / "services/health/tests/folder/cases"


def pictures_in(html: str) -> list[dict[str, Any]]:
    """What the scripts of a page get."""
    packed = html.partition('id="data">')[2].partition("<")[0]
    found: list[dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return found


def test_a_page_of_a_folder_shows_who_waits_for_whom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.html"
    assert main(["diagnose", str(CASES / "01_missing_member"), "--html", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("rank 5 never began") and err == f"pictures: {file}\n"
    (graph,) = pictures_in(file.read_text())
    assert graph["title"] == "Who waits for whom: 1 culprit, 7 ranks waiting"
    assert graph["data"]["operations"] == ["all_reduce 2041 of default_pg"]
    assert graph["data"]["why"] == ["never entered all_reduce 2041 of default_pg"]


def test_a_folder_without_dumps_gets_a_page_without_pictures(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert main(["diagnose", str(CASES / "04_port_flap"), "--html", str(file)]) == 1
    assert pictures_in(file.read_text()) == []


def test_a_file_that_cannot_be_written_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none" / "page.html"
    assert main(["diagnose", str(CASES / "04_port_flap"), "--html", str(file)]) == 2
    assert f"{file} cannot be written: No such file" in capsys.readouterr().err


def test_the_page_of_a_run_has_all_for_which_there_is_evidence(
    fake: FakeRun, shell: Shell, tmp_path: Path
) -> None:
    fake.advance(6)
    file = tmp_path / "page.html"
    code, out, err = shell("diagnose", "fake", "--html", str(file))
    assert code == 0 and out.startswith("nothing is wrong now") and str(file) in err
    shown = {one["kind"]: one for one in pictures_in(file.read_text())}
    assert set(shown) == {"grid", "heat", "steps"}, "nobody waits in a made-up run"
    assert shown["grid"]["title"] == "Grid: tp 1 x pp 1 x dp 2"
    assert shown["steps"]["title"] == "Step 5 of the dp group of rank 0: 2 ranks"


def test_pictures_of_a_run_are_chosen_by_name_and_rank(fake: FakeRun) -> None:
    fake.advance(3)
    diagnosis = fake.run.diagnosis()
    assert diagnosis.times().steps == (0, 1, 2)
    assert set(diagnosis.actions) == {PASSES, "forward", "backward", "snapshot"}
    for page in (diagnosis.heat_map("snapshot"), diagnosis.timeline("dp", 1, step=2)):
        assert isinstance(page, Page) and page._repr_html_().startswith("<iframe srcdoc=")
    with pytest.raises(InputError, match="no action 'snap' is recorded here; use one of"):
        diagnosis.heat_map("snap")
    with pytest.raises(InputError, match="step 9 of the dp group of rank 1 is not recorded"):
        diagnosis.timeline("dp", 1, step=9)
    assert diagnosis.waiting is not None and diagnosis.waiting.num_ranks == 2


def test_a_rank_that_a_verdict_names_is_marked(fake: FakeRun) -> None:
    fake.advance()
    verdict = {
        "id": "a", "revision": 1, "kind": "slow_rank", "is_open": True, "run_id": "r", "node": 0,
        "rank": 1, "tag": "health.verdict/1",
    }  # fmt: skip
    fake.folder.verdicts.write_text(json.dumps(verdict) + "\n")
    shown = {one["kind"]: one for one in pictures_in(fake.run.diagnosis().page().html())}
    assert shown["grid"]["data"]["why"] == ["rank 1 on node 0 is slow"]


def test_slow_steps_that_the_command_reports_are_in_the_page_as_well(fake: FakeRun) -> None:
    fake.advance()
    sums = [
        StepSum(rank, 0, step, step, 0, own_us + 9_000, own_us, 100, 0, 0, 0, 0, ())
        for step in range(50)
        for rank in range(2)
        for own_us in [160_000 if rank == 1 and step >= 20 else 100_000]
    ]
    message = codec.encode(
        StepSummary(run_id="0badcafe", node=0, pid=1, boot_id="b", sequence=1, num_dropped=0,
                    steps=tuple(sums))
    )  # fmt: skip
    fake.folder.summaries.mkdir(parents=True, exist_ok=True)
    (fake.folder.summaries / "summary-1.msgpack").write_bytes(framed([message]))
    [found] = fake.run.diagnosis().found.found
    assert (found.cause, [one.rank for one in found.culprits]) == ("compute", [1])
