"""JupyterLab on loopback, with settings, workspaces and kernels' files in a folder of its own."""

from __future__ import annotations

import enum
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.common.polling import wait_until

START_LIMIT_S = 60.0
SETTINGS: dict[str, dict[str, Any]] = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
}
"""Nothing is fetched from elsewhere, and the notebook's file changes when a test saves it."""


class Theme(enum.StrEnum):
    """JupyterLab's own themes, by the names that it gives them."""

    LIGHT = "JupyterLab Light"
    DARK = "JupyterLab Dark"


class Lab:
    """``start`` returns once the server answers; ``close`` ends it with its kernels.

    Args:
        folder: for everything that JupyterLab writes.
        root: the folder with the notebooks.
        theme: of the first page.
        env: what the kernels get beside this process's environment.
    """

    def __init__(self, folder: Path, root: Path, theme: Theme, env: Mapping[str, str]) -> None:
        self._folder, self._root, self._theme = folder, root, theme
        self._env = {**os.environ, **env}
        self._token = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        """http://127.0.0.1:PORT/"""

    def __enter__(self) -> Lab:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log(self) -> Path:
        """What the server and its kernels printed."""
        return self._folder / "jupyterlab.log"

    def url(self, notebook: str) -> str:
        """The address that opens a notebook in a fresh workspace."""
        return f"{self.address}lab/workspaces/w/tree/{notebook}?reset&token={self._token}"

    def start(self) -> Lab:
        """Start the server on a port that the system chooses.

        Raises:
            RuntimeError: it ended, or did not answer in time; the message holds its log.
        """
        self._write_settings()
        command = [str(Path(sys.executable).with_name("jupyter")), "lab", "--no-browser"]
        command += ["--ip=127.0.0.1", "--port=0", "--ServerApp.port_retries=0", "--allow-root"]
        command += [f"--ServerApp.root_dir={self._root}"]
        command += ["--LabApp.expose_app_in_browser=True", "--LabApp.news_url="]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._root,
                env={**self._env, **self._places(), "JUPYTER_TOKEN": self._token},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if not wait_until(self._is_ready, START_LIMIT_S, every_s=0.05):
            self.close()
            raise RuntimeError(f"JupyterLab did not start: {self.log.read_text()[-4000:]}")
        return self

    def close(self) -> None:
        """End the server, which ends its kernels; only this process."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _places(self) -> dict[str, str]:
        names = {
            "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython",
        }  # fmt: skip
        return {name: str(self._folder / folder) for name, folder in names.items()}

    def _write_settings(self) -> None:
        settings = {**SETTINGS, "apputils-extension/themes": {"theme": self._theme}}
        for name, values in settings.items():
            file = self._folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"JupyterLab ended: {self.log.read_text()[-4000:]}")
        for file in (self._folder / "runtime").glob("jpserver-*.json"):
            found = json.loads(file.read_text() or "{}")
            if found.get("pid") == self._process.pid:
                self.address = str(found["url"])
        return bool(self.address)
