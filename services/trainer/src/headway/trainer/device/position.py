"""Shows where a rank's device is, also while the host waits for it: a thread that asks and writes.

Nothing on the host moves while a device hangs, and every rank's host then waits in the same place.
So a thread of its own asks ten times a second which events the device has passed (a query, never a
wait), and writes the answer into the flight ring. The host's place shows without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from headway.common.log import get_logger
from headway.trainer.device.device_recorder import DeviceRecorder

PERIOD_S = 0.1
END_LIMIT_S = 1.0

log = get_logger("device")


class DevicePosition:
    """Follows ``recorder`` in one generation, until ``close``.

    ``device``: the thread makes it its own, or it would open a context on the first GPU.
    """

    def __init__(
        self,
        recorder: DeviceRecorder,
        device: torch.device | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        self._recorder, self._device, self._period_s = recorder, device, period_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-position", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, before the generation's groups are aborted or freed.

        The times of the last whole step are added to its records. A thread that is stuck in the
        driver is left to the process's end.
        """
        self._ended.set()
        self._thread.join(END_LIMIT_S)
        if not self._thread.is_alive():
            _ask(self._recorder.read_steps)

    def _run(self) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)
        while not self._ended.wait(self._period_s):
            if not _ask(self._recorder.look):
                return


def _ask(question: Callable[[], object]) -> bool:
    """Whether the device answers. A step will fail by one that is lost, too."""
    try:
        question()
    except RuntimeError as error:
        log.error("the device does not answer", error=repr(error))
        return False
    return True
