"""The same with a run that is reached by a gateway."""

from headway.console import Cluster
from headway.console.widgets import RunWatcher

run = Cluster.connect("gateway.key", "connected").run("d")
with RunWatcher(run) as watch:
    first = watch.wait_for(lambda now: now.progress.step > 0)
    watch.wait_for(lambda now: now.progress.step > first.progress.step)
print(run.metrics().height > 0)
