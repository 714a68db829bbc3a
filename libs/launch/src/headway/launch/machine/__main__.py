"""``python -m headway.launch.machine VERB < TICKET``: the commands that engines run on a machine.

prepare    prepare the run's corpus if it is absent; so that no start takes long
start      join the run, unless this machine has; start the node's init and wait until it is up
           (--kill-hung: kill an executor that hangs first)
restart    kill an executor that hangs, so that its init restarts it; exit code 4 if no init runs,
           as after a reboot
init       like start, then stay in the foreground until the node has ended
end        kill all processes of the node; exit code 0 once none is left
fence      kill a former driver on the machine, and nothing else
log        print the last 8 KiB of each log of the node
records    print its newest logs and records of steps, as a compressed archive in base64
pod BUNDLE like init, in a pod of an indexed Job, with a ticket made from the bundle
describe   print GPUs, processor flags and what a compiler lacks as JSON; needs no ticket
inspect    print what is installed, clock, GPUs, /dev/shm as JSON (--look FOLDER: read the nonce in
           this shared folder and write it back); needs no ticket
left       print as JSON what is left of the runs whose ids standard input lists as JSON
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from headway.common.errors import HeadwayError, InputError
from headway.common.wire.keys import KeyPair
from headway.launch.engine import TERM_S
from headway.launch.engines.choose import config_of, of_bundle
from headway.launch.engines.kubernetes import pod
from headway.launch.engines.local import LocalEngine
from headway.launch.join import corpus, facts, needs, records, scratch
from headway.launch.join.answers import DONE, NO_INIT
from headway.launch.join.bundle import Bundle
from headway.launch.join.client import join
from headway.launch.join.folder import NodeFolder, check_seen
from headway.launch.join.ticket import Ticket
from headway.launch.lease.base import is_led
from headway.launch.lease.choose import lease_of
from headway.launch.machine.ending import LATE_LOCK_S, end, end_earlier_start, fence
from headway.launch.machine.foreground import AtEnd, ForegroundNode
from headway.launch.machine.left import left
from headway.launch.machine.sweep import sweep
from headway.launch.nodes import wait_for_node

VERBS = (
    "prepare", "start", "restart", "init", "end", "fence", "log", "records", "pod", "describe",
    "inspect", "left",
)  # fmt: skip
LOG_BYTES = 8192
NO_DRIVER_S = 45.0
PREPARE_LIMIT_S = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; an error is one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m headway.launch.machine",
        description=__doc__.replace("``", "`"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("bundle", nargs="?", type=Path, help="for `pod`: path of the bundle")
    parser.add_argument("--kill-hung", action="store_true", help="kill an executor that hangs")
    parser.add_argument(
        "--at-end",
        choices=("drain", "stop"),
        default="drain",
        help="what to request on SIGTERM; %(default)s by default",
    )
    parser.add_argument(
        "--notice",
        type=float,
        default=TERM_S,
        help="seconds from SIGUSR1 until the machine goes away; %(default)g by default",
    )
    parser.add_argument("--mark", type=Path, help="file to remove once the node left the machine")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds to wait for a driver")
    parser.add_argument("--ticket", type=Path, help="file with it, instead of standard input")
    parser.add_argument("--answer", type=Path, help="file for what `log` and `records` print")
    parser.add_argument("--look", type=Path, help="folder of the test, for `inspect`")
    options = parser.parse_args(argv)
    if (options.verb == "pod") != (options.bundle is not None):
        parser.error("only `pod` takes the path of a bundle")
    try:
        if options.verb == "pod":
            return run_pod(options.bundle)
        if options.verb in WITHOUT_TICKET:
            print(WITHOUT_TICKET[options.verb](options.look))
            return 0
        ticket = ticket_of(options.ticket)
        folder = NodeFolder(ticket.folder)
        scratch.check(folder.path)
        match options.verb:
            case "prepare":
                check_seen(Path(ticket.control))
                corpus.provide(ticket.corpus, ticket.run_id, ticket.node, PREPARE_LIMIT_S)
                print(DONE)
            case "start":
                print(start(folder, ticket, options.limit, kill_hung=options.kill_hung))
            case "restart":
                if code := restart(folder, ticket):
                    return code
                print(DONE)
            case "init":
                return stay(folder, ticket, options.at_end, options.notice, options.mark)
            case "end":
                if code := end(folder, ticket):
                    return code
                print(DONE)
            case "fence":
                fence(ticket)
                print(DONE)
            case "log" | "records" as verb:
                answer(verb, folder, options.answer)
    except (HeadwayError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, HeadwayError) else 1
    return 0


def inspect(folder: Path | None) -> str:
    """The facts of this machine as one line of JSON."""
    return json.dumps(asdict(facts.look(folder)))


def list_left() -> str:
    """What is left of the runs on standard input, as one line of JSON.

    Raises:
        InputError: standard input is not a list.
    """
    try:
        return json.dumps(left([str(one) for one in json.load(sys.stdin)]))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"standard input is not a list of run ids: {error}", remedy='write one, as ["0123abcd"]'
        ) from error


WITHOUT_TICKET: dict[str, Callable[[Path | None], str]] = {
    "describe": lambda _: needs.describe(),
    "inspect": inspect,
    "left": lambda _: list_left(),
}
"""Verbs about the machine, not about a node of a run."""


def ticket_of(path: Path | None) -> Ticket:
    """The ticket in a file, or on standard input.

    Raises:
        InputError: it is not a ticket, or this machine does not see the file or its folder.
    """
    if path is None:
        return Ticket.from_json(sys.stdin.read())
    check_seen(path.parent)
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InputError(
            f"cannot read the ticket {path}: {error.strerror}",
            remedy="start the node again: the file exists for as long as the command that made it",
        ) from error
    return Ticket.from_json(text, source=str(path))


def answer(verb: str, folder: NodeFolder, path: Path | None) -> None:
    """Print the node's logs or records, or write them to a file."""
    with contextlib.ExitStack() as stack:
        if path is not None:
            # not made here: who asked may have given up and removed it
            file = stack.enter_context(path.open("r+", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(file))
        if verb == "log":
            show_logs(folder)
        else:
            for run in folder.path.glob("runs/*"):
                print(records.pack(run))
    if path is not None:
        print(DONE)


def stay(
    folder: NodeFolder, ticket: Ticket, at_end: AtEnd, notice_s: float, mark: Path | None = None
) -> int:
    """Be a node in the foreground until it has ended; returns the exit code."""
    return ForegroundNode(
        folder,
        ticket,
        at_end=at_end,
        notice_s=notice_s,
        mark=mark,
        end=lambda: end(folder, ticket, LATE_LOCK_S),
        release=give_back,
    ).run()


def give_back(bundle: Bundle) -> None:
    """At the end of a run: have it leave no machine uncleaned, and give back what was taken for it.

    Raises:
        HeadwayError: that failed.
    """
    engine = of_bundle(bundle)
    engine.sweep()
    engine.release()


def run_pod(path: Path) -> int:
    """Be the node that this pod is, until it has ended; returns the exit code.

    Raises:
        InputError: the bundle is absent or damaged, or it is not known which node this is.
    """
    bundle = Bundle.load(path)
    ticket = pod.ticket_of(bundle, config_of(bundle.engine).scratch)
    folder = NodeFolder(ticket.folder)
    return pod.stay(path.parent, bundle, folder, lambda: stay(folder, ticket, "drain", TERM_S))


def start(folder: NodeFolder, ticket: Ticket, limit_s: float, *, kill_hung: bool) -> str:
    """Take part in the run, with an init that runs; returns the executor's endpoint.

    Raises:
        HeadwayError: as ``take_part``; or the init does not start.
    """
    take_part(folder, ticket, limit_s)
    with scratch.locked(folder.path):  # no init may begin after an end
        if not folder.has_joined(ticket.node, ticket.start):
            raise _ended(ticket)
        LocalEngine(folder.cluster).start_node(ticket.node, kill_hung=kill_hung)
    return wait_for_node(folder.cluster, ticket.node).endpoint


def restart(folder: NodeFolder, ticket: Ticket) -> int:
    """Kill an executor that hangs; returns the exit code."""
    with scratch.locked(folder.path):
        has_joined = folder.has_joined(ticket.node, ticket.start)
        if not has_joined or not folder.has_init(ticket.node):
            return NO_INIT
        LocalEngine(folder.cluster).start_node(ticket.node, kill_hung=True)
    return 0


def take_part(folder: NodeFolder, ticket: Ticket, limit_s: float) -> None:
    """Join the run, unless the machine has done so since it started.

    What it still runs of an earlier start of the run, with the settings of then, is ended before.

    Raises:
        HeadwayError: the driver refuses it, or none answers; or this machine lacks something; or
            the node was ended meanwhile.
    """
    if folder.has_joined(ticket.node, ticket.start):
        return
    check_seen(Path(ticket.control))  # before anything is written below a missing mount
    corpus.provide(ticket.corpus, ticket.run_id, ticket.node)
    sweep(folder.path.parent, Path(ticket.control).parent.parent)
    scratch.make_around(folder.path)
    try:
        _join(folder, ticket, limit_s)
    except BaseException:  # Ctrl-C too
        with contextlib.suppress(OSError, HeadwayError), scratch.locked(folder.path):
            _remove_unless_needed(folder)
        raise


def _join(folder: NodeFolder, ticket: Ticket, limit_s: float) -> None:
    """Ask with the key pair in the folder, and install it if it is still there then.

    The driver admits the pair that asked last, and the executor of a node with another one would be
    refused for the rest of the run. So starts that wait for the driver at once share a pair. An
    ``end`` does not wait for them: it removes the pair, and those that waited find out afterwards.
    """
    with contextlib.ExitStack() as stack:
        with scratch.locked(folder.path):
            if folder.has_joined(ticket.node, ticket.start):  # by another command meanwhile
                return
            if folder.joined_start(ticket.node) is not None:
                end_earlier_start(folder, ticket)
            scratch.make(folder.path)
            stack.enter_context(scratch.used(folder.path))
            keys = folder.key()
        while True:
            bundle, is_first = _ask(ticket, keys, limit_s)
            with scratch.locked(folder.path):
                found = folder.found_key()
                if found is None:
                    raise _ended(ticket)
                if found == keys:
                    if not folder.has_joined(ticket.node, ticket.start):
                        folder.install(bundle, ticket.node, keys=keys, is_first=is_first)
                    return
                keys = found  # of a start after the end, which the driver may have admitted before


def _ask(ticket: Ticket, keys: KeyPair, limit_s: float) -> tuple[Bundle, bool]:
    """The run's bundle, if this machine can take part, and whether this is its first node.

    The first node's ticket may be used again, as after a reboot: then a driver can be asked, unless
    all nodes of the run were down at once.
    """
    is_first = bool(ticket.bundle) and not is_led_or_over(Path(ticket.control))
    if is_first:
        bundle = Bundle.from_json(ticket.bundle, source="the ticket")
    else:
        bundle = join(ticket, keys, limit_s=limit_s)
    needs.check(bundle)
    _ = bundle.network.endpoint, bundle.network.fabric_address  # this machine has them
    return bundle, is_first


def _ended(ticket: Ticket) -> HeadwayError:
    return HeadwayError(
        f"node {ticket.node} of run {ticket.run_id} was ended while it was being started",
        remedy="start it again",
    )


def _remove_unless_needed(folder: NodeFolder) -> None:
    """Remove a folder that has a key, and no log yet, unless another start waits with this key."""
    has_joined = (folder.path / "joined.json").exists()
    if not has_joined and not folder.logs() and not scratch.is_used(folder.path):
        shutil.rmtree(folder.path, ignore_errors=True)


def is_led_or_over(control: Path) -> bool:
    """Whether the run has a driver or has ended.

    May take ``NO_DRIVER_S``: by then one of the remaining nodes would have started a driver."""
    lease = lease_of(control)
    return lease.look().is_over or is_led(lease, NO_DRIVER_S)


def show_logs(folder: NodeFolder) -> None:
    """Print the end of every log of the node."""
    logs = folder.logs()
    if not logs:
        print(f"==> no logs in {folder.path} <==")
    for path in logs:
        data = path.read_bytes()[-LOG_BYTES:]
        print(f"==> {path.name} <==\n{data.decode('utf-8', 'replace')}")


if __name__ == "__main__":
    sys.exit(main())
