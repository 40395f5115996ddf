"""What a flow policy is trained on: drawn noise, times and prefixes, and the squared error of the velocity.

``rho``, the progress of a sample, follows Beta(1.5, 1) as in pi0. Usually every action of a chunk has the time rho.
A share ``mix`` of the samples gives each action a time of its own ("FASTER: Rethinking Real-Time Flow VLAs", arXiv
2603.19199, Algorithm 1): where the horizon-aware schedule has it at the progress rho (``times="has"``), or drawn
independently ("independent", as in Chen et al., "Diffusion Forcing"). The first ``delay`` actions are a given prefix
of time 0 and no targets (training-time real-time chunking); where prefix lengths are drawn, a share ``prefix_rate`` has
them uniform in 0..max_delay and the others have none, because the first action without a prefix is what closed-loop
control mostly executes.

``mask_finished`` is ours: an action of time 0 that is not given has been sampled already, and its velocity is never
used again. Its target would be the noise, which cannot be known; the paper trains on it all the same (``False``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .config import FlowConfig
from .schedules import ConstantSchedule, HorizonAwareSchedule


class Draw(NamedTuple):
    """What chance decides about a batch: ``noise`` [B, H, D], ``rho`` [B] in (0, 1], ``delay`` [B]; with a ``mix``,
    ``mixed`` [B] samples have times of their own, and ``own`` [B, H] are those times if they are independent."""

    noise: Tensor
    rho: Tensor
    delay: Tensor
    mixed: Tensor | None = None
    own: Tensor | None = None


def draw_training(size: int, config: FlowConfig, generator: torch.Generator, like: Tensor) -> Draw:
    """Draw noise, times and prefix lengths for ``size`` samples, of the type and on the device of ``like``."""
    noise = torch.randn(size, config.horizon, config.action_size, generator=generator).to(like)
    rho = _progress((size,), generator).to(like)
    delay = torch.randint(0, config.max_delay + 1, (size,), generator=generator)
    delay = torch.where(torch.rand(size, generator=generator) < config.prefix_rate, delay, 0).to(like.device)
    if not config.mix:
        return Draw(noise, rho, delay)
    mixed = (torch.rand(size, generator=generator) < config.mix).to(like.device)
    own = _progress((size, config.horizon), generator).to(like) if config.times == "independent" else None
    return Draw(noise, rho, delay, mixed, own)


def training_times(config: FlowConfig, draw: Draw, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The time of every action [B, H], and which of them count in the loss [B, H]. ``valid`` [B, H] as in ``loss``."""
    free = torch.arange(config.horizon, device=draw.delay.device) >= draw.delay[:, None]
    tau = ConstantSchedule(config.horizon, 1).training_tau(draw.rho, draw.delay)
    if draw.mixed is not None:
        if draw.own is None:
            schedule = HorizonAwareSchedule(config.horizon, 1, config.alpha, config.first_hit)
            own = schedule.training_tau(draw.rho, draw.delay)
        else:
            own = draw.own * free
        tau = torch.where(draw.mixed[:, None], own, tau)
    counted = valid & free
    return tau, counted & (tau > 0) if config.mask_finished else counted


def flow_loss(
    velocity: Callable[[Tensor, Tensor], Tensor],
    actions: Tensor,
    noise: Tensor,
    tau: Tensor,
    counted: Tensor,
    delay: Tensor,
) -> dict[str, Tensor]:
    """The loss of a field ``velocity(x, tau)`` on normalised ``actions`` [B, H, D] at noise and times.

    ``"flow"`` is the mean over the actions that are ``counted`` [B, H] (or weighted by it) of the mean squared error
    over their dimensions; ``"near"`` is the same over the first action after each prefix, where it counts.
    """
    x = torch.lerp(actions, noise, tau[..., None])
    error = (velocity(x, tau) - (noise - actions)).square().mean(-1)
    near = (counted > 0) & (torch.arange(actions.shape[1], device=delay.device) == delay[:, None])
    return {
        "flow": (error * counted).sum() / counted.sum().clamp(min=1),
        "near": ((error * near).sum() / near.sum().clamp(min=1)).detach(),
    }


def _progress(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator).pow(2 / 3).mul(0.999).add(0.001)  # the inverse of Beta(1.5, 1)
