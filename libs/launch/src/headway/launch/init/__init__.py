"""The supervisor of a node's executor: starts it, ends it when it hangs, starts it again.

Only the standard library is imported: it costs little, starts at once, and has little to fail by.
``headway node init`` is its command, ``python -m headway.launch.init`` its process.
"""
