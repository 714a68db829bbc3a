"""AdamW and LAMB on flat shards, and the learning rate."""
