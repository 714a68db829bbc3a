"""``python -m headway.testkit.simulation --histories 5000``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from headway.testkit.simulation.histories import outcomes


def main(argv: Sequence[str] | None = None) -> int:
    """Run histories; fails with the story of the first one that breaks an invariant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args(argv)
    started_s = time.monotonic()
    ends = outcomes(range(options.first, options.first + options.histories))
    for end, count in ends.most_common():
        print(f"{count:6}  {end}")
    print(f"{options.histories} histories in {time.monotonic() - started_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
