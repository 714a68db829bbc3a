"""Pictures of a diagnosis: pages that need neither a server nor a network."""
