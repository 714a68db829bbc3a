"""``headway health burst``: what every link and GPU of this machine does in two seconds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson
from headway.common.help_pages import page
from headway.common.output import emit

if TYPE_CHECKING:
    from headway.health.sources.burst import LinkBurst
    from headway.health.sources.gpu_burst import GpuBurst

GPU_DEADLINE_S = 20.0


def add_command(app: typer.Typer) -> None:
    """Add the command to ``headway health``."""
    page(
        app,
        examples=("{command}", "{command} --seconds 5 --json"),
        json="one object: schema, links (name, verdict, num_intervals, interval_ms, rate, "
        "mean_sent, peak_sent, mean_received, peak_received, full_share, paused_share, "
        "num_notified), gpus (index, pci, num_readings, mean_w, peak_w, least_mhz, most_mhz, busy, "
        "slowed), gpu_error",
    )(burst)


def burst(
    seconds: Annotated[
        float, typer.Option(min=0.1, max=60.0, metavar="S", help="How long to watch.")
    ] = 2.0,
    sysfs_root: Annotated[
        Path,
        typer.Option(
            parser=Path, metavar="DIR", envvar="HEADWAY_SYSFS_ROOT", help="Instead of /sys."
        ),
    ] = Path("/sys"),
    nvml: Annotated[
        str,
        typer.Option(
            metavar="LIBRARY", envvar="HEADWAY_NVML", help="Instead of libnvidia-ml.so.1."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show which links are full or paused, and what GPUs do."""
    import msgspec
    from headway.health.sources.burst import burst as watch
    from headway.health.sources.gpu_burst import GpuBursts
    from headway.health.sources.gpu_probe import GpuProbe
    from headway.health.sources.gpus import has_gpus
    from headway.health.sources.nvml import LIBRARY

    library, gpus = nvml or (LIBRARY if has_gpus(sysfs_root) else ""), GpuBursts()
    if library:
        probe = GpuProbe(library, GPU_DEADLINE_S)
        found, gpus = probe.burst(seconds, lambda: watch(sysfs_root, seconds))
        probe.close()
    else:
        found = watch(sysfs_root, seconds)
    links = [*found, *gpus.links]
    lines = [_line(link) for link in links] or [f"no link of a real device below {sysfs_root}"]
    lines += [_gpu_line(gpu) for gpu in gpus.gpus]
    lines += [f"GPUs not read: {gpus.error}"] if gpus.error else []
    document = {
        "schema": 1,
        "links": [msgspec.to_builtins(link) for link in links],
        "gpus": [msgspec.to_builtins(gpu) for gpu in gpus.gpus],
        "gpu_error": gpus.error,
    }
    emit(document, as_json, lines)


def _line(link: LinkBurst) -> str:
    rate = f"{link.rate / 1e9:.2f} GB/s" if link.rate else "an unknown rate"
    return (
        f"{link.verdict:<9}  {link.name}: sent {link.mean_sent / 1e9:.2f} (most "
        f"{link.peak_sent / 1e9:.2f}), received {link.mean_received / 1e9:.2f} (most "
        f"{link.peak_received / 1e9:.2f}) GB/s of {rate}; every {link.interval_ms:g} ms"
    )


def _gpu_line(gpu: GpuBurst) -> str:
    reasons = ", ".join(f"{why} in {share:.0%}" for why, share in sorted(gpu.slowed.items()))
    slowed = f"; slowed by {reasons}" if reasons else ""
    return (
        f"GPU {gpu.index:<5}  {gpu.pci}: busy {gpu.busy:.0%}, {gpu.mean_w:.0f} W (most "
        f"{gpu.peak_w:.0f}), {gpu.least_mhz} to {gpu.most_mhz} MHz{slowed}"
    )
