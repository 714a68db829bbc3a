"""``headway health burst``: what every link of this machine does in the next two seconds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson
from headway.common.help_pages import page
from headway.common.output import emit

if TYPE_CHECKING:
    from headway.health.sources.burst import LinkBurst


def add_command(app: typer.Typer) -> None:
    """Add the command to ``headway health``."""
    page(
        app,
        examples=("{command}", "{command} --seconds 5 --json"),
        json="one object: schema, links (name, verdict, num_intervals, interval_ms, rate, "
        "mean_sent, peak_sent, mean_received, peak_received, full_share, paused_share, "
        "num_notified)",
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
    as_json: AsJson = False,
) -> None:
    """Show which links are full, congested or paused, every 10 ms."""
    import msgspec
    from headway.health.sources.burst import burst as watch

    found = watch(sysfs_root, seconds)
    lines = [_line(link) for link in found] or [f"no link of a real device below {sysfs_root}"]
    emit({"schema": 1, "links": [msgspec.to_builtins(link) for link in found]}, as_json, lines)


def _line(link: LinkBurst) -> str:
    rate = f"{link.rate / 1e9:.2f} GB/s" if link.rate else "an unknown rate"
    return (
        f"{link.verdict:<9}  {link.name}: sent {link.mean_sent / 1e9:.2f} (most "
        f"{link.peak_sent / 1e9:.2f}), received {link.mean_received / 1e9:.2f} (most "
        f"{link.peak_received / 1e9:.2f}) GB/s of {rate}; every {link.interval_ms:g} ms"
    )
