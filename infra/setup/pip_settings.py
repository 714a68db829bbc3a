"""pip's configuration, translated to uv's variables, because uv does not read it."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

UV_INDEX_VARIABLES = (
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_CONFIG_FILE",
)
"""With one of these set the user has configured uv itself; pip's indexes are left alone then."""
INDEXES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
}
CONNECTION = {
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
}


def for_uv(python: Path, *, indexes: tuple[str, ...] = tuple(INDEXES)) -> dict[str, str]:
    """Environment variables for uv: what pip of ``python`` would use; variables already set win.

    Args:
        python: an interpreter with pip.
        indexes: the keys of pip's index settings that count.
    """
    found = read(python)
    names = dict(CONNECTION)
    if not any(name in os.environ for name in UV_INDEX_VARIABLES):
        names.update({key: INDEXES[key] for key in indexes})
    env = {name: _value(name, found[key]) for key, name in names.items() if found.get(key)}
    env = {name: value for name, value in env.items() if name not in os.environ}
    if "UV_INDEX" in env or "UV_FIND_LINKS" in env:  # pip takes the best version of all indexes
        env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return {"UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never", **env}


def read(python: Path) -> dict[str, str]:
    """pip's settings for ``pip install``: its files, then its environment variables."""
    done = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for line in done.stdout.splitlines():
            key, equals, value = line.partition("=")
            if equals and key.startswith(f"{section}."):
                settings[key.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    return settings


def _value(name: str, value: str) -> str:
    """Lists are separated by white space in pip's settings, and by commas in ``UV_FIND_LINKS``."""
    if name == "UV_HTTP_TIMEOUT":
        return str(round(float(value)))  # pip takes fractions
    return ("," if name == "UV_FIND_LINKS" else " ").join(value.split())
