"""The parameters of a chunk, named as in checkpoints, and the maps and norms made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from headway.trainer.config.architecture import Architecture
from headway.trainer.model.kernels import Kernels
from headway.trainer.model.layers import LayerNorm, Norm, RmsNorm
from headway.trainer.model.linear import ColumnLinear, RowLinear, RowPair
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.params import Parameter, ParamSpec


@dataclass(frozen=True)
class Map:
    """The parameters of one linear map."""

    weight: Parameter
    bias: Parameter | None


@dataclass(frozen=True)
class Maps:
    """Those of a layer; ``wide`` are the gate, if there is one, and up."""

    qkv: Map
    wide: tuple[Map, ...]
    out: Map
    down: Map


class Parameters:
    """Creates parameters in the order of the flat buffers, and collects them."""

    def __init__(self, model: Architecture, tp: TensorParallel, kernels: Kernels) -> None:
        self.model, self.tp, self.kernels = model, tp, kernels
        self.found: dict[str, Parameter] = {}
        self.joined: list[Parameter] = []

    def maps(self, name: str) -> Maps:
        """Return the linear maps of a layer.

        Those into the layer are neighbours in memory, so that any of them can be one product.
        """
        model = self.model
        # The two maps that write to the residual stream start smaller, so that its variance does
        # not grow with depth (Radford et al., GPT-2, section 2.3).
        narrow = model.init_std / math.sqrt(2 * model.layers)
        attention, mlp = f"{name}.attention", f"{name}.mlp"
        inward = {f"{attention}.qkv": model.qkv_width}
        if model.is_gated:
            inward[f"{mlp}.gate"] = model.ffn
        inward[f"{mlp}.up"] = model.ffn
        last = f"{mlp}.up"
        weights = {
            key: self.matrix(
                f"{key}.weight", rows, model.hidden, joins_next=key != last, of_heads="qkv" in key
            )
            for key, rows in inward.items()
        }
        out = self.matrix(f"{attention}.out.weight", model.hidden, model.heads_width, 1, narrow)
        down = self.matrix(f"{mlp}.down.weight", model.hidden, model.ffn, 1, narrow)
        has_all = model.bias == "all"
        with_bias = [key for key in inward if has_all or (model.bias != "none" and "qkv" in key)]
        biases = {
            key: self.vector(
                f"{key}.bias",
                inward[key],
                0.0,
                tp_dim=0,
                joins_next=len(with_bias) > 1 and key != last,
                of_heads="qkv" in key,
            )
            for key in with_bias
        }
        maps = [Map(weights[key], biases.get(key)) for key in inward]
        outward = [
            Map(weight, self.vector(f"{key}.bias", model.hidden, 0.0) if has_all else None)
            for key, weight in ((f"{attention}.out", out), (f"{mlp}.down", down))
        ]
        return Maps(maps[0], tuple(maps[1:]), *outward)

    def column(self, *maps: Map) -> ColumnLinear:
        """One product for all ``maps``, which are neighbours."""
        weight = self._join([one.weight for one in maps])
        biases = [one.bias for one in maps if one.bias is not None]
        return ColumnLinear(weight, self.tp, self._join(biases) if biases else None)

    def _join(self, parts: list[Parameter]) -> Parameter:
        if len(parts) == 1:
            return parts[0]
        self.joined.append(Parameter(*(spec for part in parts for spec in part.specs)))
        return self.joined[-1]

    def row(self, one: Map) -> RowLinear:
        """A product with a sum over ranks."""
        return RowLinear(one.weight, self.tp, one.bias)

    def pair(self, maps: Maps) -> RowPair:
        biases = tuple(one.bias for one in (maps.out, maps.down) if one.bias is not None)
        return RowPair(maps.out.weight, maps.down.weight, self.tp, biases)

    def norm(self, name: str) -> Norm:
        model, weight = self.model, self.vector(f"{name}.weight", self.model.hidden, 1.0)
        if model.norm == "rmsnorm":
            return RmsNorm(weight, self.kernels, model.norm_eps)
        bias = self.vector(f"{name}.bias", model.hidden, 0.0)
        return LayerNorm(weight, bias, self.kernels, model.norm_eps)

    def matrix(
        self,
        name: str,
        rows: int,
        columns: int,
        tp_dim: int | None = 0,
        std: float | None = None,
        *,
        joins_next: bool = False,
        of_heads: bool = False,
    ) -> Parameter:
        """``of_heads``: its rows are queries, keys and values; see ``_cut``."""
        std = self.model.init_std if std is None else std
        whole = ParamSpec(
            name, (rows, columns), tp_dim, 0, 1, True, init_std=std, joins_next=joins_next
        )
        return self.add(*self._cut(whole, of_heads=of_heads))

    def vector(
        self,
        name: str,
        width: int,
        value: float,
        *,
        tp_dim: int | None = None,
        joins_next: bool = False,
        of_heads: bool = False,
    ) -> Parameter:
        """See ``matrix``."""
        whole = ParamSpec(
            name, (width,), tp_dim, 0, 1, False, init_value=value, joins_next=joins_next
        )
        return self.add(*self._cut(whole, of_heads=of_heads))

    def _cut(self, whole: ParamSpec, *, of_heads: bool) -> tuple[ParamSpec, ...]:
        """What this rank holds of ``whole``, which is one piece unless heads are shared.

        If there are more ranks than heads of keys and values, neighbouring ranks have the same
        head: each holds its own of the queries, and a copy of the key and the value.
        """
        model, tp = self.model, self.tp
        if not of_heads or tp.size <= model.kv_heads:
            return (replace(whole, tp_rank=tp.rank, tp_size=tp.size),)
        copies = tp.size // model.kv_heads
        head, copy = divmod(tp.rank, copies)
        queries = model.queries_on(tp.size) * model.head_dim
        end = model.queries_per_kv * model.head_dim
        of_head = replace(whole, tp_rank=head, tp_size=model.kv_heads)
        return (
            replace(of_head, rows=(copy * queries, (copy + 1) * queries), joins_next=True),
            replace(of_head, rows=(end, end + 2 * model.head_dim), copy=copy, copies=copies),
        )

    def add(self, *specs: ParamSpec) -> Parameter:
        """A parameter of one spec, or of several that have its name."""
        self.found[specs[0].name] = Parameter(*specs)
        return self.found[specs[0].name]
