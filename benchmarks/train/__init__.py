"""The training engine next to its peers: same model, same weights, same data, interleaved turns."""
