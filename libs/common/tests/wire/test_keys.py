"""Keys stay secret, and only literal loopback addresses go without them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from headway.common.errors import CorruptError, InputError
from headway.common.wire.keys import KeyPair, check_endpoint
from headway.common.wire.server import Server


def test_a_saved_pair_loads_again_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    pair = KeyPair.generate()
    before = os.umask(0)
    try:
        pair.save(tmp_path / "keys" / "run.key")
    finally:
        os.umask(before)
    assert KeyPair.load(tmp_path / "keys" / "run.key") == pair
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "keys" / "run.key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["run.key"]


def test_processes_of_one_number_make_one_pair_in_a_shared_folder(tmp_path: Path) -> None:
    """As on several machines; the threads of one process have one number, too."""
    for turn in range(40):
        path = tmp_path / str(turn) / "run.key"
        with ThreadPoolExecutor(8) as threads:
            pairs = set(threads.map(lambda _, path=path: KeyPair.load_or_make(path), range(8)))
        assert len(pairs) == 1
        assert [one.name for one in path.parent.iterdir()] == ["run.key"]


def test_the_secret_half_is_never_shown() -> None:
    pair = KeyPair.generate()
    assert pair.secret.decode() not in repr(pair)
    assert pair.secret.decode() not in f"{pair}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_key_file_that_others_may_touch_is_refused_with_the_remedy(
    tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "run.key"
    KeyPair.generate().save(path)
    path.chmod(mode)
    with pytest.raises(InputError, match=f"chmod 600 {path}"):
        KeyPair.load(path)


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    first = KeyPair.generate()
    first.save(tmp_path / "run.key")
    with pytest.raises(InputError, match="exists already"):
        KeyPair.generate().save(tmp_path / "run.key")
    assert KeyPair.load(tmp_path / "run.key") == first


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.key"):
        KeyPair.load(tmp_path / "nowhere.key")


def test_damaged_or_mixed_halves_are_refused(tmp_path: Path) -> None:
    one, two = KeyPair.generate(), KeyPair.generate()
    for number, text in enumerate(
        (b"", b"public = x\nsecret = y\n", one.public, b"public = %s\n" % one.public)
    ):
        path = tmp_path / f"{number}.key"
        path.write_bytes(text)
        path.chmod(0o600)
        with pytest.raises(CorruptError):
            KeyPair.load(path)
    KeyPair(one.public, two.secret).save(tmp_path / "mixed.key")
    with pytest.raises(CorruptError):
        KeyPair.load(tmp_path / "mixed.key")


EVERY_INTERFACE = [
    "tcp://0.0.0.0:5555",
    "tcp://*:5555",
    "tcp://[::]:0",
    "tcp://[::ffff:0.0.0.0]:5555",
    "tcp://0:20000-20999",
    "tcp://0x0:*",
]


@pytest.mark.parametrize("endpoint", EVERY_INTERFACE)
def test_nothing_listens_on_every_interface(endpoint: str) -> None:
    for keys in (None, KeyPair.generate()):
        with pytest.raises(InputError, match="means every interface") as caught:
            Server(endpoint, {}, keys=keys)
        assert "name one address or interface" in caught.value.remedy


OFF_LOOPBACK = [
    "tcp://10.0.0.1:5555",
    "tcp://localhost:5555",
    "tcp://node-1:5555",
    "tcp://eth0:5555",
    "tcp://lo:5555",
    "tcp://127.0.0.1.example.com:5555",
    "tcp://2130706433:5555",
    "tcp://[fe80::1]:5555",
]


@pytest.mark.parametrize("endpoint", OFF_LOOPBACK)
def test_leaving_the_machine_without_keys_is_refused(endpoint: str) -> None:
    with pytest.raises(InputError, match="give it CURVE keys"):
        check_endpoint(endpoint, None)
    with pytest.raises(InputError, match="give it CURVE keys"):
        Server(endpoint, {})
    check_endpoint(endpoint, KeyPair.generate())


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:0", "tcp://127.8.9.10:5555", "tcp://[::1]:*", "ipc:///tmp/x.sock"]
)
def test_loopback_and_ipc_go_without_keys(endpoint: str) -> None:
    check_endpoint(endpoint, None)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "127.0.0.1:5555",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:70000",
        "tcp://127.0.0.1:5555;127.0.0.1:1",
        "tcp://127.0.0.1:-1",
        "http://127.0.0.1:80",
        "udp://127.0.0.1:80",
        "ipc://",
        "ipc://@abstract",
        "ipc://*",
        "ipc://relative.sock",
        "ipc:///tmp/" + "x" * 100,
    ],
)
def test_a_malformed_endpoint_is_refused_with_or_without_keys(endpoint: str) -> None:
    for keys in (None, KeyPair.generate()):
        with pytest.raises(InputError) as caught:
            check_endpoint(endpoint, keys)
        assert caught.value.remedy
