"""Turns text into tokens: a byte-level BPE, trained here or loaded from a ``tokenizer.json``.

A vocabulary trained here is byte level: every text round-trips, without unknown tokens. Special
token: ``<|endoftext|>``, id 0, after each document. One from elsewhere may name that token
differently.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headway.common.errors import CorruptError, InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as _Fast

END_OF_TEXT = "<|endoftext|>"
ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
"""Names of the end-of-text token: GPT-2, GPT-NeoX and Qwen, Llama 3, Llama 2 and Mistral, Gemma."""
_NUM_BYTES = 256
_BATCH_DOCUMENTS = 64
_AGAIN = "prepare the data again with --force"


class Tokenizer:
    """Encode and decode; made by ``train`` or ``load``."""

    def __init__(self, fast: _Fast) -> None:
        """Raises InputError if the vocabulary has no end-of-text token."""
        ids = {name: fast.token_to_id(name) for name in ENDS}
        ends = [(name, number) for name, number in ids.items() if number is not None]
        if not ends:
            raise InputError(
                f"the tokenizer has no token {' or '.join(ENDS)}",
                remedy="add one as a special token",
            )
        self._fast = fast
        self.end_of_text, self.eod_id = ends[0]

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        """Train a byte-level BPE (GPT-2's scheme) of ``vocab_size`` tokens, or
        fewer for little text.

        Equal texts in equal order give equal files, whatever the number of cores.

        Raises:
            InputError: ``vocab_size`` is too small for the 256 bytes and the special token.
        """
        from tokenizers import Tokenizer as Fast
        from tokenizers import decoders, models, pre_tokenizers, trainers

        if vocab_size <= _NUM_BYTES:
            raise InputError(
                f"vocab_size {vocab_size} is too small", remedy=f"use at least {_NUM_BYTES + 1}"
            )
        fast = Fast(models.BPE())
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        fast.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        fast.train_from_iterator(texts, trainer)
        return cls(fast)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a ``tokenizer.json``.

        Raises:
            InputError: no such file. CorruptError: it is not a tokenizer.
        """
        from tokenizers import Tokenizer as Fast

        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror}", remedy="run `headway data prepare`"
            ) from error
        except UnicodeDecodeError as error:
            raise CorruptError(
                f"{path} is not a tokenizer: it is not UTF-8", remedy=_AGAIN
            ) from error
        try:
            fast = Fast.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise CorruptError(f"{path} is not a tokenizer: {error}", remedy=_AGAIN) from error
        return cls(fast)

    def save(self, path: Path) -> None:
        """Write ``tokenizer.json`` (readable by Hugging Face
        ``tokenizers`` and ``transformers``)."""
        path.write_text(self._fast.to_str(pretty=False), encoding="utf-8")

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including the special one."""
        return int(self._fast.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, without end-of-text. A literal
        ``<|endoftext|>`` becomes that token.
        """
        return list(self._fast.encode(text).ids)

    def encode_all(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Token ids of each text in order, encoded in batches on all cores.

        A literal ``<|endoftext|>`` inside a text stays text: documents end where documents end.
        """
        fast, rest = self._plain(), iter(texts)
        while batch := list(itertools.islice(rest, _BATCH_DOCUMENTS)):
            for encoding in fast.encode_batch(batch):
                yield encoding.ids

    def _plain(self) -> _Fast:
        from tokenizers import Tokenizer as Fast

        fast = Fast.from_str(self._fast.to_str())
        fast.encode_special_tokens = True
        return fast

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``; end-of-text tokens are left out. Cut
        characters show as U+FFFD."""
        return str(self._fast.decode([int(token) for token in tokens]))
