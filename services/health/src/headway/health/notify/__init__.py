"""Sends verdicts to web addresses, beside the monitor's loop."""
