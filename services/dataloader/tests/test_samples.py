"""A sample's pieces are the documents of its batch, with their names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import InputError
from headway.dataloader import DataClient, DataConfig, Dataset, SampleReader, stream_spec
from headway.dataloader.config import SPLITS
from headway.dataloader.document_keys import keys_path, write_keys
from headway.dataloader.prepare import prepare
from headway.dataloader.sources import read_source
from headway.dataloader.splitting import Splits

SEQ_LEN = 48


def test_the_pieces_of_a_sample_are_the_tokens_that_a_client_gets(corpus: Path) -> None:
    spec = stream_spec(corpus, seq_len=SEQ_LEN, micro_batch_size=1)
    reader, eod = SampleReader(spec), Dataset(corpus).tokenizer.eod_id
    with DataClient(None, spec=spec) as client:
        assert reader.fingerprint == client.fingerprint
        for sample in range(2 * reader.samples_per_epoch):  # the second epoch has another order
            batch, pieces = client.next(), reader.read(sample)
            assert batch.sample == sample
            joined = np.concatenate([piece.tokens for piece in pieces])
            assert joined[:-1].tolist() == batch.tokens[0].tolist()
            assert joined[1:].tolist() == batch.labels[0].tolist()
            for piece in pieces:
                assert (piece.tokens[-1] == eod) == piece.is_end
                assert (piece.first == 0) or piece is pieces[0], "a document begins at its start"


def test_a_piece_knows_its_document(corpus: Path) -> None:
    tokens = Dataset(corpus).split("train")
    reader = SampleReader(stream_spec(corpus, seq_len=SEQ_LEN, micro_batch_size=1))
    for sample in range(reader.samples_per_epoch):
        for piece in reader.read(sample):
            whole = tokens.sequence(piece.document)
            stop = piece.first + len(piece.tokens)
            assert whole[piece.first : stop].tolist() == piece.tokens.tolist()


def test_the_names_of_documents_are_kept_in_their_order(corpus: Path, text_folder: Path) -> None:
    parts = Splits.of(read_source(str(text_folder)), 0.2)
    for split in SPLITS:
        expected = [document.key for document in parts.part(split)]
        assert Dataset(corpus).keys(split) == expected


@pytest.mark.parametrize("damage", ["absent", "too few", "not JSON"])
def test_data_without_usable_names_are_data_without_names(
    corpus: Path, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in corpus.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    names = keys_path(folder / "train")
    if damage == "absent":
        names.unlink()
    else:
        names.write_text('"one"\n' if damage == "too few" else names.read_text()[:-3])
    assert Dataset(folder).keys("train") is None
    assert Dataset(folder).keys("validation")
    with pytest.raises(InputError, match="split 'test' is unknown"):
        Dataset(folder).keys("test")


def test_preparing_again_adds_names_to_a_folder_without_them(
    text_folder: Path, tmp_path: Path
) -> None:
    config = DataConfig(path=str(tmp_path / "d"), source=str(text_folder), vocab_size=300)
    prepare(config)
    keys = Dataset(config.path).keys("train")
    assert keys
    for split in ("train", "validation"):
        keys_path(tmp_path / "d" / split).unlink()
    assert prepare(config).already_prepared
    assert Dataset(config.path).keys("train") == keys
    assert Dataset(config.path).keys("validation")


def test_a_name_may_have_any_characters(tmp_path: Path) -> None:
    names = ["plain", 'a "quoted"\nname\u2028', "\udce4 is no UTF-8"]
    write_keys(tmp_path / "train", names)
    lines = keys_path(tmp_path / "train").read_text().split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [*names[:2], "\\udce4 is no UTF-8"]
