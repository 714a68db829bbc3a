"""Shows where a rank's device is, also while the host waits for it: a thread that asks and writes.

Nothing on the host moves while a device hangs, and every rank's host then waits in the same place.
So a thread of its own asks ten times a second which events the device has passed (a query, never a
wait), and writes the answer into the flight ring. If the device no longer answers, this thread
stops with it, and the beats of the rank go on.
"""

from __future__ import annotations

import threading

from headway.common.log import get_logger
from headway.trainer.device.device_recorder import DeviceRecorder
from headway.trainer.device.works import DeviceWorks

PERIOD_S = 0.1

log = get_logger("device")


class DevicePosition:
    """Follows ``recorder``, and the works of one generation after the other, until ``close``."""

    def __init__(self, recorder: DeviceRecorder, period_s: float = PERIOD_S) -> None:
        self._recorder, self._period_s = recorder, period_s
        self.works = DeviceWorks()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-position", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; one that is stuck in the driver is left to the process's end."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._period_s):
            try:
                self.works.advance()
                self._recorder.look()
            except RuntimeError as error:  # the device is lost; a step will fail by it, too
                log.error("the device does not answer", error=repr(error))
                return
