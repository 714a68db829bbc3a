"""The tables ``[train]`` and ``[optim]``: the training loop and its optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from headway.common.config_checks import at_least, within
from headway.common.errors import ConfigError
from headway.trainer.config.batch_ramp import BatchRamp

MAX_SPIKE_WINDOW = 1000
"""Two numbers of 9 bytes per step must fit into the extra state of a snapshot, 64 KiB."""


@dataclass(frozen=True)
class TrainConfig:
    """The training loop: its length, batch size and precision."""

    steps: int = 200
    """Optimizer steps of the whole run, those before a resume included."""
    global_batch_size: int = 8
    """Sequences per optimizer step, over all data-parallel replicas."""
    batch_ramp: tuple[int, ...] = ()
    """``[start, increment, samples]``: begin with ``start`` sequences per step and add
    ``increment`` at equal distances while the first ``samples`` sequences are consumed, up to
    ``global_batch_size``; empty for no ramp. As Megatron-LM's ``--rampup-batch-size``."""
    micro_batch_size: int = 1
    """Sequences in one forward pass."""
    seed: int = 1234
    """Seed of the initial weights."""
    init_from: str = ""
    """Folder whose checkpoint the first weights come from instead of being drawn: of ``headway
    model import``, or of a run with any layout. Only weights are taken (docs/howto/models.md)."""
    dtype: Literal["auto", "bf16", "fp32", "fp64"] = "auto"
    """Compute type; bf16 has an fp32 master. ``auto`` is resolved at launch: bf16 if the machine
    has units for it, else fp32. fp64 is for equality tests."""
    device: Literal["auto", "gpu", "cpu"] = "auto"
    """Where ranks compute. ``auto`` is resolved at launch: one GPU per rank (NCCL), or the CPU for
    all (gloo) if the machine has fewer GPUs than ranks."""
    deterministic: bool = False
    """On GPUs: the same bits each time the same step is done, at a cost (torch's deterministic
    algorithms, without cuDNN's attention); see docs/numerics.md. CPUs need no switch."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the small operations between matrix products (torch.compile, one by one), which
    fuses them; needs a compiler on every machine and some seconds at a worker's first step. Other
    bits. ``auto`` is resolved at launch: on GPUs yes if this machine has a compiler, or each host
    of hosts.toml that the run may use (yes on Slurm and Kubernetes); on CPUs no. A machine without
    one cannot join a run that compiles."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations to compute again in the backward instead of keeping them: ``selective`` those of
    norms, GELU and attention, ``full`` all but the input of each layer. Same bits."""
    recompute_layers: tuple[int, ...] = ()
    """Layers to which ``recompute`` applies, counted from 0; empty means all."""
    eval_every: int = 0
    """Steps between validation losses; 0 means only before the first and after the last step."""
    eval_batches: int = 8
    """Global batches of the validation split per evaluation."""
    sample_tokens: int = 64
    """Tokens of the text sample at the end; 0 for none."""
    gc_every: int = 200
    """Steps between two of Python's garbage collections, which all ranks make at the same step,
    so that one rank's pause does not hold up the others; 0 leaves them to Python."""
    max_skipped_steps: int = 10
    """Number of consecutive skipped steps (loss or gradient norm not finite, or a spike) after
    which the run fails; 0 never ends it."""
    on_spike: Literal["ignore", "skip", "rollback", "stop"] = "ignore"
    """What happens at a step whose loss or gradient norm is far above the steps before it:
    ``skip`` passes over its samples and leaves the state as it was, ``rollback`` goes back to the
    newest checkpoint and passes over all samples from there to behind the spike, ``stop`` makes a
    checkpoint of the state before it and ends the run."""
    spike_factor: float = 4.0
    """A spike is a loss or gradient norm above so many times its running median."""
    spike_window: int = 64
    """Accepted steps over which the median is taken; before there are so many, none is a spike."""

    def __post_init__(self) -> None:
        if self.max_skipped_steps < 0:
            raise ConfigError(
                f"train.max_skipped_steps={self.max_skipped_steps} is below 0",
                remedy="use a number of steps, or 0 to never end the run",
            )
        if self.gc_every < 0:
            raise ConfigError(
                f"train.gc_every={self.gc_every} is below 0",
                remedy="use a number of steps, or 0 to leave collections to Python",
            )
        at_least(self, "train", 1, "steps", "global_batch_size", "micro_batch_size")
        at_least(self, "train", 1, "eval_batches")
        if not 1.0 < self.spike_factor < math.inf:
            raise ConfigError(
                f"train.spike_factor={self.spike_factor:g} is not above 1",
                remedy="use 3 to 10: norms and losses of good steps vary, too",
            )
        if not 1 <= self.spike_window <= MAX_SPIKE_WINDOW:
            raise ConfigError(
                f"train.spike_window={self.spike_window} is out of range",
                remedy=f"use 1 to {MAX_SPIKE_WINDOW} steps",
            )
        BatchRamp.of(self.batch_ramp, self.global_batch_size)


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer and the schedule of the learning rate.

    The optimizer is AdamW with decoupled weight decay (arXiv 1711.05101) or LAMB (arXiv
    1904.00962).
    """

    name: Literal["adamw", "lamb"] = "adamw"
    """``lamb`` scales each parameter's update to the norm of its weights, for large batches. It
    needs another ``lr``: see docs/howto/optimizers.md."""
    lr: float = 1e-3
    """Peak learning rate, at the end of the warm-up."""
    min_lr: float = 1e-4
    """Learning rate at the last step."""
    warmup_steps: int = 20
    """Updates over which the rate rises linearly from 0."""
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"
    """From the peak to ``min_lr``: half a cosine, a straight line, or warm-up, stable, decay: the
    peak, then a straight line over the last ``decay_steps``."""
    decay_steps: int = 0
    """Length of the decay of ``wsd``, in updates; it ends at the last step."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.95
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decoupled decay, multiplied by the learning rate."""
    clip_grad: float = 1.0
    """Largest global gradient norm; 0 turns clipping off."""
    max_trust_ratio: float = 0.0
    """LAMB only: the largest factor of a parameter's update, norm of weights over norm of update;
    0 sets no bound."""

    def __post_init__(self) -> None:
        within(self, "optim", 0.0, math.inf, "lr", "min_lr", "eps", "weight_decay")
        within(self, "optim", 0.0, math.inf, "warmup_steps", "clip_grad", "max_trust_ratio")
        within(self, "optim", 0.0, 1.0, "beta1", "beta2")
        if self.max_trust_ratio and self.name != "lamb":
            raise ConfigError(
                f"optim.max_trust_ratio={self.max_trust_ratio:g} with optim.name={self.name!r}",
                remedy="only LAMB has trust ratios: set optim.name='lamb', or remove it",
            )
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.schedule == "wsd" and self.decay_steps < 1:
            raise ConfigError(
                f"optim.decay_steps={self.decay_steps} with optim.schedule='wsd'",
                remedy="set the length of the decay, for example a tenth of train.steps",
            )
        if self.schedule != "wsd" and self.decay_steps:
            raise ConfigError(
                f"optim.decay_steps={self.decay_steps} with optim.schedule={self.schedule!r}",
                remedy="only wsd has a decay of its own length: set optim.schedule='wsd', or "
                "remove it",
            )
