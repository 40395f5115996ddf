"""The key-value cache: what the attention of every layer has made of tokens that do not change any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KVCache:
    """Keys and values of some tokens: ``keys`` and ``values`` hold one tensor [B, heads, T, d] a layer.

    A cache is a value: what extends or joins it makes a new one. Raises ``ValueError`` naming the layer whose keys and
    values do not belong together.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.values):
            raise ValueError(f"{len(self.keys)} layers of keys and {len(self.values)} of values, expected as many")
        for layer, (k, v) in enumerate(zip(self.keys, self.values, strict=True)):
            if k.ndim != 4 or k.shape[:3] != v.shape[:3]:
                raise ValueError(
                    f"layer {layer}: keys have shape {tuple(k.shape)} and values {tuple(v.shape)}, expected "
                    "[B, heads, T, d] that differ at most in d"
                )

    @property
    def bytes(self) -> int:
        """What the tensors occupy."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    @property
    def length(self) -> int:
        """Tokens T in the first layer; 0 for a cache without layers."""
        return self.keys[0].shape[2] if self.keys else 0

    def append(self, later: KVCache) -> KVCache:
        """This cache and, after its tokens, those of ``later``, which has the same layers, batch and heads."""
        return _join((self, later), dim=2)

    @staticmethod
    def stack(caches: Sequence[KVCache]) -> KVCache:
        """Caches of the same layers, heads and number of tokens as one, batch after batch."""
        return _join(caches, dim=0)


def _join(caches: Sequence[KVCache], dim: int) -> KVCache:
    sides = []
    for tensors in ([c.keys for c in caches], [c.values for c in caches]):
        if len({len(layers) for layers in tensors}) != 1:
            raise ValueError(f"caches of {[len(layers) for layers in tensors]} layers, expected some of equal depth")
        try:
            sides.append(tuple(torch.cat(layer, dim) for layer in zip(*tensors, strict=True)))
        except RuntimeError:
            shapes = [tuple(layers[0].shape) for layers in tensors]
            raise ValueError(f"caches of the shapes {shapes}, which may differ in dimension {dim} alone") from None
    return KVCache(*sides)
