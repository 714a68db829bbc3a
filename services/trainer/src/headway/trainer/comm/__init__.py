"""Groups of ranks: their transports, the store they meet at, and the fence that breaks them off."""
