"""The pods of a run, as the run's driver sees them: Kubernetes alone starts and ends them."""

from __future__ import annotations

from headway.common.errors import HeadwayError
from headway.launch.engine import NodeLost, Replaces
from headway.launch.engines.remote.reach import UnreachableError


class KubernetesMachines:
    """The pods of a run as ``Machines``, without a client of Kubernetes.

    The Job starts a pod again that has failed, and each pod joins the run by itself. Nothing is run
    on them from outside.

    Args:
        name: of the Job.
        nodes: how many pods it has, spares included.
        scratch: their own folder.
    """

    def __init__(self, name: str, nodes: int, scratch: str) -> None:
        self._name, self._nodes, self.scratch = name, nodes, scratch
        self.replaces: Replaces = "nothing"

    def name_of(self, node: int) -> str:
        """The host name of the node's pod, which its successors have too. Raises NodeLost."""
        if not 0 <= node < self._nodes:
            raise NodeLost(
                f"the Job {self._name} has {self._nodes} pods, none for node {node}",
                remedy="render it with more nodes or spares",
            )
        return f"{self._name}-{node}"

    def start(self, node: int, ticket: str, *, kill_hung: bool) -> None:
        """See ``Machines``. Raises UnreachableError in any case."""
        del ticket, kill_hung
        raise self._unreachable(node, "only Kubernetes can start it")

    def call(self, node: int, verb: str, ticket: str, *, limit_s: float) -> str:
        """Raise UnreachableError, except for ``end``; see ``Machines``.

        A pod ends by itself when Kubernetes terminates it, so there is nothing to do.
        """
        del ticket, limit_s
        if verb == "end":
            return ""
        raise self._unreachable(node, "it cannot be reached from here")

    def _unreachable(self, node: int, why: str) -> UnreachableError:
        pods = f"kubectl get pods -l job-name={self._name}"
        return UnreachableError(f"pod {self.name_of(node)}: {why}", remedy=f"see `{pods}`")

    def cut_off(self, node: int, *, limit_s: float) -> bool:
        """See ``Machines``: it cannot be confirmed."""
        del node, limit_s
        return False

    def report_bad(self, node: int, reason: str, *, limit_s: float) -> None:
        """Kubernetes has health checks of its own for its machines."""
        del node, reason, limit_s

    def replace(self, node: int, reason: str) -> str:
        """Raise HeadwayError: Kubernetes brings another pod by itself."""
        del reason
        name = self.name_of(node)
        raise HeadwayError(f"pod {name} is not replaced from here", remedy="delete the pod")

    def sweep(self) -> None:
        """A pod leaves nothing behind."""

    def release(self) -> None:
        """The Job ends by itself once its pods have."""
