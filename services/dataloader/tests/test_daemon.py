"""A real daemon: the same batches as in process, through kills, repairs and new generations."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.common.node.ring import RingAbortedError, RingReader
from headway.common.node.testing import child_environment, no_leaks, wait_until
from headway.common.wire.client import Client
from headway.common.wire.messages.dataloader import (
    CloseStream,
    OpenStream,
    StreamClosed,
    StreamOpened,
)
from headway.common.wire.messages.service import Describe, Description
from headway.dataloader.client import DataClient
from headway.dataloader.config import StreamSpec, stream_spec
from headway.testkit.data_daemon import Daemon, full, in_process, rows, running_daemon
from structlog.testing import capture_logs


def test_daemon_and_process_give_equal_bits_on_both_splits_and_all_dp_ranks(
    daemon: Daemon, corpus: Path
) -> None:
    specs = [
        stream_spec(
            corpus,
            split=split,
            seq_len=24,
            micro_batch_size=3,
            global_batch_size=15,
            dp_rank=rank,
            dp_size=2,
            ring_slots=4,
        )
        for split in ("train", "validation")
        for rank in (0, 1)
    ]
    clients = [DataClient(daemon.endpoint, spec=spec) for spec in specs]
    for client, spec in zip(clients, specs, strict=True):
        assert rows(client, 40) == in_process(spec, 40)
    assert {row.spec.dp_rank for row in daemon.status().streams} == {0, 1}
    for client in clients:
        client.close()


def test_the_views_of_a_batch_cannot_be_written(daemon: Daemon, corpus: Path) -> None:
    for source in (daemon.endpoint, None):
        spec = stream_spec(corpus, seq_len=8, micro_batch_size=2)
        with DataClient(source, spec=spec, copy=False) as client:
            batch = client.next()
            for view in (batch.tokens, batch.labels, batch.mask):
                assert (view.shape, view.flags.writeable) == ((2, 8), False)
            assert (batch.tokens.dtype, batch.labels.dtype, batch.mask.dtype) == (
                np.int32,
                np.int32,
                np.uint8,
            )


def test_several_readers_each_get_every_batch_and_the_slowest_holds_the_ring(
    daemon: Daemon, corpus: Path
) -> None:
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=2, num_readers=3, ring_slots=4)
    clients = [DataClient(daemon.endpoint, spec=spec, reader=reader) for reader in range(3)]
    expected = in_process(spec, 12)
    assert rows(clients[0], 4) == expected[:4]
    wait_until(lambda: daemon.status().streams[0].filled == 4, what="a full ring")
    with pytest.raises(RingAbortedError):
        clients[0].next(abort=lambda: True)
    threads = [
        threading.Thread(target=lambda c=c: results.append(rows(c, 12))) for c in clients[1:]
    ]
    results: list[list[tuple[int, bytes, bytes, bytes]]] = []
    for thread in threads:
        thread.start()
    assert rows(clients[0], 8) == expected[4:]
    for thread in threads:
        thread.join()
    assert results == [expected, expected]
    for client in clients:
        client.close()


def test_a_killed_daemon_is_replaced_without_any_reader_noticing(
    daemon: Daemon, corpus: Path
) -> None:
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=2, ring_slots=3, start_sample=6)
    expected = in_process(spec, 60)
    with DataClient(daemon.endpoint, spec=spec, timeout_s=60) as client:
        assert rows(client, 10) == expected[:10]
        for at in (10, 20, 30):
            wait_until(lambda: full(daemon), what="a full ring")
            daemon.kill()
            found = [rows(client, 2)]  # what was prefetched outlives the daemon
            waiter = threading.Thread(target=lambda got=found: got.append(rows(client, 8)))
            waiter.start()
            daemon.start()
            waiter.join()
            assert found[0] + found[1] == expected[at : at + 10]
        assert rows(client, 20) == expected[40:]


def test_a_daemon_killed_in_the_middle_of_a_slot_writes_it_again(
    short_folder: Path, corpus: Path
) -> None:
    from headway.common.node.arming import arm, fired
    from headway.common.node.run_dir import NodePaths
    from headway.common.node.testing import private_roots

    with private_roots():
        paths = NodePaths("0123abcd", 0).create()
        with running_daemon(short_folder, "--run-id", "0123abcd", "--node", "0") as daemon:
            arm(paths.failpoints, "ring.publish", where={"seq": 5}, key="mid-slot")
            spec = stream_spec(corpus, seq_len=16, micro_batch_size=2, ring_slots=3)
            with DataClient(daemon.endpoint, spec=spec) as client:
                assert rows(client, 4) == in_process(spec, 4)
                wait_until(lambda: "mid-slot" in fired(paths.failpoints), what="the kill")
                daemon.kill()
                daemon.start()
                assert rows(client, 10) == in_process(spec, 14)[4:]


def test_a_reader_gives_up_on_a_dead_daemon_after_its_own_time_and_says_so(
    daemon: Daemon, corpus: Path
) -> None:
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=2, ring_slots=2)
    with DataClient(daemon.endpoint, spec=spec, timeout_s=30.0) as client:
        rows(client, 1)
        daemon.kill()
        client._source._timeout_s = 0.2  # type: ignore[attr-defined]
        with pytest.raises(DeadlineError, match="its writer is dead"):
            rows(client, 10)


def test_a_waiting_reader_listens_to_its_caller(daemon: Daemon, corpus: Path) -> None:
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=2, ring_slots=2)
    with DataClient(daemon.endpoint, spec=spec) as client:
        rows(client, 1)
        daemon.kill()
        asked: list[int] = []

        def abort() -> bool:
            asked.append(1)
            return len(asked) > 30

        with pytest.raises(RingAbortedError):
            while True:
                client.next(abort)


def test_opening_twice_gives_one_ring_and_another_spec_is_refused(
    daemon: Daemon, corpus: Path
) -> None:
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=2, num_readers=2)
    with Client(daemon.endpoint) as client:
        first = client.call(OpenStream(spec=spec), StreamOpened)
        assert client.call(OpenStream(spec=spec), StreamOpened) == first
        with pytest.raises(
            HeadwayError, match="seq_len=16, but 8 was requested; open it with a new generation"
        ):
            client.call(OpenStream(spec=msgspec.structs.replace(spec, seq_len=8)), StreamOpened)
        assert daemon.files == ["ring-g0-d0-train.bin"]
        spec_of_ring = msgspec.json.decode(RingReader(Path(first.path), 0).spec)
        assert (spec_of_ring["seq_len"], spec_of_ring["fingerprint"]) == (16, first.fingerprint)


def test_a_newer_generation_removes_the_rings_of_older_ones(daemon: Daemon, corpus: Path) -> None:
    def spec(generation: int, rank: int, split: str = "train") -> StreamSpec:
        return stream_spec(
            corpus,
            seq_len=16,
            micro_batch_size=2,
            dp_rank=rank,
            dp_size=2,
            generation=generation,
            split=split,
            num_readers=2,
        )

    clients = [DataClient(daemon.endpoint, spec=spec(3, rank)) for rank in (0, 1)]
    clients.append(DataClient(daemon.endpoint, spec=spec(3, 0, "validation")))
    assert len(daemon.files) == 3
    clients.append(DataClient(daemon.endpoint, spec=spec(4, 1)))
    assert daemon.files == ["ring-g4-d1-train.bin"]
    assert rows(clients[0], 1) == in_process(spec(3, 0), 1)  # what was handed out stays readable
    with pytest.raises(InputError, match="generation 3 is over, 4 is open"):
        DataClient(daemon.endpoint, spec=spec(3, 0))
    for client in clients:
        client.close()


def test_a_single_reader_that_was_killed_begins_anew(daemon: Daemon, corpus: Path) -> None:
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=2)
    code = (
        "import sys, os, signal, msgspec\n"
        "from headway.dataloader.client import DataClient\n"
        "from headway.dataloader.config import StreamSpec\n"
        "client = DataClient(sys.argv[1], spec=msgspec.json.decode(sys.argv[2], type=StreamSpec))\n"
        "[client.next() for _ in range(5)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    arguments = [sys.executable, "-c", code, daemon.endpoint, msgspec.json.encode(spec).decode()]
    assert (
        subprocess.run(arguments, env=child_environment(), check=False).returncode
        == -signal.SIGKILL
    )
    assert daemon.files == ["ring-g0-d0-train.bin"]
    with DataClient(daemon.endpoint, spec=spec) as client:
        assert rows(client, 3) == in_process(spec, 3)


def test_closing_the_only_reader_removes_the_ring_and_leaks_nothing(
    daemon: Daemon, corpus: Path
) -> None:
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=2)
    # the process-wide ZeroMQ context is made once
    with DataClient(daemon.endpoint, spec=spec) as client:
        client.next()
    wait_until(lambda: daemon.files == [], what="the ring's removal")
    with no_leaks(daemon.shm_dir):
        client = DataClient(daemon.endpoint, spec=spec)
        client.next()
        client.close()
        client.close()
        wait_until(lambda: daemon.files == [], what="the ring's removal")
    with Client(daemon.endpoint) as wire:
        again = CloseStream(generation=0, dp_rank=0, split="train")
        assert wire.call(again, StreamClosed) == StreamClosed()


def test_a_daemon_alone_removes_its_rings_at_a_clean_end(daemon: Daemon, corpus: Path) -> None:
    client = DataClient(daemon.endpoint, spec=stream_spec(corpus, seq_len=16, micro_batch_size=2))
    assert daemon.files == ["ring-g0-d0-train.bin"]
    assert daemon.stop() == 0
    assert daemon.files == []
    client.close()


def test_a_daemon_under_an_executor_leaves_its_rings_and_beats_with_progress(
    short_folder: Path, corpus: Path
) -> None:
    from headway.common.wire.messages.service import ServiceBeat
    from headway.common.wire.server import Server

    beats: list[ServiceBeat] = []
    endpoint = f"ipc://{short_folder}/e.sock"
    with (
        Server(endpoint, {ServiceBeat: lambda beat, _peer: beats.append(beat)}) as executor,
        running_daemon(short_folder, "--executor", endpoint) as daemon,
    ):

        def heard() -> int:
            executor.handle_ready()
            return beats[-1].progress if beats else -1

        client = DataClient(
            daemon.endpoint, spec=stream_spec(corpus, seq_len=16, micro_batch_size=2, ring_slots=4)
        )
        wait_until(lambda: full(daemon), what="a full ring")
        wait_until(lambda: heard() > 4, what="beats that move beyond the four batches there are")
        assert (beats[-1].name, beats[-1].pid) == ("dataloader", daemon.pid)
        assert daemon.stop() == 0
        assert daemon.files == ["ring-g0-d0-train.bin"]
        daemon.start()
        assert rows(client, 8) == in_process(client.spec, 8)
        client.close()


def test_a_full_shared_memory_is_one_clear_refusal(daemon: Daemon, corpus: Path) -> None:
    spec = stream_spec(corpus, seq_len=1 << 20, micro_batch_size=1024, ring_slots=128)
    with pytest.raises(InputError):
        DataClient(daemon.endpoint, spec=spec)
    tokens = stream_spec(corpus, seq_len=16, micro_batch_size=1 << 20, ring_slots=1 << 12)
    with pytest.raises(InputError, match="no room"):
        DataClient(daemon.endpoint, spec=tokens)
    assert daemon.files == []


def test_a_leftover_that_is_no_ring_stops_nobody(short_folder: Path, corpus: Path) -> None:
    with running_daemon(short_folder) as daemon:
        daemon.kill()
        (daemon.shm_dir / "ring-g0-d0-train.bin").write_bytes(b"rubbish" * 1000)
        daemon.start()
        with DataClient(
            daemon.endpoint, spec=stream_spec(corpus, seq_len=16, micro_batch_size=2)
        ) as client:
            rows(client, 20)


def test_the_daemon_describes_itself(daemon: Daemon) -> None:
    with Client(daemon.endpoint) as client:
        facts = client.call(Describe(), Description)
    assert (facts.name, facts.state["streams"]) == ("dataloader", 0)
    assert "dataloader.open_stream/1" in facts.messages


def test_no_daemon_is_an_error_after_the_clients_time(short_folder: Path, corpus: Path) -> None:
    with pytest.raises(DeadlineError, match="no dataloader answers"):
        DataClient(
            f"ipc://{short_folder}/none.sock",
            spec=stream_spec(corpus, seq_len=8, micro_batch_size=1),
            timeout_s=0.2,
        )


def test_a_wait_for_a_daemon_is_reported_once_and_before_it_is_over(
    short_folder: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.dataloader.ring_source._SILENT_S", 0.1)
    endpoint = f"ipc://{short_folder}/none.sock"
    spec = stream_spec(corpus, seq_len=8, micro_batch_size=1)
    with capture_logs() as logs, pytest.raises(DeadlineError):
        DataClient(endpoint, spec=spec, timeout_s=1.0)
    (line,) = logs
    assert line["event"] == "there is no dataloader at that address yet"
    assert (line["endpoint"], line["log_level"]) == (endpoint, "warning") and line["remedy"]


def test_a_stopped_daemon_that_is_ended_leaves_its_rings_to_the_next(
    daemon: Daemon, corpus: Path
) -> None:
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=2, ring_slots=2)
    with DataClient(daemon.endpoint, spec=spec) as client:
        wait_until(lambda: full(daemon), what="a full ring")
        os.kill(daemon.pid, signal.SIGSTOP)
        assert len(rows(client, 2)) == 2
        daemon.kill()
        daemon.start()
        assert rows(client, 6) == in_process(spec, 8)[2:]


def test_status_is_plain_json(daemon: Daemon) -> None:
    assert json.loads(msgspec.json.encode(daemon.status()))["num_batches"] == 0
