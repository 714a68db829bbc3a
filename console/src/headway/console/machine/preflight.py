"""What is checked and prepared before a run takes a node: torch, disk, shared memory, corpus."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from headway.common.errors import CorruptError, InputError
from headway.common.node.segment import check_processor
from headway.common.wire.addresses import Network
from headway.console.machine.corpus_folder import asked_vocab, is_derived, tokenizer_sha256
from headway.console.machine.corpus_folder import own_corpus_folder as own_corpus_folder
from headway.dataloader.config import DataConfig
from headway.health.client import check_rules
from headway.trainer.config import MetricsPorts, RunConfig
from headway.trainer.config.memory import model_shape

MIN_FREE_BYTES = 2 << 30
SHM = Path("/dev/shm")
SHM_BESIDES_BYTES = 256 << 20
"""Rings, flight records and last words of one run, with room to spare."""
_OTHER_FOLDER = "leave data.path out, or set it to a folder that does not exist yet"
INSTALL_TORCH = "run `make setup` in the checkout, or `pip install './console[local]'`"


def check_torch() -> None:
    """Raises InputError where there is no torch: such an installation watches and steers runs."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("torch is not installed, and a run needs it", remedy=INSTALL_TORCH)


def check_own_block(config: RunConfig) -> None:
    """Raises InputError when the package of ``model.block`` is found neither here nor installed."""
    block = config.model.architecture.own_block
    if block is None:
        return
    package = block.split(":")[0].split(".")[0]
    # the ranks are started with the present folder on their path
    if importlib.machinery.PathFinder.find_spec(package, [str(Path.cwd()), *sys.path]) is None:
        raise InputError(
            f"model.block={block!r}: there is no package {package!r}",
            remedy="start the run in its folder, or put that on PYTHONPATH",
        )


def check_own_rules(config: RunConfig) -> None:
    """Raises ConfigError when a file of ``health.rules`` or a rule in it is not valid."""
    check_rules(config.health.rules)


def check_machine(config: RunConfig, runs_dir: Path, *, is_alone: bool = True) -> None:
    """Raises InputError when the processor is not x86-64, or disk or shared memory is too full.

    Shared memory is of interest only where this machine ``is_alone`` in carrying the run.
    """
    check_processor()
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make {runs_dir}: {error.strerror}", remedy="pass --runs-dir"
        ) from error
    free = shutil.disk_usage(runs_dir).free
    if free < MIN_FREE_BYTES:
        raise InputError(
            f"{runs_dir} has {free >> 20} MiB free, a run needs {MIN_FREE_BYTES >> 20} MiB",
            remedy="free some space or pass --runs-dir",
        )
    need, there = shared_bytes(config), shutil.disk_usage(SHM).free
    if is_alone and there < need:
        raise InputError(
            f"{SHM} has {there >> 20} MiB free, the snapshots of this run need {need >> 20} MiB",
            remedy="enlarge it (mount -o remount,size=... /dev/shm; docker --shm-size)",
        )


