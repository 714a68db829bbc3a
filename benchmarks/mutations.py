"""Does each check fail when what it guards is broken?
``python -m benchmarks.mutations [--only NAME]``.

Every mutation changes one place of a copy of the source and runs the test that must catch it; it
survives when that test passes. The copy comes first on the path of the test and of every process
that it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAINER = "services/trainer/src/headway/trainer"
STORE = "services/ckpt_store/src/headway/ckpt_store"
LOADER = "services/dataloader/src/headway/dataloader"
NODE = "libs/common/src/headway/common/node"
LAUNCH = "libs/launch/src/headway/launch"
CONTROLLER = "services/controller/src/headway/controller"
TESTS = "services/controller/tests"
LAYOUTS = (
    "tests/golden/test_layouts.py::test_in_fp64_gradients_and_parameters_equal_the_single_process"
)


@dataclass(frozen=True)
class Mutation:
    """``old`` stands once in ``file``; with ``new`` in its place ``test`` must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str


MUTATIONS = (
    Mutation(
        "skip-the-seal-wait",
        f"{TRAINER}/session/step.py",
        "        context.snapshots.finish()  # before this rank contributes",
        "        # before this rank contributes",
        "tests/golden/test_recovery.py::test_no_step_ends_before_every_rank_has_sealed_the_state_it_began_with",
    ),
    Mutation(
        "swap-two-micro-batches",
        f"{TRAINER}/data/batches.py",
        "        return taken\n",
        "        return taken[::-1] if self._first and not self._last else taken\n",
        LAYOUTS,
    ),
    Mutation(
        "count-the-tp-norm-twice",
        f"{TRAINER}/state/flat.py",
        "low, high = self.replicated if tp_rank else (self.stop, self.stop)",
        "low, high = self.stop, self.stop",
        LAYOUTS,
    ),
    Mutation(
        "flip-a-checkpoint-byte",
        f"{STORE}/flush.py",
        "            chunks.append(digest(piece))\n",
        "            chunks.append(digest(piece))\n            piece = bytes([piece[0] ^ 1]) + "
        "bytes(piece[1:])\n",
        "services/ckpt_store/tests/test_client.py",
    ),
    Mutation(
        "believe-a-part-file-that-is-not-the-manifests",
        f"{STORE}/verify.py",
        "    if digest(raw) != info.manifest.files[rank].part_digest:\n",
        "    if False:\n",
        "services/ckpt_store/tests/test_damage.py",
    ),
    Mutation(
        "leak-a-segment",
        f"{NODE}/janitor.py",
        "_remove(run_id, [shm_root() / run_id / folder, sock_root() / run_id / folder])",
        "_remove(run_id, [sock_root() / run_id / folder])",
        "libs/common/tests/node/test_janitor.py",
    ),
    Mutation(
        "leak-a-ring",
        f"{LOADER}/prefetch.py",
        "if stream.spec.job == spec.job and stream.spec.generation < spec.generation\n",
        "if False\n",
        "services/dataloader/tests/test_daemon.py::test_a_newer_generation_removes_the_rings_of_older_ones",
    ),
    Mutation(
        "open-a-stream-of-an-older-generation",
        f"{LOADER}/prefetch.py",
        "        if spec.generation < newest:\n",
        "        if False:\n",
        "services/dataloader/tests/test_daemon.py::test_a_newer_generation_removes_the_rings_of_older_ones",
    ),
    Mutation(
        "hear-who-left-an-older-generation",
        f"{CONTROLLER}/decisions/reactions.py",
        "    if left.generation != core.generation or core.members.workers.get(left.rank) != "
        "left.worker:\n",
        "    if core.members.workers.get(left.rank) != left.worker:\n",
        "services/controller/tests/decisions/test_state.py::test_words_of_an_older_generation_change_nothing",
    ),
    Mutation(
        "believe-a-verdict-about-an-older-generation",
        f"{CONTROLLER}/decisions/verdicts.py",
        "    if 0 <= verdict.generation < core.generation:\n",
        "    if False:\n",
        "services/controller/tests/decisions/test_verdicts.py::test_a_verdict_about_an_older_generation_changes_nothing",
    ),
    Mutation(
        "read-the-seals-of-an-older-generation",
        f"{CONTROLLER}/decisions/state.py",
        "            case Seals() if event.generation == self.generation and "
        'self.phase == "reading":\n',
        '            case Seals() if self.phase == "reading":\n',
        "services/controller/tests/decisions/test_state.py::test_seals_read_for_an_older_generation_do_not_count",
    ),
    Mutation(
        "assign-before-the-journal-knows",
        f"{CONTROLLER}/decisions/phases/choosing.py",
        '    if core.phase != "beginning" or action.generation != core.numbered:\n',
        "    if False:\n",
        "services/controller/tests/decisions/test_effects.py",
    ),
    Mutation(
        "hold-a-stall-against-the-nodes",
        "libs/common/src/headway/common/decide/clock.py",
        "        self.now += pause_s if pause_s <= limit_s else longest_s\n",
        "        self.now += pause_s\n",
        "services/controller/tests/decisions/test_nodes.py::test_a_driver_that_slept_holds_no_silence_against_the_nodes",
    ),
    Mutation(
        "enter-a-fenced-generation",
        f"{TRAINER}/comm/fence.py",
        "        if self._fenced >= generation:  # after the mark: one of the two sides always "
        "sees the other\n",
        "        if False:\n",
        "services/trainer/tests/comm/test_groups.py::test_a_generation_that_was_fenced_before_it_was_entered_is_left_at_once",
    ),
    Mutation(
        "restore-what-not-every-rank-holds",
        f"{CONTROLLER}/decisions/restore.py",
        "frozenset.intersection(*holdings)",
        "frozenset.union(*holdings)",
        "services/controller/tests/decisions/test_copies.py::test_the_restore_point_is_the_newest_step_that_every_rank_holds",
    ),
    Mutation(
        "give-the-newest-committed-slot-away",
        f"{NODE}/arena.py",
        "            elif info.released and info.step <= committed and info.seal != newest:\n",
        "            elif info.released and info.step <= committed:\n",
        "libs/common/tests/node/test_arena.py",
    ),
    Mutation(
        "call-a-broken-off-step-done",
        f"{NODE}/flight.py",
        "self._writer.end(self._seq, broken=kind is not None)",
        "self._writer.end(self._seq)",
        "libs/common/tests/node/test_flight.py",
    ),
    Mutation(
        "never-fence-the-former-driver-elsewhere",
        f"{CONTROLLER}/driver/leadership.py",
        "        if not self._lease.fence(former):\n",
        "        if former.is_here and not self._lease.fence(former):\n",
        f"{TESTS}/driver/test_leadership.py::test_a_former_driver_on_another_machine_is_ended_through_the_engine",
    ),
    Mutation(
        "leave-an-evicted-node-its-key",
        f"{CONTROLLER}/driver/driver.py",
        "                    self._joins.revoke(action.node)\n",
        "                    pass\n",
        f"{TESTS}/driver/test_driver_joined.py::test_the_key_of_an_evicted_node_opens_no_connection_any_more",
    ),
    Mutation(
        "admit-a-node-without-a-look-at-its-token",
        f"{CONTROLLER}/driver/join_server.py",
        "        _check_token(message, bundle)\n",
        "",
        f"{TESTS}/driver/test_join_server.py::test_who_may_not_join_learns_why",
    ),
    Mutation(
        "lead-with-half-of-the-nodes",
        f"{CONTROLLER}/driver/connections.py",
        "        return 2 * len(heard) <= len(expected) and",
        "        return 2 * len(heard) < len(expected) and",
        f"{TESTS}/driver/test_lost_touch.py::test_at_most_half_of_the_nodes_is_too_few_without_all_ranks",
    ),
    Mutation(
        "give-spares-up-while-cut-off",
        f"{CONTROLLER}/decisions/silence.py",
        "        return bool(core.fleet.unreachable)\n",
        "        return False\n",
        f"{TESTS}/driver/test_lost_touch.py::test_a_new_driver_without_all_ranks_counts_every_spare",
    ),
    Mutation(
        "count-dead-spares-for-ever",
        f"{CONTROLLER}/decisions/silence.py",
        "        return bool(core.fleet.unreachable)\n",
        "        return True\n",
        f"{TESTS}/driver/test_lost_touch.py::test_spares_without_power_do_not_make_drivers_resign",
    ),
    Mutation(
        "restart-every-node-at-once",
        f"{CONTROLLER}/decisions/silence.py",
        "    for node in due[: _room(core)]:\n",
        "    for node in due:\n",
        f"{TESTS}/decisions/test_restarts.py::test_after_a_silence_of_all_nodes_few_are_restarted_at_a_time",
    ),
    Mutation(
        "write-the-journal-of-a-newer-driver",
        f"{CONTROLLER}/journal/journal.py",
        "        if newest > self.epoch > 0:\n",
        "        if False:\n",
        f"{TESTS}/journal/test_journal.py::test_an_older_driver_cannot_write_once_a_newer_one_has",
    ),
    Mutation(
        "claim-an-epoch-twice",
        f"{LAUNCH}/lease/file.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC",
        "os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC",
        "libs/launch/tests/lease/test_lease.py::test_a_claim_between_look_and_claim_wins",
    ),
    Mutation(
        "renew-a-lease-that-another-has-claimed",
        f"{LAUNCH}/lease/file.py",
        "        if newest > me.epoch:\n",
        "        if False:\n",
        "libs/launch/tests/lease/test_lease.py::test_a_superseded_holder_learns_it_at_its_next_renewal",
    ),
    Mutation(
        "leave-without-a-checkpoint-when-the-drain-is-refused",
        f"{LAUNCH}/machine/foreground.py",
        '                    self._ask(holder, "checkpoint")\n',
        "                    pass\n",
        "libs/launch/tests/machine/test_machine_verbs.py::test_each_stay_asks_for_its_own_drain_once_and_for_a_checkpoint_if_that_is_refused",
    ),
    Mutation(
        "end-the-job-for-the-run-before",
        f"{LAUNCH}/engines/slurm/hold.py",
        "is_over and view.holder is not None and view.holder.epoch > before:",
        "is_over:",
        "libs/launch/tests/engines/test_slurm_hold.py::test_a_job_ends_with_its_run_but_not_for_the_driver_before",
    ),
)


