"""A rank's streams of batches: opened when a generation first needs them, the same on all ranks."""

from __future__ import annotations

import torch
from headway.common.node.flight_record import WAITING
from headway.common.node.ring import RingAbortedError
from headway.common.plan.schedule.actions import Kind
from headway.dataloader.client import ChangedDataError
from headway.trainer.comm.agreement import readers_of_other_data
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted
from headway.trainer.data.batches import BatchReader, BatchSource, DataFactory, Split
from headway.trainer.device.recorder import Recorder
from headway.trainer.errors import RefusedError


class DataStreams:
    """The open readers of a generation, and the fingerprints of the data of the run.

    Args:
        path: where the data are, for messages.
        first: whether the rank holds the first stage, which reads tokens.
        last: whether it holds the last one, which reads labels.
        document_end: the token that ends a document; then every stage reads tokens.
    """

    def __init__(
        self,
        factory: DataFactory,
        recorder: Recorder,
        device: torch.device,
        *,
        rank: int,
        path: str,
        first: bool,
        last: bool,
        document_end: int | None = None,
    ) -> None:
        self._factory, self._recorder, self._device = factory, recorder, device
        self._rank, self._path, self._first, self._last = rank, path, first, last
        self._document_end = document_end
        self._readers: dict[Split, BatchReader] = {}
        self.fingerprints: dict[Split, str] = {"train": "", "validation": ""}
        """Fingerprint of the data that the run began with, per split; "" if it has read none."""

    def reader(self, split: Split, groups: Groups, *, step: int, start: int) -> BatchReader:
        """The reader of ``split``; all ranks open it together, from global sample ``start`` on.

        Raises:
            Aborted: the generation was fenced.
            RefusedError: the data are not those that the run began with, or differ between ranks.
        """
        if split not in self._readers:
            is_read = self._first or self._last or self._document_end is not None
            source = self._open(split, groups.generation, step, start) if is_read else None
            self._readers[split] = BatchReader(
                source,
                first=self._first,
                last=self._last,
                device=self._device,
                document_end=self._document_end,
            )
            self._compare(split, groups, source, step)
        return self._readers[split]

    def close(self) -> None:
        """Close what is open; the next generation opens it again."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _open(self, split: Split, generation: int, step: int, start: int) -> BatchSource:
        if step and not self.fingerprints["train"]:
            raise RefusedError(
                f"the state of step {step} does not say which data it was trained on",
                remedy="use the version of Headway that wrote it, or start a new run",
            )
        known = self.fingerprints[split]
        try:
            source = self._factory(split, start, generation, known)
        except RingAbortedError:
            raise Aborted from None
        except ChangedDataError as error:  # the damage may be repaired before the next generation
            raise RefusedError(error.message, remedy=error.remedy) from error
        if known and source.fingerprint != known:
            source.close()
            raise RefusedError(
                f"the {split} data of {self._path} have changed: fingerprint "
                f"{source.fingerprint}, the run began with {known}",
                remedy="restore the old data, or start a new run",
            )
        self.fingerprints[split] = source.fingerprint
        return source

    def _compare(self, split: Split, groups: Groups, source: BatchSource | None, step: int) -> None:
        """Compare the data over ranks, because nodes may have their own copies."""
        if groups.every_rank.size == 1:
            return
        mine = source.fingerprint if source is not None else ""
        with self._recorder.record(Kind.NORM, step=step, flags=WAITING):
            others = readers_of_other_data(groups.every_rank, groups.channels, mine, self._device)
        if others:
            raise RefusedError(
                f"ranks {others} read other {split} data at {self._path} than the ranks "
                f"before them (rank {self._rank}: fingerprint {mine or 'none'})",
                remedy="copy the same prepared folder to every node",
            )
