"""The fast action expert of FAVLA: a velocity field that reads the slow pass's cache, and feels.

As in pi0, tokens that do not change while a chunk is sampled (the state, and force where it is an input) never attend
to noisy actions. So they go through the layers once a call and join the cache; a step of the sampler costs the action
tokens alone. Which force tokens, what gate: that too is settled once a call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..flow.encoder import GatedBlock
from ..flow.velocity import Block, TimeFeatures, Velocity
from ..kv_cache import KVCache
from .config import FavlaConfig
from .force_tokenizer import ForceTokenizer
from .fusion import FGDF, Force, ForceAdapter
from .slow import SlowContext

_PARTS = 6  # shift, scale and gate, of the attention and of the feed-forward half
_TIME_WIDTH = 64


@dataclass(frozen=True)
class ExpertContext:
    """What the steps of one call share: the ``cache`` of all tokens but the actions, and ``force``, a layer each."""

    cache: KVCache
    force: tuple[Force, ...] = ()

    @property
    def gate(self) -> Tensor | None:
        """How much each head of each layer feels rather than sees [B, depth, heads]; ``None`` without such gates."""
        gates = [force.gate for force in self.force if force.gate is not None]
        return torch.stack(gates, dim=1) if gates else None


class ExpertBlock(Block):
    """A layer over action tokens that attend to each other, to the cache and, perhaps, to force."""

    def __init__(self, config: FavlaConfig) -> None:
        super().__init__(config.width, config.heads, config.expansion)
        self.adapter = ForceAdapter(config.width, config.heads) if config.fusion == "adapter" else None
        self.fgdf = FGDF(config.width, config.heads, config.fixed_gate) if config.fusion == "gated" else None

    def read(self, tokens: Tensor, x: Tensor, y_hat: Tensor, magnitude: Tensor) -> Force:
        """What this layer reads of force ``tokens`` during a call; ``x`` [B, C, W] are its own unchanging tokens."""
        if self.fgdf is not None:
            return self.fgdf.weigh(tokens, x.mean(1), y_hat, magnitude)
        assert self.adapter is not None
        return self.adapter.project(tokens)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        parts: tuple[Tensor, ...],
        keys: Tensor,
        values: Tensor,
        force: Force | None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens ``x`` [B, C, W] after this layer, and the keys and values of the cache with theirs behind.

        ``parts`` are shift, scale and gate of both halves; ``mask`` is true where a key may be seen.
        """
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = parts
        batch, count, width = x.shape
        h = torch.addcmul(shift_a, functional.layer_norm(x, (width,)), scale_a)
        q, k, v = self.qkv(h).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        seen = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        if self.fgdf is not None and force is not None:
            found = self.fgdf(h, seen, self.out, force)
        else:
            found = self.out(seen.transpose(1, 2).reshape(h.shape))
        x = torch.addcmul(x, gate_a, found)
        if self.adapter is not None and force is not None:
            x = self.adapter(x, force)
        h = torch.addcmul(shift_f, functional.layer_norm(x, (width,)), scale_f)
        x = torch.addcmul(x, gate_f, self.down(functional.gelu(self.up(h), approximate="tanh")))
        return x, keys, values


class Expert(Velocity):
    """The field: tokens of the newest state and of the H noisy actions, through ``depth`` layers."""

    def __init__(self, config: FavlaConfig) -> None:
        super().__init__()
        width = config.width
        self.width = width
        self.state = nn.Sequential(
            nn.Linear(sum(config.features[key] for key in config.fast), config.hidden),
            GatedBlock(config.hidden),
            nn.Linear(config.hidden, width),
        )
        self.tokenizer = (
            ForceTokenizer(*config.wrench, config.force_tokens, config.force_width, width) if config.feels_now else None
        )
        self.force_is_input = config.fusion == "input"
        self.features = TimeFeatures()
        self.time = nn.Sequential(
            nn.Linear(self.features.size, _TIME_WIDTH), nn.SiLU(), nn.Linear(_TIME_WIDTH, (_PARTS + 2) * width)
        )
        self.offsets = nn.Parameter(torch.zeros(config.depth, _PARTS * width))  # on the time modulation, a layer each
        self.embed = nn.Linear(config.action_size, width)
        self.position = nn.Parameter(torch.zeros(config.horizon, width))
        self.blocks = nn.ModuleList(ExpertBlock(config) for _ in range(config.depth))
        self.head = nn.Linear(width, config.action_size)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights. Gates and the head start at zero: each block is the identity, the velocity zero."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, generator=generator)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
            elif isinstance(layer, ForceTokenizer):
                nn.init.normal_(layer.position, std=0.02, generator=generator)
        for layer in self.modules():
            if isinstance(layer, FGDF):
                layer.initialize()
        nn.init.normal_(self.position, std=0.02, generator=generator)
        nn.init.zeros_(self.time[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.head.weight)
        self.time[-1].bias.view(_PARTS + 2, self.width)[[1, 4, 7]] = 1.0  # type: ignore[operator]

    def context(
        self, slow: SlowContext, state: Tensor, wrench: Tensor | None = None, magnitude: Tensor | None = None
    ) -> ExpertContext:
        """What the steps of a call share: the slow context and, normalised, what is newest.

        ``state`` [B, n]; ``wrench`` [B, samples, axes], and ``magnitude`` [B] of its last sample. Without a wrench no
        force token is there, and the layers are those of a network without force.
        """
        x = self.state(state)[:, None]
        tokens = self.tokenizer(wrench) if self.tokenizer is not None and wrench is not None else None
        if tokens is not None and self.force_is_input:
            x, tokens = torch.cat([x, tokens], dim=1), None
        modulation, _ = self._modulate(x.new_zeros(1, 1))  # like given actions, these tokens are clean
        keys, values, felt = [], [], []
        for block, parts, k, v in zip(self.blocks, modulation, slow.cache.keys, slow.cache.values, strict=True):
            force = None
            if tokens is not None:
                force = block.read(tokens, x, slow.y_hat, magnitude)  # type: ignore[operator]
                felt.append(force)
            x, k, v = block(x, parts, k, v, force)
            keys.append(k)
            values.append(v)
        return ExpertContext(KVCache(tuple(keys), tuple(values)), tuple(felt))

    def rest(self, context: ExpertContext, x: Tensor, tau: Tensor, valid: Tensor | None) -> Tensor:
        """One pass over the action tokens; nobody attends to an action beyond the end."""
        modulation, (shift, scale) = self._modulate(tau)
        mask = None
        if valid is not None:
            mask = functional.pad(valid[:, None, None, :], (context.cache.length, 0), value=True)
        h = self.embed(x) + self.position
        for index, (block, parts) in enumerate(zip(self.blocks, modulation, strict=True)):
            force = context.force[index] if context.force else None
            h, _, _ = block(h, parts, context.cache.keys[index], context.cache.values[index], force, mask)
        return self.head(torch.addcmul(shift, functional.layer_norm(h, (self.width,)), scale))

    def _modulate(self, tau: Tensor) -> tuple[list[tuple[Tensor, ...]], tuple[Tensor, ...]]:
        """Of each layer shift, scale and gate of both halves at times [B or 1, H or 1]; and the head's shift, scale."""
        layers, final = self.time(self.features(tau)).split([_PARTS * self.width, 2 * self.width], dim=-1)
        parts = [(layers + offset).chunk(_PARTS, dim=-1) for offset in self.offsets.unbind(0)]
        return parts, final.chunk(2, dim=-1)
