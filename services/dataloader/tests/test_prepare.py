"""From text to a prepared folder: repeatable, whole or absent, and never over
somebody else's files."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import CorruptError, InputError
from headway.common.node.testing import child_environment
from headway.dataloader.cli import main
from headway.dataloader.config import SPLITS, DataConfig
from headway.dataloader.dataset import Dataset, verify
from headway.dataloader.prepare import prepare, unigram_nats
from headway.dataloader.sources import AnyDocument, Document, read_source
from headway.dataloader.splitting import Splits
from headway.dataloader.tokenizer import END_OF_TEXT, Tokenizer


def _config(folder: Path, source: Path | str, **changes: object) -> DataConfig:
    settings = {"vocab_size": 300, "validation_fraction": 0.2} | changes
    return DataConfig(path=str(folder), source=str(source), **settings)  # type: ignore[arg-type]


def _parts(documents: Iterable[AnyDocument], fraction: float) -> dict[str, list[Document]]:
    splits = Splits.of(documents, fraction)
    found = {
        split: [Document(one.key, "".join(one.pieces())) for one in splits.part(split)]
        for split in SPLITS
    }
    assert {split: len(part) for split, part in found.items()} == splits.counts
    return found


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_document_is_in_its_split_and_ends_with_end_of_text(
    corpus: Path, text_folder: Path
) -> None:
    data = Dataset(corpus)
    documents = _parts(read_source(str(text_folder)), 0.2)
    assert len(documents["validation"]) > 0
    for split, members in documents.items():
        texts = [document.text for document in members]
        tokens = data.split(split)
        rows = [tokens.sequence(k).tolist() for k in range(tokens.num_sequences)]
        assert all(
            row[-1] == data.tokenizer.eod_id and data.tokenizer.eod_id not in row[:-1]
            for row in rows
        )
        assert [data.tokenizer.decode(row) for row in rows] == texts


def test_preparing_again_elsewhere_gives_equal_bytes(
    corpus: Path, text_folder: Path, tmp_path: Path
) -> None:
    again = prepare(_config(tmp_path / "again", text_folder)).path
    assert _bytes(again) == _bytes(corpus)


def test_what_a_folder_says_of_itself_makes_it_again(
    corpus: Path, text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["prepare", *Dataset(corpus).recipe, "--out", str(tmp_path / "again")]
    assert main(words) == 0
    assert _bytes(tmp_path / "again") == _bytes(corpus)
    monkeypatch.chdir(text_folder.parent)
    relative = prepare(_config(tmp_path / "relative", text_folder.name)).path
    assert Dataset(relative).recipe == (), "another machine may have another folder of this name"
    tokenizer = str(corpus / "tokenizer.json")
    given = prepare(_config(tmp_path / "given", text_folder, tokenizer=tokenizer)).path
    assert Dataset(given).recipe == () == Dataset(corpus / "train").recipe


def test_the_second_run_says_that_it_does_nothing(text_folder: Path, tmp_path: Path) -> None:
    first = prepare(_config(tmp_path / "d", text_folder))
    before = {path.name: path.stat().st_mtime_ns for path in first.path.iterdir()}
    said: list[str] = []
    second = prepare(_config(tmp_path / "d", text_folder), say=said.append)
    assert (first.already_prepared, second.already_prepared) == (False, True)
    assert second.meta == first.meta
    assert {path.name: path.stat().st_mtime_ns for path in first.path.iterdir()} == before
    assert any(
        "already prepared" in line and first.meta.corpus_sha256[:16] in line for line in said
    )


def test_other_text_in_the_same_folder_is_refused_until_forced(
    text_folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("one two three four\n" * 50)
    prepare(_config(tmp_path / "d", text_folder))
    before = _bytes(tmp_path / "d")
    with pytest.raises(InputError, match="--force"):
        prepare(_config(tmp_path / "d", other))
    with pytest.raises(InputError, match="--force"):
        prepare(_config(tmp_path / "d", text_folder, vocab_size=301))
    assert _bytes(tmp_path / "d") == before
    prepare(_config(tmp_path / "d", other), force=True)
    assert Dataset(tmp_path / "d").meta.source == str(other)  # type: ignore[union-attr]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "other.txt"]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_with_other_files_is_never_replaced(
    text_folder: Path, tmp_path: Path, force: bool
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="not prepared data"):
        prepare(_config(tmp_path / "home", text_folder), force=force)
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


def test_a_damaged_folder_is_made_again(text_folder: Path, tmp_path: Path) -> None:
    first = _bytes(prepare(_config(tmp_path / "d", text_folder)).path)
    (tmp_path / "d" / "train.bin").write_bytes(first["train.bin"][:-2])
    done = prepare(_config(tmp_path / "d", text_folder))
    assert not done.already_prepared
    assert _bytes(done.path) == first


def test_two_runs_at_once_make_it_once(text_folder: Path, tmp_path: Path) -> None:
    arguments = [
        sys.executable,
        "-m",
        "headway.dataloader",
        "prepare",
        "--source",
        str(text_folder),
    ]
    arguments += ["--out", str(tmp_path / "d"), "--vocab-size", "300", "--json"]
    runs = [
        subprocess.Popen(arguments, env=child_environment(), stdout=-1, stderr=-1) for _ in range(3)
    ]
    facts = [json.loads(run.communicate()[0]) for run in runs]
    assert sorted(fact["already_prepared"] for fact in facts) == [False, True, True]
    verify(tmp_path / "d")


def test_verify_names_the_file_of_which_one_bit_changed(text_folder: Path, tmp_path: Path) -> None:
    folder = prepare(_config(tmp_path / "d", text_folder)).path
    assert len(verify(folder)) == 5
    for name in ("train.bin", "validation.bin", "tokenizer.json"):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(good[:40] + bytes([good[40] ^ 1]) + good[41:])
        with pytest.raises(CorruptError, match=name):
            verify(folder)
        (folder / name).write_bytes(good)


def test_unigram_nats_is_the_cross_entropy_computed_by_hand(corpus: Path) -> None:
    data = Dataset(corpus)
    splits = [data.split(name) for name in ("train", "validation")]
    train, held_out = (
        Counter(one for k in range(tokens.num_sequences) for one in tokens.sequence(k).tolist())
        for tokens in splits
    )
    vocab, total = data.vocab_size, sum(train.values())
    assert vocab is not None
    expected = -sum(
        n * math.log((train[t] + 1) / (total + vocab)) for t, n in held_out.items()
    ) / sum(held_out.values())
    assert data.meta is not None
    assert data.meta.unigram_nats == pytest.approx(expected, rel=1e-12)
    assert unigram_nats(np.array([0, 0]), np.array([3, 1])) == pytest.approx(math.log(2))


def test_one_document_is_cut_at_a_line_and_few_documents_fill_both_splits() -> None:
    lines = "".join(f"line {k}\n" for k in range(40))
    parts = _parts([Document("book", lines)], 0.1)
    assert parts["train"][0].text + parts["validation"][0].text == lines
    assert parts["train"][0].text.endswith("\n") and len(parts["validation"][0].text) < 0.2 * len(
        lines
    )
    for fraction in (1e-9, 1 - 1e-9):
        parts = _parts([Document(str(k), "x") for k in range(3)], fraction)
        assert sorted(len(part) for part in parts.values()) == [1, 2]


def test_jsonl_lines_are_documents_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "two", "id": 7}\n')
    assert list(read_source(str(path))) == [
        Document("x.jsonl#1", "one"),
        Document("x.jsonl#3", "two"),
    ]
    for bad in ("not json", '{"words": "x"}', '{"text": 3}', "[1]"):
        path.write_text('{"text": "one"}\n' + bad + "\n")
        with pytest.raises(InputError, match="line 2"):
            list(read_source(str(path)))


def test_the_standard_library_comes_without_its_tests() -> None:
    keys = [document.key for document in read_source("stdlib")]
    assert "json/decoder.py" in keys and "unittest/case.py" in keys
    assert not [
        key for key in keys if {"test", "tests", "site-packages"} & set(Path(key).parts[:-1])
    ]


def test_lone_surrogates_in_json_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a\\ud800b"}\n' * 4)
    prepare(_config(tmp_path / "d", tmp_path / "x.jsonl"))
    tokens = Dataset(tmp_path / "d").split("train")
    assert Dataset(tmp_path / "d").tokenizer.decode(tokens.sequence(0).tolist()) == "a?b"


@pytest.mark.parametrize("source", ["/nowhere", "https://example.org/text.txt"])
def test_a_source_that_cannot_be_read_is_named(source: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=source):
        prepare(_config(tmp_path / "d", source))
    assert not (tmp_path / "d").exists()


def test_debian_docs_without_apt_say_what_else_to_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"needs apt-get; .*--source stdlib"):
        read_source("debian-docs", cache=tmp_path / "cache")


def _tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text("#!/bin/sh\n" + script)
    (folder / name).chmod(0o755)


def test_debian_docs_offline_repeat_what_apt_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _tool(tmp_path, "apt-get", "echo 'E: Unable to locate package perl-doc' >&2; exit 100\n")
    _tool(tmp_path, "dpkg-deb", "exit 0\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(
        InputError, match=r"Unable to locate package.*apt-get update.*--source stdlib"
    ):
        read_source("debian-docs", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_debian_docs_are_stripped_of_html_and_fetched_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = "<p>Vacuum &amp; analyze.</p>" + "<p>words words words</p>" * 40
    page = f"<html><head><title>x</title></head><body><script>no()</script>{body}</body></html>"
    _tool(tmp_path, "apt-get", f"echo $3 >> {tmp_path}/calls; echo deb > $3_1_all.deb\n")
    _tool(
        tmp_path,
        "dpkg-deb",
        f"mkdir -p $3/usr; cat > $3/usr/page.html <<'END'\n{page}\nEND\necho short > "
        "$3/usr/s.pod\n",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for _ in range(2):
        documents = [
            document
            for document in read_source("debian-docs", cache=tmp_path / "cache")
            if isinstance(document, Document)
        ]
        assert [document.key for document in documents] == [
            "postgresql-doc-15/usr/page.html",
            "perl-doc/usr/page.html",
        ]
        assert documents[0].text.startswith("Vacuum & analyze.\nwords")
        assert "no()" not in documents[0].text and "<" not in documents[0].text
    assert (tmp_path / "calls").read_text().split() == ["postgresql-doc-15", "perl-doc"]


def test_the_vocabulary_does_not_depend_on_the_number_of_threads(
    text_folder: Path, tmp_path: Path
) -> None:
    texts = ["".join(document.pieces()) for document in read_source(str(text_folder))]
    code = (
        "import sys, json; from pathlib import Path; from headway.dataloader.tokenizer import "
        "Tokenizer\n"
        "Tokenizer.train(json.load(open(sys.argv[1])), 400).save(Path(sys.argv[2]))\n"
    )
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    made = []
    for threads in ("1", "2", "4"):
        command = [
            sys.executable,
            "-c",
            code,
            str(tmp_path / "texts.json"),
            str(tmp_path / threads),
        ]
        subprocess.run(command, env=child_environment({"RAYON_NUM_THREADS": threads}), check=True)
        made.append((tmp_path / threads).read_bytes())
    assert made[0] == made[1] == made[2]


def test_any_text_round_trips_and_a_literal_end_of_text_stays_text(corpus: Path) -> None:
    tokenizer = Dataset(corpus).tokenizer
    text = f"naïve 漢字 \x00\t🙂 {END_OF_TEXT} end"
    ((row, is_end),) = tokenizer.encode_all([[text]])
    assert is_end
    assert tokenizer.eod_id not in row
    assert tokenizer.decode(row) == text


def test_a_tokenizer_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        Tokenizer.load(path)
    for content in (b"{}", b"\xff\xfe", b"not json"):
        path.write_bytes(content)
        with pytest.raises(CorruptError, match=r"tokenizer\.json is not a tokenizer"):
            Tokenizer.load(path)


def test_a_source_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").write_text(" \n")
    with pytest.raises(InputError, match="holds no text"):
        prepare(_config(tmp_path / "d", tmp_path / "empty"))


def test_files_that_are_not_read_are_counted(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "LICENCE", "c.bin"):
        (tmp_path / "texts" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "texts" / name).write_text("one two three four\n" * 50)
    config = DataConfig(
        path=str(tmp_path / "data"), source=str(tmp_path / "texts"), vocab_size=300,
        validation_fraction=0.5,
    )  # fmt: skip
    lines: list[str] = []
    prepare(config, say=lines.append)
    (line,) = [line for line in lines if "leaving out" in line]
    assert line.endswith(": LICENCE, c.bin")
    assert line.startswith("leaving out 2 files not ending in .htm, .html")


def test_a_given_tokenizer_is_used_as_it_is(
    corpus: Path, text_folder: Path, tmp_path: Path
) -> None:
    given = corpus / "tokenizer.json"
    made = prepare(_config(tmp_path / "d", text_folder, tokenizer=str(given), vocab_size=999))
    assert (made.path / "tokenizer.json").read_bytes() == given.read_bytes()
    assert made.meta.vocab_size == Dataset(corpus).vocab_size
    assert (made.path / "train.bin").read_bytes() == (corpus / "train.bin").read_bytes()
    again = prepare(_config(tmp_path / "d", text_folder, tokenizer=str(given)))
    assert again.already_prepared
    with pytest.raises(InputError, match="vocabulary 0"):
        prepare(_config(tmp_path / "d", text_folder))
    other = tmp_path / "other.json"
    other.write_text(given.read_text() + " ")
    with pytest.raises(InputError, match="prepared with another tokenizer"):
        prepare(_config(tmp_path / "d", text_folder, tokenizer=str(other)))


@pytest.mark.parametrize("name", ["</s>", "<|end_of_text|>"])
def test_the_end_of_text_may_have_another_name(
    name: str, corpus: Path, text_folder: Path, tmp_path: Path
) -> None:
    given = tmp_path / "tokenizer.json"
    given.write_text((corpus / "tokenizer.json").read_text().replace(END_OF_TEXT, name))
    made = prepare(_config(tmp_path / "d", text_folder, tokenizer=str(given)))
    assert made.meta.eod_id == Dataset(corpus).tokenizer.eod_id
    given.write_text(given.read_text().replace(name, "<nothing>"))
    with pytest.raises(InputError, match=r"has no token .* or </s> or"):
        Tokenizer.load(given)
