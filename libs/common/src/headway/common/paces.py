"""How often processes give a sign of life. The limits of ``[recovery]`` count several of them."""

from __future__ import annotations

NODE_BEAT_S = 0.5
"""Between two beats of an executor."""
SERVICE_BEAT_S = 0.5
"""Between two beats of a service, and two turns of a zygote."""
LEASE_RENEW_S = 0.25
"""Between two renewals of the driver's lease."""
FOLDER_LOOK_S = 0.25
"""Shortest pause between two looks of an executor at the run's folder."""
