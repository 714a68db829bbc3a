"""Windows and documents in one call of flash attention give what one call for each part gives.

The kernel needs a GPU. Here a stand-in computes what its documentation says, and the real one runs
on tensors without memory.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from headway.testkit.trainer.models import Part, grad_of, random_batch, tiny_model
from headway.trainer.data.batches import borders_of
from headway.trainer.model import positions
from headway.trainer.model.gpt import Recompute
from headway.trainer.model.kernels import attention, varlen
from headway.trainer.model.kernels.attention import attend
from headway.trainer.model.positions import Borders, Places, Positions, packing_of

SEQ, BATCH, HEADS, DIM = 40, 3, 4, 8
CPU = torch.device("cpu")
DOCUMENTS: Borders = ((0, 7, 8, 40), (0, 40), (0, 1, 39, 40))
EXACT = 1e-13


class StandIn:
    """``torch.nn.attention.varlen.varlen_attn`` in plain torch, and what it was called with."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor,
        max_q: int,
        max_k: int,
        *,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        assert cu_seq_q.dtype is torch.int32 and cu_seq_q is cu_seq_k
        assert enable_gqa == (query.shape[1] != key.shape[1])
        self.calls.append({"max": (max_q, max_k), "window": window_size, "shape": query.shape})
        key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
        left, right = window_size
        found = []
        for start, stop in pairwise(cu_seq_q.tolist()):
            assert 0 < stop - start <= max_q
            q, k, v = (t[start:stop] for t in (query, key, value))
            scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
            ahead = torch.arange(len(q)) - torch.arange(len(q))[:, None]
            hidden = (ahead > right) | ((ahead < -left) & (left >= 0))
            found.append(
                torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
            )
        return torch.cat(found)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """In the place of the kernel, which is taken for every type."""
    made = StandIn()
    monkeypatch.setattr(varlen, "_varlen_attn", lambda: made)
    monkeypatch.setattr(attention, "fits", lambda *_: True)
    return made


def heads(groups: int, *, as_on_gpus: bool) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    sizes = (HEADS, groups, groups)
    found = [
        torch.randn(SEQ, BATCH, n, DIM, dtype=torch.float64, generator=draw).permute(1, 2, 0, 3)
        for n in sizes
    ]
    return found if as_on_gpus else [t.contiguous() for t in found]


@pytest.mark.parametrize("as_on_gpus", [False, True], ids=["cpu memory", "gpu memory"])
@pytest.mark.parametrize("groups", [HEADS, 2, 1])
@pytest.mark.parametrize("borders", [None, DOCUMENTS], ids=["whole", "documents"])
@pytest.mark.parametrize("window", [None, 1, 2, 9, SEQ])
def test_one_call_equals_a_call_for_each_part(
    stand_in: StandIn, window: int | None, borders: Borders | None, groups: int, as_on_gpus: bool
) -> None:
    draw = torch.Generator().manual_seed(1)
    grad = torch.randn(BATCH, HEADS, SEQ, DIM, dtype=torch.float64, generator=draw)
    found = []
    for packing in (None, packing_of(borders, SEQ, CPU)):
        leaves = [t.requires_grad_() for t in heads(groups, as_on_gpus=as_on_gpus)]
        out = attend(*leaves, window=window, borders=borders, packing=packing)
        found.append([out, *torch.autograd.grad(out, leaves, grad)])
    for wanted, one in zip(*found, strict=True):
        assert one.shape == wanted.shape
        assert (one - wanted).norm() <= EXACT * grad.norm()
    is_plain = borders is None and window in (None, SEQ)
    assert len(stand_in.calls) == (0 if is_plain else 1)
    if not is_plain:
        (call,) = stand_in.calls
        narrow = window not in (None, SEQ)
        assert call["window"] == ((window or 0) - 1 if narrow else -1, 0)
        assert call["max"] == (SEQ, SEQ)
        rows = BATCH * SEQ if borders else SEQ
        assert call["shape"] == (rows, BATCH * HEADS * SEQ // rows, DIM)


@pytest.mark.parametrize(("window", "longest"), [(None, 9), (5, 9), (16, 16)])
def test_the_kernel_for_windows_is_used_though_every_document_is_shorter(
    stand_in: StandIn, window: int | None, longest: int
) -> None:
    borders = ((0, 9, 18, 20),)
    q, k, v = (t[:1, :, :20] for t in heads(HEADS, as_on_gpus=True))
    packing = packing_of(borders, 20, CPU)
    attend(q, k, v, window=window, borders=borders, packing=packing)
    assert stand_in.calls[0]["max"] == (longest, longest)
    assert packing.longest == 9


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("document_end", [None, 7])
def test_a_model_has_the_same_gradients(
    stand_in: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    window: int | None,
    document_end: int | None,
) -> None:
    model = replace(tiny_model(kv_heads=2), window=window, document_end=document_end)
    batch = random_batch(model, 3)
    batch.tokens[0, 4] = batch.tokens[0, 9] = batch.tokens[2, 15] = 7
    borders = borders_of(batch.tokens.numpy(), document_end)
    plain = Places.of

    def packed(self: Places, length: int, *args: Any) -> Positions:
        at = plain(self, length, *args)
        return replace(at, packing=packing_of(at.borders, length, CPU))

    parts = []
    for of in (plain, packed):
        monkeypatch.setattr(Places, "of", of)
        part = Part(model, recompute=Recompute(mode))
        fwd = part.chunk.forward(batch.tokens, batch.labels, batch.mask, borders=borders)
        part.chunk.backward(fwd)
        parts.append(part)
    is_plain = window is None and document_end is None
    forwards = 1 if mode == "none" else 2
    assert len(stand_in.calls) == (0 if is_plain else forwards * model.layers)
    for specs in zip(*(part.chunk.buckets[0].params for part in parts), strict=True):
        wanted, found = map(grad_of, parts, specs)
        assert (wanted - found).norm() <= 1e-10 * wanted.norm(), specs[0].name


def shapes(
    *, dtype: torch.dtype = torch.bfloat16, head_dim: int = 64, groups: int = HEADS
) -> tuple[torch.Tensor, torch.Tensor]:
    q = torch.empty(1, HEADS, 128, head_dim, dtype=dtype, device="meta")
    return q, torch.empty(1, groups, 128, head_dim, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        (True, {}),
        (True, {"dtype": torch.float16}),
        (False, {"dtype": torch.float32}),
        (False, {"dtype": torch.float64}),
        (True, {"head_dim": 256}),
        (False, {"head_dim": 264}),
        (False, {"head_dim": 12}),
        (True, {"groups": 2}),
    ],
    ids=str,
)
def test_the_type_and_the_shape_choose(
    monkeypatch: pytest.MonkeyPatch, wanted: bool, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(varlen, "_has_flash", lambda _: True)
    packing = packing_of(None, 128, CPU)
    assert varlen.fits(*shapes(**changes), packing) is wanted
    monkeypatch.setattr(varlen, "_has_flash", lambda _: False)
    assert not varlen.fits(*shapes(**changes), packing)


def test_shared_heads_need_a_torch_that_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_torch_2_11(query: torch.Tensor, *, window_size: tuple[int, int]) -> torch.Tensor:
        raise AssertionError(query, window_size)

    monkeypatch.setattr(varlen, "_has_flash", lambda _: True)
    monkeypatch.setattr(varlen, "_varlen_attn", lambda: of_torch_2_11)
    varlen._takes_groups.cache_clear()
    try:
        packing = packing_of(None, 128, CPU)
        assert varlen.fits(*shapes(), packing)
        assert not varlen.fits(*shapes(groups=2), packing)
    finally:
        varlen._takes_groups.cache_clear()


def test_tiny_documents_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "_has_flash", lambda _: True)
    assert varlen.fits(*shapes(), packing_of(((0, 1, 2, 3, 128),), 128, CPU))
    assert not varlen.fits(*shapes(), packing_of(((0, 1, 2, 3, 4, 128),), 128, CPU))


