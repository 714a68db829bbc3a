"""``python -m headway.trainer``."""

from __future__ import annotations

import sys

from headway.common.cli import run
from headway.trainer.cli import app


def main() -> int:
    """Run the command line; returns the exit code, see ``common.cli.run``."""
    return run(app, "python -m headway.trainer")


if __name__ == "__main__":
    sys.exit(main())
