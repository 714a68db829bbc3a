"""The commands as people type them: help without heavy imports, and bad input told in one line,
code 2."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import RunDir
from headway.common.node.testing import private_roots, python_child
from headway.controller.journal.journal import Journal
from headway.dataloader.config import DataConfig
from headway.dataloader.prepare import prepare
from headway.launch.cluster import ClusterFolder
from headway.launch.lease.base import Holder
from headway.launch.lease.file import FileLease

ROOT = Path(__file__).resolve().parents[1]
HEADWAY = [str(Path(sys.executable).with_name("headway"))]
SERVICES = ("dataloader", "ckpt_store", "health", "trainer", "controller")
HEAVY = {
    "torch",
    "numpy",
    "zmq",
    "polars",
    "msgspec",
    "asyncio",
    "pydantic",
    "rich",
    "structlog",
    "prometheus_client",
}
OTHER_VERSION = """
import sys
from headway.common.wire import codec
codec.PROTOCOL_VERSION += 1
from headway.common.wire.keys import KeyPair
from headway.common.wire.server import Server
from pathlib import Path
keys = KeyPair.load(Path(sys.argv[1]))
server = Server("tcp://127.0.0.1:0", {}, keys=keys)
print(server.endpoint, flush=True)
while True:
    server.socket.poll()
    server.handle_ready()
"""


def run(*arguments: str | Path, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = [*HEADWAY, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=cwd, **options)  # type: ignore[call-overload, no-any-return]


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One line on stderr that names the value and the remedy, and exit code 2."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for part in parts:
        assert part in lines[0], lines[0]
    assert "; " in lines[0], f"no remedy: {lines[0]}"


@pytest.mark.parametrize(
    "command",
    [
        HEADWAY,
        [*HEADWAY, "status"],
        [*HEADWAY, "ckpt", "ls"],
        *([sys.executable, "-m", f"headway.{name}"] for name in SERVICES),
    ],
    ids=["headway", "status", "ckpt", *SERVICES],
)
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    """Their import is what makes a command slow; the seconds are in ``benchmarks/help_time.py``."""
    timed = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, env=timed)
    assert done.returncode == 0 and "Usage:" in done.stdout
    loaded = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert "typer" in loaded, "the import log is not read"
    assert loaded & HEAVY == set()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with a valid configuration ``ok.toml`` whose corpus is ``corpus``,
    and roots of its own."""
    with private_roots():
        (tmp_path / "text").mkdir()
        for number in range(12):
            (tmp_path / "text" / f"{number}.txt").write_text(f"a ring holds tokens {number} " * 40)
        corpus = tmp_path / "corpus"
        prepare(
            DataConfig(
                path=str(corpus),
                source=str(tmp_path / "text"),
                vocab_size=300,
                validation_fraction=0.25,
            )
        )
        (tmp_path / "ok.toml").write_text(
            "[model]\nlayers = 4\nhidden = 64\nheads = 4\nvocab_size = 512\nseq_len = 16\n"
            "[parallel]\npp = 2\ndp = 2\n[launch]\nnodes = 2\nranks_per_node = 2\n"
            f'[data]\npath = "{corpus}"\n'
        )
        yield tmp_path


def test_the_configuration_that_the_bad_ones_are_made_of_is_good(place: Path) -> None:
    done = run("run", "ok.toml", "--dry-run", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "layers = 4" in done.stdout


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("train.stesp=5", ("'train.stesp'", "did you mean train.steps")),
        ("trian.steps=5", ("trian", "did you mean train")),
        ("train.steps=many", ("train.steps", "'many'", "expected int")),
        ("train.steps", ("'train.steps'", "table.key=value")),
        ("launch.nodes=3", ("tp x pp x dp", "= 4", "= 6", "make the two products equal")),
        ("parallel.tp=2", ("tp x pp x dp = 2 x 2 x 2 = 8", "= 4")),
        ("model.layers=5", ("model.layers=5", "not divisible by pp", "multiple of 2")),
        ("model.heads=5", ("model.hidden=64", "5 heads", "multiple of model.heads")),
        ("optim.lr=nan", ("optim.lr=nan", "out of range")),
        ("optim.lr=-1", ("optim.lr=-1", "out of range")),
        ("train.global_batch_size=1", ("train.global_batch_size=1", "at least 2")),
    ],
)
def test_an_impossible_setting_is_named_with_its_remedy(
    place: Path, setting: str, parts: tuple[str, ...]
) -> None:
    refused(run("run", "ok.toml", "--dry-run", "--set", setting, cwd=place), *parts)


def test_a_key_that_a_file_misspells_is_told_with_the_nearest_name(place: Path) -> None:
    (place / "bad.toml").write_text("[optim]\nlearning_rate = 1\nwarmup_step = 3\n")
    refused(run("run", "bad.toml", cwd=place), "optim.")
    (place / "worse.toml").write_text("x = = 3\n")
    refused(run("run", "worse.toml", cwd=place), "worse.toml", "line 1")
    refused(run("run", "absent.toml", cwd=place), "absent.toml")


