"""``headway cluster render kubernetes``: what it prints, and what it refuses."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from headway.common.config import load
from headway.common.wire.keys import KeyPair
from headway.console.cli import main
from headway.console.machine.preflight import SHM_BESIDES_BYTES, shared_bytes
from headway.console.pods.manifests import NODE_BYTES, needs_of, to_yaml
from headway.launch.engines.choose import config_of
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.join.bundle import Bundle
from headway.trainer.config import RunConfig

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"
VERSION = "1.34"
WORDS = ("cluster", "render", "kubernetes", str(TINY), "--image", "h:1", "--claim", "data")


def _printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*WORDS, "--set", "train.device=cpu", *words]) == 0
    return capsys.readouterr().out


def _refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*WORDS, *words]) == 2
    said = capsys.readouterr()
    assert not said.out
    return said.err


def _bundle(secret: dict[str, Any]) -> Bundle:
    return Bundle.from_json(secret["stringData"]["bundle.json"], source="the Secret")


def test_what_is_printed_is_valid_and_describes_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed(capsys, "--namespace", "train", "--node-selector", "zone=a")
    secret, *others, job = yaml.safe_load_all(text)
    assert "&id" not in text, "every object stands by itself"
    for one in (secret, *others, job):
        kubernetes_validate.validate(one, VERSION, strict=True)
        assert (one["metadata"]["name"], one["metadata"]["namespace"]) == ("tiny", "train")
    bundle = _bundle(secret)
    assert job["spec"]["completions"] == bundle.nodes == 3, "a spare too"
    config = load(RunConfig, [TINY], ["train.device=cpu"])
    carried = tomllib.loads(bundle.config)
    assert carried["train"]["steps"] == config.train.steps
    assert carried["launch"]["interface"] == bundle.network.interface == "eth0"
    assert carried["train"]["dtype"] == "fp32", "auto would differ between machines"
    assert carried["data"]["path"] == bundle.corpus.path == "/shared/data/stdlib"
    assert bundle.shared == f"/shared/tiny-{bundle.run_id}"
    pods = KubernetesConfig("h:1", "data", "train", node_selector=("zone=a",))
    assert config_of(bundle.engine) == pods


def test_json_is_the_same_objects_with_keys_that_fit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    secret, *others = json.loads(_printed(capsys, "--json", "--name", "other"))
    kinds = ["Lease", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "Job"]
    assert [one["kind"] for one in others] == kinds
    assert others[0]["metadata"]["name"] == "other"
    key = tmp_path / "console.key"
    key.write_text(secret["stringData"]["console.key"])
    key.chmod(0o600)
    assert KeyPair.load(key).public.decode() == _bundle(secret).console_key


def test_each_call_makes_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (_bundle(json.loads(_printed(capsys, "--json"))[0]) for _ in range(2))
    assert one.run_id != other.run_id and one.secret != other.secret
    assert one.console_key != other.console_key and one.shared != other.shared


def test_settings_and_what_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("train.device=gpu", "launch.interface=net1", "data.path=/mnt/corpus")
    words = [word for one in given for word in ("--set", one)]
    secret, *_, job = json.loads(_printed(capsys, "--json", *words))
    bundle = _bundle(secret)
    assert (bundle.network.interface, bundle.corpus.path) == ("net1", "/mnt/corpus")
    assert tomllib.loads(bundle.config)["train"]["dtype"] == "bf16"
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}, "a GPU for each rank"


def test_what_depends_on_the_machines_or_is_no_name_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "train.device='auto'" in _refused(capsys)
    cpu = ("--set", "train.device=cpu")
    assert "run name 'My_run'" in _refused(capsys, *cpu, "--name", "My_run")
    assert "namespace 'a.b'" in _refused(capsys, *cpu, "--namespace", "a.b")
    assert "claim 'X'" in _refused(capsys, *cpu, "--claim", "X")
    assert "'zone' is not a label" in _refused(capsys, *cpu, "--node-selector", "zone")


def _config(*settings: str) -> RunConfig:
    return load(RunConfig, [TINY], ["train.device=cpu", "train.dtype=fp32", *settings])


def test_a_pod_has_room_for_the_snapshots_of_its_ranks() -> None:
    config = _config("launch.nodes=1", "launch.ranks_per_node=4")
    alone = needs_of(config)
    assert alone.shm_bytes >= shared_bytes(config), "all ranks are there"
    half = needs_of(_config())
    assert half.shm_bytes - SHM_BESIDES_BYTES == (alone.shm_bytes - SHM_BESIDES_BYTES) // 2
    assert half.memory_bytes > NODE_BYTES + half.shm_bytes
    threads = needs_of(_config("launch.threads_per_rank=3"))
    assert (half.cpus, threads.cpus, half.gpus) == (2, 6, 0)


def test_a_gpu_takes_the_ranks_tensors_out_of_the_pods_memory() -> None:
    needs = needs_of(_config("train.device=gpu", "train.dtype=bf16"))
    assert needs.gpus == 2 and needs.memory_bytes == NODE_BYTES + needs.shm_bytes


def test_layers_of_ones_own_are_not_predicted() -> None:
    config = _config("model.block=mine.layers:Block")
    assert needs_of(config).shm_bytes == shared_bytes(config)


@pytest.mark.parametrize("text", ["12e34567", "1E5", "y", "N", "no", "0b11", "12345678", "1.5"])
def test_a_string_is_quoted_that_another_parser_takes_for_a_number(text: str) -> None:
    assert to_yaml([{"a": text}]) in (f"a: '{text}'\n", f'a: "{text}"\n')


def test_text_of_several_lines_stays_readable() -> None:
    assert to_yaml([{"a": "one\ntwo\n"}, {"b": 1}]) == "a: |\n  one\n  two\n---\nb: 1\n"
