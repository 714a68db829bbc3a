"""What a notebook does with a run of the shared folder: ``notebook.py RUNS``."""

import sys

from headway.console import Cluster
from headway.console.analysis import load_journal, load_metrics
from headway.console.widgets import RunWatcher

run = Cluster(sys.argv[1]).run("d")
with RunWatcher(run) as watch:
    run.wait_applied(run.pause())
    watch.wait_for(lambda now: now.progress.paused)
    run.wait_applied(run.set(lr=5e-4))
    watch.submit("resume").result(60)
    steered = watch.wait_for(lambda now: now.progress.lr == 5e-4)
assert steered.points and len(steered.progress.status.ranks) == 2 and not watch.error
print(len(run.ranks()), load_metrics(run).height > 0, load_journal(run) is not None)
