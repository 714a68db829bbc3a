"""Settings of a run of two stages that starts and steps quickly."""

SMALL = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64",
    "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=0", "train.dtype=fp32",
    "parallel.pp=2", "parallel.dp=1", "parallel.tp=1", "train.global_batch_size=4",
    "ckpt.durable_every=5",
)  # fmt: skip
