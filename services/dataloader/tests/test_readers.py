"""One living client per reader number; the last of them to close has the ring removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from headway.common.node.ring import RingHeldError
from headway.common.node.testing import child_environment, python_child, read_line, wait_until
from headway.common.wire.client import Client
from headway.common.wire.messages.dataloader import CloseStream, StreamClosed
from headway.dataloader.client import DataClient
from headway.dataloader.config import StreamSpec, stream_spec
from headway.testkit.data_daemon import Daemon, in_process, rows, running_daemon

READ = """
import sys, msgspec
from headway.dataloader.client import DataClient
from headway.dataloader.config import StreamSpec
spec = msgspec.json.decode(sys.argv[2], type=StreamSpec)
client = DataClient(sys.argv[1], spec=spec, reader=int(sys.argv[3]))
batches = [client.next().sample for _ in range(3)]
print("read", len(batches), flush=True)
sys.stdin.readline()
"""


def spec_of(corpus: Path, num_readers: int = 1, ring_slots: int = 4) -> StreamSpec:
    return stream_spec(
        corpus, seq_len=16, micro_batch_size=2, num_readers=num_readers, ring_slots=ring_slots
    )


def plain(spec: StreamSpec) -> str:
    return msgspec.json.encode(spec).decode()


def test_a_second_client_of_one_number_of_several_is_refused_and_disturbs_nobody(
    daemon: Daemon, corpus: Path
) -> None:
    spec = msgspec.structs.replace(spec_of(corpus), job="mine")
    with python_child(READ, daemon.endpoint, plain(spec), 0) as child:
        assert read_line(child) == "read 3"
        with pytest.raises(RingHeldError, match=rf"is process {child.pid}; close the reader"):
            DataClient(daemon.endpoint, spec=spec)
        assert len(daemon.files) == 1  # the first one's ring is still there
        assert child.poll() is None


def test_two_scripts_with_equal_settings_each_get_all_batches(daemon: Daemon, corpus: Path) -> None:
    spec = spec_of(corpus)
    with python_child(READ, daemon.endpoint, plain(spec), 0) as child:
        assert read_line(child) == "read 3"
        with DataClient(daemon.endpoint, spec=spec) as client:
            assert rows(client, 9) == in_process(spec, 9)
            assert len(daemon.files) == 2
        newer = msgspec.structs.replace(spec, generation=7, start_sample=4)
        with DataClient(daemon.endpoint, spec=newer) as client:  # a recovery of this job only
            assert rows(client, 9) == in_process(newer, 9)
            assert "ring-g0-d0-train.bin" in daemon.files
        wait_until(lambda: daemon.files == ["ring-g0-d0-train.bin"], what="rings that were left")


def test_the_ring_of_a_job_that_was_killed_is_removed(daemon: Daemon, corpus: Path) -> None:
    spec = spec_of(corpus)
    with DataClient(daemon.endpoint, spec=spec) as client:
        with python_child(READ, daemon.endpoint, plain(spec), 0) as child:
            assert read_line(child) == "read 3"
            assert len(daemon.files) == 2
            child.kill()
        wait_until(lambda: daemon.files == ["ring-g0-d0-train.bin"], what="one ring")
        assert rows(client, 5) == in_process(spec, 5)


def test_named_jobs_have_rings_and_generations_of_their_own(daemon: Daemon, corpus: Path) -> None:
    one = msgspec.structs.replace(spec_of(corpus), job="one", generation=3)
    two = msgspec.structs.replace(spec_of(corpus), job="two/../" + "x" * 300)
    with (
        DataClient(daemon.endpoint, spec=one) as first,
        DataClient(daemon.endpoint, spec=two) as second,
    ):
        assert rows(first, 5) == rows(second, 5) == in_process(spec_of(corpus), 5)
    wait_until(lambda: daemon.files == [], what="no ring")


@pytest.mark.parametrize("by_daemon", [False, True])
def test_a_fork_with_the_client_of_its_parent_gets_an_error_and_no_sample(
    by_daemon: bool, daemon: Daemon, corpus: Path
) -> None:
    code = f"""
