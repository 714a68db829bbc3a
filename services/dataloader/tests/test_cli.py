"""The command line: quick help, one clear line for bad input, JSON for programs, and
the README's example."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.node.testing import child_environment
from headway.common.wire.client import Client
from headway.common.wire.messages.dataloader import DataStatus, GetDataStatus
from headway.testkit.data_daemon import Daemon, running_daemon, write_tokens

README = Path(__file__).parents[1] / "README.md"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway.dataloader", *map(str, arguments)]
    return subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, check=False
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from headway.dataloader.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'numpy', 'zmq', 'tokenizers', 'torch', 'msgspec', 'prometheus_client'} & "
        "set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("prepare", "inspect", "verify", "serve"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing command"),
        (("prepar",), "prepar"),
        (("prepare", "--vocab-size", "many"), "--vocab-size"),
        (("prepare", "--vocab-size", "100"), "data.vocab_size=100"),
        (("prepare", "--validation-fraction", "2"), "validation_fraction=2.0"),
        (("prepare", "--source", "/nowhere", "--out", "{tmp}/d"), "'/nowhere' does not exist"),
        (("prepare", "--source", "{tmp}", "--out", "/proc/d"), "cannot write /proc"),
        (("inspect", "{tmp}/none"), "headway data prepare"),
        (("inspect", "{tmp}"), "no prepared data"),
        (("verify", "{tmp}/none"), "headway data prepare"),
        (("serve",), "--endpoint"),
        (("serve", "--endpoint", "tcp://0.0.0.0:0", "--shm-dir", "{tmp}"), "0.0.0.0"),
        (("serve", "--endpoint", "ipc://{tmp}/" + "x" * 120, "--shm-dir", "{tmp}"), "bytes"),
        (("serve", "--endpoint", "ipc://{tmp}/s", "--shm-dir", "/proc/none"), "--shm-dir"),
        (("serve", "--endpoint", "ipc://{tmp}/s", "--run-id", "nonsense"), "nonsense"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], words: str, short_folder: Path
) -> None:
    done = run(*(argument.replace("{tmp}", str(short_folder)) for argument in arguments))
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and words in lines[0], done.stderr


def test_prepare_inspect_and_verify_answer_in_json(text_folder: Path, tmp_path: Path) -> None:
    options = ("--source", text_folder, "--out", tmp_path / "d", "--vocab-size", "300", "--json")
    first = json.loads(run("prepare", *options).stdout)
    second = json.loads(run("prepare", *options).stdout)
    assert (first["already_prepared"], second["already_prepared"]) == (False, True)
    assert re.fullmatch("[0-9a-f]{64}", first["corpus_sha256"])
    looked = json.loads(run("inspect", tmp_path / "d", "--split", "validation", "--json").stdout)
    assert looked["tokens"] == first["splits"]["validation"]["tokens"]
    assert all(text.startswith("the ") or text for text in looked["beginnings"])
    assert json.loads(run("verify", tmp_path / "d", "--json").stdout)["intact"]


def test_damage_found_by_verify_exits_1_and_names_the_file_and_a_remedy_that_mends_it(
    text_folder: Path, tmp_path: Path
) -> None:
    options = ("--source", text_folder, "--out", tmp_path / "d", "--vocab-size", "300")
    run("prepare", *options)
    raw = bytearray((tmp_path / "d" / "train.bin").read_bytes())
    raw[10] ^= 1
    (tmp_path / "d" / "train.bin").write_bytes(raw)
    done = run("verify", tmp_path / "d")
    assert (
        done.returncode == 1 and "train.bin" in done.stderr and len(done.stderr.splitlines()) == 1
    )
    assert "prepare the data again with --force" in done.stderr
    assert run("prepare", *options, "--force").returncode == 0
    assert run("verify", tmp_path / "d").returncode == 0


def test_a_bare_megatron_pair_can_be_inspected_and_verified(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [4, 6])
    assert json.loads(run("inspect", prefix, "--json").stdout)["tokens"] == 10
    assert run("verify", f"{prefix}.idx").returncode == 0


@pytest.mark.parametrize("source", ["/nowhere", "{text}"])
def test_prepare_leaves_no_lock_behind(source: str, text_folder: Path, tmp_path: Path) -> None:
    run("prepare", "--source", source.replace("{text}", str(text_folder)), "--out", tmp_path / "d",
        "--vocab-size", "300")  # fmt: skip
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_daemon_that_is_ended_leaves_no_folder_in_shared_memory(short_folder: Path) -> None:
    root = short_folder / "m"
    command = [
        sys.executable,
        "-m",
        "headway.dataloader",
        "serve",
        "--endpoint",
        f"ipc://{short_folder}/s",
    ]
    daemon = subprocess.Popen(
        command, env=child_environment({"HEADWAY_SHM_ROOT": str(root)}), stderr=subprocess.PIPE
    )
    try:
        with Client(f"ipc://{short_folder}/s") as client:
            client.call(GetDataStatus(), DataStatus, timeout_s=30.0)
        assert (root / "dataloader").is_dir()
    finally:
        daemon.terminate()
        daemon.communicate()
    assert daemon.returncode == 0 and list(root.iterdir()) == []


def test_a_socket_in_use_is_refused(short_folder: Path) -> None:
    with running_daemon(short_folder) as daemon:
        done = run("serve", "--endpoint", daemon.endpoint, "--shm-dir", daemon.shm_dir)
    assert done.returncode == 2
    assert "in use" in done.stderr.splitlines()[-1]


def _example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    return code


def test_the_example_in_the_readme_runs_and_gives_the_same_losses_with_and_without_a_daemon(
    short_folder: Path, text_folder: Path, tmp_path: Path
) -> None:
    assert len(_example().splitlines()) < 30
    assert "\npython example.py stdlib data/stdlib" in README.read_text()
    (tmp_path / "example.py").write_text(_example())

    def losses(*arguments: str) -> list[str]:
        command = [
            sys.executable,
            str(tmp_path / "example.py"),
            str(text_folder),
            str(tmp_path / "d"),
            *arguments,
        ]
        environment = child_environment({"OMP_NUM_THREADS": "1"})
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    alone = losses()
    assert len(alone) == 20 and float(alone[-1].split()[2]) < float(alone[0].split()[2]) - 1
    with running_daemon(short_folder) as daemon:
        _check_same(losses(daemon.endpoint), alone, daemon)


def _check_same(found: list[str], expected: list[str], daemon: Daemon) -> None:
    assert found == expected
    assert daemon.status().num_batches >= 20