@pytest.mark.parametrize(
    ("device", "built", "capability", "wanted"),
    [
        ("cuda", True, (9, 0), True),
        ("cuda", True, (8, 0), True),
        ("cuda", True, (7, 5), False),
        ("cuda", False, (9, 0), False),
        ("cpu", True, (9, 0), False),
    ],
)
def test_the_device_chooses(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    built: bool,
    capability: tuple[int, int],
    wanted: bool,
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    varlen._has_flash.cache_clear()
    try:
        assert varlen._has_flash(torch.device(device)) is wanted
    finally:
        varlen._has_flash.cache_clear()


@pytest.mark.parametrize("groups", [HEADS, 2])
@pytest.mark.parametrize("borders", [None, DOCUMENTS], ids=["window", "documents"])
def test_torchs_own_function_takes_the_call(borders: Borders | None, groups: int) -> None:
    """Its shapes and its backward, on tensors without memory."""
    leaves = [
        torch.empty(SEQ, BATCH, n, DIM, dtype=torch.bfloat16, device="meta")
        .permute(1, 2, 0, 3)
        .requires_grad_()
        for n in (HEADS, groups, groups)
    ]
    packing = packing_of(borders, SEQ, torch.device("meta"))
    out = varlen.attend_packed(*leaves, window=9, packing=packing)
    assert out.shape == (BATCH, HEADS, SEQ, DIM)
    grads = torch.autograd.grad(out, leaves, torch.empty_like(out))
    assert [grad.shape for grad in grads] == [leaf.shape for leaf in leaves]


def test_a_gpu_gets_borders_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """From page-locked memory that has one size, and only where layers need them."""
    sent = []

    def send(host: torch.Tensor, device: torch.device) -> torch.Tensor:
        sent.append((host.shape, device.type))
        return host

    model = tiny_model(document_end=7).architecture
    places = Places(model, torch.float64, CPU)
    places._device = torch.device("cuda")
    monkeypatch.setattr(positions, "_sent", send)
    length = model.seq_len
    of_one = places.of(length, None, ((0, length), (0, length)))
    of_many = places.of(length, None, ((0, 3, 4, length), (0, 1, length)))
    assert sent == 2 * [((length, 2), "cuda"), ((2 * length + 1,), "cuda")]
    assert of_one.packing is not None
    assert of_one.packing.starts.tolist() == [0, length, 2 * length]
    assert of_many.packing is not None
    assert of_many.packing.starts.tolist() == [0, 3, 4, length, length + 1, 2 * length]
    assert (of_many.packing.longest, of_many.packing.num_documents) == (length - 1, 5)
    assert places.of(length).packing is None


def test_what_is_sent_to_a_gpu_is_page_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    def locked(host: torch.Tensor) -> torch.Tensor:
        done.append("locked")
        return host

    def moved(host: torch.Tensor, device: torch.device, **options: bool) -> torch.Tensor:
        done.append((device.type, options))
        return host

    monkeypatch.setattr(torch.Tensor, "pin_memory", locked)
    monkeypatch.setattr(torch.Tensor, "to", moved)
    positions._sent(torch.zeros(2), torch.device("cuda"))
    assert done == ["locked", ("cuda", {"non_blocking": True})]
