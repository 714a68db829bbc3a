"""Every file of a source is read, or counted and named: links, encodings, binary files."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.dataloader import sources
from headway.dataloader.decoding import PIECE_BYTES, Encoding, encoding_of, lines_of, text_of
from headway.dataloader.sources import LargeDocument, Source, read_source
from headway.dataloader.splitting import Splits

WORDS = "Grüße aus Köln, «naïve» façade - 10 € "


def _read(source: Source) -> dict[str, str]:
    return {one.key: "".join(one.pieces()) for one in source}


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "cp1252", "latin-1"]
)
def test_texts_in_usual_encodings_are_read(encoding: str, tmp_path: Path) -> None:
    text = WORDS.replace("€", "EUR") * 50 if encoding == "latin-1" else WORDS * 50
    raw = text.encode(encoding)
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    (tmp_path / "a.txt").write_bytes(mark + raw)
    source = read_source(str(tmp_path))
    assert _read(source) == {"a.txt": text}
    assert [line for line in source.left_out.lines() if not line.startswith("reading")] == []


def test_files_that_are_not_text_are_counted_and_named(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("words " * 50)
    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)))
    (tmp_path / "japanese.txt").write_bytes("これは文字コードの試験です。".encode("shift-jis") * 9)
    (tmp_path / "wide.md").write_bytes("no mark".encode("utf-16-le"))
    source = read_source(str(tmp_path))
    assert list(_read(source)) == ["good.txt"]
    (line,) = source.left_out.lines()
    assert line.startswith("leaving out 3 files not in UTF-8")
    assert all(name in line for name in ("picture.txt", "japanese.txt", "wide.md"))
    assert list(_read(source)) == ["good.txt"]
    assert [line] == list(source.left_out.lines()), "a second pass counts nothing twice"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("iso2022_jp", "これは文字コードの試験です。"),
        ("iso2022_jp_2", "これは文字 é ü"),
        ("iso2022_kr", "한국어 텍스트"),
    ],
)
@pytest.mark.parametrize("before", [0, PIECE_BYTES - 2])
def test_a_file_in_an_encoding_of_7_bits_is_left_out_and_named(
    encoding: str, text: str, before: int, tmp_path: Path
) -> None:
    (tmp_path / "good.txt").write_text("words " * 50)
    (tmp_path / "seven.txt").write_bytes(b"a" * before + text.encode(encoding))
    source = read_source(str(tmp_path))
    assert list(_read(source)) == ["good.txt"]
    (line,) = source.left_out.lines()
    assert line.startswith("leaving out 1 file not in UTF-8") and "seven.txt" in line


def test_a_file_with_many_control_characters_is_left_out_and_one_of_a_terminal_is_not(
    tmp_path: Path,
) -> None:
    colored = "\x1b[1;31merror\x1b[0m: it failed\x1b(B\n" * 20
    (tmp_path / "colored.txt").write_text(colored)
    (tmp_path / "bells.txt").write_text("a bell\x07 in a long line of words, and no more" * 20)
    (tmp_path / "controls.txt").write_bytes(bytes([1, 2, 3, 5, 6, 14, 15, 65]) * 100)
    (tmp_path / "shifted.txt").write_bytes(b"\x0e<Y@Z\x0f and \x0e<Y@Z\x0f" * 50)
    (tmp_path / "maps.txt").write_text("imap <F2> \x1bNoh\nimap <F3> \x1b.A\n" * 9)
    (tmp_path / "wide.txt").write_text("これは \x1b$A; 文字\n")
    source = read_source(str(tmp_path))
    assert list(_read(source)) == ["bells.txt", "colored.txt", "maps.txt", "wide.txt"]
    (line,) = source.left_out.lines()
    assert "controls.txt" in line and "shifted.txt" in line


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": ' * 100_000, "1" * 10_000])
def test_a_line_that_is_nested_too_deeply_is_a_bad_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(InputError, match=r"a\.jsonl, line 2, is not a JSON object"):
        _read(read_source(str(path)))


def test_a_few_broken_bytes_in_utf8_are_replaced_and_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes((WORDS * 20).encode() + b"\xff end")
    source = read_source(str(tmp_path))
    assert _read(source) == {"a.txt": WORDS * 20 + "\ufffd end"}
    assert list(source.left_out.lines()) == ["replacing bytes that are not utf-8 in 1 file: a.txt"]


def test_linked_folders_are_read_once_and_circles_end(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "texts"
    for folder in (outside / "deep", root / "real"):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text(f"in {folder.name}")
    (root / "link").symlink_to(outside)
    (root / "again").symlink_to(root / "real")
    (outside / "up").symlink_to(root)
    (root / "file.txt").symlink_to(outside / "deep" / "a.txt")
    (root / "broken.txt").symlink_to(root / "nothing")
    (root / "circle.txt").symlink_to(root / "circle.txt")
    source = read_source(str(root))
    assert list(_read(source)) == ["file.txt", "link/deep/a.txt", "real/a.txt"]
    assert sorted(source.left_out.lines()) == [
        "leaving out 2 files that cannot be opened as a file: broken.txt, circle.txt",
        "leaving out 2 folders linked to one that is read already: again/, link/up/",
    ]


def test_lines_have_the_ends_of_any_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.dataloader.decoding.PIECE_BYTES", 3)  # ends fall between pieces
    (tmp_path / "a").write_bytes(b"one\r\ntwo\rthree\n\r\nfour\r")
    assert list(lines_of(tmp_path / "a", Encoding("utf-8"))) == [
        "one", "two", "three", "", "four",
    ]  # fmt: skip


def test_a_large_file_is_read_in_pieces_and_split_like_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "book.txt"
    path.write_text("".join(f"line {k} - {WORDS}\n" for k in range(999)))
    small = Splits.of(read_source(str(path)), 0.2)
    monkeypatch.setattr(sources, "LARGE_BYTES", 1)
    monkeypatch.setattr("headway.dataloader.decoding.PIECE_BYTES", 1000)
    large = Splits.of(read_source(str(path)), 0.2)
    assert isinstance(next(iter(large.documents)), LargeDocument)
    assert large.corpus_sha256 == small.corpus_sha256
    for split in ("train", "validation"):
        (one,), (other,) = large.part(split), small.part(split)
        assert "".join(one.pieces()) == "".join(other.pieces())


def test_a_file_that_changes_between_two_passes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    source = read_source(str(tmp_path))
    list(source)
    (tmp_path / "a.txt").write_text("other words")
    with pytest.raises(InputError, match=r"a\.txt changed while it was read"):
        list(source)


def test_a_character_between_two_pieces_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.dataloader.decoding.PIECE_BYTES", 1)
    (tmp_path / "a").write_text(WORDS)
    found = encoding_of(tmp_path / "a")
    assert found == Encoding("utf-8")
    assert "".join(text_of(tmp_path / "a", found)) == WORDS


def test_a_link_to_a_folder_above_the_root_reads_nothing_twice(tmp_path: Path) -> None:
    root = tmp_path / "texts"
    (root / "below").mkdir(parents=True)
    (root / "below" / "a.txt").write_text("words " * 50)
    (tmp_path / "b.txt").write_text("words " * 50)
    (root / "up").symlink_to(tmp_path, target_is_directory=True)
    assert list(_read(read_source(str(root)))) == ["below/a.txt", "up/b.txt"]
