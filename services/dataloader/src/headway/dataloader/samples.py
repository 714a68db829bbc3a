"""Which documents a sample consists of: to look at what a run reads, not to train."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from headway.dataloader.config import StreamSpec
from headway.dataloader.stream import check, make_packer, open_tokens, recorded


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one document, in the order in which the sample has it."""

    document: int
    """Its number in the split, from 0."""
    first: int
    """Position of the piece's first token in the document."""
    tokens: npt.NDArray[np.int32]
    is_end: bool
    """Whether the document ends with it."""


class SampleReader:
    """Reads any sample of the order that ``spec`` describes, without a daemon.

    Of ``spec`` only the data, the split, the sequence length and the order count: samples are
    numbered globally, so they are the same for every grid and after every resume.

    Raises:
        InputError: ``spec`` is inconsistent, or the data do not exist. CorruptError: damaged data.
    """

    def __init__(self, spec: StreamSpec) -> None:
        check(spec)
        self._tokens, vocab_size = open_tokens(spec)
        self._packer = make_packer(spec, self._tokens, vocab_size)
        self.fingerprint = recorded(self._tokens)
        """Fingerprint of the data and version of their order, as in ``DataClient.fingerprint``."""

    @property
    def samples_per_epoch(self) -> int:
        """Samples until every document was read once."""
        return self._packer.samples_per_epoch

    def read(self, sample: int) -> list[Piece]:
        """The pieces of global sample ``sample``, together seq_len + 1 tokens.

        The last token is only a label; the next sample of the same epoch's text begins with it.

        Raises:
            EndOfOrderError: past the end of an order of ``num_samples``.
            CorruptError: damaged data. ReadError: the disk or the network failed.
        """
        order, index = self._packer.find(sample)
        pieces = []
        for sequence, first, stop in order.pieces(index):
            whole = self._tokens.sequence(sequence)
            document = int(np.searchsorted(self._tokens.documents, sequence, side="right")) - 1
            tokens = whole[first:stop].astype(np.int32)
            pieces.append(Piece(document, first, tokens, stop == len(whole)))
        return pieces
