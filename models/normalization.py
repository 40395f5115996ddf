"""Normalisation whose statistics live inside the network, so that they travel with its weights.

Each kind keeps its statistics under its own names, so a checkpoint shows which kind it holds. Reading quantiles as
minimum and maximum (or the other way) fits every shape and costs most of the success rate; here it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Kind = Literal["mean_std", "min_max", "quantile"]
STATISTICS: dict[str, tuple[str, str]] = {
    "mean_std": ("mean", "std"),
    "min_max": ("min", "max"),
    "quantile": ("q01", "q99"),
}
"""Kind to the names of its two tensors. ``quantile`` takes the 1 % and 99 % quantiles."""

_SMALLEST_SPREAD = 1e-4


class NormalizationError(ValueError):
    """Statistics that are missing, or of another kind than stated; the message names both sides."""


class Normalizer(nn.Module):
    """Maps vectors [..., size] to about unit scale and back, dimension by dimension.

    ``mean_std`` gives zero mean and unit variance; ``min_max`` and ``quantile`` map the two statistics to -1 and +1.
    A dimension that hardly varies (spread under 1e-4) is only shifted. ``limit`` clips what ``forward`` returns, in
    normalised units, so that a sensor outside everything seen in training cannot blow up a network; ``inverse``
    never clips. The statistics are buffers named as in :data:`STATISTICS`.
    """

    def __init__(self, kind: Kind, size: int, limit: float | None = None) -> None:
        super().__init__()
        if kind not in get_args(Kind):
            raise ValueError(f"kind={kind!r}, expected one of {get_args(Kind)}")
        self.kind, self.size, self.limit = kind, size, limit
        low, high = STATISTICS[kind]
        self.register_buffer(low, torch.zeros(size) if kind == "mean_std" else -torch.ones(size))
        self.register_buffer(high, torch.ones(size))

    @torch.no_grad()
    def fit(self, samples: Tensor) -> None:
        """Take the statistics of ``samples`` [n, size]. Raises ``ValueError`` for a wrong shape or NaN."""
        if samples.ndim != 2 or samples.shape[1] != self.size or not len(samples):
            raise ValueError(f"samples have shape {tuple(samples.shape)}, expected [n, {self.size}] with n >= 1")
        if not bool(torch.isfinite(samples).all()):
            raise ValueError("samples hold NaN or infinity; statistics of them would spoil every input")
        values = samples.double()
        if self.kind == "mean_std":
            found = values.mean(0), values.std(0, unbiased=False)
        elif self.kind == "min_max":
            found = values.amin(0), values.amax(0)
        else:
            # By sorting: torch.quantile refuses more than 16 million numbers.
            ordered = values.sort(0).values
            found = _interpolate(ordered, 0.01), _interpolate(ordered, 0.99)
        for name, value in zip(STATISTICS[self.kind], found, strict=True):
            getattr(self, name).copy_(value)

    def forward(self, values: Tensor) -> Tensor:
        """Normalise [..., size]."""
        center, scale = self._affine()
        normal = (values - center) / scale
        return normal if self.limit is None else normal.clamp(-self.limit, self.limit)

    def inverse(self, normal: Tensor) -> Tensor:
        """Undo ``forward`` (up to its clipping)."""
        center, scale = self._affine()
        return normal * scale + center

    def _affine(self) -> tuple[Tensor, Tensor]:
        low, high = (getattr(self, name) for name in STATISTICS[self.kind])
        center, scale = (low, high) if self.kind == "mean_std" else ((low + high) / 2, (high - low) / 2)
        return center, torch.where(scale < _SMALLEST_SPREAD, torch.ones_like(scale), scale)


def check_statistics(kind: str, tensors: Mapping[str, Tensor], prefix: str, size: int) -> None:
    """Check that ``tensors`` hold, under ``prefix``, the statistics of ``kind`` for ``size`` dimensions.

    Raises :class:`NormalizationError` naming what is stated and what is there.
    """
    if kind not in STATISTICS:
        raise NormalizationError(f"{prefix}: the card states normalisation {kind!r}, known are {', '.join(STATISTICS)}")
    there = {name.removeprefix(f"{prefix}.") for name in tensors if name.startswith(f"{prefix}.")}
    wanted = STATISTICS[kind]
    if not set(wanted) <= there:
        other = [k for k, names in STATISTICS.items() if set(names) <= there]
        found = (
            f"those of {other[0]!r} ({', '.join(STATISTICS[other[0]])})" if other else f"only {sorted(there) or 'none'}"
        )
        raise NormalizationError(
            f"{prefix}: the card states normalisation {kind!r}, which needs the statistics {' and '.join(wanted)}, "
            f"but the tensors hold {found}; correct the card, or write the statistics that the network was trained with"
        )
    for name in wanted:
        value = tensors[f"{prefix}.{name}"]
        if tuple(value.shape) != (size,) or not bool(torch.isfinite(value).all()):
            raise NormalizationError(
                f"{prefix}.{name} has shape {tuple(value.shape)}, expected ({size},) of finite numbers"
            )


def _interpolate(ordered: Tensor, quantile: float) -> Tensor:
    position = quantile * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return torch.lerp(ordered[below], ordered[above], position - below)
