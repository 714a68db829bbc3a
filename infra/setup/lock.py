"""Write constraints.txt, the universal lock: one set of pins for every supported Python on Linux.

``make lock`` keeps each pin that still fits, and takes others as of the date in the file's first
line, so it gives the same file everywhere, also where an index learns of a release late.
``make lock UPGRADE=1`` moves to today's releases, and ``make lock-check`` only compares.
Only the main index counts: what one machine has in a folder of its own must not get into the lock.
"""

from __future__ import annotations

import datetime
import difflib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pip_settings
from environment import PYTHONS, ROOT
from install import SETS
from packages import LOCK

HEADER = """\
# Every package that Headway can need, as of {date}. Made by `make lock`; do not edit.
"""
GROUPS = ("setup", "dev", "mutants")


def main(arguments: list[str]) -> int:
    """Write the lock, or with ``--check`` compare it; returns the exit code."""
    old = LOCK.read_text() if LOCK.exists() else ""
    known = re.search(r"as of (\S+)\. ", old)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    is_upgrade = os.environ.get("UPGRADE", "") not in ("", "0")
    date = known[1] if known and not is_upgrade else today
    kept = "" if is_upgrade else old
    new = HEADER.format(date=date) + "".join(f"{line}\n" for line in resolve(date, kept))
    if "--check" not in arguments:
        LOCK.write_text(new)
        return 0
    before, after = old.splitlines(True), new.splitlines(True)
    sys.stdout.writelines(difflib.unified_diff(before, after, LOCK.name, "resolved"))
    if old != new:
        print(
            "headway: constraints.txt does not match the pyproject files; run `make lock`",
            file=sys.stderr,
        )
    return int(old != new)


def resolve(date: str, kept: str) -> list[str]:
    """The pins as of ``date``: every part with all its extras, and the root's dependency groups.

    Pins of ``kept`` stay as long as they fit.
    """
    parts = dict.fromkeys(part.split("[")[0] for parts in SETS.values() for part in parts)
    wanted, own = [], []
    for part in parts:
        project = tomllib.loads((ROOT / part / "pyproject.toml").read_text())["project"]
        extras = ",".join(project.get("optional-dependencies", {}))
        wanted.append(f"-e {part}[{extras}]" if extras else f"-e {part}")
        own += ["--no-emit-package", project["name"]]
    groups = [word for group in GROUPS for word in ("--group", f"pyproject.toml:{group}")]
    lowest = ".".join(map(str, PYTHONS[0]))
    venv = Path(os.environ.get("VENV") or ROOT / ".venv")
    command = [str(venv / "bin/uv"), "pip", "compile", "--quiet", "--universal", "--no-annotate"]
    command += ["--no-header", "--python-version", lowest, "--exclude-newer", f"{date}T00:00:00Z"]
    command += [*groups, *own, "-"]
    env = {**os.environ, **pip_settings.for_uv(venv / "bin/python", indexes=("index-url",))}
    for name in ("UV_INDEX", "UV_FIND_LINKS", "UV_EXTRA_INDEX_URL"):
        env.pop(name, None)
    env["XDG_CONFIG_HOME"] = os.devnull  # the user's uv.toml may name other indexes
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / LOCK.name
        pins.write_text(kept)  # uv prefers what stands in its output file
        command += ["--output-file", str(pins)]
        done = subprocess.run(
            command,
            input="\n".join(wanted),
            cwd=ROOT,
            env=env,
            text=True,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise SystemExit("headway: the pyproject files cannot be resolved together, see above")
        return [_drop_redundant_markers(line) for line in pins.read_text().splitlines()]


def _drop_redundant_markers(line: str) -> str:
    """Drop the conditions that hold wherever Headway installs: Linux and a supported Python."""
    pin, _, marker = line.partition(" ; ")
    major, minor = PYTHONS[1]
    for condition in (f"python_full_version < '{major}.{minor + 1}'", "sys_platform == 'linux'"):
        text = re.escape(condition)
        marker = re.sub(rf"{text} and | and {text}|^{text}$", "", marker)
    return f"{pin} ; {marker}" if marker else pin


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
