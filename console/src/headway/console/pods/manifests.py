"""A run on pods of Kubernetes: what each pod gets of it and needs for it, as manifests."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from headway.common.config import from_dict, to_toml
from headway.common.errors import InputError
from headway.common.node.run_dir import new_run_id
from headway.common.plan.memory import predict_all
from headway.common.wire.keys import KeyPair
from headway.console.machine.preflight import SHM_BESIDES_BYTES, shared_bytes
from headway.launch.engines.choose import config_of, facts_of
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.engines.kubernetes.render import Needs, render
from headway.launch.join import tokens
from headway.launch.join.bundle import Bundle
from headway.launch.join.corpus import Corpus
from headway.trainer.config import RunConfig
from headway.trainer.config.memory import memory_shape

INTERFACE = "eth0"
"""Network interface of a pod, unless the configuration names another."""
NODE_BYTES = 1 << 30
"""Services and the code of workers of one node, without the ranks' tensors: docs/lab_log.md,
2026-11-21, measured 3.1 GiB with them for the three nodes of examples/tiny.toml."""


def manifests(config: RunConfig, pods: KubernetesConfig, name: str) -> list[dict[str, Any]]:
    """The objects of a new run, with an id, keys and a secret of its own.

    Raises:
        InputError: something depends on the machines, which are not known here, or a name is not
            one for Kubernetes.
    """
    return objects_of(*new_bundle(config, pods, name))


def new_bundle(config: RunConfig, pods: KubernetesConfig, name: str) -> tuple[Bundle, str]:
    """The bundle of a new run, and the text of the console's key pair.

    Raises:
        InputError: something depends on the machines, which are not known here.
    """
    config = for_pods(config, pods)
    pods = dataclasses.replace(pods, kubeconfig="", context="", server="")  # this machine's own
    run_id, nodes = new_run_id(), config.launch.nodes + config.launch.spares
    key, needs = KeyPair.generate(), needs_of(config)
    bundle = Bundle(
        run_id=run_id,
        name=name,
        nodes=nodes,
        config=to_toml(config),
        network=config.launch.network,
        engine=facts_of(pods),
        shared=f"{pods.shared}/{name}-{run_id}",
        secret=tokens.new_secret(),
        console_key=key.public.decode(),
        corpus=Corpus(config.data.path),
        gpus=needs.gpus,
        shm_bytes=needs.shm_bytes,
        compiles_on=compiles_on(config),
    )
    return bundle, key.to_text().decode()


def objects_of(bundle: Bundle, console_key: str) -> list[dict[str, Any]]:
    """The objects of the run that a bundle describes, the same at each call.

    Raises:
        InputError: a name is not one for Kubernetes.
    """
    pods = config_of(bundle.engine)
    assert isinstance(pods, KubernetesConfig)
    needs = needs_of(from_dict(RunConfig, tomllib.loads(bundle.config)))
    return render(bundle, pods, needs, console_key)


def for_pods(config: RunConfig, pods: KubernetesConfig) -> RunConfig:
    """The configuration as each pod can read it: no ``auto``, an interface, and paths on the claim.

    Raises:
        InputError: ``train.device`` is ``auto``.
    """
    train, data, launch = config.train, config.data, config.launch
    if train.device == "auto":
        raise InputError(
            "train.device='auto' would look for GPUs here, not where the pods run",
            remedy="add --set train.device=gpu or --set train.device=cpu",
        )
    if train.dtype == "auto":
        train = dataclasses.replace(train, dtype="bf16" if train.device == "gpu" else "fp32")
    if train.compile == "auto":
        train = dataclasses.replace(train, compile=train.device == "gpu")

    def on_claim(path: str) -> str:
        return path and str(Path(pods.shared) / path)

    train = dataclasses.replace(train, init_from=on_claim(train.init_from))
    data = dataclasses.replace(data, path=on_claim(data.path), tokenizer=on_claim(data.tokenizer))
    launch = dataclasses.replace(launch, interface=launch.interface or INTERFACE)
    return dataclasses.replace(config, train=train, data=data, launch=launch)


def needs_of(config: RunConfig) -> Needs:
    """What a pod needs: cores, memory, shared memory and GPUs.

    Layers of the user's own are not predicted: their snapshots count as for the model without them,
    on one node, and their tensors not at all.
    """
    launch, on_gpu = config.launch, config.train.device == "gpu"
    shm_bytes, tensors = shared_bytes(config), 0
    if config.model.architecture.own_block is None:
        ranks = predict_all(memory_shape(config))
        most = max(memory.snapshots for memory in ranks)
        shm_bytes = launch.ranks_per_node * most + SHM_BESIDES_BYTES
        tensors = 0 if on_gpu else launch.ranks_per_node * max(memory.total for memory in ranks)
    return Needs(
        cpus=launch.ranks_per_node * launch.threads_per_rank,
        memory_bytes=NODE_BYTES + tensors + shm_bytes,
        shm_bytes=shm_bytes,
        gpus=launch.ranks_per_node if on_gpu else 0,
    )


def compiles_on(config: RunConfig) -> str:
    """For what a node's ranks compile kernels, as ``Bundle.compiles_on`` has it."""
    return config.train.device if config.train.compile is True else ""


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes YAML whose strings stay strings with other parsers.

    Some parsers take more of them for numbers and booleans than PyYAML does, as kubectl's does with
    ``12e34567``.
    """


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?\d+[eE][-+]?\d+$|[yYnN]$"),
    list("-+0123456789yYnN"),
)
_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def to_yaml(objects: Iterable[dict[str, Any]]) -> str:
    """One document for each."""
    return str(yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=1000))
