"""The velocity field of a flow policy: what every backbone shares, and the transformer over the actions of a chunk.

``v(context, x[B, H, D], tau[B, H])``: every action has a time of its own, so a schedule in which near actions are
denoised before far ones needs no other weights. The observation is encoded once a plan, into everything that the
sampler's steps share. Input and output are preconditioned as in Karras et al., "Elucidating the Design Space of
Diffusion-Based Generative Models", Table 1, worked out for the straight path.

The transformer conditions every token on its time by adaptive layer normalisation (Peebles and Xie, "Scalable Diffusion
Models with Transformers"). At batch 1 the cost is the number of operations, not their size. Hence one projection for
all layers' context, one for q, k and v, fused multiply-adds for modulation and gates, and a time modulation shared by
the layers (Chen et al., "PixArt-alpha"), which is one row when all actions share a time.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_PARTS = 6  # shift, scale and gate, of the attention and of the feed-forward half


class Velocity(nn.Module):
    """What a backbone is: write ``initialize``, ``context`` and ``rest``."""

    @abstractmethod
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights; a new field is the best guess for actions of unit variance, so ``rest`` is zero."""

    @abstractmethod
    def context(self, *args: Any, **kwargs: Any) -> Any:
        """What all steps of a plan share, from what the backbone takes for an encoded observation."""

    @abstractmethod
    def rest(self, context: Any, x: Tensor, tau: Tensor, valid: Tensor | None) -> Tensor:
        """What the linear guess leaves over, in unit scale [B, H, D], from ``x`` in unit scale."""

    def forward(self, context: Any, x: Tensor, tau: Tensor, valid: Tensor | None = None) -> Tensor:
        """Velocity [B, H, D] at ``x`` [B, H, D] and times ``tau`` [B or 1, H or 1].

        ``valid`` [B, H] is false where an action lies beyond the end of its episode: it must not be looked at.
        """
        # With noise and actions of unit variance the best linear guess of the velocity is known in closed form, and
        # so are the variances of its input and of what it leaves over. The network sees and learns numbers of unit
        # scale, and never has to carry the noise itself through its normalisations.
        variance = (tau * tau + (1 - tau) ** 2)[..., None]
        deviation = variance.sqrt()
        rest = self.rest(context, x / deviation, tau, valid)
        return (2 * tau[..., None] - 1) / variance * x + rest / deviation


class TimeFeatures(nn.Module):
    """``tau`` [...] in [0, 1] to features [..., 2 F + 3]: sines and cosines, tau, tau squared, and whether it is clean.

    The last one lets a given action be told from one that is almost denoised.
    """

    def __init__(self, frequencies: int = 8) -> None:
        super().__init__()
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.pi * 2.0 ** torch.linspace(-1, 5, frequencies), persistent=False)
        self.size = 2 * frequencies + 3

    def forward(self, tau: Tensor) -> Tensor:
        """Features of times."""
        tau = tau[..., None]
        angle = tau * self.frequencies
        return torch.cat([angle.sin(), angle.cos(), tau, tau * tau, (tau < 1e-4).to(tau.dtype)], dim=-1)


