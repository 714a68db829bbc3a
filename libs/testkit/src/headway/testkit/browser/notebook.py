"""A notebook that is open in JupyterLab: its cells are run as by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.testkit.browser.lab import Theme

if TYPE_CHECKING:
    from playwright.sync_api import Page

OPEN_LIMIT_MS = 90_000.0
READY = """() => {
  const shown = window.jupyterapp?.shell?.currentWidget;
  return Boolean(shown?.sessionContext?.isReady && shown.content?.widgets?.length
    && shown.sessionContext.session?.kernel?.status === "idle");
}"""
RUN = """async ([command, first]) => {
  const app = window.jupyterapp, notebook = app.shell.currentWidget.content;
  notebook.deselectAll();
  notebook.activeCellIndex = first;
  await app.commands.execute(command);
}"""
STATE = """(index) => {
  const cells = window.jupyterapp.shell.currentWidget.content.widgets.map((cell) => cell.model);
  const outputs = cells.flatMap((cell) => (cell.outputs ? cell.outputs.toJSON() : []));
  const failed = outputs.find((output) => output.output_type === "error");
  const error = failed ? `${failed.ename}: ${failed.evalue}` : "";
  return { error, isOver: Boolean(error) || cells[index].executionCount !== null };
}"""


EXECUTE = """async (code) => {
  const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
  return (await kernel.requestExecute({ code }).done).content;
}"""


class NotebookPage:
    """Opens ``url`` in ``page``; cells are counted from 0, text cells included."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        page.goto(url, timeout=OPEN_LIMIT_MS)
        self._wait_open()

    def reload(self) -> None:
        """Save the notebook and load the page anew, as after a lost connection."""
        self.execute("docmanager:save")
        self.page.reload(timeout=OPEN_LIMIT_MS)
        self._wait_open()

    def execute(self, command: str) -> None:
        """Carry out one of JupyterLab's commands."""
        self.page.evaluate("(name) => window.jupyterapp.commands.execute(name)", command)

    def use_theme(self, theme: Theme) -> None:
        """Change JupyterLab's theme and wait until its colours are there."""
        change = "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
        self.page.evaluate(change, theme)
        self.page.wait_for_function("(t) => document.body.dataset.jpThemeName === t", arg=theme)
        self.page.wait_for_timeout(500)  # the style sheet's transitions

    def evaluate(self, code: str) -> None:
        """Run a line of Python in the notebook's kernel.

        Raises:
            AssertionError: it raised.
        """
        reply = self.page.evaluate(EXECUTE, code)
        assert reply["status"] == "ok", f"{code}: {reply.get('ename')}: {reply.get('evalue')}"

    def run_cell(self, index: int) -> None:
        """Start one cell; returns at once."""
        self._run("notebook:run-cell", index)

    def run_from(self, index: int) -> None:
        """Start one cell and all below it; returns at once."""
        self._run("notebook:run-all-below", index)

    def wait_cell(self, index: int, limit_s: float = 60.0) -> None:
        """Wait until a cell has run.

        Raises:
            AssertionError: it or another one raised; with what was raised.
            playwright's TimeoutError: it did not end in time.
        """
        is_over = f"(index) => ({STATE})(index).isOver"
        self.page.wait_for_function(is_over, arg=index, timeout=limit_s * 1e3)
        error = self.page.evaluate(STATE, index)["error"]
        assert not error, error

    def _run(self, command: str, index: int) -> None:
        # the command's promise lasts as long as the cells; it is not waited for
        start = f"(given) => {{ ({RUN})(given); }}"
        self.page.evaluate(start, [command, index])

    def _wait_open(self) -> None:
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=OPEN_LIMIT_MS)
        # the question for a kernel can overtake the start of the session: accept the one offered
        asks = self.page.locator(".jp-Dialog .jp-mod-accept")
        self.page.wait_for_function(
            f"() => ({READY})() || document.querySelector('.jp-Dialog .jp-mod-accept')",
            timeout=OPEN_LIMIT_MS,
        )
        if asks.count():
            asks.first.click()
        self.page.wait_for_function(READY, timeout=OPEN_LIMIT_MS)
        if self.page.locator("#jp-left-stack:visible").count():
            self.execute("application:toggle-left-area")
