"""A campaign of seeded traces with known faults, judged by the product: ``make campaign``."""
