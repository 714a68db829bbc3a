"""Trouble that may pass is waited through; what fails in one stream stops no other."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest
from headway.common.errors import CorruptError, DeadlineError
from headway.common.node.testing import wait_until
from headway.common.wire.messages.service import ServiceBeat
from headway.common.wire.server import Server
from headway.dataloader import filled_stream
from headway.dataloader.blocks import ReadError
from headway.dataloader.client import DataClient
from headway.dataloader.config import stream_spec
from headway.dataloader.digests import digests_path
from headway.dataloader.formats import bin_path
from headway.dataloader.prefetch import Prefetcher
from headway.dataloader.trouble import Trouble, error_path, read_trouble, write_trouble
from headway.testkit.data_daemon import in_process, rows, running_daemon, write_tokens

from services.dataloader.tests.bad_disk import BadDisk


def errors(bad_disk: BadDisk) -> list[str]:
    return [row.error for row in bad_disk.daemon.status().streams if row.error]


@pytest.mark.parametrize("word", ["EIO", "ESTALE", "ETIMEDOUT"])
def test_a_read_that_fails_for_a_while_costs_a_waiting_reader_only_time(
    bad_disk: BadDisk, tmp_path: Path, word: str
) -> None:
    prefix = write_tokens(tmp_path / "x", [300])
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=2, ring_slots=2)
    with DataClient(bad_disk.daemon.endpoint, spec=spec) as client:
        found = rows(client, 1)
        bad_disk.fails_with(word)
        waiter = threading.Thread(target=lambda: found.extend(rows(client, 9)))
        waiter.start()
        wait_until(lambda: bool(errors(bad_disk)), what="the trouble in the status")
        assert re.search(rf"x\.bin at byte \d+: .*\({word}\)", errors(bad_disk)[0])
        bad_disk.is_well()
        waiter.join()
        assert found == in_process(spec, 10)
        wait_until(lambda: not errors(bad_disk), what="the end of the trouble")
        assert bad_disk.daemon.files == ["ring-g0-d0-train.bin"]


def test_a_reader_that_gives_up_says_what_failed_and_for_how_long(
    bad_disk: BadDisk, tmp_path: Path
) -> None:
    prefix = write_tokens(tmp_path / "x", [300])
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=2, ring_slots=2)
    bad_disk.fails_with("EIO")
    with DataClient(bad_disk.daemon.endpoint, spec=spec, timeout_s=3.0) as client:
        wait_until(lambda: bool(errors(bad_disk)), what="the trouble in the status")
        with pytest.raises(
            DeadlineError, match=r"within 3 s: .*\(EIO\), for \d+ s now; check the disk"
        ):
            client.next()


def test_a_daemon_that_cannot_read_when_asked_to_open_is_asked_again(
    bad_disk: BadDisk, tmp_path: Path
) -> None:
    prefix = write_tokens(tmp_path / "x", [300])
    digests_path(prefix).unlink()
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=2)
    bad_disk.fails_with("EIO")
    asked: list[int] = []

    def abort() -> bool:
        asked.append(1)
        if len(asked) == 15:
            bad_disk.is_well()
        return False

    with DataClient(bad_disk.daemon.endpoint, spec=spec, abort=abort) as client:
        assert rows(client, 3) == in_process(spec, 3)


def test_lasting_trouble_is_raised_at_once(bad_disk: BadDisk, tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [300])
    bin_path(prefix).write_bytes(bytes(600))
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=2)
    with (
        DataClient(bad_disk.daemon.endpoint, spec=spec, timeout_s=600) as client,
        pytest.raises(CorruptError, match="do not match"),
    ):
        client.next()


def test_trouble_keeps_the_time_it_began_and_any_file_name(tmp_path: Path) -> None:
    name = Path(os.fsdecode(b"n\xe4me"))
    first = Trouble.of(ReadError(name, 7, OSError(5, "Input/output error")), None)
    later = Trouble.of(ReadError(name, 9, OSError(5, "Input/output error")), first)
    assert later.is_transient and later.since_s == first.since_s
    lasting = Trouble.of(CorruptError("damaged"), later)
    assert not lasting.is_transient and lasting.since_s >= first.since_s
    write_trouble(tmp_path / "ring.bin", later)
    assert read_trouble(tmp_path / "ring.bin") == later
    assert "n\\udce4me at byte 9" in later.message


def test_a_bug_met_in_one_stream_does_not_end_the_filling_of_others(
    ring_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = write_tokens(tmp_path / "good", [300])
    bad = write_tokens(tmp_path / "bad", [300])
    bin_path(bad).write_bytes(bytes(600))
    real = filled_stream.write_trouble

    def fail(ring: Path, trouble: Trouble) -> None:
        if "d0" in ring.name:
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "no surrogates")
        real(ring, trouble)

    monkeypatch.setattr(filled_stream, "write_trouble", fail)
    prefetcher = Prefetcher(ring_folder)
    prefetcher.start()
    try:
        for rank, prefix in enumerate((bad, good)):
            spec = stream_spec(prefix, seq_len=8, micro_batch_size=1, dp_rank=rank, dp_size=2)
            prefetcher.open(spec)
        wait_until(lambda: prefetcher.num_batches == 16, what="a full ring of the good stream")
        turns = prefetcher.num_turns
        wait_until(lambda: prefetcher.num_turns > turns, what="a further turn")
    finally:
        prefetcher.stop(unlink=True)


def test_the_beats_tell_a_thread_that_hangs_from_rings_that_are_full(
    bad_disk: BadDisk, short_folder: Path, tmp_path: Path
) -> None:
    beats: list[ServiceBeat] = []
    endpoint = f"ipc://{short_folder}/e.sock"
    bad_disk.daemon.kill()
    bad_disk.daemon.command += ["--executor", endpoint]
    with Server(endpoint, {ServiceBeat: lambda beat, _peer: beats.append(beat)}) as executor:

        def num_heard() -> int:
            executor.handle_ready()
            return len(beats)

        def moves(count: int) -> bool:
            """Whether progress moved over the next ``count`` beats."""
            start = num_heard()
            wait_until(lambda: num_heard() >= start + count, what="beats")
            return beats[-1].progress > beats[start].progress

        bad_disk.daemon.start()
        prefix = write_tokens(tmp_path / "x", [300])
        spec = stream_spec(prefix, seq_len=8, micro_batch_size=1, ring_slots=2)
        with DataClient(bad_disk.daemon.endpoint, spec=spec) as client:
            assert moves(4)  # the ring is full
            bad_disk.fails_with("hang")
            rows(client, 2)
            wait_until(lambda: not moves(2), what="progress that stands")
            assert bad_disk.daemon.status().streams[0].filled >= 2  # it answers all the same
            bad_disk.is_well()
            wait_until(lambda: moves(2), what="progress")


def test_trouble_left_by_a_killed_daemon_ends_with_the_first_slot_of_its_heir(
    bad_disk: BadDisk, tmp_path: Path
) -> None:
    prefix = write_tokens(tmp_path / "x", [300])
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=1, ring_slots=2)
    with DataClient(bad_disk.daemon.endpoint, spec=spec) as client:
        rows(client, 1)
        wait_until(lambda: bad_disk.daemon.status().streams[0].filled >= 2, what="the next slot")
        bad_disk.fails_with("EIO")
        rows(client, 1)
        wait_until(lambda: bool(errors(bad_disk)), what="the trouble in the status")
        bad_disk.daemon.kill()
        bad_disk.is_well()
        bad_disk.daemon.start()
        assert rows(client, 5) == in_process(spec, 7)[2:]
        ring = bad_disk.daemon.shm_dir / "ring-g0-d0-train.bin"
        wait_until(lambda: not error_path(ring).exists(), what="the end of the trouble")


def test_a_daemon_with_nothing_wrong_has_no_error_file(short_folder: Path, corpus: Path) -> None:
    with running_daemon(short_folder) as daemon:
        spec = stream_spec(corpus, seq_len=8, micro_batch_size=1)
        with DataClient(daemon.endpoint, spec=spec) as client:
            rows(client, 20)
            assert daemon.files == ["ring-g0-d0-train.bin"]
