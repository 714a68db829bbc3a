"""An emulated AWS account for tests: the emulator as a process, a client, the door's scripts."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "infra" / "terraform" / "targets" / "aws"
BIN = Path(sys.executable).parent
REGION = "us-east-1"
FOREIGN = re.compile(r"AWS_|TF_(?!PLUGIN_DIR)|VARS|NODES|YES|DRAIN|CLUSTER_DIR")
"""Variables of the caller that must not reach an emulated account."""


def missing(*, terraform: bool = True) -> str:
    """What keeps the tests from running here, "" if nothing does."""
    if terraform and shutil.which("terraform") is None:
        return "no terraform on the PATH"
    if terraform and not os.environ.get("TF_PLUGIN_DIR"):
        return "TF_PLUGIN_DIR names no folder with the provider hashicorp/aws"
    return ""


def missing_emulator() -> str:
    """As ``missing``, of what the emulated account needs."""
    if absent := [name for name in ("moto", "flask", "flask_cors") if not _is_installed(name)]:
        return f"no {', '.join(absent)} (`make setup-test` installs it)"
    return "" if shutil.which("aws", path=_path()) else "no aws command on the PATH"


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _path() -> str:
    return f"{BIN}{os.pathsep}{os.environ['PATH']}"


class Account:
    """One emulated account; nothing of the caller's own AWS settings is used."""

    def __init__(self) -> None:
        words = [sys.executable, str(Path(__file__).with_name("aws_emulator.py"))]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), "the emulator did not start"
        clean = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        self.env = {
            **clean,
            "PATH": _path(),
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "2",  # the provider repeats an unknown action without end
            "LEAK_WAIT_S": "0",
            "MACHINE_EVERY_S": "0.1",
        }

    def client(self, service: str) -> Any:
        """A boto3 client; close it."""
        import boto3

        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        if self._process.stdout is not None:
            self._process.stdout.close()


def run(
    words: list[str | Path], env: Mapping[str, str], cwd: Path, code: int = 0
) -> tuple[str, str]:
    """Run a command to its end; returns what it printed. Fails unless it exits with ``code``."""
    done = subprocess.run(
        [str(word) for word in words],
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


class Door:
    """``make up|down|status TARGET=aws`` without make."""

    def __init__(self, account: Account, folder: Path) -> None:
        self.account, self.folder = account, folder
        self.cluster = folder / "cluster"
        self.env = {**account.env, "CLUSTER_DIR": str(self.cluster)}

    def vars(self, **values: Any) -> Path:
        """A file of variables: a small cluster, and what is given."""
        text = {"instance_type": "t3.medium", "ami": "ami-12c6146b", "max_nodes": 4, **values}
        path = self.folder / "my.tfvars"
        path.write_text("".join(f"{name} = {_hcl(value)}\n" for name, value in text.items()))
        return path

    def __call__(self, verb: str, *words: str, code: int = 0, **env: str) -> tuple[str, str]:
        script = ROOT / "infra" / "terraform" / f"{verb}.sh"
        return run([script, "aws", *words], {**self.env, **env}, self.folder, code)


def _hcl(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else f'"{value}"'
