"""The flat buffers: first weights, shards, spans, norms and the layout that
a checkpoint records."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from headway.common.errors import ConfigError
from headway.testkit.trainer.models import Part, cut, tiny_model
from headway.trainer.comm.interface import SingleRank
from headway.trainer.optim.adamw import AdamW
from headway.trainer.state import flat as flat_module
from headway.trainer.state.flat import ALIGNMENT, FlatChunk, square_sum
from headway.trainer.state.initial_weights import BLOCK, initial_values
from headway.trainer.state.params import ParamSpec, Precision
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.tests.model.kernel_traffic import Traffic

FIELDS = ("master", *AdamW.moments)
FP64 = Precision.of("fp64")


class Member(SingleRank):
    """A rank of a group that makes no calls."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def shards(part: Part, dp: int) -> list[FlatChunk]:
    """The chunk's memory on each of ``dp`` ranks, with the first weights of seed 7."""
    flats = [
        FlatChunk(
            part.chunk.buckets[0].params,
            dp_rank=rank,
            dp_size=dp,
            precision=FP64,
            moments=AdamW.moments,
        )
        for rank in range(dp)
    ]
    for flat in flats:
        flat.load_master_from_init(7)
    return flats


@settings(max_examples=25)
@given(
    tp=st.sampled_from([1, 2, 4]),
    dp=st.integers(1, 5),
    stages=st.sampled_from([1, 2]),
    block=st.sampled_from(["serial", "parallel"]),
    kv_heads=st.sampled_from([1, 2, 4]),
)
def test_first_weights_are_the_same_on_every_grid_bit_for_bit(
    tp: int, dp: int, stages: int, block: str, kv_heads: int
) -> None:
    # tensors longer than a block of the generator
    model = tiny_model(block, hidden=48, ffn=104, vocab_size=192, kv_heads=kv_heads)
    assert model.vocab_size * model.hidden > 2 * BLOCK
    whole = Part(model, seed=7)
    depth = model.layers // stages
    seen = set()
    for stage in range(stages):
        for rank in range(tp):
            part = Part(
                model, layers=range(stage * depth, (stage + 1) * depth), comm=Member(rank, tp)
            )
            part.flat.params = torch.cat([flat.master for flat in shards(part, dp)])
            for spec in part.chunk.buckets[0].params:
                seen.add(spec.name)
                place = next(p for p in part.flat.placed if p.spec == spec)
                wanted = cut(whole.flat.views(spec.name)[0], spec)
                assert torch.equal(
                    part.flat.params[place.start : place.stop].view(spec.shape), wanted
                ), spec
    assert seen == {spec.name for spec in whole.chunk.buckets[0].params}


def test_first_weights_are_normal_with_the_given_spread_and_differ_by_name_and_seed() -> None:
    spec = ParamSpec("a", (300, 100), 0, 0, 1, True, init_std=0.02)
    values = initial_values(spec, 1, 0, spec.numel)
    assert abs(values.mean()) < 4 * 0.02 / math.sqrt(spec.numel)
    assert values.std() == pytest.approx(0.02, rel=0.02)
    assert np.abs(values).max() > 3 * 0.02
    assert len(np.unique(values)) == spec.numel, "a block repeats"
    other_name = ParamSpec("b", (300, 100), 0, 0, 1, True, init_std=0.02)
    for other in (
        initial_values(other_name, 1, 0, spec.numel),
        initial_values(spec, 2, 0, spec.numel),
    ):
        assert abs(np.corrcoef(values, other)[0, 1]) < 0.03


def test_first_weights_never_change_between_releases() -> None:
    spec = ParamSpec("layers.0.mlp.up.weight", (2, 3000), 0, 0, 1, True, init_std=1.0)
    assert initial_values(spec, 1234, 4095, 4098).tolist() == GOLDEN


GOLDEN = [-0.04849484630541817, -1.0030224446492113, -0.2333640078867323]