def copy_of_source(folder: Path) -> list[Path]:
    """The ``src`` folders of all distributions, copied; returns them."""
    found = []
    for src in sorted(
        [*ROOT.glob("libs/*/src"), *ROOT.glob("services/*/src"), ROOT / "console/src"]
    ):
        target = folder / src.relative_to(ROOT)
        shutil.copytree(src, target, ignore=shutil.ignore_patterns("__pycache__"))
        found.append(target)
    return found


def caught_by(mutation: Mutation) -> str | None:
    """The first failing test, None if the mutation survives.

    Raises:
        ValueError: the place to change is not there exactly once.
    """
    with tempfile.TemporaryDirectory(prefix="headway-mutation-") as name:
        sources = copy_of_source(Path(name))
        file = Path(name) / mutation.file
        text = file.read_text()
        if text.count(mutation.old) != 1:
            raise ValueError(
                f"{mutation.name}: {mutation.file} holds the place {text.count(mutation.old)} times"
            )
        file.write_text(text.replace(mutation.old, mutation.new))
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, sources)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow",
             mutation.test],
            cwd=ROOT, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode not in (0, 1):
        raise ValueError(
            f"{mutation.name}: pytest ended with "
            f"{done.returncode}\n{done.stdout[-2000:]}{done.stderr}"
        )
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" - ")[0] if failed else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run them; returns 0 when every mutation was caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    rows, survived = [], 0
    for mutation in MUTATIONS:
        if options.only not in mutation.name:
            continue
        caught = caught_by(mutation)
        survived += caught is None
        rows.append({"mutation": mutation.name, "file": mutation.file, "caught_by": caught})
        print(
            f"{'caught  ' if caught else 'SURVIVED'} {mutation.name}: {caught or mutation.test}",
            flush=True,
        )
    if options.out:
        facts = {
            "command": "python -m benchmarks.mutations",
            "date": time.strftime("%Y-%m-%d"),
            "mutations": rows,
        }
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if survived or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
