"""``python -m headway.dataloader``: prepare, inspect, verify, serve."""

from __future__ import annotations

import sys

from headway.dataloader.cli import main

if __name__ == "__main__":
    sys.exit(main())
