"""A window of force samples to a few tokens, by a causal temporal convolution (FAVLA, arXiv 2602.23648)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_DILATIONS = (1, 2, 4, 8)
_KERNEL = 3


class _Block(nn.Module):
    """A residual layer [B, T, W]: what a sample gets comes from itself and two earlier ones, ``dilation`` apart."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(_KERNEL * width, width)

    def forward(self, x: Tensor) -> Tensor:
        # The convolution as one product over gathered taps: a window is so short that this is the faster way.
        past = (_KERNEL - 1) * self.dilation
        padded = functional.pad(self.norm(x), (0, 0, past, 0))
        taps = [padded[:, tap * self.dilation : tap * self.dilation + x.shape[1]] for tap in range(_KERNEL)]
        return x + functional.gelu(self.mix(torch.cat(taps, dim=-1)), approximate="tanh")


class ForceTokenizer(nn.Module):
    """Normalised wrenches [B, samples, axes] to tokens [B, tokens, width], of which none sees later samples.

    A 1x1 convolution to ``features``, four causal blocks of dilation 1, 2, 4 and 8 (31 samples back), then the features
    at the end of each of ``tokens`` equal parts of the window: the last token ends with the newest sample. The features
    are not normalised at the end, so that a token tells how strong a force is.
    """

    def __init__(self, samples: int, axes: int, tokens: int, features: int, width: int) -> None:
        super().__init__()
        self.samples, self.axes = samples, axes
        self.ends = [-(-samples * (part + 1) // tokens) - 1 for part in range(tokens)]
        self.enter = nn.Linear(axes, features)
        self.blocks = nn.ModuleList(_Block(features, dilation) for dilation in _DILATIONS)
        self.leave = nn.Linear(features, width)
        self.position = nn.Parameter(torch.zeros(tokens, width))

    def forward(self, wrench: Tensor) -> Tensor:
        """Tokens of a batch of windows, oldest first. Raises ``ValueError`` for a window of another shape."""
        if wrench.ndim != 3 or wrench.shape[1:] != (self.samples, self.axes):
            raise ValueError(
                f"wrench has shape {tuple(wrench.shape)}, expected [B, {self.samples}, {self.axes}]; a shorter history "
                "must be filled up by whoever keeps it, with the first sample"
            )
        x = self.enter(wrench)
        for block in self.blocks:
            x = block(x)
        return self.leave(x[:, self.ends]) + self.position