class Block(nn.Module):
    """One transformer layer over action tokens [B, H, W], which also attend to the observation's tokens."""

    def __init__(self, width: int, heads: int, expansion: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, expansion * width)
        self.down = nn.Linear(expansion * width, width)

    def forward(
        self, x: Tensor, modulation: Tensor, keys: Tensor | None, values: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        """``modulation`` is [B or 1, H or 1, 6 W]; ``mask`` [B, 1, 1, T + H] is true where a key may be seen."""
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = modulation.chunk(_PARTS, dim=-1)
        batch, horizon, width = x.shape
        h = torch.addcmul(shift_a, functional.layer_norm(x, (width,)), scale_a)
        q, k, v = self.qkv(h).view(batch, horizon, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if keys is not None and values is not None:
            k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        h = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = torch.addcmul(x, gate_a, self.out(h.transpose(1, 2).reshape(batch, horizon, width)))
        h = torch.addcmul(shift_f, functional.layer_norm(x, (width,)), scale_f)
        return torch.addcmul(x, gate_f, self.down(functional.gelu(self.up(h), approximate="tanh")))


@dataclass(frozen=True)
class TransformerContext:
    """An encoded observation, for one plan. ``layers`` [depth][B, 1, 6 W], ``final`` [B, 1, 2 W]; ``keys`` and
    ``values`` are [depth][B, heads, T, W / heads], and empty when the observation has no tokens."""

    layers: tuple[Tensor, ...]
    final: Tensor
    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()


class Transformer(Velocity):
    """The field as a transformer. ``size`` is the action's dimension, ``width`` a multiple of ``heads``."""

    def __init__(
        self, size: int, horizon: int, *, width: int, depth: int, heads: int, expansion: int = 4, time_width: int = 64
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width={width} is not a multiple of heads={heads}")
        self.depth, self.heads, self.width = depth, heads, width
        self.features = TimeFeatures()
        self.time = nn.Sequential(
            nn.Linear(self.features.size, time_width), nn.SiLU(), nn.Linear(time_width, (_PARTS + 2) * width)
        )
        self.modulation = nn.Linear(width, (_PARTS * depth + 2) * width)
        self.keys_values = nn.Linear(width, 2 * depth * width)
        self.embed = nn.Linear(size, width)
        self.position = nn.Parameter(torch.empty(horizon, width))
        self.blocks = nn.ModuleList(Block(width, heads, expansion) for _ in range(depth))
        self.head = nn.Linear(width, size)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights. Gates and the head start at zero: each block is the identity, the velocity zero."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, generator=generator)
                nn.init.zeros_(layer.bias)
        nn.init.normal_(self.position, std=0.02, generator=generator)
        for weight in (self.time[-1].weight, self.modulation.weight, self.head.weight):
            nn.init.zeros_(weight)  # type: ignore[arg-type]
        # The scales stand around one, and the context's half carries the one.
        parts = self.modulation.bias.view(-1, self.width)
        parts[1 : _PARTS * self.depth : 3] = 1.0
        parts[-1] = 1.0

    def context(self, vector: Tensor, tokens: Tensor | None = None) -> TransformerContext:
        """The modulation of each layer, and the keys and values of the observation's tokens."""
        modulation = self.modulation(vector)[:, None]
        layers = modulation.split([*[_PARTS * self.width] * self.depth, 2 * self.width], dim=-1)
        if tokens is None:
            return TransformerContext(layers[:-1], layers[-1])
        batch, count, _ = tokens.shape
        pairs = self.keys_values(tokens).view(batch, count, self.depth, 2, self.heads, -1).permute(2, 3, 0, 4, 1, 5)
        keys, values = pairs.unbind(1)
        return TransformerContext(layers[:-1], layers[-1], keys.unbind(0), values.unbind(0))

    def rest(self, context: TransformerContext, x: Tensor, tau: Tensor, valid: Tensor | None) -> Tensor:
        """One pass over the tokens; nobody attends to an action beyond the end."""
        time = self.time(self.features(tau))
        time_layers, time_final = time.split([_PARTS * self.width, 2 * self.width], dim=-1)
        mask = None
        if valid is not None:
            mask = valid[:, None, None, :]
            if context.keys:
                mask = torch.cat([mask.new_ones(len(mask), 1, 1, context.keys[0].shape[2]), mask], dim=-1)
        h = self.embed(x) + self.position
        for layer, block in enumerate(self.blocks):
            keys = context.keys[layer] if context.keys else None
            values = context.values[layer] if context.values else None
            h = block(h, time_layers + context.layers[layer], keys, values, mask)
        shift, scale = (time_final + context.final).chunk(2, dim=-1)
        return self.head(torch.addcmul(shift, functional.layer_norm(h, (self.width,)), scale))
