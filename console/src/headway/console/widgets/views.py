"""The live console of a run as one notebook widget: charts, timeline, ranks, steering; no logic.

A page gets the whole state once, when it is loaded, and from then on only what is new. Arrays
cross as raw bytes, everything else as small lists.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from headway.common.errors import InputError
from headway.common.plan.schedule.actions import Kind
from headway.console.display.html import LOOK
from headway.console.run import Run
from headway.console.widgets.buttons import BUTTONS, button
from headway.console.widgets.packing import MAX_BARS_RELOADED, pack, pack_window
from headway.console.widgets.picture import Band, Picture
from headway.console.widgets.tail import Records
from headway.console.widgets.watcher import RunWatcher

try:
    import anywidget
    import traitlets
except ModuleNotFoundError as error:
    raise ImportError(
        f"the live console needs {error.name}, which is not installed; "
        "run `make setup-lab` in the checkout, or `pip install './console[notebooks]'`"
    ) from None

PAGE = Path(__file__).with_name("page")
SCRIPTS = ("store", "charts", "timeline", "ranks", "controls", "recoveries", "console")
"""Put together in this order, after ``LOOK``, they are the page's module."""


def module() -> str:
    """The JavaScript of the page; it loads nothing from elsewhere."""
    return "\n".join([LOOK.read_text(), *((PAGE / f"{name}.js").read_text() for name in SCRIPTS)])


NO_LINES = {"cli": "", "python": ""}


