"""What a result was measured on."""

from __future__ import annotations

import os
import platform

from headway.console.machine.peak import processor_name


def hardware() -> str:
    """Such as ``AMD EPYC, x86_64, 2 cores``."""
    return f"{processor_name('cpu')}, {platform.machine()}, {os.cpu_count()} cores"
