"""What do flight records and summaries of steps cost: bytes, files, processor time?

``python -m benchmarks.store --out benchmarks/results/store.json``

Eight ranks of one node write the records of the 175B schedule (tp 8, pp 8, v 6, 64 micro-batches)
into real rings for some minutes of made-up time, in steps of about 10 s; nothing is trained. After
each minute the saver runs as the agent starts it. ``agent`` is a real agent, which watches rings
that grow in real time.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import polars as pl
import psutil
from headway.common.node.event_files import event_files
from headway.common.node.flight import FlightReader
from headway.common.wire.messages.summaries import StepSummary
from headway.health.client import Saving
from headway.health.sources.flight import FlightSource
from headway.health.step_summaries import StepSummaries
from headway.testkit.played import health_bench
from headway.testkit.played.scheduled_rank import ScheduledRank

from benchmarks.report import finish, parser

RANKS, MINUTE_S, TP_EVERY = 8, 60.0, 16
LIMIT_RECORD_BYTES, LIMIT_FILES, LIMIT_SUMMARY_BYTES = 12.0, 2.0, 1500
LIMIT_AGENT_CORES, LIMIT_AGENT_MIB = 0.01, 60.0


def write_and_save(folder: Path, minutes: int, *, on_device: bool) -> dict[str, Any]:
    """Save some minutes of a node; bytes per record, files, and the saver's cost."""
    shm, events = folder / "shm", folder / "events"
    for made in (shm, events):
        made.mkdir()
    ranks = [
        ScheduledRank(shm / f"flight-{rank}.bin", rank, on_device=on_device)
        for rank in range(RANKS)
    ]
    costs, step = [], 0
    for _ in range(minutes):
        ends_ns = ranks[0].now_ns + int(MINUTE_S * 1e9)
        while ranks[0].now_ns < ends_ns:
            for rank in ranks:
                rank.step(step, with_tp=step % TP_EVERY == TP_EVERY - 1)
            step += 1
        costs.append(_cost_of_save(Saving(shm, events, 0)))
    files = [file.path for file in event_files(events)]
    num_records = sum(len(pl.read_parquet(path)) for path in files)
    for rank in ranks:
        rank.close()
    size = sum(path.stat().st_size for path in files)
    return {
        "minutes": minutes, "steps": step, "records": num_records,
        "bytes_per_record": round(size / num_records, 2),
        "files_per_minute": round(len(files) / minutes, 2),
        "mib_per_minute": round(size / minutes / 2**20, 3),
        "saver_cpu_s": round(statistics.median(cpu_s for cpu_s, _ in costs), 3),
        "saver_peak_mib": max(mib for _, mib in costs),
    }  # fmt: skip


def _cost_of_save(saving: Saving) -> tuple[float, int]:
    """Processor seconds and peak memory of one saver, in MiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not saving.run():
        raise RuntimeError("the saver failed, see above")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent_s, after.ru_maxrss // 1024


def largest_summary(folder: Path) -> tuple[int, int]:
    """Bytes of the largest summary of one rank and step, and the records it is made of."""
    sizes, num_records = [], 0
    for number in (0, 8 * 2 * 3, 8 * 2 * 7):  # the first stage, one in the middle, the last
        sub = folder / str(number)
        sub.mkdir()
        rank = ScheduledRank(sub / f"flight-{number}.bin", number)
        source, summaries = FlightSource(sub), StepSummaries(sub, "0" * 8, 1535)
        sent: list[StepSummary] = []

        def notify(message: StepSummary, sent: list[StepSummary] = sent) -> bool:
            sent.append(message)
            return True

        summaries.send(source.read(), notify)
        for step in (99_998, 99_999):
            rank.step(step, with_tp=step == 99_999)
            summaries.send(source.read(), notify)
        sizes += [len(msgspec.msgpack.encode(message)) for message in sent]
        with_reader = FlightReader(sub / f"flight-{number}.bin")
        num_records = max(num_records, int((with_reader.snapshot()["step"] == 99_998).sum()))
        with_reader.close()
        source.close()
        rank.close()
    return max(sizes), num_records


PROGRAM = """
import sys, time
from pathlib import Path
from headway.testkit.played.scheduled_rank import ScheduledRank
folder, ranks, step_s, seconds = Path(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:])
rings = [ScheduledRank(folder / f"flight-{rank}.bin", rank) for rank in range(ranks)]
print("up", flush=True)
for step in range(int(seconds / step_s)):
    for ring in rings:
        ring.now_ns = time.monotonic_ns() - int(step_s * 1e9)
        ring.step(step)
    time.sleep(step_s)
