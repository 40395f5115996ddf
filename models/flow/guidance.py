"""Inference-time real-time chunking: a sampler that is pulled towards the plan which is already running.

Black et al., "Real-Time Execution of Action Chunking Flow Policies" (arXiv 2506.07339): a pseudoinverse-guided velocity
(Song et al.) draws each step's guess of the clean chunk to the rest of the previous chunk, firmly where actions run
anyway and ever less after them. It needs no special training, and one backward pass a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Guidance(NamedTuple):
    """Where samples are pulled: ``target`` [B, H, D], by ``weights`` [B, H] in [0, 1], with strength up to ``clip``.

    ``exact`` takes the error back through the network (a vector-Jacobian product); else the Jacobian of the guess is
    replaced by the identity, which saves the backward pass.
    """

    target: Tensor
    weights: Tensor
    clip: float = 5.0
    exact: bool = True


def chunking_weights(horizon: int, delay: int, left: int) -> Tensor:
    """Weights [horizon] for a previous chunk of which ``left`` actions are left and the first ``delay`` will run.

    1 before ``delay``, then falling exponentially, 0 from ``left`` on. Expects 0 <= delay <= left <= horizon.
    """
    index = torch.arange(horizon, dtype=torch.float64)
    linear = ((delay - 1 - index) / (left - delay + 1) + 1).clamp(0, 1)
    return (linear * torch.expm1(linear) / math.expm1(1) * (index < left)).float()


def guided(velocity: Callable[[Tensor, Tensor], Tensor], x: Tensor, tau: Tensor, guidance: Guidance | None) -> Tensor:
    """The velocity [B, H, D] at ``x`` and times ``tau`` [B or 1, H or 1], with guidance if there is any."""
    if guidance is None:
        return velocity(x, tau)
    time = tau[..., None]
    with torch.set_grad_enabled(guidance.exact):
        at = x.detach().requires_grad_(guidance.exact)
        moved = velocity(at, tau)
        clean = at - time * moved
    error = (guidance.target - clean.detach()) * guidance.weights[..., None]
    pull = torch.autograd.grad(clean, at, error)[0] if guidance.exact else error
    strength = (time**2 + (1 - time) ** 2) / (time * (1 - time)).clamp(min=1e-12)
    return moved.detach() - strength.clamp(max=guidance.clip) * pull
