"""TensorBoard: event files with scalars, texts and hyperparameters.

Each process writes a file of its own. What was written after the newest commit is cut off by the
next process, so that nothing is there twice after a kill or a full disk. Steps that a
recovery rewound are hidden by TensorBoard itself: a restart is marked, which drops later steps.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.console.sinks.items import Item, Rewind, Scalars, Settings, Text
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

PATTERN = "events.out.tfevents.*.headway"


class EventFiles:
    """A ``Sink``; ``state`` holds ``files``: name -> bytes as of the newest commit."""

    commits_at_end = False

    def __init__(self, out: Path, *, run_id: str, name: str, state: Mapping[str, Any]) -> None:
        del run_id
        self._out, self._group = out, name
        self._path: Path | None = None
        self._descriptor = -1
        self._files: dict[str, int] = dict(state.get("files", {}))
        self._cut_off()

    def _cut_off(self) -> None:
        """Remove what an earlier process wrote after its newest commit."""
        for path in self._out.glob(PATTERN):
            length = self._files.get(path.name)
            if length is None:
                path.unlink()
            elif path.stat().st_size > length:
                os.truncate(path, length)

    def write(self, items: list[Item]) -> None:
        """Append to the file, which is made for the first item."""
        events = [event for item in items for event in self._events(item)]
        if not events:
            return
        if self._descriptor < 0:
            self._open()
            events.insert(0, Event(wall_time=time.time(), file_version="brain.Event:2"))
        records = io.BytesIO()
        writer = RecordWriter(records)
        for event in events:
            writer.write(event.SerializeToString())
        left = memoryview(records.getvalue())
        while left:
            left = left[os.write(self._descriptor, left) :]

    def _open(self) -> None:
        # names sort by time, which is the order that TensorBoard reads the files in
        newest = max((int(name.split(".")[3]) for name in self._files), default=0)
        number = max(time.time_ns(), newest + 1)  # also after the clock was set back
        name = f"events.out.tfevents.{number}.{socket.gethostname()}.{os.getpid()}.headway"
        self._path = self._out / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)

    def _events(self, item: Item) -> list[Event]:
        where: dict[str, Any] = {"wall_time": item.unix_s, "step": item.step}
        match item:
            case Scalars():
                values = [Summary.Value(tag=t, simple_value=v) for t, v in item.values.items()]
                return [Event(summary=Summary(value=values), **where)]
            case Text():
                return [Event(summary=_text(item.tag, item.text), **where)]
            case Settings():
                shown = {key: _hyperparameter(value) for key, value in item.values.items()}
                toml = "    " + item.text.replace("\n", "\n    ")
                return [
                    Event(summary=_text("config", toml), **where),
                    Event(summary=hparams_pb(shown, trial_id=self._group), **where),
                ]
            case Rewind():
                return [Event(session_log=SessionLog(status=SessionLog.START), **where)]

    def commit(self) -> dict[str, Any]:
        """Wait for the disk; returns the files and their lengths."""
        if self._descriptor >= 0 and self._path is not None:
            os.fsync(self._descriptor)
            self._files[self._path.name] = os.fstat(self._descriptor).st_size
        return {"files": dict(self._files)}

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._path = -1, None


def _text(tag: str, text: str) -> Summary:
    metadata = text_metadata.create_summary_metadata(display_name=None, description=None)
    tensor = make_tensor_proto([text.encode()], shape=[1])
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])


def _hyperparameter(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)
