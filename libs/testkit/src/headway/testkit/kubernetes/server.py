"""Starts etcd and kube-apiserver, which ``infra/setup/kube_api.sh`` builds, on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import IO

from headway.common.errors import HeadwayError
from headway.common.polling import wait_until
from headway.launch.lease.kubernetes_api import ApiError
from headway.testkit.kubernetes.served import ADMIN, NOBODY, ServedApi

ENV = "HEADWAY_KUBE_API"
"""Environment variable with the folder that holds the two programs."""
PROGRAMS = ("etcd", "kube-apiserver")
START_LIMIT_S = 120.0


class RealApi(ServedApi):
    """``with RealApi(folder) as api``: a cluster of which only the API server is there.

    There is no controller, scheduler or kubelet: ``played`` does what a test needs of them.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._programs = Path(os.environ.get(ENV, ""))
        (folder / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n{NOBODY},nobody,2\n')
        self._etcd_port, self._peer_port, self.port = _free_ports(3)
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing() -> str:
        """Why it cannot be started here; empty if it can."""
        folder = os.environ.get(ENV, "")
        if not folder:
            return f"{ENV} does not name a folder made by infra/setup/kube_api.sh"
        absent = [name for name in PROGRAMS if not (Path(folder) / name).exists()]
        if absent or shutil.which("openssl") is None:
            return f"{' and '.join(absent) or 'openssl'} is missing; see infra/setup/kube_api.sh"
        return ""

    # ---- up and down --------------------------------------------------------------------------
    def __enter__(self) -> RealApi:
        try:
            self._start_etcd()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{one}" for one in (self._etcd_port, self._peer_port))
        words = ["--data-dir", str(self.folder / "etcd"), "--name", "one", "--log-level", "error"]
        words += ["--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        words += ["--initial-cluster", f"one={peer}"]
        self._etcd = self._run("etcd", words)

    def start(self) -> None:
        """Start the API server, on the same port as before, and wait until it is ready."""
        pki = self.authority
        options = {
            "etcd-servers": f"http://127.0.0.1:{self._etcd_port}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self.port,
            "insecure-port": 0,
            "tls-cert-file": self.certificate,
            "tls-private-key-file": self._key,
            "client-ca-file": pki.certificate,
            "token-auth-file": self.folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": pki.token_key,
            "service-account-signing-key-file": pki.token_key,
            "service-cluster-ip-range": "10.0.0.0/24",
            "kubelet-preferred-address-types": "InternalIP",
            # it would wait for a controller that gives each account a Secret
            "disable-admission-plugins": "ServiceAccount",
        }
        words = [f"--{key}={value}" for key, value in options.items()]
        self._server = self._run("kube-apiserver", words)
        if not wait_until(self._is_ready, START_LIMIT_S, every_s=0.2):
            raise HeadwayError(f"the API server is not ready: {self._log_tail('kube-apiserver')}")

    def _is_ready(self) -> bool:
        assert self._server is not None
        if self._server.poll() is not None:
            raise HeadwayError(f"the API server ended: {self._log_tail('kube-apiserver')}")
        try:
            return self.client().text("/readyz") == "ok"
        except ApiError:
            return False

    def stop(self) -> None:
        """Kill the API server; what it holds stays in etcd."""
        _end(self._server)
        self._server = None

    def freeze(self) -> None:
        """Have the API server accept connections and answer nothing."""
        assert self._server is not None
        self._server.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._server.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """The opposite of ``freeze``."""
        assert self._server is not None
        self._server.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End both."""
        self.stop()
        _end(self._etcd)
        self._etcd = None

    def _run(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        log: IO[bytes]
        with (self.folder / f"{name}.log").open("ab") as log:
            # setpriv: they end with the process of the test, also where that is killed
            command = ["setpriv", "--pdeathsig", "KILL", str(self._programs / name), *words]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _log_tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait(30)


def _free_ports(number: int) -> list[int]:
    held = [socket.socket() for _ in range(number)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
