"""Log lines name who wrote them."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import threading
from headway.common.log import get_logger, identify, setup
log = get_logger("part")
setup("agent", run_id="0011aabb", node=0, rank=3)
log.info("hello", count=2)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
setup("worker", node=1)
log.warning("again")
identify(rank=2)
thread = threading.Thread(target=log.warning, args=("from a thread",))
thread.start()
thread.join()
"""


def test_log_lines_in_a_file_are_json_that_names_service_run_node_and_rank() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    first, second, third, fourth = map(json.loads, done.stderr.splitlines())
    assert (
        first.items()
        >= {
            "service": "agent",
            "run_id": "0011aabb",
            "node": 0,
            "rank": 3,
            "event": "hello",
            "count": 2,
            "level": "info",
        }.items()
    )
    assert "ZeroDivisionError" in second["exception"]
    assert (third["service"], third["node"], "rank" in third) == ("worker", 1, False)
    assert (fourth["service"], fourth["node"], fourth["rank"]) == ("worker", 1, 2)
    assert done.stdout == ""
