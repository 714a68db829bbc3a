"""A machine outside of the cluster, on which a test runs commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from headway.console.cli import main
from headway.testkit.kubernetes.played import Namespace
from headway.testkit.kubernetes.served import ADMIN

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "examples" / "tiny.toml"
CPU = ("--set", "train.device=cpu", "--set", "launch.nodes=2", "--set", "launch.spares=1")
OBJECTS = {
    "jobs/tiny", "networkpolicies/tiny", "rolebindings/tiny", "roles/tiny",
    "serviceaccounts/tiny", "leases/tiny", "secrets/tiny",
}  # fmt: skip
LIMIT_S = 120.0
KILLED = """
import os, signal, sys
from headway.console.cli import main
from headway.launch.lease.kubernetes_api import ApiClient

method, left, send = sys.argv[1], int(sys.argv[2]), ApiClient.json


def counted(self, verb, path, *rest, **more):
    global left
    if verb == method and "selfsubject" not in path:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return send(self, verb, path, *rest, **more)


ApiClient.json = counted
sys.exit(main(sys.argv[3:]))
"""
HELD = """
import sys, time
from pathlib import Path
from headway.console.cli import main
from headway.launch.lease.kubernetes_api import ApiClient

method, part, send = sys.argv[1], sys.argv[2], ApiClient.json


def held(self, verb, path, *rest, **more):
    if verb == method and part in path:
        Path("waits").touch()
        while not Path("go_on").exists():
            time.sleep(0.02)
    return send(self, verb, path, *rest, **more)


ApiClient.json = held
sys.exit(main(sys.argv[3:]))
"""
PLAIN = "import sys; from headway.console.cli import main; sys.exit(main(sys.argv[1:]))"


class Console:
    """Commands on a machine outside of the cluster, in a folder of their own."""

    def __init__(self, folder: Path, namespace: Namespace) -> None:
        self.folder, self.namespace = folder, namespace
        self.output = folder / "output.txt"
        self.use(token=ADMIN)
        self._started: list[subprocess.Popen[bytes]] = []

    def use(self, *, namespace: str = "", claim: str = "data", **user: str) -> None:
        """Be this user from now on."""
        config = self.folder / "kubeconfig"
        self.namespace.api.kubeconfig(config, user, namespace=namespace or self.namespace.name)
        (self.folder / "kubernetes.toml").write_text(
            f'image = "headway:0.1"\nclaim = "{claim}"\nkubeconfig = "{config}"\n'
        )

    def run_words(self, *words: str) -> list[str]:
        engine = ("--engine", "kubernetes", "--name", "tiny")
        return ["run", str(TINY), *engine, *CPU, *words]

    def headway(self, *words: str, code: int = 0) -> str:
        """What a command prints, which is run in this process."""
        out = io.StringIO()
        env = {"KUBECONFIG": "", "HEADWAY_CACHE": str(self.folder)}
        with (
            contextlib.chdir(self.folder), patch.dict(os.environ, env),
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(out),
        ):  # fmt: skip
            found = main(list(words))
        assert found == code, f"code {found}\n{out.getvalue()}"
        return out.getvalue()

    def refused(self, *words: str, code: int = 2) -> str:
        """The one line with which a command fails, after its lines of progress."""
        lines = self.headway(*words, code=code).splitlines()
        [error] = [line for line in lines if line.startswith("error: ")]
        return error

    def start(self, *words: str, killed: tuple[str, int] | None = None) -> subprocess.Popen[bytes]:
        """A command as a process; ``killed``: by SIGKILL before this many requests of a method."""
        program = (KILLED, *map(str, killed)) if killed is not None else (PLAIN,)
        self._started.append(process := self._program(*program, *words))
        return process

    def _program(self, *words: str) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-c", *words],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip

    def start_held(self, method: str, part: str, *words: str) -> subprocess.Popen[bytes]:
        """A command that waits before its first such request, for ``go_on``, once it ``waits``."""
        self._started.append(process := self._program(HELD, method, part, *words))
        return process

    @property
    def waits(self) -> bool:
        return (self.folder / "waits").exists()

    def go_on(self) -> None:
        (self.folder / "go_on").touch()

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait(30)

    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def says(self, *texts: str) -> bool:
        return all(text in self.said() for text in texts)

    def run_id(self) -> str:
        return str(json.loads((self.folder / "runs/tiny/run.json").read_text())["run_id"])

    def everything(self) -> set[str]:
        return set(self.namespace.everything())