import os
from headway.common.errors import InputError
from headway.dataloader import DataClient, stream_spec
spec = stream_spec({str(corpus)!r}, seq_len=16, micro_batch_size=2)
client = DataClient({daemon.endpoint if by_daemon else None!r}, spec=spec)
first = client.next().sample
child = os.fork()
if not child:
    try:
        for batch in client:
            os._exit(9)
    except InputError as error:
        client.close()
        os._exit(0 if "forked" in str(error) else 8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (first, client.next().sample) == (0, 2)
client.close()
"""
    done = subprocess.run([sys.executable, "-c", code], env=child_environment(), check=False)
    assert done.returncode == 0


def test_a_second_client_in_one_process_is_refused(daemon: Daemon, corpus: Path) -> None:
    spec = spec_of(corpus)
    with DataClient(daemon.endpoint, spec=spec) as client:
        assert rows(client, 5) == in_process(spec, 5)
        with pytest.raises(RingHeldError, match=f"process {os.getpid()}, this one; close"):
            DataClient(daemon.endpoint, spec=spec)
        assert rows(client, 3) == in_process(spec, 8)[5:]


def test_the_number_of_a_killed_reader_is_free_while_others_go_on(
    daemon: Daemon, corpus: Path
) -> None:
    spec = spec_of(corpus, num_readers=2)
    with DataClient(daemon.endpoint, spec=spec, reader=0) as living:
        with python_child(READ, daemon.endpoint, plain(spec), 1) as child:
            assert read_line(child) == "read 3"
            child.send_signal(signal.SIGKILL)
            child.wait()
        with DataClient(daemon.endpoint, spec=spec, reader=1) as heir:
            assert rows(living, 2) == in_process(spec, 2)
            assert heir.next().sample == 4  # what was taken and not given back comes again


def test_a_ring_goes_when_the_last_of_its_readers_closes_and_not_before(
    daemon: Daemon, corpus: Path
) -> None:
    spec = spec_of(corpus, num_readers=3)
    clients = [DataClient(daemon.endpoint, spec=spec, reader=reader) for reader in range(3)]
    for client in clients:
        client.next()
    clients[0].close()
    clients[1].close()
    daemon.status()
    assert daemon.files == ["ring-g0-d0-train.bin"]
    clients[2].close()
    wait_until(lambda: daemon.files == [], what="the ring's removal")


def test_a_late_word_that_all_left_does_not_remove_a_ring_made_anew(
    daemon: Daemon, corpus: Path
) -> None:
    spec = spec_of(corpus)
    DataClient(daemon.endpoint, spec=spec).close()
    with DataClient(daemon.endpoint, spec=spec) as client:
        late = CloseStream(generation=0, dp_rank=0, split="train", if_left=True)
        with Client(daemon.endpoint) as wire:
            wire.call(late, StreamClosed)
        assert rows(client, 6) == in_process(spec, 6)


def test_a_stream_closed_by_all_begins_anew_when_opened_again(daemon: Daemon, corpus: Path) -> None:
    spec = spec_of(corpus, num_readers=2)
    for _ in range(3):
        clients = [DataClient(daemon.endpoint, spec=spec, reader=reader) for reader in (0, 1)]
        for client in clients:
            assert rows(client, 2) == in_process(spec, 2)
        for client in clients:
            client.close()


def test_a_ring_left_while_no_daemon_was_there_is_removed_by_the_next(
    short_folder: Path, corpus: Path
) -> None:
    with running_daemon(short_folder) as daemon:
        client = DataClient(daemon.endpoint, spec=spec_of(corpus))
        client.next()
        daemon.kill()
        client.close()
        assert daemon.files == ["ring-g0-d0-train.bin"]
        daemon.start()
        wait_until(lambda: daemon.files == [], what="the ring's removal")


def test_closing_waits_for_no_daemon(daemon: Daemon, corpus: Path) -> None:
    client = DataClient(daemon.endpoint, spec=spec_of(corpus))
    os.kill(daemon.pid, signal.SIGSTOP)
    client.close()


def test_batches_are_the_callers_own_unless_it_wants_the_slots(
    daemon: Daemon, corpus: Path
) -> None:
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=2, num_samples=24)
    expected = [row[1] for row in in_process(spec, 12)]
    for source in (None, daemon.endpoint):
        with DataClient(source, spec=spec) as client:
            kept = list(client)
        assert [batch.tokens.tobytes() for batch in kept] == expected
        assert all(batch.tokens.flags.owndata and batch.labels.flags.owndata for batch in kept)
        kept[0].tokens[...] = 0
        assert kept[0].labels.any()
        with DataClient(source, spec=spec, copy=False) as client:
            batch = client.next()
            for view in (batch.tokens, batch.labels, batch.mask):
                assert not view.flags.writeable and not view.flags.owndata
