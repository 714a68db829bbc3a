"""The supervisor of a node's executor: starts it, ends it when it hangs, starts it again.

Only the standard library is imported, so that it is cheap, starts at once and rarely fails.
``headway node init`` is its command, ``python -m headway.launch.init`` its process.
"""
