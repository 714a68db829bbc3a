"""The headings of ``headway --help``, and how a group of commands is added to one."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from headway.common.cli import group
from headway.common.help_pages import epilog

START, LOOK, STEER = "Start a run", "Look at runs", "Steer a run"
MACHINES, SERVICES = "Machines", "Services"
HEADINGS = (START, LOOK, STEER, MACHINES, SERVICES)
"""In the order of ``headway --help``."""


def add_group(
    app: typer.Typer, name: str, help_: str, heading: str, examples: Sequence[str] = ()
) -> typer.Typer:
    """Add a group of commands, to be filled by ``common.help_pages.page``."""
    made = group(help_, name=name, epilog=epilog(examples))
    app.add_typer(made, rich_help_panel=heading)
    return made
