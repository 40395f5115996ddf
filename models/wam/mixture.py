"""A mixture of transformers: experts with weights and widths of their own that share every attention.

In each layer every expert makes queries, keys and values of its own tokens; one masked attention runs over all of them;
every expert takes its part back (Liang et al., "Mixture-of-Transformers"). So a small expert of actions can look into
a large one of video, layer by layer. What tokens that nobody else changes have left in the attention can be kept in a
:class:`~..kv_cache.KVCache` and looked at later: that is what makes the fast variant fast.

Layers are conditioned on time by adaptive normalisation (Peebles and Xie, "Scalable Diffusion Models with
Transformers"), with one projection for all layers and a learned offset each (Chen et al., "PixArt-alpha"). Every token
has a time of its own, so that clean pictures stand beside noisy ones, and near actions may be ahead of far ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..flow.velocity import TimeFeatures
from ..kv_cache import KVCache

_PARTS = 6  # shift, scale and gate, of the attention and of the feed-forward half
_TIME_WIDTH = 64


class Modulation(NamedTuple):
    """What times and condition do to some tokens: six tensors [B or 1, n or 1, W] a layer, and two at the end."""

    layers: tuple[tuple[Tensor, ...], ...]
    final: tuple[Tensor, ...]


class ExpertLayer(nn.Module):
    """One expert's part of a layer: what stands before the shared attention, and what follows it."""

    def __init__(self, width: int, heads: int, head_dim: int, expansion: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * heads * head_dim)
        self.out = nn.Linear(heads * head_dim, width)
        self.up = nn.Linear(width, expansion * width)
        self.down = nn.Linear(expansion * width, width)

    def enter(self, x: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, heads, n, head_dim] of tokens [B, n, W]."""
        h = torch.addcmul(parts[0], functional.layer_norm(x, x.shape[-1:]), parts[1])
        q, k, v = self.qkv(h).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def leave(self, x: Tensor, found: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """The tokens after this layer, from what the attention has ``found`` [B, heads, n, head_dim] for them."""
        x = torch.addcmul(x, parts[2], self.out(found.transpose(1, 2).flatten(2)))
        h = torch.addcmul(parts[3], functional.layer_norm(x, x.shape[-1:]), parts[4])
        return torch.addcmul(x, parts[5], self.down(functional.gelu(self.up(h), approximate="tanh")))


class Expert(nn.Module):
    """The layers for tokens of one kind, ``width`` features each, attending with ``heads`` of ``head_dim``.

    ``condition`` is the size of a vector that, besides the times, modulates all tokens of a sample (0: none).
    """

    def __init__(
        self, width: int, layers: int, heads: int, head_dim: int, expansion: int = 3, condition: int = 0
    ) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.sizes = {
            "layers": layers,
            "heads": heads,
            "head_dim": head_dim,
            "expansion": expansion,
        }
        self.features = TimeFeatures()
        self.time = nn.Linear(self.features.size, _TIME_WIDTH)
        self.condition = nn.Linear(condition, _TIME_WIDTH) if condition else None
        self.project = nn.Linear(_TIME_WIDTH, (_PARTS + 2) * width)
        self.offsets = nn.Parameter(torch.zeros(layers, _PARTS * width))
        self.layers = nn.ModuleList(ExpertLayer(width, heads, head_dim, expansion) for _ in range(layers))

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights. Gates start open: from zero, a thousand steps of 1e-3 would be spent on opening them.

        Queries and keys start equal, so that a token looks first at what is like it, such as the same place in another
        frame (Trockman and Kolter, "Mimetic Initialization of Self-Attention Layers").
        """
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, generator=generator)
                nn.init.zeros_(layer.bias)
        for layer in self.layers:
            queries, keys, _ = layer.qkv.weight.chunk(3)  # type: ignore[operator, union-attr]
            keys.copy_(queries)
        nn.init.zeros_(self.offsets)
        nn.init.zeros_(self.project.weight)
        self.project.bias.view(_PARTS + 2, self.width)[[1, 2, 4, 5, 7]] = 1.0  # scales and gates

    def read(self, condition: Tensor | None) -> Tensor | None:
        """What a condition [B, C] adds to every time [B, 1, _]; the same for all evaluations of a plan."""
        if self.condition is None or condition is None:
            return None
        return self.condition(condition)[:, None]

    def modulate(self, tau: Tensor, condition: Tensor | None = None, counts: Sequence[int] | None = None) -> Modulation:
        """The modulation at times ``tau`` [B or 1, n or 1], with what :meth:`read` made of a condition.

        With ``counts`` the columns of ``tau`` stand for so many tokens each: what they share is computed once.
        """
        h = self.time(self.features(tau))
        h = self.project(functional.silu(h if condition is None else h + condition))
        if counts is not None:
            columns = zip(h.split(1, dim=1), counts, strict=True)
            h = torch.cat([column.expand(-1, count, -1) for column, count in columns], dim=1)
        layers, final = h.split([_PARTS * self.width, 2 * self.width], dim=-1)
        return Modulation(
            tuple((layers + offset).chunk(_PARTS, dim=-1) for offset in self.offsets.unbind(0)), final.chunk(2, dim=-1)
        )

    def finish(self, x: Tensor, modulation: Modulation) -> Tensor:
        """Tokens after the last layer, normalised for a head to read."""
        shift, scale = modulation.final
        return torch.addcmul(shift, functional.layer_norm(x, x.shape[-1:]), scale)

    @torch.no_grad()
    def resample_from(self, other: Expert) -> None:
        """Take the weights of another expert, interpolated to this one's width (Fast-WAM, implementation details).

        The two are alike in all but the width and the condition, else ``ValueError``; what the other lacks stays.
        """
        if self.sizes != other.sizes:
            raise ValueError(
                f"an expert of {self.sizes} cannot start from one of {other.sizes}; only widths may differ"
            )
        theirs = dict(other.named_parameters())
        for name, weight in self.named_parameters():
            if name not in theirs:
                continue
            source = theirs[name]
            if name.startswith("project"):  # [8 W, ...], parts of one width each side by side
                to, source = (_PARTS + 2, self.width), source.unflatten(0, (_PARTS + 2, other.width))
                weight.copy_(resample(source, (*to, *weight.shape[1:])).flatten(0, 1))
            elif name == "offsets":  # [layers, 6 W]
                source = source.unflatten(1, (_PARTS, other.width))
                weight.copy_(resample(source, (len(weight), _PARTS, self.width)).flatten(1))
            else:
                weight.copy_(resample(source, weight.shape, inputs=1))