class RunConsole(anywidget.AnyWidget):  # type: ignore[misc]
    """``RunConsole(run)`` at the end of a cell shows the run until ``close``.

    It stays when the run has ended, and shows the run again if that is resumed.
    """

    _esm = module()
    _css = (PAGE / "console.css").read_text()

    facts = traitlets.Dict().tag(sync=True)
    """Present figures: name, line, step, steps, phase, paused, lr, error and so on."""
    full = traitlets.Dict().tag(sync=True)
    """Points and bars of the whole window, for a page that is loaded; always empty on this side."""
    update = traitlets.Dict().tag(sync=True)
    """What is new: number, kept (points that still hold), points and bars as bytes, base_s."""
    validation = traitlets.Bytes().tag(sync=True)
    """float32 [evaluations, 2]: completed steps, loss."""
    skipped = traitlets.List().tag(sync=True)
    """Steps whose update was skipped: not finite, or spikes."""
    bands = traitlets.List().tag(sync=True)
    """Recoveries: start_s and end_s on the clock of the bars, reason, cost."""
    ranks = traitlets.Bytes().tag(sync=True)
    """int32 [ranks, 5]: rank, node, pid, number of its status in ``statuses``, step."""
    statuses = traitlets.List().tag(sync=True)
    """Names that a rank's status has had."""
    kinds = traitlets.Dict().tag(sync=True)
    """Kind number -> name."""
    news = traitlets.List().tag(sync=True)
    """What happened, newest last."""
    log = traitlets.List().tag(sync=True)
    """Newest log lines of the selected rank."""
    buttons = traitlets.List().tag(sync=True)
    """``Button.described`` of each, in the order of the page."""
    selected = traitlets.Int(-1).tag(sync=True)
    """Set by the page: the rank that it looks at, -1 for none."""
    command = traitlets.Dict().tag(sync=True)
    """Set by the page: {id, button, rank, fields}; the same id is carried out once."""
    answer = traitlets.Dict().tag(sync=True)
    """What became of a command: {id, button, text, is_error, cli, python}."""

    def __init__(self, run: Run | RunWatcher, **options: Any) -> None:
        self._picture: Picture | None = None
        super().__init__(
            kinds={str(kind.value): kind.name for kind in Kind},
            buttons=[known.described(run.path) for known in BUTTONS],
        )
        _take_messages_where_they_are_sent(self.comm)
        self._owns_watcher = isinstance(run, Run)
        self.watcher = RunWatcher(run, **options).start() if isinstance(run, Run) else run
        self._done: set[str] = set()
        self.observe(self._on_command, names="command")
        self.observe(self._on_selected, names="selected")
        self.on_msg(self._on_message)
        self.watcher.subscribe(self.show, self.show_error)

    def close(self) -> None:
        """Stop watching and take the widget away; the run is left alone."""
        self.watcher.unsubscribe(self.show)
        if self._owns_watcher:
            self.watcher.close()
        super().close()

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """The state that a page gets; ``full`` is put together only for a page that is loaded."""
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        if "full" in state and (picture := self._picture) is not None:
            state["full"] = _changes(picture, 0, Records.merge(picture.kept), MAX_BARS_RELOADED)
        return state

    def show(self, picture: Picture) -> None:
        """Show a picture; called by the watcher's thread."""
        is_next = self._picture is not None and picture.number == self._picture.number + 1
        self._picture = picture
        with self.hold_sync():
            self.facts = _facts(picture, self.watcher.error)
            if is_next:
                self.update = _changes(picture, picture.num_unchanged, picture.new)
            self.validation = np.array(picture.validation, "<f4").tobytes()
            self.skipped = list(picture.skipped[-1000:])
            self.bands = [_band(band) for band in picture.bands]
            self._show_ranks(picture)
            self.news, self.log = list(picture.news), list(picture.log)
        if not is_next:
            self.send_state("full")

    def show_error(self, error: str) -> None:
        """Show why no picture could be taken; empty when one could again."""
        self.facts = {**self.facts, "error": error}

    def _show_ranks(self, picture: Picture) -> None:
        if (status := picture.progress.status) is None:
            if picture.progress.is_over:
                self.ranks = b""
            return
        names = dict.fromkeys([*self.statuses, *(rank.status for rank in status.ranks)])
        number = {name: place for place, name in enumerate(names)}
        table = [(r.rank, r.node, r.pid, number[r.status], r.step) for r in status.ranks]
        self.statuses, self.ranks = list(names), np.array(table, "<i4").tobytes()

    # ---- what the page sends ------------------------------------------------------------------
    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        """A page asks for everything, if it missed something, or for all of a short time."""
        kind = content.get("kind") if isinstance(content, dict) else ""
        if kind == "full":
            self.send_state("full")
        elif kind == "window" and (picture := self._picture) is not None:
            from_ns, to_ns = (int(float(content[name]) * 1e9) for name in ("from_s", "to_s"))
            answer, bars = pack_window(picture.kept, from_ns, to_ns, picture.window_s)
            self.send({**content, **answer}, [bars])

    def _on_selected(self, change: dict[str, Any]) -> None:
        self.watcher.selected = int(change["new"])

    def _on_command(self, change: dict[str, Any]) -> None:
        """A button was pressed. Runs on whatever thread the kernel chose, so it only hands over."""
        order = dict(change["new"])
        number, name = str(order.get("id", "")), str(order.get("button", ""))
        if not number or number in self._done:
            return
        self._done.add(number)
        said = {"id": number, "button": name}
        try:
            pressed = button(name)
            rank = int(order.get("rank", -1))
            arguments = pressed.read(dict(order.get("fields", {})), rank)
        except InputError as error:
            self._answer(said, str(error), is_error=True)
            return
        said |= pressed.lines(self.watcher.path, arguments)
        self._answer(said, "...")
        done = self.watcher.submit(pressed.operation, **arguments)
        done.add_done_callback(lambda future: self._on_done(said, future))

    def _on_done(self, said: dict[str, str], done: Future[int]) -> None:
        if done.cancelled():
            self._answer(said, "the watcher was closed", is_error=True)
        elif (error := done.exception()) is not None:
            self._answer(said, str(error), is_error=True)
        else:
            self._answer(said, "sent")

    def _answer(self, said: dict[str, str], text: str, *, is_error: bool = False) -> None:
        shown = f"{said['button']}: {text}"
        self.answer = {**NO_LINES, **said, "text": shown, "is_error": is_error}


def _take_messages_where_they_are_sent(comm: Any) -> None:
    """Have the kernel handle a page's messages in the subshell that the page names.

    ipykernel 7.4 takes the subshell of the request that it answered last. After a reload that is
    one which the page before had ended, and every button would silently do nothing.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, named: named


def _facts(picture: Picture, error: str) -> dict[str, Any]:
    progress = picture.progress
    names = ("name", "step", "steps", "phase", "paused", "lr", "generation", "detail", "is_over")
    return {
        **{name: getattr(progress, name) for name in names},
        "line": progress.line(),
        "mfu_per_rate": picture.mfu_per_rate,
        "clock_offset_s": picture.clock_offset_s,
        "step_times_s": list(picture.step_times_s),
        "error": error,
    }


def _changes(picture: Picture, kept: int, records: Records, *limit: int) -> dict[str, Any]:
    base_s, bars = pack(records, *limit)
    return {
        "number": picture.number,
        "kept": kept,
        "points": np.array(picture.points[kept:], "<f4").tobytes(),
        "base_s": base_s,
        "bars": bars,
    }


def _band(band: Band) -> dict[str, Any]:
    return {
        "start_s": band.start_s,
        "end_s": band.end_s,
        "reason": band.reason,
        "cost": band.cost,
        "at_unix_s": band.recovery.at_unix_s,
    }
