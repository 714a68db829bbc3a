"""``python -m headway.health``: the same commands as ``headway health``."""

from __future__ import annotations


def main() -> None:
    """Runs the command line; exits with the command's code."""
    from headway.health.cli import app

    app(prog_name="headway health")


if __name__ == "__main__":
    main()
