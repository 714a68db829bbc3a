"""Make docs/pictures/ again: the notebook console of a real run that has just recovered.

``make screenshots`` runs it: examples/tiny.toml on this machine, a rank killed after some steps,
JupyterLab in Chromium at 1280 px in both themes. It takes a few minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from headway.console import Cluster
from headway.testkit.browser import (
    ConsolePage,
    Lab,
    NotebookPage,
    Theme,
    missing,
    open_browser,
)

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
NOTEBOOK = ROOT / "notebooks" / "01_launch_and_steer.ipynb"
LAUNCH = 1
"""The cell that launches the run and shows the console."""
KILL_AT, STEPS_AFTER = 20, 5
STEP_LIMIT_S = 900.0
HEIGHT = 880


def main() -> int:
    """Write the three pictures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURES)
    out = parser.parse_args().out
    if reason := missing():
        print(f"headway: no screenshots: {reason}", file=sys.stderr)
        return 2
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headway-pictures-") as name:
        folder = Path(name)
        notebooks = folder / "notebooks"
        notebooks.mkdir()
        text = NOTEBOOK.read_text().replace("../examples/", f"{ROOT}/examples/")
        (notebooks / NOTEBOOK.name).write_text(text)
        (notebooks / "data").symlink_to(ROOT / "data")
        try:
            _take(folder, notebooks, out)
        finally:
            for run in Cluster(folder / "runs").runs():
                run.stop()
                run.wait(timeout_s=120)
    for picture in sorted(out.glob("*.png")):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1000:.0f} kB")
    return 0


def _take(folder: Path, notebooks: Path, out: Path) -> None:
    own = folder / "lab"
    own.mkdir()
    with (
        Lab(own, notebooks, Theme.LIGHT, {}) as lab,
        open_browser(own / "chrome", height=HEIGHT) as page,
    ):
        notebook = NotebookPage(page, lab.url(NOTEBOOK.name))
        notebook.run_cell(LAUNCH)
        console = ConsolePage(page)
        console.wait(f"d.step >= {KILL_AT}", STEP_LIMIT_S)
        console.choose_rank(2)
        console.open_drills()
        console.press("kill rank")
        console.wait("d.bands >= 1 && d.recovering === 'false'", STEP_LIMIT_S)
        console.wait(f"d.step >= {console.get('step') + STEPS_AFTER}", STEP_LIMIT_S)
        console.open_drills(False)
        console.choose_rank(-1)
        _show_recovery(console)
        for theme, name in ((Theme.LIGHT, "light"), (Theme.DARK, "dark")):
            notebook.use_theme(theme)
            console.show()
            page.screenshot(path=out / f"console_{name}.png")
        notebook.use_theme(Theme.LIGHT)
        console.root.locator(".recoveries summary").first.click()
        page.mouse.move(0, 0)
        console.root.locator(".chart").nth(2).evaluate(
            "(node) => node.scrollIntoView({ block: 'start' })"
        )
        page.screenshot(path=out / "console_recovery.png")


def _show_recovery(console: ConsolePage) -> None:
    """On the timeline; its entry is folded again."""
    entry = console.root.locator(".recoveries details").first
    entry.locator("summary").click()
    entry.locator("button").click()
    console.wait_pictures(2)
    entry.locator("summary").click()
    console.button("pause").hover()
    console.page.mouse.move(0, 0)


if __name__ == "__main__":
    sys.exit(main())
