"""One start of a run at a time, whichever machine it is made from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.common.node.testing import child_environment
from headway.console.folder.claim import STARTING, claimed

START = """
import sys, fcntl, socket
from pathlib import Path
from headway.console.folder.claim import claimed
if sys.argv[2] != "here":  # as over a network file system, which does not pass locks on
    socket.gethostname = lambda: sys.argv[2]
    fcntl.flock = lambda *_: None
with claimed(Path(sys.argv[1]), print):
    print("claimed", flush=True)
    sys.stdin.read()
"""


def _start(path: Path, host: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", START, str(path), host]
    child = subprocess.Popen(
        words, env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "claimed\n"
    return child


def _try(path: Path) -> bool:
    """Whether the claim is had; whether the run existed before does not matter."""
    with claimed(path, print):
        return True


@pytest.mark.parametrize(
    ("host", "refusal"),
    [
        ("here", "run big is being started by another command"),
        ("login-2", r"run big is being started on login-2 \(process {pid}, begun just now\)"),
    ],
)
def test_two_processes_cannot_start_one_run(tmp_path: Path, host: str, refusal: str) -> None:
    path = tmp_path / "big"
    child = _start(path, host)
    with pytest.raises(InputError, match=refusal.format(pid=child.pid)):
        _try(path)
    child.communicate("")
    assert child.returncode == 0 and not (path / STARTING).exists()
    assert _try(path), "once the other start is over"


def test_what_a_dead_start_of_this_machine_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "big"
    child = _start(path, "here")
    child.kill()
    child.communicate()
    assert (path / STARTING).exists()
    assert _try(path) and not (path / STARTING).exists()


def test_what_a_dead_start_of_another_machine_left_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "big"
    child = _start(path, "login-2")
    child.kill()
    child.communicate()
    mark = json.loads((path / STARTING).read_text())
    (path / STARTING).write_text(json.dumps({**mark, "unix_s": mark["unix_s"] - 7300.0}))
    with pytest.raises(InputError, match=r"on login-2 .* begun 2 h ago") as error:
        _try(path)
    assert error.value.remedy.endswith(f"remove {path / STARTING}")
    (path / STARTING).unlink()
    assert _try(path)


def test_a_claim_that_cannot_be_read_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / STARTING).write_text("")  # its disk was full
    with pytest.raises(InputError, match="on another machine"):
        _try(tmp_path / "big")
