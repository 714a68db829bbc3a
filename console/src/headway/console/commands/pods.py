"""What the commands that look at runs print of one on Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.output import emit

if TYPE_CHECKING:
    from headway.console.pods.run import PodsRun
    from headway.console.run import Run


def on_pods(run: Run) -> PodsView | None:
    """The view of a run on Kubernetes; None for any other run."""
    from headway.console.pods.run import PodsRun

    return PodsView(run) if isinstance(run, PodsRun) else None


def with_records(run: Run) -> Run:
    """The run, whose records this machine can read. Raises InputError if only its pods can."""
    from headway.console.pods.run import PodsRun

    if isinstance(run, PodsRun):
        run.refuse_records()
    return run


class PodsView:
    """Prints what the API server shows of a run."""

    def __init__(self, run: PodsRun) -> None:
        self._run = run

    def show(self, as_json: bool) -> None:
        """Print where the run stands."""
        found = self._run.look()
        emit(found, as_json, found.lines())

    def watch(self, as_json: bool) -> int:
        """Follow the Job to its end; returns the exit code."""
        from headway.console.pods.following import PodsFollower

        state = PodsFollower(self._run, as_json=as_json).follow()
        return 1 if self._end(state) == "failed" else 0

    def _end(self, state: str) -> str:
        """How the run has ended, by what its follower saw; others may have deleted its Job."""
        run = self._run
        if state == "stuck":
            return "interrupted"
        return run.outcome or ("stopped" if run.is_to_stop else "failed")

    def stay(self, as_json: bool) -> int:
        """Follow the Job to its end and delete the run's objects; returns the exit code.

        Raises:
            HeadwayError: an object cannot be deleted.
        """
        from headway.console.pods.ending import conclude
        from headway.console.pods.following import PodsFollower

        run, follower = self._run, PodsFollower(self._run, as_json=as_json)
        state = follower.follow(stop_on_interrupt=True)
        if state == "detached":
            return 0
        conclude(run, follower.report, self._end(state))
        done = {"name": run.name, "run_id": run.folder.run_id, "outcome": run.outcome}
        line = f"run {run.name} is {run.outcome}; its checkpoints are on the claim {run.pods.claim}"
        emit(done, as_json, [f"{line}, the logs of its pods in {run.folder.logs}"])
        return 1 if run.outcome == "failed" else 0
