"""The image for CPUs, built by buildah without a registry and a package index, runs Headway.

Its base is a Debian that debootstrap makes, and Python's packages come from a folder of wheels. So
a build needs what pip is configured to use, Debian's archive, root, 8 GB of disk and ten minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from headway.common.node.janitor import processes_of

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "infra" / "images" / "Dockerfile"
PROGRAMS = ("buildah", "debootstrap")
RELEASE = "bookworm"
PYTHON = "3.11"
"""Of that release."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
USER = 1000
STEPS = 5
LIMIT_S = 1800.0
"""Of one command."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def missing() -> str:
    """Why no image can be built here; empty if it can."""
    if os.getuid() != 0:
        return "not root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    return f"{', '.join(absent)} not installed (apt-get install {' '.join(absent)})" * bool(absent)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def run(words: Sequence[str | Path], env: Mapping[str, str] | None = None) -> str:
    """What a command printed; its errors too, if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=ROOT,
        env={**os.environ, "PATH": _path(), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    tail = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{tail}"
    return done.stdout


class Builder:
    """buildah with a storage of its own, which needs neither overlay mounts nor user namespaces."""

    def __init__(self, folder: Path) -> None:
        storage = (
            "--storage-driver",
            "vfs",
            "--root",
            folder / "root",
            "--runroot",
            folder / "run",
        )
        self._buildah = ("buildah", *storage)

    def __call__(self, *words: str | Path) -> str:
        return run([*self._buildah, *words])

    def build(self, tag: str, *words: str | Path) -> None:
        self("bud", "--isolation", "chroot", "--tag", tag, *words)

    def inside(self, container: str, options: Sequence[str], *command: str) -> str:
        """Run a command in a container as the image's user; its network is this machine's."""
        return self("run", "--isolation", "chroot", *options, container, "--", *command)


def fill(wheels: Path, scratch: Path) -> None:
    """Download what the image installs, for its Python, as constraints.txt pins it."""
    sys.path.insert(0, str(ROOT / "infra" / "setup"))
    from packages import pin
    from pip_settings import for_uv

    python = Path(sys.executable)
    pins, wanted, torch = (scratch / name for name in ("pins.txt", "wanted.txt", "torch.txt"))
    parts = [*ROOT.glob("libs/*"), *ROOT.glob("services/*"), ROOT / "console"]
    names = [str(part) for part in parts if part.name != "testkit"]
    wanted.write_text("\n".join([*names, "headway-console[local]", "headway-health[store]"]))
    torch.write_text(f"torch=={pin('torch')}+cpu\n")
    uv = [python, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    lock = ["--constraint", ROOT / "constraints.txt", "--constraint", torch]
    for_image = ["--python-version", PYTHON]
    run([*uv, *lock, *for_image, "--output-file", pins, wanted], env=for_uv(python))
    lines = [line for line in pins.read_text().splitlines() if "==" in line]
    pins.write_text("\n".join([*lines, *(f"{name}=={pin(name)}" for name in ("hatchling", "uv"))]))
    for_image += ["--only-binary=:all:", "--implementation", "cp"]
    for_image += [word for platform in PLATFORMS for word in ("--platform", platform)]
    pip = [python, "-m", "pip", "download", "--quiet", "--dest", wheels, "--requirement", pins]
    run([*pip, *for_image])


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    if reason := missing():
        pytest.skip(f"no image can be built here: {reason}")
    folder = tmp_path_factory.mktemp("image")
    found = Builder(folder / "storage")
    try:
        wheels, base = folder / "wheels", folder / "base"
        for made in (wheels, base):
            made.mkdir()
        fill(wheels, folder)
        run(["debootstrap", "--variant=minbase", RELEASE, base / "rootfs"])
        (base / "Dockerfile").write_text('FROM scratch\nCOPY rootfs /\nCMD ["bash"]\n')
        found.build("base", base)
        shutil.rmtree(base)
        given = {
            "BASE": "localhost/base",
            # buildah 1.28 skips the stages that only an argument's default names
            "DEVICE": "cpu",
            "INDEX": "--no-index --find-links /index",
        }
        words = [word for key, value in given.items() for word in ("--build-arg", f"{key}={value}")]
        index = ("--volume", f"{wheels}:/index:ro")
        found.build("headway", *words, *index, "--file", FILE, ROOT)
        yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def container(builder: Builder) -> Iterator[str]:
    name = builder("from", "localhost/headway").strip()
    yield name
    builder("rm", name)


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder of shared memory for the image's user, so that what a run leaves is seen."""
    folder = Path(tempfile.mkdtemp(prefix="hw-image-", dir="/dev/shm"))
    os.chown(folder, USER, USER)
    yield folder
    shutil.rmtree(folder)


def test_the_image_is_for_a_user_without_rights_and_starts_headway(builder: Builder) -> None:
    found: Any = json.loads(builder("inspect", "--type", "image", "localhost/headway"))
    config = found["OCIv1"]["config"]
    assert config["User"] == f"{USER}:{USER}"
    assert (config["Entrypoint"], config["Cmd"]) == (["headway"], ["--help"])


def test_doctor_and_the_command_of_a_pod_run_in_it(builder: Builder, container: str) -> None:
    said = builder.inside(container, (), "headway", "doctor", "--json")
    levels = {finding["name"]: finding["level"] for finding in json.loads(said)}
    assert "bad" not in levels.values() and levels["packages"] == "ok", said
    # as a rendered Job calls it, with the default of `python`
    said = builder.inside(container, (), "python3", "-m", "headway.launch.machine", "pod", "--help")
    assert "pod" in said
    said = builder.inside(container, (), "sh", "-c", "id -u; cat /etc/machine-id")
    assert said.split() == [str(USER)]


def test_five_steps_of_a_run_are_made_in_it(
    builder: Builder, container: str, corpus: Path, shm: Path
) -> None:
    options = ("--volume", f"{corpus}:/corpus:ro", "--env", f"HEADWAY_SHM_ROOT={shm}/shm")
    settings = (
        f"train.steps={STEPS}", "data.path=/corpus", "model.layers=2", "model.hidden=64",
        "model.heads=4", "model.seq_len=64", "model.vocab_size=512", "train.eval_every=0",
        "train.sample_tokens=0", "train.dtype=fp32", "train.global_batch_size=4",
        "parallel.pp=1", "parallel.dp=2", "launch.nodes=1", "launch.spares=0",
    )  # fmt: skip
    words = [word for setting in settings for word in ("--set", setting)]
    # one command, because a container's processes end with it
    command = ["headway", "run", "examples/tiny.toml", *words]
    said = builder.inside(container, options, *command)
    assert f"run tiny: finished after step {STEPS}/{STEPS}" in said
    record = json.loads(builder.inside(container, (), "cat", "runs/tiny/run.json"))
    assert processes_of(record["run_id"]) == []
    assert [path for path in shm.rglob("*") if path.is_file()] == [], "no snapshot is left"
