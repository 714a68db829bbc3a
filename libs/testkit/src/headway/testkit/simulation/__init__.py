"""A simulated cluster around the real decisions of driver, executor and init.

Time, network, processes, machines and disks are simulated, and everything in them can fail or be
late. ``RunState``, ``Guardian`` and the init's ``Core`` are those of a real run: what one of them
wants done happens to the others as an event. After each event all of their invariants are checked.
"""