def test_a_missing_corpus_is_told_before_anything_starts(place: Path) -> None:
    refused(
        run("run", "ok.toml", "--set", "data.path=/nowhere/corpus", cwd=place),
        "/nowhere/corpus",
        "prepare",
    )
    refused(
        run(
            "run", "ok.toml", "--set", "data.path=gone", "--set", "data.source=/no/text", cwd=place
        ),
        "/no/text",
    )


@pytest.mark.parametrize("victim", ["train.bin", "validation.bin", "train.idx"])
def test_a_truncated_corpus_is_told_before_anything_starts(place: Path, victim: str) -> None:
    path = place / "corpus" / victim
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)
    refused(run("run", "ok.toml", cwd=place), victim.partition(".")[0])
    assert not list((place / "runs").glob("*/run.json"))


@pytest.mark.parametrize("service", ["dataloader", "ckpt_store", "health"])
def test_a_port_in_use_is_told(place: Path, service: str) -> None:
    shm = place / "shm"
    shm.mkdir()
    arguments = {
        "dataloader": ["serve"],
        "ckpt_store": ["serve", "--checkpoints", place],
        "health": [
            "agent",
            "--logs",
            place,
            "--node-file",
            place / "m",
            "--keys",
            place / "keys",
            "--run-id",
            "0badcafe",
            "--node",
            0,
        ],
    }[service]
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        command = [
            *arguments,
            "--shm-dir",
            shm,
            "--endpoint",
            f"ipc://{place}/x",
            "--metrics-port",
            port,
        ]
        done = subprocess.run([sys.executable, "-m", f"headway.{service}", *map(str, command)],
                              capture_output=True, text=True, timeout=60)  # fmt: skip
    refused(done, port, "in use", "choose another metrics port")


def test_a_full_disk_is_told_before_anything_starts(place: Path) -> None:
    with _small_disk(place / "small") as small:
        done = run("run", "ok.toml", "--runs-dir", small, cwd=place)
        assert not list(small.glob("*/run.json"))
    refused(done, str(place / "small"), "MiB free", "--runs-dir")


@contextlib.contextmanager
def _small_disk(path: Path) -> Iterator[Path]:
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"a small disk needs the right to mount: {made.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_run_folder_that_cannot_be_made_is_told(place: Path) -> None:
    (place / "file").write_text("")
    refused(run("run", "ok.toml", "--runs-dir", "file/runs", cwd=place), "file/runs", "--runs-dir")


def test_a_name_that_a_finished_run_has_is_refused(place: Path) -> None:
    folder = RunDir.create(place / "runs" / "mine", run_id="0badcafe")
    journal = Journal(folder.database)
    journal.set_facts(outcome="finished")
    journal.close()
    refused(
        run("run", "ok.toml", "--name", "mine", cwd=place),
        "'mine'",
        "taken",
        "choose another --name",
    )
    refused(run("run", "ok.toml", "--name", "../up", cwd=place), "'../up'", "letters")


def test_a_driver_of_another_version_is_told(place: Path) -> None:
    folder = RunDir.create(place / "runs" / "mine", run_id="0badcafe")
    cluster = ClusterFolder.create(folder.path / "cluster", nodes=1)
    record = json.loads(folder.run_json.read_text())
    folder.run_json.write_text(json.dumps({**record, "cluster": str(cluster.path)}))
    with python_child(OTHER_VERSION, cluster.path / "keys" / "driver.key") as driver:
        assert driver.stdout is not None
        process = ProcessId.of(driver.pid)
        assert process is not None
        endpoint, key = driver.stdout.readline().strip(), cluster.key_of("driver").public.decode()
        FileLease(folder.path).publish(
            Holder(1, 0, process.pid, process.start_ticks, endpoint, key)
        )
        done = run("pause", "mine", cwd=place)
    refused(done, "protocol version", "install the same version of Headway")


def test_make_up_without_terraform_is_told(place: Path) -> None:
    """Of what is on the PATH everything stays but terraform."""
    tools = place / "bin"
    tools.mkdir()
    for folder in reversed(os.get_exec_path()):
        for tool in Path(folder).glob("*"):
            if tool.name != "terraform" and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    assert shutil.which("make", path=str(tools)), "the copy of the PATH is empty"
    command = [
        "make",
        "-s",
        "-o",
        "setup",
        "up",
        "TARGET=local",
    ]  # the set-up is not what is tested
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PATH": str(tools)}
    )
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert said == [
        (
            "error: no terraform on the PATH; install Terraform 1.9 or newer; `make run` does not "
            "need it"
        )
    ]


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["run"], ["run", "ok.toml", "--bogus"], ["set", "x", "lr"]]
)
def test_wrong_usage_is_one_line_and_code_2(place: Path, arguments: list[str]) -> None:
    refused(run(*arguments, cwd=place))
