"""Answers each line of its input, the name of a run, by a line of JSON: where the run stands.

``python -m headway.testkit.machines.status_process RUNS``; see ``Statuses``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headway.common.output import to_json
from headway.console.live.progress import read_progress
from headway.console.run import Run

MAX_RANKS = 64
"""How many ranks are listed, as many as ``headway status`` lists unasked."""


def main() -> None:
    """Until the end of the input."""
    runs, answers = Path(sys.argv[1]), sys.stdout
    sys.stdout = sys.stderr  # for whatever else is printed
    for line in sys.stdin:
        try:
            answer = to_json(read_progress(Run(runs / line.strip()), num_ranks=MAX_RANKS))
        except Exception as error:  # a run in trouble is what tests look at; the next look may work
            answer = json.dumps({"phase": "unknown", "detail": f"{type(error).__name__}: {error}"})
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
