"""Turns text into tokens: a byte-level BPE, trained here or loaded from a ``tokenizer.json``.

A vocabulary trained here is byte level: every text round-trips, without unknown tokens. Special
token: ``<|endoftext|>``, id 0, after each document. One from elsewhere may name that token
differently.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from headway.common.errors import CorruptError, InputError
from headway.dataloader.long_texts import encoded

if TYPE_CHECKING:
    from tokenizers import Tokenizer as _Fast

END_OF_TEXT = "<|endoftext|>"
ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
"""Names of the end-of-text token: GPT-2, GPT-NeoX and Qwen, Llama 3, Llama 2 and Mistral, Gemma."""
_CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
_NUM_BYTES = 256
_AGAIN = "prepare the data again with --force"


class Tokenizer:
    """Encode and decode; made by ``train`` or ``load``.

    Of a file from elsewhere the vocabulary counts, with what turns text into it: truncation,
    padding and tokens that its post-processor adds do not.
    """

    def __init__(self, fast: _Fast, end: str) -> None:
        """``end`` is the token after each document. Raises InputError if there is no such token."""
        number = fast.token_to_id(end)
        if number is None:
            raise InputError(
                f"the tokenizer has no token {end!r} to end documents with",
                remedy="name another one with --end (data.end)",
            )
        fast.no_truncation()
        fast.no_padding()
        self._fast = fast
        self.end_of_text, self.eod_id = end, int(number)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        """Train a byte-level BPE (GPT-2's scheme) of ``vocab_size`` tokens.

        Little text gives fewer tokens. Equal texts in equal order give equal files, whatever the
        number of cores.

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
        return cls(fast, END_OF_TEXT)

    @classmethod
    def load(cls, path: Path, *, end: str = "", end_id: int | None = None) -> Tokenizer:
        """Read a ``tokenizer.json``.

        Documents end with token ``end`` or number ``end_id``, else with the ``eos_token`` of the
        files of ``transformers`` next to it, else with the only one of ``ENDS``.

        Raises:
            InputError: no such file, or no token to end documents with, or several.
            CorruptError: it is not a tokenizer.
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
        if end_id is not None:
            end = fast.id_to_token(end_id) or ""
        return cls(fast, end or end_beside(path) or _only_end(fast, path))

    def save(self, path: Path) -> None:
        """Write ``tokenizer.json``.

        Hugging Face ``tokenizers`` and ``transformers`` can read it.
        """
        path.write_text(self._fast.to_str(pretty=False), encoding="utf-8")

    @cached_property
    def vocab_size(self) -> int:
        """The largest id + 1: published vocabularies have gaps."""
        return max(self._fast.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``, without end-of-text.

        A literal ``<|endoftext|>`` becomes that token.
        """
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def encode_all(self, documents: Iterable[Iterable[str]]) -> Iterator[tuple[list[int], bool]]:
        """Ids of each document, in parts, and whether it ends with the part; on all cores.

        ``documents`` are given in pieces, see ``long_texts``. A literal ``<|endoftext|>`` inside a
        text stays text: documents end where documents end.
        """
        fast = self._plain()

        def encode(batch: list[str]) -> list[list[int]]:
            return [one.ids for one in fast.encode_batch_fast(batch, add_special_tokens=False)]

        yield from encoded(documents, encode)

    def _plain(self) -> _Fast:
        from tokenizers import Tokenizer as Fast

        fast = Fast.from_str(self._fast.to_str())
        fast.encode_special_tokens = True
        return fast

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens``, without end-of-text tokens.

        Cut characters show as U+FFFD.
        """
        return str(self._fast.decode([int(token) for token in tokens]))


def end_beside(path: Path) -> str:
    """The ``eos_token`` in the files of ``transformers`` beside a ``tokenizer.json``, "" if none.

    Raises:
        CorruptError: such a file is not JSON.
    """
    for name in _CONFIGS:
        beside = path.with_name(name)
        try:
            found = json.loads(beside.read_text(encoding="utf-8")).get("eos_token")
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError) as error:
            raise CorruptError(
                f"{beside} cannot be read: {error}", remedy="restore it, or remove it"
            ) from error
        token = found.get("content") if isinstance(found, dict) else found
        if isinstance(token, str) and token:
            return token
    return ""


def _only_end(fast: _Fast, path: Path) -> str:
    found = [name for name in ENDS if fast.token_to_id(name) is not None]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"{path} has several tokens that may end a document: {', '.join(found)}",
            remedy=f"choose one with --end (data.end), or put its {_CONFIGS[0]} next to it",
        )
    raise InputError(
        f"the tokenizer has no token {' or '.join(ENDS)}",
        remedy="name the token that ends a document with --end (data.end)",
    )
