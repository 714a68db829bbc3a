"""Judgement of what was observed: who holds up a run, and why. Pure; it reads no file."""
