"""Shows who is slow and who waits for whom, in a notebook and on the page of a diagnosis.

What is drawn is computed in ``analysis``, and packed for the page in ``pictures``.
"""

from __future__ import annotations

from functools import cached_property
from html import escape

import polars as pl
from headway.common.errors import InputError
from headway.common.node.run_dir import shm_root
from headway.common.plan.grid import Axis
from headway.console.analysis.actions import step_actions
from headway.console.analysis.events import load_events
from headway.console.analysis.rank_times import (
    MAX_STEPS,
    PASSES,
    RankTimes,
    labels,
    times_of_actions,
    times_of_summaries,
)
from headway.console.analysis.summaries import load_summaries
from headway.console.folder.records import RunRecords
from headway.console.pictures.page import Page, Picture
from headway.console.pictures.ranks import grid_3d, heat_map
from headway.console.pictures.steps import group_timeline
from headway.console.pictures.waiting import culprits, wait_graph
from headway.health.client import Diagnosed, WaitGraph, diagnose_run, waiting_in


class RunDiagnosis:
    """What is known of a run now; make a new one to see more of a live run.

    Raises:
        CorruptError: a saved window is unreadable.
    """

    def __init__(self, run: RunRecords) -> None:
        self._run, self._grid = run, run.config.parallel.grid
        control, summaries = run.folder.verdicts.parent, run.folder.summaries
        self.found: Diagnosed = diagnose_run(control, summaries, self._grid, is_over=not run.live)

    # ---- data ---------------------------------------------------------------------------------
    @cached_property
    def actions_frame(self) -> pl.DataFrame:
        """What the ranks did in the newest steps that are recorded here, as ``step_actions``."""
        newest = max(0, self._run.completed_steps - MAX_STEPS)
        events = load_events(self._run.path, where=pl.col("step") >= newest)
        return step_actions(events, self._grid)

    @property
    def actions(self) -> list[str]:
        """Names for ``heat_map`` and ``times``, those that took longest in front."""
        return [PASSES, *labels(self.actions_frame)]

    def times(self, action: str = PASSES) -> RankTimes:
        """How long an action took each rank in each step, and which ranks are outliers.

        Forward and backward passes come from the summaries of steps, where there are any: the
        monitor has those of all machines.

        Raises:
            InputError: it was not recorded.
        """
        if action == PASSES:
            newest = pl.col("step") >= max(0, self._run.completed_steps - MAX_STEPS)
            summaries = load_summaries(self._run.path, where=newest)
            if not summaries.is_empty():
                return times_of_summaries(summaries, self._grid)
        found = times_of_actions(self.actions_frame, self._grid, action)
        if not found.steps:
            known = ", ".join(self.actions[1:]) or "none yet"
            raise InputError(f"no action {action!r} is recorded here", remedy=f"use one of {known}")
        return found

    @cached_property
    def waiting(self) -> WaitGraph | None:
        """The graph of waits now; None if no flight ring of the run is on this machine."""
        folders = sorted((shm_root() / self._run.folder.run_id).glob("n*"))
        return waiting_in(folder for folder in folders if folder.name[1:].isdigit())

    # ---- pictures -----------------------------------------------------------------------------
    def heat_map(self, action: str = PASSES) -> Page:
        """An action on each rank, against its peers and over steps.

        Raises:
            InputError: it was not recorded.
        """
        return self._page(heat_map(self.times(action)))

    def grid(self) -> Page:
        """The tp x pp x dp grid in three dimensions, with slow and stuck ranks marked."""
        return self._page(self._grid_picture())

    def wait_graph(self) -> Page:
        """Draw who waits for whom now.

        Raises:
            InputError: no flight ring of the run is on this machine.
        """
        if self.waiting is None:
            raise InputError(
                f"run {self._run.name} has no flight ring on this machine",
                remedy="look while it hangs, on a machine that carries some of its ranks",
            )
        return self._page(wait_graph(self.waiting))

    def timeline(self, axis: Axis = "pp", rank: int | None = None, step: int | None = None) -> Page:
        """One step of the tp, pp or dp group of a rank, with arrows from what an action waited for.

        Args:
            rank: by default one that is marked in the other pictures, else 0.
            step: by default the newest one.

        Raises:
            InputError: the step is not recorded on these ranks.
        """
        chosen = next(iter(self._marks), 0) if rank is None else rank
        return self._page(group_timeline(self.actions_frame, self._grid, axis, chosen, step))

    def page(self) -> Page:
        """All pictures for which there is evidence, below the diagnosis."""
        pictures = [*_waits(self.waiting), self._grid_picture()]
        if (times := self._passes) is not None:
            pictures.append(heat_map(times))
        axes: list[Axis] = [axis for axis in ("pp", "dp", "tp") if self._grid.degree(axis) > 1]
        if not self.actions_frame.is_empty():
            rank = next(iter(self._marks), int(self.actions_frame["rank"][0]))
            axis = axes[0] if axes else "dp"
            if self.actions_frame["rank"].is_in(self._grid.group(axis, rank)).any():
                pictures.append(group_timeline(self.actions_frame, self._grid, axis, rank))
        return self._page(*pictures, lines=self.found.lines)

    def __repr__(self) -> str:
        return "\n".join(self.found.lines)

    def _repr_html_(self) -> str:
        return f'<pre style="white-space:pre-wrap">{escape(repr(self))}</pre>'

    # ---- inside -------------------------------------------------------------------------------
    @cached_property
    def _passes(self) -> RankTimes | None:
        try:
            return self.times()
        except InputError:
            return None

    @cached_property
    def _marks(self) -> dict[int, str]:
        """Rank -> why it is marked: those that the verdicts name, that are waited for, or slow."""
        found = {
            who.rank: one.summary
            for one in self.found.found
            if not self.found.is_past and one.until_step is None
            for who in one.culprits
            if who.rank >= 0
        }
        more: dict[int, str] = {}
        if self.waiting is not None and any(one.kind == "hang" for one in self.found.found):
            more = culprits(self.waiting)
        if self._passes is not None:
            more |= dict.fromkeys(self._passes.outliers, "slower than its peers")
        return found | {rank: why for rank, why in more.items() if rank not in found}

    def _grid_picture(self) -> Picture:
        return grid_3d(self._grid, self._marks, self._passes)

    def _page(self, *pictures: Picture, lines: tuple[str, ...] = ()) -> Page:
        return Page(f"run {self._run.name}", pictures, lines)


def folder_page(name: str, found: Diagnosed) -> Page:
    """What a folder of dumps shows: who waits for whom, if anything shows where the ranks are."""
    return Page(name, _waits(found.waiting()), found.lines)


def _waits(graph: WaitGraph | None) -> list[Picture]:
    """The picture of a graph in which somebody waits."""
    return [wait_graph(graph)] if graph is not None and graph.waits else []
