"""What a plan of each variant costs, predicted: the arithmetic behind "imagination at test time is what is slow".

Of n tokens of width d that look at m keys, with d_att features in all heads and feed-forward halves r times as wide, a
layer takes 8 n d d_att operations for its projections, 4 n m d_att for the attention and 4 r n d^2 for the feed-forward
half. G tokens of the present frame, T frames of the future, H actions and K steps make

=====  =======================================================================
fast   V(G) + K A(H; G + H)
joint  K (V((1 + T) G) + A(H; (1 + T) G + H))
idm    (K_v + 1) V((1 + T) G) + K A(H; (1 + T) G + H), imagining in K_v steps
=====  =======================================================================

Small models on small batches run below what this predicts, because a kernel costs time however little it computes. What
only turns pictures into latents, times into modulation and tokens into velocities is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from .config import WamConfig


@dataclass(frozen=True)
class PlanCost:
    """Floating-point operations of one plan for one sample, by variant."""

    fast: float
    joint: float
    idm: float

    @property
    def joint_over_fast(self) -> float:
        """How many times as much the joint variant computes."""
        return self.joint / self.fast

    @property
    def idm_over_fast(self) -> float:
        """How many times as much the idm variant computes."""
        return self.idm / self.fast


def layer_flops(tokens: int, keys: int, width: int, inner: int, expansion: int) -> int:
    """Operations (a multiplication and an addition are two) of a layer whose heads have ``inner`` features in all."""
    return 8 * tokens * width * inner + 4 * tokens * keys * inner + 4 * expansion * tokens * width**2


def plan_cost(config: WamConfig, steps: int = 10) -> PlanCost:
    """The cost of a plan in ``steps`` steps, for each variant of ``config``. Raises ``ValueError`` for ``steps`` < 1.

    With ``config.reuse_first`` the present frame is computed once a plan and not at every step of imagination; for a
    ``config.summary`` it is looked at once in any case.
    """
    if steps < 1:
        raise ValueError(f"steps={steps}, expected at least 1")
    inner, first = config.heads * config.head_dim, config.cells
    everything = (1 + len(config.future)) * first

    def video(tokens: int, keys: int) -> int:
        return config.depth * layer_flops(tokens, keys, config.video_width, inner, config.expansion)

    def action(keys: int) -> int:
        return config.depth * layer_flops(config.horizon, keys + config.horizon, config.width, inner, config.expansion)

    look = video(first, first)
    watch = video(everything - first, everything) if config.reuse_first else video(everything, everything)
    once = look if config.reuse_first or config.summary else 0
    return PlanCost(
        fast=look + steps * action(first),
        joint=once + steps * (watch + action(everything)),
        idm=once + (config.imagine_steps + 1) * watch + steps * action(everything),
    )
