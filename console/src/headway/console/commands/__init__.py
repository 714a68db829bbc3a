"""The commands of ``headway``, one module per kind; each ``register``s its own with the app."""
