"""``python -m headway.trainer``."""

from __future__ import annotations

import sys

from headway.trainer.cli import app


def main() -> int:
    """Run; an error a user can mend is one line on stderr."""
    from headway.common.errors import HeadwayError

    try:
        app()
    except HeadwayError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
