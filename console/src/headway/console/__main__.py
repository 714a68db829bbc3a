"""``headway`` and ``python -m headway.console``."""

from __future__ import annotations

import sys

from headway.console.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