def check_sinks(names: Sequence[str]) -> None:
    """Raises InputError when a sink of ``launch.sinks`` or ``headway export`` is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise InputError(
                f"the sink {name!r} needs the package {name}, which is not installed",
                remedy=f"pip install './console[{name}]' in the checkout, or leave the sink out",
            )


def check_metrics_ports(ports: MetricsPorts | None) -> None:
    """Raises InputError when a metrics port of the run is in use."""
    for port, service, node in ports or ():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                where = service if node is None else f"{service} of node {node}"
                assert ports is not None
                raise InputError(
                    f"metrics port {port} for the {where} cannot be used: {error.strerror}",
                    remedy=f"set launch.metrics_port so that its {ports.last - ports.first + 1} "
                    "ports are free, or to 0",
                ) from error


def check_network(network: Network) -> None:
    """Raises InputError when this machine has no interface or address as the run names it."""
    _ = network.endpoint, network.fabric_address


def shared_bytes(config: RunConfig) -> int:
    """Shared memory of a run on this machine, all its emulated nodes together.

    Slots of fp32 master and two moments for every shard; shards add up to the model once. The third
    slot has memory only while a checkpoint is written, but without it there would be none.
    """
    return 3 * 3 * 4 * model_shape(config).parameters + SHM_BESIDES_BYTES


def corpus_stage(config: RunConfig) -> str:
    """What ``prepare_corpus`` is about to do, for who waits for it."""
    verb = "checking" if _is_there(Path(config.data.path)) else "preparing"
    return f"{verb} corpus {config.data.source}"


def prepare_corpus(config: RunConfig, report: Callable[[str], None]) -> None:
    """Make the corpus if it is absent, then check that it can be read and fits the model.

    With the default source only the default folder is made: a path that was given must be there.

    Raises:
        InputError: the corpus cannot be made, is damaged, comes from another source than the one
            asked for, or has more tokens than the model knows.
    """
    path = Path(config.data.path)
    if not _is_there(path):
        if _names_folder_only(config):
            raise InputError(
                f"no prepared data at {path}",
                remedy=f"run `headway data prepare --out {path}` or leave data.path out",
            )
        _prepare(config, path, report)
    from headway.dataloader import Dataset

    try:
        data = Dataset(path)
        for split in ("train", "validation"):
            data.split(split)
    except CorruptError as error:
        raise InputError(
            error.message, remedy=error.remedy or "prepare the data again with --force"
        ) from error
    if data.meta is not None:
        _refuse_other_source(config, path, data.meta.source, data.meta.corpus_sha256)
        _refuse_other_tokenizer(config, path, data.meta.tokenizer_sha256)
        _refuse_other_end(config, path, data.meta.eod_id)
        _refuse_other_settings(
            config, path, data.meta.asked_vocab_size, data.meta.validation_fraction
        )
        if not _names_folder_only(config):
            _refuse_changed_texts(config, path)
    if data.vocab_size is not None and data.vocab_size > config.model.vocab_size:
        wanted = config.model.vocab_size
        raise InputError(
            f"the corpus {path} has {data.vocab_size} tokens, but model.vocab_size={wanted}",
            remedy=f"set model.vocab_size={data.vocab_size}, or prepare another folder for "
            f"data.path with `headway data prepare --source {config.data.source} --vocab-size "
            f"{wanted} --out DIR`",
        )


def _refuse_other_end(config: RunConfig, path: Path, eod_id: int) -> None:
    wanted = config.model.document_end
    if wanted is not None and wanted != eod_id:
        raise InputError(
            f"model.document_end={wanted}, but documents of {path} end with token {eod_id}",
            remedy=f"set model.document_end={eod_id}",
        )


def _is_there(path: Path) -> bool:
    return (path / "meta.json").exists() or path.with_name(path.name + ".idx").exists()


def _names_folder_only(config: RunConfig) -> bool:
    """Whether a folder was given and no source: the default source goes with the default folder."""
    is_default_path = Path(config.data.path).resolve() == Path(DataConfig.path).resolve()
    return config.data.source == DataConfig.source and not is_default_path


def _refuse_other_source(config: RunConfig, path: Path, source: str, sha256: str) -> None:
    asked = config.data.source
    if asked == source or _names_folder_only(config):
        return
    # spelled in another way
    if Path(asked).exists() and Path(asked).resolve() == Path(source).resolve():
        return
    remedy = _OTHER_FOLDER
    if asked == DataConfig.source:
        remedy = f"replace it with `headway data prepare --force --out {path}`"
    raise InputError(
        f"{path} was prepared from {source!r} (corpus {sha256[:16]}), but data.source is {asked!r}",
        remedy=remedy,
    )


def _refuse_other_settings(config: RunConfig, path: Path, vocab_size: int, fraction: float) -> None:
    """Settings of the preparation that are given now and were others then.

    Defaults count only for a folder that is named after the corpus: another one may have been
    prepared by hand, with settings that the configuration does not repeat.
    """
    data, every = config.data, is_derived(config)
    for name, asked, known, default in (
        ("vocab_size", data.vocab_size, vocab_size, DataConfig.vocab_size),
        ("validation_fraction", data.validation_fraction, fraction, DataConfig.validation_fraction),
    ):
        is_vocab = name == "vocab_size"
        if (is_vocab and data.tokenizer) or (asked == default and (is_vocab or not every)):
            continue
        if known != asked and not (is_vocab and known == asked_vocab(config)):
            was = f"{known}" if known else "a given tokenizer"
            raise InputError(
                f"{path} was prepared with {name}={was}, but data.{name}={asked}",
                remedy=f"{_again(config, path)}, or set data.path to a folder that does not exist "
                "yet",
            )


def _refuse_changed_texts(config: RunConfig, path: Path) -> None:
    from headway.dataloader import changed_texts

    if found := changed_texts(path, config.data.source):
        raise InputError(
            f"the texts of {config.data.source} are not those that {path} was prepared from: "
            f"{found}",
            remedy=f"{_again(config, path)}, or leave data.source out to train on the old ones "
            f"(data.path={path})",
        )


def _again(config: RunConfig, path: Path) -> str:
    words = shlex.join(["headway", "data", "prepare", "--force", *_options(config, path)])
    return f"prepare it again with `{words}`"


def _refuse_other_tokenizer(config: RunConfig, path: Path, sha256: str) -> None:
    """Tokens of another vocabulary look valid and mean something else to the model."""
    given = config.data.tokenizer
    if not given:
        return
    if tokenizer_sha256(config.data) != sha256:
        raise InputError(
            f"{path} was prepared with another tokenizer than data.tokenizer={given!r}",
            remedy=_OTHER_FOLDER,
        )


def _prepare(config: RunConfig, path: Path, report: Callable[[str], None]) -> None:
    report(f"preparing corpus {config.data.source} in {path}")
    command = [sys.executable, "-m", "headway.dataloader", "prepare", *_options(config, path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = (
            lines[-1].removeprefix("error: ")
            if lines
            else f"no data at {path}, code {done.returncode}"
        )
        raise InputError(said, remedy="" if lines else "run `headway data prepare` by hand")
    for line in done.stdout.strip().splitlines()[-1:]:
        report(line)


def _options(config: RunConfig, path: Path) -> list[str]:
    """Options of ``headway data prepare``."""
    data = config.data
    options: dict[str, object] = {
        "--source": data.source,
        "--vocab-size": asked_vocab(config),
        "--validation-fraction": data.validation_fraction,
        "--out": path,
    }
    if data.tokenizer:
        options["--tokenizer"] = data.tokenizer
    if data.end:
        options["--end"] = data.end
    return [str(word) for option in options.items() for word in option]
