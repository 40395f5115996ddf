"""Force inside the layers of the action expert: by a plain cross-attention, or in balance with what it sees.

Appended to the input, force tokens are diluted by all the others. :class:`ForceAdapter` gives them an attention of
their own ("FAVLA", arXiv 2602.23648). :class:`FGDF` ("force-guided dynamic fusion", which the conference version names
and does not define) is our design: a gate a head divides a fixed budget between seeing and feeling,
``z + 2 (1 - g) h_v + 2 g h_f``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Force(NamedTuple):
    """What one layer reads of the force tokens during a call: ``keys`` and ``values`` [B, heads, T, W / heads].

    ``seeing`` [B, heads, 1, 1] is the gate's factor 2 (1 - g) on what is seen, ``None`` for 1; its factor 2 g on what
    is felt is in ``values`` already. ``gate`` [B, heads] is g itself.
    """

    keys: Tensor
    values: Tensor
    seeing: Tensor | None = None
    gate: Tensor | None = None


class ForceAttention(nn.Module):
    """Tokens [B, H, W] attend to force tokens: what both ways share."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.keys_values = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width, bias=False)

    def project(self, tokens: Tensor) -> Force:
        """Keys and values of force tokens [B, T, W]."""
        batch, count, _ = tokens.shape
        pair = self.keys_values(tokens).view(batch, count, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        keys, values = pair.unbind(0)
        return Force(keys, values)

    def attend(self, h: Tensor, force: Force) -> Tensor:
        """What normalised tokens ``h`` [B, H, W] feel."""
        batch, horizon, width = h.shape
        query = self.query(h).view(batch, horizon, self.heads, -1).transpose(1, 2)
        felt = functional.scaled_dot_product_attention(query, force.keys, force.values)
        return self.out(felt.transpose(1, 2).reshape(batch, horizon, width))


class ForceAdapter(ForceAttention):
    """The preprint's: after self-attention, ``z + Attn(Q(z), K(force), V(force))``."""

    def forward(self, z: Tensor, force: Force) -> Tensor:
        """The tokens [B, H, W] with what they feel."""
        return z + self.attend(functional.layer_norm(z, z.shape[-1:]), force)


class FGDF(ForceAttention):
    """Ours: what is seen and what is felt, weighed by a gate for each head.

    ``g = sigmoid(w [mean force token, LN(mean z), y_hat, |force|] + b)``. With w = b = 0 and the output of the
    cross-attention zero, a new one changes nothing: g = 1/2, so 2 (1 - g) = 1, bit for bit. ``fixed`` in
    [0, 1] is a gate that does not learn: 1/2 adds both up, 1 feels alone.

    The mean is over the tokens that do not change while a chunk is sampled: so a chunk has one gate, chance and actions
    beyond the end have no say in it, and it costs the sampler's steps nothing.
    """

    def __init__(self, width: int, heads: int, fixed: float | None = None) -> None:
        super().__init__(width, heads)
        self.fixed = fixed
        self.gate = nn.Linear(2 * width + 2, heads) if fixed is None else None

    @torch.no_grad()
    def initialize(self) -> None:
        """Set to zero what must be, so that this layer starts as the one without force."""
        nn.init.zeros_(self.out.weight)
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)

    def weigh(self, tokens: Tensor, z: Tensor, y_hat: Tensor, magnitude: Tensor) -> Force:
        """Project force ``tokens`` [B, T, W] and open the gate for them.

        ``z`` [B, W] is the mean of the expert's unchanging tokens, ``y_hat`` [B] how much the force will vary,
        ``magnitude`` [B] how large it is now, in units of its scale.
        """
        force = self.project(tokens)
        if self.fixed is not None:
            gate = y_hat.new_full((len(y_hat), self.heads), self.fixed)
            if self.fixed == 0.5:
                return force._replace(gate=gate)
            factor = 2 * gate[..., None, None]
            return Force(force.keys, force.values * factor, 2 - factor, gate)
        assert self.gate is not None
        seen = functional.layer_norm(z, z.shape[-1:])
        gate = self.gate(torch.cat([tokens.mean(1), seen, y_hat[:, None], magnitude[:, None]], dim=-1)).sigmoid()
        factor = 2 * gate[..., None, None]
        return Force(force.keys, force.values * factor, 2 - factor, gate)

    def forward(self, h: Tensor, seen: Tensor, out: nn.Linear, force: Force) -> Tensor:
        """``2 (1 - g) h_v + 2 g h_f`` [B, H, W].

        ``h`` [B, H, W] are the normalised tokens, ``seen`` [B, heads, H, W / heads] what each head of the
        self-attention saw, and ``out`` its output layer.
        """
        if force.seeing is not None:
            seen = seen * force.seeing
        return out(seen.transpose(1, 2).reshape(h.shape)) + self.attend(h, force)
