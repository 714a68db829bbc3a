"""Real injections: runs of this machine, into which faults are injected one after another."""
