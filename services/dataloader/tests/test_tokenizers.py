"""Of a tokenizer from elsewhere the vocabulary counts, and each document has one end, its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.common.errors import CorruptError, InputError
from headway.common.node.testing import child_environment
from headway.dataloader.config import DataConfig
from headway.dataloader.dataset import Dataset
from headway.dataloader.long_texts import Cut, best_cut, cut_pieces
from headway.dataloader.prepare import prepare
from headway.dataloader.tokenizer import ENDS, Tokenizer
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Fast

TEXT = "one two  three\n\nfour's 5,000 zebras; naïve\t- 漢字 six.\n"
LLAMA = Regex(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")


def _gpt2(specials: list[str]) -> Fast:
    fast = Fast(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return _trained(fast, specials)


def _llama3(specials: list[str]) -> Fast:
    fast = Fast(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(LLAMA, "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    return _trained(fast, specials)


def _llama2(specials: list[str]) -> Fast:
    fast = Fast(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    fast.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    fast.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained = _trained(fast, [*specials, "<unk>"])
    trained.pre_tokenizer = None
    return trained


def _trained(fast: Fast, specials: list[str]) -> Fast:
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    fast.train_from_iterator([TEXT * 50], trainer)
    return fast


def _prepared(folder: Path, tokenizer: Path, end: str = "") -> Dataset:
    texts = folder / "texts"
    texts.mkdir(exist_ok=True)
    for number in range(6):
        (texts / f"{number}.txt").write_text(f"{number} {TEXT}" * (3 + 40 * number))
    config = DataConfig(
        path=str(folder / "out"), source=str(texts), tokenizer=str(tokenizer), end=end,
        validation_fraction=0.3,
    )  # fmt: skip
    return Dataset(prepare(config).path)


def _saved(fast: Fast, folder: Path) -> Path:
    fast.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_truncation_padding_and_tokens_of_the_file_are_not_applied(tmp_path: Path) -> None:
    fast = _gpt2(["<s>", "</s>", "<pad>"])
    words = fast.encode("one two").ids
    expected = {n: fast.encode(f"{n} {TEXT}" * (3 + 40 * n)).ids for n in range(6)}
    fast.enable_truncation(32)
    fast.enable_padding(pad_id=2, pad_token="<pad>", length=4000)
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A </s> </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    data = _prepared(tmp_path, _saved(fast, tmp_path))
    for split in ("train", "validation"):
        for index, key in enumerate(data.keys(split) or ()):
            found = data.split(split).sequence(index).tolist()
            assert found == [*expected[int(key[0])], 1]
    assert data.tokenizer.encode("one two") == words


def test_the_size_of_a_vocabulary_with_gaps_is_its_largest_id_plus_one(tmp_path: Path) -> None:
    raw = json.loads(_gpt2(["</s>"]).to_str())
    vocab = raw["model"]["vocab"]
    vocab[max(vocab, key=lambda token: vocab[token])] = 65_600
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    data = _prepared(tmp_path, tmp_path / "tokenizer.json")
    assert data.vocab_size == 65_601
    assert data.meta is not None and data.meta.dtype == "int32"


@pytest.mark.parametrize(
    ("name", "config", "end"),
    [
        ("tokenizer_config.json", {"eos_token": "<eos>"}, "<eos>"),
        ("tokenizer_config.json", {"eos_token": {"content": "</s>", "lstrip": False}}, "</s>"),
        ("special_tokens_map.json", {"eos_token": "<eos>"}, "<eos>"),
        ("tokenizer_config.json", {"eos_token": "<pad>"}, "<pad>"),
    ],
)
def test_the_familys_own_file_says_what_ends_a_document(
    name: str, config: Any, end: str, tmp_path: Path
) -> None:
    fast = _gpt2(["<pad>", "</s>", "<eos>"])
    (tmp_path / name).write_text(json.dumps(config))
    data = _prepared(tmp_path, _saved(fast, tmp_path))
    assert data.meta is not None and data.meta.eod_id == fast.token_to_id(end)
    assert data.tokenizer.end_of_text == end, "also without the file beside the prepared folder"


def test_several_possible_ends_are_named_until_one_is_chosen(tmp_path: Path) -> None:
    path = _saved(_gpt2(["</s>", "<eos>"]), tmp_path)
    with pytest.raises(InputError, match=r"several tokens .*: </s>, <eos>; choose one with --end"):
        _prepared(tmp_path, path)
    assert _prepared(tmp_path, path, end="<eos>").tokenizer.end_of_text == "<eos>"
    with pytest.raises(InputError, match="end with token 1, not with '</s>'"):
        _prepared(tmp_path, path, end="</s>")
    with pytest.raises(InputError, match="no token '<end>'"):
        Tokenizer.load(path, end="<end>")
    (tmp_path / "tokenizer_config.json").write_text("not JSON")
    with pytest.raises(CorruptError, match=r"tokenizer_config\.json cannot be read"):
        Tokenizer.load(path)
    assert set(ENDS) > {"</s>", "<eos>"}


@pytest.mark.parametrize(
    ("make", "cut"),
    [(_gpt2, Cut.BEFORE_SPACE), (_llama3, Cut.BEFORE_SPACE), (_llama2, Cut.AT_SPACE)],
)
def test_the_parts_of_a_long_text_have_the_ids_of_the_whole(
    make: Callable[[list[str]], Fast], cut: Cut
) -> None:
    fast = make(["</s>"])
    text = TEXT * 2000
    tokenizer = Tokenizer(fast, "</s>")
    parts = list(tokenizer.encode_all([[text[:70_000], text[70_000:]], ["one"]]))
    assert [is_end for _, is_end in parts].count(True) == 2 and len(parts) > 3
    assert [one for ids, _ in parts[:-1] for one in ids] == fast.encode(text).ids
    encode = lambda batch: [one.ids for one in fast.encode_batch(batch)]  # noqa: E731
    assert best_cut(text, encode) is cut


def test_a_text_without_white_space_is_cut_nevertheless() -> None:
    pieces = list(cut_pieces(["x" * 3_000_000]))
    assert "".join(pieces) == "x" * 3_000_000
    assert max(map(len, pieces)) == 1 << 20


MEASURED = """
import resource, sys
from headway.dataloader.cli import main
assert main(["prepare", "--source", sys.argv[1], "--out", sys.argv[2], "--vocab-size", "512"]) == 0
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _peak_mib(source: Path, out: Path) -> float:
    command = [sys.executable, "-c", MEASURED, str(source), str(out)]
    environment = child_environment({"RAYON_NUM_THREADS": "2"})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout.rpartition("peak ")[2]) / 1024


@pytest.mark.parametrize("name", ["book.txt", "book.jsonl"])
def test_memory_does_not_grow_with_the_file(name: str, tmp_path: Path) -> None:
    peaks = []
    for megabytes in (1, 10):
        path = tmp_path / f"{megabytes}{name}"
        line = "one two three four five six seven eight nine ten\n" * 20
        if name.endswith("jsonl"):
            line = json.dumps({"text": line}) + "\n"
        path.write_text(line * (megabytes * 1_000_000 // len(line)))
        peaks.append(_peak_mib(path, tmp_path / f"out{megabytes}"))
    assert peaks[1] - peaks[0] < 60, peaks
