"""`make lab` in a small project, with a stand-in for JupyterLab."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize(("uid", "is_root"), [(0, True), (1000, False), (10, False)])
def test_root_may_start_jupyterlab_as_in_a_container(
    project: Path, uid: int, is_root: bool
) -> None:
    for path, text in ((".venv/bin/jupyter", 'echo "$@"'), ("bin/id", f"echo {uid}")):
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text(f"#!/bin/sh\n{text}\n")
        (project / path).chmod(0o755)
    env = {**os.environ, "PATH": f"{project / 'bin'}:{os.environ['PATH']}"}
    command = ["make", "-s", "lab", "ARGS=--port=9"]
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    assert words[:2] == ["lab", "notebooks"] and words[-1] == "--port=9"
    assert ("--allow-root" in words) == is_root
    assert (project / ".venv/etc/jupyter/labconfig/page_config.json").exists()
