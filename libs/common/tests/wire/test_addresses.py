"""Interfaces, networks and ranges of ports become addresses of this machine, or are refused."""

from __future__ import annotations

import socket

import pytest
from headway.common.errors import ConfigError, InputError
from headway.common.wire.addresses import Network, address_of, each_port, interface_of
from headway.common.wire.keys import KeyPair
from headway.common.wire.server import Server


def test_the_default_is_loopback_and_any_port() -> None:
    network = Network()
    assert network.endpoint == "tcp://127.0.0.1:0"
    assert network.fabric_address == "127.0.0.1"


@pytest.mark.parametrize("chosen", ["lo", "127.0.0.0/8", "127.0.0.1", "127.1.2.3/8"])
def test_an_interface_a_network_and_an_address_name_the_same(chosen: str) -> None:
    assert address_of(chosen) == "127.0.0.1"


def test_every_loopback_address_belongs_to_this_machine() -> None:
    assert address_of("127.0.0.9") == "127.0.0.9"
    assert interface_of("127.0.0.9") == interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None


def test_the_fabric_is_the_interface_unless_it_is_named() -> None:
    assert Network("127.0.0.7").fabric_address == "127.0.0.7"
    assert Network("127.0.0.7", "lo").fabric_address == "127.0.0.1"


@pytest.mark.parametrize("chosen", ["eth77", "203.0.113.0/24", "203.0.113.7"])
def test_what_this_machine_lacks_is_refused_with_a_list_of_what_it_has(chosen: str) -> None:
    with pytest.raises(InputError, match=chosen) as refused:
        address_of(chosen)
    assert refused.value.remedy is not None
    assert "lo (127.0.0.1" in refused.value.remedy


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("interface", "0.0.0.0"),
        ("interface", "::"),
        ("fabric", "0.0.0.0/0"),
        ("interface", "two words"),
        ("fabric", "a-name-that-is-too-long"),
        ("ports", "20000"),
        ("ports", "2000-1000"),
        ("ports", "80-90"),
        ("ports", "60000-70000"),
        ("ports", "low-high"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_key_and_value(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"launch\.{key}='{value}'") as refused:
        Network(**{key: value})
    assert refused.value.remedy


def test_every_port_of_a_range_is_tried_once() -> None:
    assert sorted(each_port("20000-20009")) == [*range(20000, 20010)]
    assert [*each_port("7")] == [7]


def test_servers_take_the_free_ports_of_a_range_and_then_say_that_it_is_used_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        low = taken.getsockname()[1]
        if not _is_free(low + 1):
            pytest.skip(f"port {low + 1} is in use")
        keys, endpoint = KeyPair.generate(), f"tcp://127.0.0.1:{low}-{low + 1}"
        with Server(endpoint, {}, keys) as server:
            assert server.endpoint == f"tcp://127.0.0.1:{low + 1}"
            with pytest.raises(InputError, match=rf"{low}-{low + 1} are all in use"):
                Server(endpoint, {}, keys)


def test_a_range_that_runs_backwards_is_no_endpoint() -> None:
    with pytest.raises(InputError, match="no such endpoint"):
        Server("tcp://127.0.0.1:30000-20000", {}, KeyPair.generate())


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
