"""The shell command and the Python line that do the same as a button, from any folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

OPERATIONS = frozenset({"pause", "resume", "checkpoint", "stop", "set", "unset", "inject"})


def as_cli(path: Path, operation: str, options: dict[str, Any]) -> str:
    """The shell command for the run at ``path``."""
    words = ["headway", operation, path.name]
    if operation == "set":
        words.append(f"{options.get('name', 'lr')}={_number(options.get('value', 0.0))}")
    if operation == "unset":
        words.append(str(options.get("name", "lr")))
    if operation == "inject":
        words += [str(options.get("fault", "kill")), "--rank", str(options.get("rank", 0))]
    return shlex.join([*words, "--runs-dir", str(path.parent)])


def as_python(path: Path, operation: str, options: dict[str, Any]) -> str:
    """The line of Python for the run at ``path``, after ``from headway.console import Cluster``."""
    arguments = ""
    if operation == "set":
        arguments = f"{options.get('name', 'lr')}={_number(options.get('value', 0.0))}"
    if operation == "unset":
        arguments = repr(str(options.get("name", "lr")))
    if operation == "inject":
        arguments = f"{str(options.get('fault', 'kill'))!r}, rank={options.get('rank', 0)}"
    return f"Cluster({str(path.parent)!r}).run({path.name!r}).{operation}({arguments})"


def recipes(path: Path) -> dict[str, list[str]]:
    """Button -> shell command and line of Python; the page fills in ``VALUE`` and ``RANK``."""
    setting = {"name": "lr", "value": "VALUE"}
    orders: dict[str, tuple[str, dict[str, Any]]] = {
        **{name: (name, {}) for name in ("pause", "resume", "checkpoint", "stop")},
        "set": ("set", setting),
        "unset": ("unset", setting),
        "kill": ("inject", {"fault": "kill", "rank": "RANK"}),
        "stop rank": ("inject", {"fault": "stop", "rank": "RANK"}),
    }
    return {
        button: [as_cli(path, *order), as_python(path, *order)] for button, order in orders.items()
    }


def _number(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"
