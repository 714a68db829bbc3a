"""A machine that vanishes without a word: who sends to it notices in 10 s, and is back soon after.

Two network namespaces with a cable between them; the far end forgets its address, so that packets
vanish silently.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.node.testing import child_environment

FAR = """
import sys
from pathlib import Path
from headway.common.wire.keys import KeyPair
from headway.common.wire.server import Server
from headway.common.wire.service import Service
sys.stdin.readline()  # until it has its address
keys = KeyPair.load(Path(sys.argv[1]))
server = Server("tcp://10.9.0.2:7777", {}, keys=keys, allowed={keys.public})
print("up", flush=True)
Service("far", server).run()
"""

NEAR = """
import subprocess, sys, time
from pathlib import Path
import zmq
from zmq.utils.monitor import parse_monitor_message
from headway.common.node.testing import wait_until
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.service import Ping, Pong

def ip(words): subprocess.run(["ip", *words.split()], check=True)

def far_ip(words):
    there = ["nsenter", "-t", str(far.pid), "-n"]
    subprocess.run([*there, "ip", *words.split()], check=True)

keys = KeyPair.generate()
keys.save(Path(sys.argv[1]))
far = subprocess.Popen(["unshare", "-n", sys.executable, "-c", sys.argv[2], sys.argv[1]],
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
try:
    here = Path("/proc/self/ns/net").readlink()
    there = Path(f"/proc/{far.pid}/ns/net")
    wait_until(lambda: there.readlink() != here, what="a second namespace")
    ip("link add near type veth peer name far")
    ip(f"link set far netns {far.pid}")
    for end, number, run in (("near", 1, ip), ("far", 2, far_ip)):
        run(f"addr add 10.9.0.{number}/24 dev {end}")
        run(f"link set {end} up")
    far.stdin.write("go\\n")
    far.stdin.flush()
    assert far.stdout.readline() == "up\\n"
    client = Client("tcp://10.9.0.2:7777", keys=keys, server_key=keys.public)
    assert client.call(Ping(), Pong, timeout_s=20).name == "far"
    events = client.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    # the neighbour stays known, so that packets leave and vanish
    lladdr = subprocess.check_output(["ip", "neigh", "show", "10.9.0.2"], text=True).split()[4]
    ip(f"neigh replace 10.9.0.2 lladdr {lladdr} dev near nud permanent")
    far_ip("addr del 10.9.0.2/24 dev far")

    def ended():
        client.notify(Ping())
        return bool(events.poll(250))

    wait_until(ended, 30.0, "the end of the half-open connection")
    assert parse_monitor_message(events.recv_multipart())["event"] == zmq.EVENT_DISCONNECTED
    far_ip("addr add 10.9.0.2/24 dev far")
    assert client.call(Ping(), Pong, timeout_s=10.0).pid == far.pid
    client.socket.disable_monitor()
    client.close()
    print("noticed, and back")
finally:
    far.kill()
    far.wait()
"""


def test_who_sends_to_a_vanished_machine_notices_and_is_back_after_it_returned(
    tmp_path: Path,
) -> None:
    if subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no network namespace can be made here")
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", NEAR, tmp_path / "key", FAR],
        capture_output=True,
        text=True,
        env=child_environment(),
        timeout=120,
        check=False,
    )
    assert done.stdout.endswith("noticed, and back\n"), done.stdout + done.stderr