"""


def agent_cost(seconds: float) -> dict[str, float]:
    """Cores and memory of an agent of eight ranks that step every 10 s, without its saver."""
    with patch.object(health_bench, "QUICK", ()), health_bench.health_bench() as bench:
        (bench.root / "events").mkdir()
        bench.monitor()
        command = [sys.executable, "-c", PROGRAM, str(bench.root / "shm"), str(RANKS), "10"]
        with subprocess.Popen([*command, str(2 * seconds + 60)], stdout=subprocess.PIPE) as ranks:
            try:
                assert ranks.stdout is not None and ranks.stdout.readline() == b"up\n"
                agent = psutil.Process(bench.agent("--events", str(bench.root / "events")).pid)
                time.sleep(10)  # its start does not count
                began = agent.cpu_times()
                time.sleep(seconds)
                ended = agent.cpu_times()
                memory = agent.memory_full_info().pss
            finally:
                ranks.kill()
    spent_s = ended.user + ended.system - began.user - began.system
    return {"cores": round(spent_s / seconds, 4), "pss_mib": round(memory / 2**20, 1)}


def main() -> int:
    """Measure all; returns 0 when the limits hold."""
    options = parser(__doc__)
    options.add_argument("--minutes", type=int, default=3)
    options.add_argument("--agent-s", type=float, default=60.0)
    given = options.parse_args()
    found: dict[str, Any] = {}
    for name, on_device in (("cpu", False), ("gpu", True)):
        with tempfile.TemporaryDirectory() as folder:
            found[name] = write_and_save(Path(folder), given.minutes, on_device=on_device)
        print(json.dumps({name: found[name]}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        size, records = largest_summary(Path(folder))
    found["summary"] = {"bytes": size, "records": records, "record_bytes": 64 * records}
    print(json.dumps(found["summary"]), flush=True)
    if given.agent_s:
        found["agent"] = agent_cost(given.agent_s)
        print(json.dumps(found["agent"]), flush=True)
    return finish(given.out, list(_wrong(found)), ranks=RANKS, numpy=np.__version__, **found)


def _wrong(found: dict[str, Any]) -> list[str]:
    wrong = []
    for name in ("cpu", "gpu"):
        if (size := found[name]["bytes_per_record"]) > LIMIT_RECORD_BYTES:
            wrong.append(f"{name}: {size} bytes a record, not {LIMIT_RECORD_BYTES:g}")
        if (files := found[name]["files_per_minute"]) > LIMIT_FILES:
            wrong.append(f"{name}: {files} files a minute, not {LIMIT_FILES:g}")
    if (size := found["summary"]["bytes"]) > LIMIT_SUMMARY_BYTES:
        wrong.append(f"{size} bytes a summary, not {LIMIT_SUMMARY_BYTES}")
    agent = found.get("agent", {"cores": 0.0, "pss_mib": 0.0})
    if agent["cores"] > LIMIT_AGENT_CORES:
        wrong.append(f"the agent takes {agent['cores']} cores, not {LIMIT_AGENT_CORES}")
    if agent["pss_mib"] > LIMIT_AGENT_MIB:
        wrong.append(f"the agent takes {agent['pss_mib']} MiB, not {LIMIT_AGENT_MIB:g}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