class MixtureOfTransformers(nn.Module):
    """Experts by name, whose tokens stand in the attention in the order in which the experts are given.

    Raises ``ValueError`` naming two experts that differ in layers, heads or head_dim; widths may differ.
    """

    def __init__(self, experts: Mapping[str, Expert]) -> None:
        super().__init__()
        if not experts:
            raise ValueError("experts is empty, expected at least one")
        (first, one), *others = experts.items()
        for name, other in others:
            for what in ("layers", "heads", "head_dim"):
                a, b = one.sizes[what], other.sizes[what]
                if a != b:
                    raise ValueError(
                        f"expert {first!r} has {what}={a} and expert {name!r} {what}={b}; they share every attention, "
                        "so layers, heads and head_dim must be equal"
                    )
        self.experts = nn.ModuleDict(experts)
        self.depth = one.sizes["layers"]

    def forward(
        self,
        tokens: Mapping[str, Tensor],
        modulation: Mapping[str, Modulation],
        mask: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> tuple[dict[str, Tensor], KVCache]:
        """Tokens [B, n, W] of some experts through all layers, and the cache of all tokens, old and new.

        ``mask`` [n, n] or [B, 1, n, n] is true where the query of the row may see the key of the column; keys are those
        of ``cache``, then those of the experts in their order.
        """
        x, keys, values = self._layers(tokens, modulation, mask, cache, self.depth)
        return {n: self.experts[n].finish(h, modulation[n]) for n, h in x.items()}, KVCache(keys, values)  # type: ignore[operator]

    def prefill(
        self,
        name: str,
        tokens: Tensor,
        modulation: Modulation,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> KVCache:
        """The cache of one expert's tokens, behind those of ``cache``, for others to look at.

        Of the last layer nothing but keys and values is computed: nobody will ask for the tokens themselves.
        """
        x, keys, values = self._layers({name: tokens}, {name: modulation}, mask, cache, self.depth - 1)
        _, k, v = self._layer(name, self.depth - 1).enter(x[name], modulation.layers[-1])
        if cache is not None:
            k, v = torch.cat([cache.keys[-1], k], dim=2), torch.cat([cache.values[-1], v], dim=2)
        return KVCache((*keys, k), (*values, v))

    def step(
        self, name: str, tokens: Tensor, modulation: Modulation, cache: KVCache, mask: Tensor | None = None
    ) -> Tensor:
        """One expert's tokens [B, n, W] through all layers; they see the cache and each other."""
        out, _ = self({name: tokens}, {name: modulation}, mask, cache)
        return out[name]

    def _layer(self, name: str, index: int) -> ExpertLayer:
        return self.experts[name].layers[index]  # type: ignore[index, return-value]

    def _layers(
        self,
        tokens: Mapping[str, Tensor],
        modulation: Mapping[str, Modulation],
        mask: Tensor | None,
        cache: KVCache | None,
        depth: int,
    ) -> tuple[dict[str, Tensor], tuple[Tensor, ...], tuple[Tensor, ...]]:
        x = {name: tokens[name] for name in self.experts if name in tokens}
        counts = [h.shape[1] for h in x.values()]
        keys, values = [], []
        for index in range(depth):
            parts = {name: modulation[name].layers[index] for name in x}
            entered = [self._layer(name, index).enter(h, parts[name]) for name, h in x.items()]
            q, k, v = (torch.cat(side, dim=2) if len(x) > 1 else side[0] for side in zip(*entered, strict=True))
            if cache is not None:
                k, v = torch.cat([cache.keys[index], k], dim=2), torch.cat([cache.values[index], v], dim=2)
            found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            for (name, h), part in zip(list(x.items()), found.split(counts, dim=2), strict=True):
                x[name] = self._layer(name, index).leave(h, part, parts[name])
            keys.append(k)
            values.append(v)
        return x, tuple(keys), tuple(values)


def resample(weight: Tensor, shape: Sequence[int], inputs: int | None = None) -> Tensor:
    """``weight`` linearly interpolated, ends on ends, to ``shape`` in every dimension that differs.

    Where the dimension ``inputs`` shrinks from n to m numbers that are summed over, the result is multiplied by
    sqrt(n / m): that keeps the size of what comes out, for weights that are smooth over their inputs.
    """
    result = weight
    for axis, size in enumerate(shape):
        there = weight.shape[axis]
        if size == there:
            continue
        place = torch.linspace(0, there - 1, size, dtype=torch.float64)
        below = place.floor().long().clamp(max=max(there - 2, 0))
        above = (below + 1).clamp(max=there - 1).to(weight.device)
        share = (place - below).to(weight).view(-1, *[1] * (weight.ndim - axis - 1))
        below = below.to(weight.device)
        result = torch.lerp(result.index_select(axis, below), result.index_select(axis, above), share)
        if axis == inputs and size < there:
            result = result * math.sqrt(there / size)
    return result