@settings(max_examples=60)
@given(
    start=st.integers(0, 239),
    length=st.integers(1, 240),
    tp_dim=st.sampled_from([None, 0, 1]),
    tp_rank=st.integers(0, 1),
)
def test_any_range_of_a_piece_equals_that_range_of_the_whole(
    start: int, length: int, tp_dim: int | None, tp_rank: int
) -> None:
    whole = ParamSpec("w", (12, 20), None, 0, 1, True, init_std=1.0)
    piece = ParamSpec("w", (12, 20), tp_dim, tp_rank, 2, True, init_std=1.0)
    start, stop = min(start, piece.numel - 1), min(start + length, piece.numel)
    wanted = cut(torch.from_numpy(initial_values(whole, 3, 0, 240)).view(12, 20), piece).flatten()[
        start:stop
    ]
    assert torch.equal(torch.from_numpy(initial_values(piece, 3, start, stop)), wanted)


@pytest.mark.parametrize("dp", [1, 2, 3, 7])
def test_shards_cover_the_parameters_once_and_padding_stays_zero(dp: int) -> None:
    part = Part(tiny_model())
    flats = shards(part, dp)
    assert [flat.start for flat in flats] == [
        flat.shard_numel * rank for rank, flat in enumerate(flats)
    ]
    assert flats[-1].stop == flats[0].numel
    joined = torch.cat([flat.master for flat in flats])
    covered = torch.zeros(flats[0].numel, dtype=torch.bool)
    joined_at = -1
    for place in flats[0].placed:
        assert not covered[place.start : place.stop].any()
        assert place.start % ALIGNMENT == 0 or place.start == joined_at
        joined_at = place.stop if place.spec.joins_next else -1
        covered[place.start : place.stop] = True
    assert not joined[~covered].any()


