"""A driver whose port is flooded by strangers who have no key."""

from __future__ import annotations

import resource

from headway.common.polling import wait_until
from headway.common.wire.messages.driver import GetStatus, Relay, Status
from headway.common.wire.messages.executor import StoreOpened, ToWorker
from headway.testkit.played.place import LIMIT_S, Place, begin, place_console
from headway.testkit.wire.strangers import strangers


def test_strangers_who_take_every_descriptor_stop_neither_lease_nor_journal(place: Place) -> None:
    driver, log = place.start(), place.run.path / "driver.log"
    node = begin(place)
    resource.prlimit(driver.pid, resource.RLIMIT_NOFILE, (450, 450))
    with strangers(place.holder().endpoint, 700):
        assert wait_until(lambda: "new connections are refused" in log.read_text(), LIMIT_S)
        beat = place.holder().beat
        node.client.notify(place.beat("joining", generation=0, rank=0))
        assert wait_until(lambda: place.holder().beat > beat + 10, LIMIT_S), "it is renewed"
        node.client.notify(Relay(node=0, store=StoreOpened(generation=0, host="h", port=1)))
        node.wait_for(ToWorker, store_generation=0)
        node.client.notify(place.beat("running", generation=0, rank=0, step=1))
        stepping = "SELECT 1 FROM events WHERE name = 'stepping'"
        assert wait_until(lambda: bool(place.rows(stepping)), LIMIT_S)
    with place_console(place) as console:
        assert console.call(GetStatus(), Status).phase == "running"
    assert place.holder().epoch == 1
