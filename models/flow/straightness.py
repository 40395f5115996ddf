"""How straight a policy's sampling paths are, action by action.

The pilot study of "FASTER: Rethinking Real-Time Flow VLAs" (arXiv 2603.19199): where paths are straight, one step is
as good as many. Near actions, which the observation decides, should be straighter than far ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .policy import FlowPolicy
from .schedules import ConstantSchedule


class Straightness(NamedTuple):
    """``bend`` [H]: the mean over samples of the squared distance between a path's velocity and its chord, summed
    over dimensions and averaged over its time; ``distance`` [N, H]: how far the clean guess before each of N steps is
    from the final action, mean norm. Both in normalised units, where actions have unit variance."""

    bend: Tensor
    distance: Tensor


@torch.no_grad()
def straightness(
    policy: FlowPolicy, observation: Any, valid: Tensor, steps: int, generator: torch.Generator
) -> Straightness:
    """Measure on a batch of observations with a constant schedule of ``steps`` >= 2 steps.

    ``valid`` [B, H] is false for actions beyond the end of their episode, which are left out: nothing was learned
    about them, and they would flatten the far end.
    """
    config = policy.config
    noise = torch.randn(len(valid), config.horizon, config.action_size, generator=generator)
    noise = noise.to(policy.device, policy.dtype)
    taus = ConstantSchedule(config.horizon, steps).taus().to(noise)
    context = policy.encode(observation)
    x, velocities, guesses = noise, [], []
    for tau, following in zip(taus[:-1, :1], taus[1:, :1], strict=True):
        velocity = policy.velocity(context, x, tau[None])
        velocities.append(velocity)
        guesses.append(x - tau * velocity)
        x = x + (following - tau) * velocity
    share = valid.to(noise.dtype) / valid.sum(0).clamp(min=1)
    bends = torch.stack([(noise - x - v).square().sum(-1) for v in velocities]).mean(0)
    distances = torch.stack([(guess - x).norm(dim=-1) for guess in guesses])
    return Straightness((bends * share).sum(0), (distances * share).sum(1))
