"""The configuration of a run as a whole, and what of it can be set while the run is live.

``[data]``, ``[ckpt]`` and ``[health]`` are the services' own dataclasses.
"""

from __future__ import annotations
