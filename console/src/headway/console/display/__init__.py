"""How figures look: numbers, tables, drawings."""
