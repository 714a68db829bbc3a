"""A cluster of separate machines on this host.

They are nodes of a bed, and one more where the console is. ``python -m headway.testkit.machines
CONFIG`` trains on it.
"""

from headway.testkit.machines.machines import Machines

__all__ = ["Machines"]
