"""The velocity field of a flow policy as a multilayer perceptron over the flattened chunk.

No token, no attention: for short chunks of few dimensions it learns in a fraction of the time and plans with a
dozen operations. It still takes the time of every action, as a vector of plain inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .velocity import Velocity


class Block(nn.Module):
    """A gated residual layer [B, width] on normalised features: far from the data the field stays finite."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(width, 2 * width)
        self.leave = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        """The sum of ``h`` and what the layer makes of it."""
        value, gate = self.enter(functional.layer_norm(h, h.shape[-1:])).chunk(2, dim=-1)
        return h + self.leave(value * functional.silu(gate))


class Mlp(Velocity):
    """The field as ``depth`` gated residual layers of ``width`` features; ``size`` and ``horizon`` give the chunk.

    ``conditioned`` is the length of the observation's vector. Pictures reach it through that vector alone.
    """

    def __init__(self, size: int, horizon: int, *, width: int, depth: int, conditioned: int) -> None:
        super().__init__()
        self.width = width
        self.observe = nn.Linear(conditioned, width)
        self.enter = nn.Linear(horizon * (size + 3), width, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, horizon * size)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights; the head starts at zero."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_uniform_(layer.weight, a=1.0, generator=generator)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.head.weight)

    def context(self, vector: Tensor, tokens: Tensor | None = None) -> Tensor:
        """The observation's share of the first layer [B, W]."""
        return self.observe(vector)

    def rest(self, context: Tensor, x: Tensor, tau: Tensor, valid: Tensor | None) -> Tensor:
        """One pass over the flattened chunk; an action beyond the end is seen as zero."""
        times = tau.expand(x.shape[:2])[..., None]
        seen = torch.cat([x, times, times * times, (times < 1e-4).to(x.dtype)], dim=-1)
        if valid is not None:
            seen = seen * valid[..., None]
        h = context + self.enter(seen.flatten(1))
        for block in self.blocks:
            h = block(h)
        return self.head(functional.layer_norm(h, h.shape[-1:])).view(x.shape)
