"""The guardian of a node: what it decides, pure, and the executor that carries it out."""