@pytest.mark.parametrize("dp", [1, 2, 3, 7])
@pytest.mark.parametrize("tp_rank", [0, 1])
def test_squares_of_shards_add_up_and_replicas_count_on_tp_rank_0_only(
    dp: int, tp_rank: int
) -> None:
    part = Part(tiny_model(), comm=Member(tp_rank, 2))
    flats = shards(part, dp)
    grads = torch.randn(
        flats[0].numel, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    for flat in flats:
        flat.grads.copy_(grads)
    low, high = flats[0].replicated  # what follows is padding
    names = [place.spec.name for place in flats[0].placed if low <= place.start < high]
    assert names == [spec.name for spec in part.chunk.buckets[0].params if "norm" in spec.name]
    if tp_rank:
        grads[low:] = 0.0
    total = sum(flat.norm_square().item() for flat in flats)
    assert total == pytest.approx(grads.square().sum().item(), rel=1e-12)


def test_the_norm_of_an_fp32_shard_is_summed_in_fp64() -> None:
    flat = FlatChunk(
        [ParamSpec("a", (1 << 20,), 0, 0, 1, True)],
        dp_rank=0,
        dp_size=1,
        precision=Precision.of("fp32"),
    )
    flat.grads.fill_(0.1)
    assert flat.norm_square().item() == pytest.approx(
        (1 << 20) * torch.tensor(0.1).double().item() ** 2, rel=1e-10
    )


class OnGpu(torch.Tensor):
    """Values in the host's memory that say they are on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Not where they are."""
        return torch.device("cuda")


@pytest.mark.parametrize("numel", [1, 1000, 1001])
def test_a_gpu_sums_squares_in_fp64(numel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_module, "GPU_BLOCK", 1000)
    values = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    for scale in (1.0, 1e30, 1e-30):  # the squares of the latter two are no fp32 numbers
        scaled = values * scale
        found = square_sum(scaled.as_subclass(OnGpu)).item()
        assert found == pytest.approx(scaled.double().square().sum().item(), rel=1e-13)


def test_a_gpu_reads_values_once_to_sum_their_squares() -> None:
    values = torch.empty((1 << 26) + 3, device="meta")
    with Traffic() as traffic:
        total = square_sum(values)
    assert (total.dtype, total.shape) == (torch.float64, ())
    assert 0 <= sum(traffic.nbytes.values()) - 4 * len(values) < 1000, traffic.nbytes


@pytest.mark.parametrize("dp", [1, 3])
def test_a_shared_head_counts_on_the_first_rank_that_holds_it(dp: int) -> None:
    held = []
    for rank in range(4):
        flats = shards(Part(tiny_model(kv_heads=2), comm=Member(rank, 4)), dp)
        for flat in flats:
            flat.grads.zero_()
            for place in flat.copied:
                flat.grads[place.start : place.stop] = 1.0
        held.append(sum(flat.norm_square().item() for flat in flats))
    one_head = 2 * 2 * 6 * 24  # in each of two layers a key and a value of 6 rows
    assert held == [one_head, 0, one_head, 0]


@pytest.mark.parametrize("dp", [1, 2, 3, 7])
def test_spans_decay_matrices_and_spare_norms(dp: int) -> None:
    part = Part(tiny_model())
    flats = shards(part, dp)
    decayed = torch.cat(
        [
            torch.full((span.stop - span.start,), span.weight_decay)
            for flat in flats
            for span in flat.spans
        ]
    )
    assert len(decayed) == flats[0].numel, "spans leave a gap"
    for place in flats[0].placed:
        wanted = len(place.spec.global_shape) == 2
        assert decayed[place.start : place.stop].eq(wanted).all(), place.spec.name


@pytest.mark.parametrize("dp", [1, 3])
def test_the_layout_finds_every_value_in_the_snapshot_bytes(dp: int) -> None:
    part = Part(tiny_model(), seed=7)
    found = {field: dict[str, torch.Tensor]() for field in FIELDS}
    for flat in shards(part, dp):
        flat.fields["exp_avg"].copy_(flat.master * 2)
        flat.fields["exp_avg_sq"].copy_(flat.master * 3)
        snapshot = bytes(128) + flat.state.numpy().tobytes()
        for entry in flat.layout_entries(base=128):
            values = np.frombuffer(
                snapshot,
                entry["dtype"],
                offset=entry["offset"],
                count=entry["nbytes"] // np.dtype(entry["dtype"]).itemsize,
            )
            tensor = found[entry["field"]].setdefault(
                entry["name"],
                torch.full((math.prod(entry["global_shape"]),), torch.nan, dtype=torch.float64),
            )
            tensor[entry["flat_start"] : entry["flat_stop"]] = torch.from_numpy(values.copy())
    for factor, field in enumerate(FIELDS, start=1):
        for spec in part.chunk.buckets[0].params:
            wanted = part.flat.views(spec.name)[0].flatten() * factor
            assert torch.equal(found[field][spec.name], wanted), (field, spec.name)


def test_state_is_one_buffer_that_renewal_leaves_alone() -> None:
    part = Part(tiny_model())
    for name in FIELDS:
        assert (
            part.flat.fields[name].untyped_storage().data_ptr()
            == part.flat.state.untyped_storage().data_ptr()
        )
    before, params = part.flat.state.clone(), part.flat.params
    part.flat.renew()
    assert torch.equal(part.flat.state, before)
    assert part.flat.params is not params
    assert part.flat.grad_shard.data_ptr() == part.flat.grads[part.flat.start :].data_ptr()


def test_old_memory_is_free_before_the_new_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a recovery that needs parameters and gradients twice."""
    part = Part(tiny_model())
    old = [weakref.ref(part.flat.params), weakref.ref(part.flat.grads)]
    zeros, living = torch.zeros, []

    def watched(*args: Any, **kind: Any) -> torch.Tensor:
        living.append([tensor() is not None for tensor in old])
        return zeros(*args, **kind)

    part.chunk.unbind()
    monkeypatch.setattr(torch, "zeros", watched)
    part.flat.renew()
    assert living == [[False, False]] * 2
    part.chunk.bind(part.flat)


def test_scattered_replicas_are_refused() -> None:
    specs = [
        ParamSpec(name, (8,), dim, 0, 1, False)
        for name, dim in (("a", None), ("b", 0), ("c", None))
    ]
    with pytest.raises(ValueError, match="adjacent"):
        FlatChunk(specs, dp_rank=0, dp_size=1, precision=FP64)


def test_a_cut_that_does_not_divide_names_the_parameter() -> None:
    with pytest.raises(
        ConfigError,
        match=r"head\.weight: dimension 0 of \(10, 4\) is not divisible by parallel\.tp=4",
    ):
        ParamSpec("head.weight", (10, 4), 0, 0, 4, True)


def test_an_unknown_type_names_the_choices() -> None:
    with pytest.raises(ConfigError, match="'fp8'; use one of bf16, fp32, fp64"):
        Precision.of("fp8")
