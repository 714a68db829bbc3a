"""The training of one rank over a generation: join, restore, run, leave."""
