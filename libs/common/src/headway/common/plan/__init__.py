"""Pure plans: placement of ranks, size of a model, and what each rank does in a step."""
