"""Install a set of Headway's parts into ``.venv``, every package as constraints.txt pins it.

``setup.sh`` calls it with the name of the set. uv does the installing; it is itself pinned and
lives in the virtual environment. What pip is configured to use (indexes, certificates, proxy)
holds for uv too.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pip_settings

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "constraints.txt"
SETS = {
    "run": [
        "./libs/common",
        "./libs/launch",
        "./services/dataloader",
        "./services/ckpt_store",
        "./services/health",
        "./services/trainer[compute]",
        "./console[local]",
    ],
    "lab": ["./console[notebooks]"],
    "test": ["./libs/testkit"],
}
"""Parts by set, installed editable; each set holds those before it too."""
RECORD = ".headway.json"
GPU_PARTS = ["./services/health[gpu]"]
PYTHONS = ((3, 11), (3, 13))
"""First and last supported version; ``requires-python`` of every part says the same."""


class SetupError(Exception):
    """What keeps the set-up from working, with what to do about it, in one line."""


def main(wanted: str) -> int:
    """Bring ``.venv`` to the set ``wanted``, unless it is there already; returns the exit code."""
    venv = Path(os.environ.get("VENV") or ROOT / ".venv").absolute()
    try:
        with _setup_lock():
            torch = _torch(venv)
            record = {"inputs": _inputs(), "path": str(venv), "torch": torch}
            if _is_ready(venv, wanted, record):
                return 0
            wanted = max(wanted, _recorded(venv).get("set") or wanted, key=list(SETS).index)
            _make_venv(venv, torch)
            _make_uv(venv)
            _write_record(venv, {**record, "set": ""})
            _install(venv, wanted, torch)
            _write_record(venv, {**record, "set": wanted})
    except SetupError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("headway: interrupted; run the same command to continue", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"headway: set-up failed: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _setup_lock() -> Iterator[None]:
    """One set-up of this checkout at a time: a second one waits, then finds its work done."""
    fd = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another set-up of this checkout", flush=True)
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


# ---- what is there already ----------------------------------------------------------------------
def _inputs() -> str:
    """A digest of everything that decides what is installed."""
    parts = [path.split("[")[0] for paths in SETS.values() for path in paths]
    files = [
        LOCK,
        Path(__file__),
        ROOT / "pyproject.toml",
        *(ROOT / p / "pyproject.toml" for p in parts),
    ]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _recorded(venv: Path) -> dict[str, str]:
    """What the last set-up wrote down; ``set`` is empty while an installation is under way."""
    with contextlib.suppress(OSError, ValueError):
        return {
            str(key): str(value) for key, value in json.loads((venv / RECORD).read_text()).items()
        }
    return {}


def _torch(venv: Path) -> str:
    """Which build of torch: what TORCH says, else what the last complete set-up took."""
    found = _recorded(venv)
    torch = os.environ.get("TORCH") or (found["torch"] if found.get("set") else "auto")
    if not re.fullmatch(r"auto|cpu|xpu|cu\d+|rocm\d[\d.]*", torch):
        raise SetupError(
            f"TORCH={torch} is not a build of torch; use auto, cpu, cu130, rocm7.2 ..."
        )
    return torch


def _write_record(venv: Path, record: dict[str, str]) -> None:
    (venv / RECORD).write_text(json.dumps(record) + "\n")


def _is_ready(venv: Path, wanted: str, record: dict[str, str]) -> bool:
    found = _recorded(venv)
    same = all(found.get(key) == value for key, value in record.items())
    return same and found.get("set") in _sets_from(wanted) and not _problem(venv, record["torch"])


def _sets_from(name: str) -> list[str]:
    return list(SETS)[list(SETS).index(name) :]


# ---- the virtual environment --------------------------------------------------------------------
def _make_venv(venv: Path, torch: str) -> None:
    """Make ``.venv``, or make it anew where it cannot be used; packages in a sound one stay."""
    is_there = venv.exists() and any(venv.iterdir())
    if is_there and not (venv / "pyvenv.cfg").exists():
        raise SetupError(f"{venv} is not a virtual environment; move it away, or set VENV=")
    problem = _problem(venv, torch) if is_there else "is absent"
    if not problem:
        return
    if is_there and not (venv == ROOT / ".venv" or (venv / RECORD).exists()):
        raise SetupError(f"{venv} {problem}; remove it, or set VENV=")  # somebody else's
    try:
        os.confstr("CS_GNU_LIBC_VERSION")
    except ValueError:
        raise SetupError("needs glibc; torch has no packages for other C libraries") from None
    reason = f": the existing one {problem}" if is_there else ""
    print(f"creating {venv.name} with Python {_text(sys.version_info[:3])}{reason}", flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(venv)], f"cannot create {venv}")


def _problem(venv: Path, torch: str) -> str:
    """What keeps this virtual environment from being used; empty if nothing does."""
    program = (
        "import sys, importlib.util as i; i.find_spec('pip') or sys.exit(1);"
        "print(*sys.version_info[:2], sys.base_prefix)"
    )
    python = [str(venv / "bin/python"), "-c", program]
    try:
        done = subprocess.run(python, capture_output=True, text=True, check=False)
    except OSError:
        return "has no working Python"
    if done.returncode:
        return "is incomplete"
    major, minor, base = done.stdout.strip().split(" ", 2)
    version, recorded = (int(major), int(minor)), _recorded(venv)
    if not PYTHONS[0] <= version <= PYTHONS[1]:
        return f"uses Python {_text(version)}"
    is_mine = (version, base) == (sys.version_info[:2], sys.base_prefix)
    if os.environ.get("PYTHON") and not is_mine:
        return f"uses Python {_text(version)}, not the requested one"
    # its scripts name their interpreter by its old path
    if recorded.get("path", str(venv)) != str(venv):
        return "was created at another path"
    if recorded.get("set") == "":
        return "is only partly installed"
    if recorded.get("torch", torch) != torch:
        return f"has torch for {recorded['torch']}"
    return ""


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


# ---- uv -----------------------------------------------------------------------------------------
def _make_uv(venv: Path) -> None:
    """Install the pinned uv with pip; its wheel is kept, so that a later set-up works offline."""
    version = _pin("uv")
    with contextlib.suppress(OSError):
        done = subprocess.run(
            [venv / "bin/uv", "--version"], capture_output=True, text=True, check=False
        )
        if done.stdout.split()[1:2] == [version]:
            return
    print(f"installing uv {version}", flush=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    with _wheel_folder() as folder:
        install = [*pip, "install", "--no-index", "--find-links", str(folder), f"uv=={version}"]
        if subprocess.run(install, capture_output=True, check=False).returncode == 0:
            return
        fetch = [
            *pip,
            "download",
            "--retries",
            "1",
            "--no-deps",
            "-d",
            str(folder),
            f"uv=={version}",
        ]
        _run(fetch, "cannot download uv (check the network and `pip config list`)")
        _run(install, "cannot install uv")


@contextlib.contextmanager
def _wheel_folder() -> Iterator[Path]:
    kept = _user_cache() / "headway" / "wheels"
    if _is_writable(kept):
        yield kept
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _pin(name: str) -> str:
    found = re.search(rf"^{name}==(\S+)", LOCK.read_text(), re.MULTILINE)
    if found is None:
        raise SetupError(f"{LOCK.name} has no pin for {name}; run `make lock`")
    return found[1]


# ---- packages -----------------------------------------------------------------------------------
def _install(venv: Path, wanted: str, torch: str) -> None:
    """From uv's cache alone where it holds everything, which works offline; else with the index."""
    env = {**os.environ, **pip_settings.for_uv(venv / "bin/python")}
    env.pop("VIRTUAL_ENV", None)
    if not _is_writable(Path(env.get("UV_CACHE_DIR") or _user_cache() / "uv")):
        env["UV_CACHE_DIR"] = str(venv / "cache")  # a read-only home
    uv = [str(venv / "bin/uv"), "pip", "install", "--python", str(venv / "bin/python")]
    is_cpu = torch == "auto" and not _has_gpu()
    print(f"installing what `make {wanted}` needs", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "torch.txt"
        pins = [LOCK.name, "--build-constraints", LOCK.name, "--constraints", str(build)]
        backend = [] if torch == "auto" else ["--torch-backend", torch]
        for mode in (["--offline"], []):
            build.write_text(_cpu_build([*uv, *mode], env) if is_cpu else "")
            command = [*uv, *mode, *backend, "--constraints", *pins, *_requirements(wanted)]
            if mode and not _succeeds([*command, "--dry-run"], env):
                continue
            if subprocess.run(command, cwd=ROOT, env=env, check=False).returncode == 0:
                return
    raise SetupError("could not install the packages, see above; run the same command to retry")


def _requirements(wanted: str) -> list[str]:
    parts = [part for name in SETS if name not in _sets_from(wanted)[1:] for part in SETS[name]]
    parts += GPU_PARTS if _has_gpu() else []
    groups = ["--group", "pyproject.toml:dev"] if wanted == "test" else []
    return [*(word for part in parts for word in ("-e", part)), *groups]


def _cpu_build(uv: list[str], env: dict[str, str]) -> str:
    """The pin of torch's CPU build where the index offers one: it saves 4 GB of CUDA packages."""
    build = f"torch=={_pin('torch')}+cpu"
    return build if _succeeds([*uv, "--dry-run", "--no-deps", build], env) else ""


def _succeeds(command: list[str], env: dict[str, str]) -> bool:
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True).returncode == 0


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _run(command: list[str], what: str) -> None:
    """Run a command; its last words become the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise SetupError(f"{what}: {words[-1] if words else f'code {done.returncode}'}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in SETS:
        sys.exit(f"usage: {Path(sys.argv[0]).name} {'|'.join(SETS)}")
    sys.exit(main(sys.argv[1]))
