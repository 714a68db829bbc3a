"""What a user of notebook 01 sees and can do: in JupyterLab's light theme, then in its dark one."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from headway.testkit.browser import Theme, contrasts, misplaced
from headway.testkit.browser.looks import LEAST_CONTRAST

pytestmark = pytest.mark.timeout(600)
PICTURES = 6
"""So many later pictures are waited for where nothing must change: more than 2 s."""
LAST_CELL = 8


def focused(page: Any) -> str:
    """Which control of the console has the focus."""
    return str(
        page.evaluate(
            "() => { const node = document.activeElement;"
            " return node.dataset.name || node.dataset.field || node.dataset.copies ||"
            " node.getAttribute('aria-label') || node.textContent; }"
        )
    )


def test_the_launch_cell_shows_charts_timeline_and_ranks_with_words(stage: Any) -> None:
    console = stage.console
    labels = console.root.locator("canvas:visible").evaluate_all(
        "(all) => all.map((one) => one.getAttribute('aria-label'))"
    )
    charts = ("loss", "throughput", "step time", "gradient norm")
    assert [label.split(" over ")[0] for label in labels[:4]] == [f"Chart of {n}" for n in charts]
    assert "training" in labels[0] and "tokens/s" in labels[1] and "p99" in labels[2]
    assert labels[4].startswith("Timeline of 2 of 2 ranks") and len(labels) == 5
    ranks = console.root.locator(".rank")
    assert [one.get_attribute("aria-label")[:14] for one in ranks.all()] == [
        "rank 0: node 0",
        "rank 1: node 0",
    ]
    unnamed = console.root.locator("button, input, canvas, [role]").evaluate_all(
        "(all) => all.filter((one) => one.checkVisibility() && !one.ariaLabel"
        " && !one.textContent.trim() && one.role !== 'status').length"
    )
    assert unnamed == 0
    assert console.get("drawn") > 0


def test_pause_a_learning_rate_and_resume_are_applied(stage: Any) -> None:
    console = stage.console
    console.press("pause")
    console.wait("d.paused === 'true'")
    assert console.button("pause").is_disabled() and console.button("resume").is_enabled()
    assert "the run is paused" in console.button("pause").get_attribute("title")
    console.field("lr").fill("5e-4")
    assert "set notebook lr=5e-4 --runs-dir " in console.line("cli")
    assert console.line("python") == "run.set(lr=5e-4)"
    console.press("set lr")
    console.press("resume")
    console.wait("d.paused === 'false' && Number(d.lr) === 5e-4")


def _open_recovery(console: Any) -> Any:
    """Unfold what the first recovery cost; returns its element."""
    entry = console.root.locator(".recoveries details").first
    if entry.get_attribute("open") is None:
        entry.locator("summary").click()
    return entry


def test_a_killed_rank_is_named_with_what_its_recovery_cost(recovered: Any) -> None:
    console = recovered.console
    entry = _open_recovery(console)
    assert "rank 1" in entry.locator("summary").inner_text()
    cost = entry.locator("p").inner_text()
    assert "until all ranks stepped" in cost and "repeated" in cost and "from memory" in cost
    events = console.root.locator(".news").inner_text()
    # the executor and the monitor report it at the same moment, in their own words
    assert "rank 1 was killed" in events or "rank 1 crashed" in events


def test_a_window_that_was_chosen_stays_where_it_is(recovered: Any) -> None:
    console = recovered.console
    _open_recovery(console).locator("button").click()
    console.wait("d.follows === 'false'")
    window = console.get("from"), console.get("to")
    assert window[0] < window[1]
    console.wait_pictures(PICTURES)
    assert (console.get("from"), console.get("to")) == window
    assert console.get("drawn") > 0
    console.root.locator(".frame canvas").hover()
    console.page.mouse.wheel(0, -240)
    console.wait(f"Number(d.to) - Number(d.from) < {window[1] - window[0]}")
    zoomed = console.get("from"), console.get("to")
    console.wait_pictures(PICTURES)
    assert (console.get("from"), console.get("to")) == zoomed
    console.root.locator(".frame canvas").press("Home")
    console.wait("d.follows === 'true'")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("abc", "lr must be a number, not 'abc'; for example 3e-4 or 0.0003"),
        ("", "no value for lr"),
        ("-1", "cannot set lr to -1; set lr to a number above 0"),
        ("1e9", "lr=1e+09 is more than"),
    ],
)
def test_a_refused_learning_rate_says_why(quiet: Any, text: str, why: str) -> None:
    console = quiet.console
    console.field("lr").fill(text)
    assert why in console.answer_to(lambda: console.field("lr").press("Enter"))
    assert console.field("lr").get_attribute("aria-invalid") == "true"


def test_copied_lines_work_in_every_folder_and_in_the_notebook(quiet: Any) -> None:
    console = quiet.console
    for folder in (quiet.folder, quiet.folder.parent):
        console.button("checkpoint").hover()
        line = console.copy("cli")
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env=quiet.machine.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "checkpoint: sent to notebook\n"), done.stderr
    line = console.copy("python")
    assert line == "run.checkpoint()"
    quiet.notebook.evaluate(line)


def test_drills_are_folded_away_and_ask_once(quiet: Any) -> None:
    console = quiet.console
    console.open_drills(False)
    assert not console.button("kill rank").is_visible()
    console.open_drills()
    console.choose_rank(1)
    before = console.root.get_attribute("data-answered")
    console.button("stop rank").click()
    question = console.button("stop rank").inner_text()
    assert question == "inject stop into the worker of rank 1 of run notebook? press again"
    console.wait_text("stop rank", "stop rank")
    assert console.root.get_attribute("data-answered") == before, "nothing was sent"


@pytest.mark.parametrize("theme", Theme, ids=lambda theme: theme.name.lower())
def test_text_stands_out_from_its_background(quiet: Any, theme: Theme) -> None:
    console = quiet.console
    quiet.notebook.use_theme(theme)  # the tests after this one see the last
    console.choose_rank(0)
    console.open_drills()
    found = contrasts(console.page)
    assert len(found) > 30
    assert {text: ratio for text, ratio in found.items() if ratio < LEAST_CONTRAST} == {}
    console.field("lr").fill("abc")
    console.answer_to(lambda: console.field("lr").press("Enter"))
    console.button("stop").click()
    asked = contrasts(console.page)
    assert min(ratio for text, ratio in asked.items() if "abc" in text) >= LEAST_CONTRAST
    assert min(ratio for text, ratio in asked.items() if "press again" in text) >= LEAST_CONTRAST
    console.wait_text("stop", "stop")  # another press before would stop the run


def test_every_control_is_reached_by_tab(quiet: Any) -> None:
    console, page = quiet.console, quiet.console.page
    _open_recovery(console)
    console.open_drills()
    console.choose_rank(1)
    console.root.locator("button", has_text="follow").focus()
    seen = [focused(page)]
    while len(seen) < 60:
        page.keyboard.press("Tab")
        if not page.evaluate("() => Boolean(document.activeElement.closest('.headway-console'))"):
            break
        seen.append(focused(page))
    wanted = ["follow", "zoom out", "zoom in", "resume", "checkpoint", "stop", "lr", "set lr",
              "unset lr", "drills: break something on purpose", "kill rank", "stop rank", "cli",
              "python", "show on the timeline", "events, newest first"]  # fmt: skip
    assert [name for name in wanted if name not in seen] == []
    assert any(name.startswith("Timeline of") for name in seen)
    assert sum(name.startswith("rank ") for name in seen) == 2
    console.root.locator("button", has_text="follow").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    console.wait("d.follows === 'false'")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    console.wait("d.follows === 'true'")


def test_nothing_overlaps_or_is_cut_at_1280_pixels(quiet: Any) -> None:
    console = quiet.console
    console.choose_rank(0)
    console.open_drills()
    assert misplaced(console.page) == []


def test_a_reloaded_page_shows_the_run_again(quiet: Any) -> None:
    console = quiet.console
    step = console.get("step")
    quiet.notebook.reload()
    console.wait(f"d.step >= {step} && d.points >= 3 && d.bars >= 10 && d.bands >= 1")
    assert quiet.console.page.get_by_text("model not found").count() == 0
    number = console.get("number")
    console.wait(f"d.number > {number}")
    console.press("unset lr")  # what the page sends still arrives


def test_the_other_cells_run_and_the_console_stays_after_the_end(quiet: Any) -> None:
    console = quiet.console
    quiet.notebook.run_from(2)
    quiet.notebook.wait_cell(LAST_CELL, 240)
    console.wait("d.phase === 'stopped' && d.bands >= 2")
    assert console.button("pause").is_disabled()
    assert "the run is stopped" in console.button("pause").get_attribute("title")


def test_nothing_left_the_machine_and_no_error_was_logged(stage: Any) -> None:
    assert stage.watch.requests == [] and stage.watch.errors == []
