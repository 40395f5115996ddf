"""Latents of small pictures: their patches, or the principal components of those.

A large model predicts in the latents of a video autoencoder; at 20 or 64 pixels a patch is small enough to be one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PatchLatent(nn.Module):
    """Square pictures of ``size`` pixels and ``channels``, cut into patches of ``patch`` pixels: ``cells`` tokens.

    Pixels in [0, 1] have 0.3 taken off and are divided by 0.3 until :meth:`fit` knows better; both numbers are buffers.
    ``features`` are the numbers of a token. Raises ``ValueError`` where ``patch`` does not divide ``size``.
    """

    def __init__(self, size: int, patch: int, channels: int = 3) -> None:
        super().__init__()
        if patch < 1 or size < 1 or size % patch:
            raise ValueError(f"size={size} is not divisible by patch={patch}; choose a patch that divides it")
        self.size, self.patch, self.channels = size, patch, channels
        self.cells = (size // patch) ** 2
        self.features = patch * patch * channels
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(0.3))
        self.register_buffer("std", torch.tensor(0.3))

    @torch.no_grad()
    def fit(self, frames: Tensor) -> None:
        """Take mean and standard deviation, over all pixels, of frames uint8 [..., size, size, channels]."""
        pixels = self._patches(frames, torch.float64)
        self.mean.copy_(pixels.mean())
        self.std.copy_(pixels.std(unbiased=False).clamp(min=1e-3))

    def forward(self, frames: Tensor) -> Tensor:
        """Frames uint8 [..., size, size, channels] to tokens [..., cells, features], row by row."""
        return (self._patches(frames, self.mean.dtype) - self.mean) / self.std

    def decode(self, tokens: Tensor) -> Tensor:
        """Tokens [..., cells, features] to frames uint8 [..., size, size, channels], clipped to what is one."""
        return self._picture(tokens * self.std + self.mean)

    def _patches(self, frames: Tensor, dtype: torch.dtype) -> Tensor:
        shape = (self.size, self.size, self.channels)
        if tuple(frames.shape[-3:]) != shape or frames.dtype != torch.uint8:
            raise ValueError(
                f"frames are {frames.dtype} of shape {tuple(frames.shape)}, expected uint8 [..., "
                f"{', '.join(map(str, shape))}]"
            )
        lead, side = frames.shape[:-3], self.size // self.patch
        cut = frames.reshape(*lead, side, self.patch, side, self.patch, self.channels).transpose(-4, -3)
        return cut.reshape(*lead, self.cells, -1).to(dtype) / 255

    def _picture(self, patches: Tensor) -> Tensor:
        lead, side = patches.shape[:-2], self.size // self.patch
        pixels = (patches * 255).round().clamp(0, 255).to(torch.uint8)
        cut = pixels.reshape(*lead, side, side, self.patch, self.patch, self.channels).transpose(-4, -3)
        return cut.reshape(*lead, self.size, self.size, self.channels)


class PCALatent(PatchLatent):
    """Tokens of the first ``components`` principal components of how a patch differs from the mean picture there.

    Each has unit variance. What never changes is no part of them, however much of the picture it fills.

    :meth:`fit` must have seen frames, or a checkpoint been loaded, before it is used; else ``ValueError``.
    """

    def __init__(self, size: int, patch: int, channels: int = 3, components: int = 16) -> None:
        super().__init__(size, patch, channels)
        if not 1 <= components <= self.features:
            raise ValueError(f"components={components}, expected 1 to {self.features}, the numbers of a patch")
        self.basis: Tensor
        self.mean = torch.full((self.cells, self.features), torch.nan)
        self.std = torch.full((components,), torch.nan)
        self.register_buffer("basis", torch.full((components, self.features), torch.nan))
        self.features = components

    @torch.no_grad()
    def fit(self, frames: Tensor) -> None:
        """Take the components of frames uint8 [..., size, size, channels]."""
        patches = self._patches(frames, torch.float64).flatten(0, -3)
        mean = patches.mean(0)
        centered = (patches - mean).flatten(0, 1)
        variances, vectors = torch.linalg.eigh(centered.T @ centered / len(centered))  # ascending
        count = len(self.basis)
        self.mean.copy_(mean)
        self.std.copy_(variances[-count:].flip(0).clamp(min=1e-8).sqrt())
        self.basis.copy_(vectors[:, -count:].flip(1).T)

    def forward(self, frames: Tensor) -> Tensor:
        """Frames uint8 [..., size, size, channels] to tokens [..., cells, components], row by row."""
        if bool(self.std[0].isnan()):
            raise ValueError("the principal components are not known yet; call fit with frames, or load a checkpoint")
        return (self._patches(frames, self.mean.dtype) - self.mean) @ self.basis.T / self.std

    def decode(self, tokens: Tensor) -> Tensor:
        """Tokens [..., cells, components] to frames uint8 [..., size, size, channels]; the rest of them is lost."""
        return self._picture(tokens * self.std @ self.basis + self.mean)
