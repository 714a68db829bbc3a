"""What NCCL will be set to by a configuration on this machine, for ``headway doctor CONFIG``."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from headway.console.machine.doctor import Finding
from headway.trainer.client import (
    NcclSetting,
    nccl_adapters,
    nccl_efa,
    nccl_retries,
    nccl_settings,
)
from headway.trainer.config import ParallelConfig, RunConfig

CTAS = {
    "NCCL_MAX_CTAS": "pair_ctas",
    "NCCL_MAX_NCHANNELS": "pair_ctas",
    "NCCL_CTA_POLICY": "cta_policy",
}
"""Variables that override a limit of every communicator, with the setting of ``[parallel]``."""
SYSFS, ETC, DEV = Path("/sys"), Path("/etc/nccl.conf"), Path("/dev")


def examine_nccl(
    config: RunConfig,
    environ: Mapping[str, str] = os.environ,
    *,
    sysfs: Path = SYSFS,
    etc: Path = ETC,
    dev: Path = DEV,
) -> dict[str, Finding]:
    """Each setting with its value, source and reason; then what they amount to."""
    parallel = config.parallel
    if config.train.device == "cpu":
        return {"nccl": Finding("ok", 'not used: train.device="cpu"')}
    settings = nccl_settings(parallel, environ, sysfs=sysfs, etc=etc)
    found = {"nccl": _profile(parallel, sysfs, dev)}
    found |= {one.name: _setting(one, parallel) for one in settings}
    found |= dict(_file(environ))
    if parallel.nccl_profile in ("ib", "roce") or (
        parallel.nccl_profile == "none" and _active_kinds(sysfs)
    ):
        found["nccl link"] = _link(config, settings)
    return found


def _profile(parallel: ParallelConfig, sysfs: Path, dev: Path) -> Finding:
    """The profile, or which one the adapters of this machine suggest."""
    message = f'parallel.nccl_profile="{parallel.nccl_profile}"'
    if parallel.nccl_profile == "efa":
        return _efa(message, sysfs, dev)
    kinds = _active_kinds(sysfs)
    if parallel.nccl_profile == "none" and kinds:
        return Finding(
            "note",
            f"{message}, and this machine has RDMA adapters",
            f"set it to {' or '.join(kinds)}, so that a link may be away for parallel.flap_s",
        )
    if parallel.nccl_profile == "none" and nccl_efa(sysfs, dev).adapters:
        return Finding(
            "note",
            f"{message}, and this machine has EFA adapters",
            "set it to efa, so that NCCL uses them or ends with an error",
        )
    if parallel.nccl_profile in ("ib", "roce") and parallel.nccl_profile not in kinds:
        return Finding(
            "note",
            f"{message}, and no port here is active in such a network",
            "NCCL uses TCP sockets then; run this on a machine that trains, or see `ibstat`",
        )
    return Finding("ok", message)


def _efa(message: str, sysfs: Path, dev: Path) -> Finding:
    """The adapters of the profile ``efa``; without one, ranks end at their first communicator."""
    found = nccl_efa(sysfs, dev)
    if not found.adapters and found.without_driver:
        return Finding(
            "note",
            f"{message}, and no driver serves the EFA adapters here ({found.without_driver})",
            "load the kernel's module efa, or run AWS's EFA installer",
        )
    if not found.adapters:
        return Finding(
            "note",
            f"{message}, and this machine has no EFA adapter",
            "ranks would end with an error here; run this on a machine that trains",
        )
    version = f", driver {found.driver}" if found.driver else ""
    message = f"{message}: {len(found.adapters)} EFA ({', '.join(found.adapters)}){version}"
    if not found.has_verbs:
        return Finding(
            "note",
            f"{message}, and {dev}/infiniband/uverbs*, to reach them by, is missing",
            "give the container these devices (docker --device), or load the module ib_uverbs",
        )
    if found.without_driver:
        return Finding(
            "note",
            f"{message}, and no driver serves the others ({found.without_driver})",
            "see the kernel's log for these adapters, and reload its module efa",
        )
    return Finding("ok", message)


def _active_kinds(sysfs: Path) -> list[str]:
    """The profiles that the active adapters of this machine are for."""
    layers = {port.link_layer for port in nccl_adapters(sysfs) if port.is_active}
    return [kind for layer, kind in (("InfiniBand", "ib"), ("Ethernet", "roce")) if layer in layers]


def _setting(one: NcclSetting, parallel: ParallelConfig) -> Finding:
    message = f"{one.value} ({one.source})"
    if one.beaten:
        others = ", ".join(f"{value} of {file}" for value, file in one.beaten)
        message = f"{one.value} ({one.source}, which wins over {others})"
    if one.name in CTAS:
        key = CTAS[one.name]
        return Finding(
            "note",
            f"{message} overrides parallel.{key}={getattr(parallel, key)!r}",
            f"unset {one.name} to have collectives take the blocks that they need",
        )
    return Finding("ok", f"{message}: {one.reason}" if one.reason else message)


def _file(environ: Mapping[str, str]) -> Iterator[tuple[str, Finding]]:
    path = environ.get("NCCL_CONF_FILE", "")
    if path and not (Path(path).is_file() and os.access(path, os.R_OK)):
        remedy = "correct the path (NCCL does not expand `~`) or unset NCCL_CONF_FILE"
        yield "NCCL_CONF_FILE", Finding("note", f"{path} cannot be read; NCCL ignores it", remedy)


def _link(config: RunConfig, settings: list[NcclSetting]) -> Finding:
    """How long a link may be away, against the flap that it should and the hang that ends it."""
    link, parallel = nccl_retries(settings), config.parallel
    if math.isinf(link.window_s):
        message = f"NCCL never gives up a link (NCCL_IB_TIMEOUT={link.timeout})"
    else:
        message = (
            f"may be away for {link.window_s:.3g} s (4.096 us x 2^{link.timeout} x {link.retries})"
        )
    remedy = "unset NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT, so that the profile sets them"
    if link.window_s < parallel.flap_s:
        return Finding(
            "note", f"{message}, shorter than parallel.flap_s={parallel.flap_s:g}", remedy
        )
    act_s, key = config.recovery.hang_act_s, "recovery.hang_act_s"
    if not act_s and parallel.nccl_profile == "none":
        return Finding(
            "note",
            f"{message}, which the automatic recovery.hang_act_s does not allow for",
            "set parallel.nccl_profile, with which it waits for a link",
        )
    if not act_s:
        act_s, key = parallel.link_wait_s, "the automatic recovery.hang_act_s, at least"
    if link.window_s > act_s:
        return Finding(
            "note",
            f"{message}, longer than {key} {act_s:.3g} s, when the driver restarts the ranks",
            remedy,
        )
    return Finding("ok", message)
