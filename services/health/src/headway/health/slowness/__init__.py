"""Judgement of how ranks spent their steps: who slows a run, by what, and since which step."""
