"""Shares one open token file and one sample order between the streams of a node."""

from __future__ import annotations

import threading
from pathlib import Path
from weakref import WeakValueDictionary

from headway.dataloader.blocks import reading
from headway.dataloader.built_orders import BuiltOrders
from headway.dataloader.config import StreamSpec
from headway.dataloader.dataset import Dataset
from headway.dataloader.formats import TokenFile
from headway.dataloader.order import OrderSettings, SampleOrder
from headway.dataloader.pack import Packer
from headway.dataloader.stream import make_packer, recorded, refuse_changed

_SPARE_ORDERS = 4  # of streams that are not open yet after a restart


class SharedPackers:
    """Packers by what they read, each kept as long as a stream uses it. Thread-safe.

    A request for data that are just being opened waits instead of opening them again.
    """

    def __init__(self, folder: Path) -> None:
        """Large orders are kept in ``folder``."""
        self._lock = threading.Lock()
        self._built = BuiltOrders(folder)
        self._packers: WeakValueDictionary[tuple[object, ...], Packer] = WeakValueDictionary()

    def packer(self, spec: StreamSpec) -> Packer:
        """The packer of ``spec``, opened if it is new or its files have changed.

        Raises:
            InputError: missing data. CorruptError: damaged data. ChangedDataError: the data do not
                have ``spec.fingerprint``. ReadError: the disk or the network failed.
        """
        with self._lock, reading(Path(spec.path)):
            data = Dataset(spec.path)
            tokens = self._open_already(data, spec) or data.split(spec.split)
            refuse_changed(spec, recorded(tokens))
            key = (
                tokens.prefix, tokens.fingerprint(), data.vocab_size,
                spec.seq_len, spec.seed, spec.num_samples,
            )  # fmt: skip
            packer = self._packers.get(key)
            if packer is None:
                packer = self._packers[key] = make_packer(
                    spec, tokens, data.vocab_size, self._order
                )
            packer.tokens = tokens  # equal content, if they were reopened
            return packer

    def close(self) -> None:
        """Remove the files of all orders: no successor is expected."""
        self._built.sweep(())

    def _order(self, tokens: TokenFile, settings: OrderSettings) -> SampleOrder:
        order = self._built.build(tokens, settings)
        if order.name:
            packers = list(self._packers.values())
            used = [name for packer in packers for name in packer.orders]
            self._built.sweep([*used, order.name], _SPARE_ORDERS)
        return order

    def _open_already(self, data: Dataset, spec: StreamSpec) -> TokenFile | None:
        prefix = data.prefix(spec.split)
        for packer in list(self._packers.values()):
            if packer.tokens.prefix == prefix and packer.tokens.is_current():
                return packer.tokens
        return None
