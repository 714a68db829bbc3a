"""Runs each check in its own process with a deadline, since probes may hang on failing hardware.

``python -m headway.health.runner NAME`` is that process; it takes settings as JSON on stdin
and prints its finding. It ends with the process that runs the suite.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from headway.common.errors import InputError
from headway.common.node.process import end_with_parent, ending_with_me
from headway.health.checks.base import CheckSettings, Finding
from headway.health.config import CHECK_END_S, QUICK_CHECKS, HealthConfig

SUITES: dict[str, tuple[str, ...]] = {
    "quick": QUICK_CHECKS,
    "full": (*QUICK_CHECKS, "gpu_memory", "nic_loopback", "nic_pairs", "all_to_all"),
}
"""Suite -> checks in order, cheap ones first. The quick one takes seconds, for a prolog; the full
one below three minutes, for a machine under suspicion or back from repair."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    name: str
    ok: bool | None
    """None: it was not run, and ``message`` says why. Neither healthy nor failed."""
    message: str
    remedy: str
    duration_s: float
    values: dict[str, float | str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.ok is False


def run_suite(
    suite: str = "quick", settings: CheckSettings | None = None, deadline_s: float | None = None
) -> Iterator[CheckResult]:
    """Run the checks of a suite one after the other, so that none disturbs another's measurement.

    Raises:
        InputError: there is no such suite (before anything runs).
    """
    names = SUITES.get(suite)
    if names is None:
        raise InputError(
            f"there is no suite {suite!r}", remedy=f"choose one of: {', '.join(SUITES)}"
        )
    limit_s = HealthConfig().check_deadline_s if deadline_s is None else deadline_s
    return (run_check(name, settings or CheckSettings(), limit_s) for name in names)


def run_check(name: str, settings: CheckSettings, deadline_s: float) -> CheckResult:
    """Run one check; a crash, a missed deadline or unreadable output counts as a failed check."""
    began_s = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-m", "headway.health.runner", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=ending_with_me(os.environ),
    )
    try:
        output, errors = child.communicate(
            msgspec.json.encode(settings, enc_hook=os.fspath), timeout=deadline_s
        )
    except subprocess.TimeoutExpired:
        message = f"not done within {deadline_s:g} s and ended"
        finding = Finding(False, message, "the device it probes may hang: run it alone, see dmesg")
    else:
        finding = _finding_of(child.returncode, output, errors)
    finally:
        _end(child)
    return CheckResult(name=name, duration_s=time.monotonic() - began_s, **vars(finding))


def _finding_of(code: int, output: bytes, errors: bytes) -> Finding:
    if code != 0:
        return _crashed(code, errors)
    try:
        return msgspec.json.decode(output, type=Finding)
    except msgspec.MsgspecError:
        return Finding(False, "ended without a finding", "run it alone to see its output")


def _crashed(code: int, errors: bytes) -> Finding:
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    lines = errors.decode(errors="replace").strip().splitlines()
    return Finding(
        False, f"crashed ({how}){': ' + lines[-1] if lines else ''}", "run it alone; see dmesg"
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the check and its children, and collect it; one stuck in the kernel is abandoned."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.communicate(timeout=CHECK_END_S)


def main(name: str) -> int:
    """The process of one check."""
    end_with_parent()
    settings = msgspec.json.decode(
        sys.stdin.buffer.read(), type=CheckSettings, dec_hook=lambda _, value: Path(value)
    )
    check: Callable[[CheckSettings], Finding] = importlib.import_module(
        f"headway.health.checks.{name}"
    ).check
    print(msgspec.json.encode(check(settings)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
