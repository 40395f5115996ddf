"""Plans of world-action models with random weights: what is exactly true of each variant, and how long each takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

STEPS = 10
SIZES: Mapping[str, Mapping[str, Any]] = {
    "video 64 wide, 16 tokens a frame": {},
    "video 256 wide, 16 tokens a frame": {"video_width": 256, "width": 192, "head_dim": 64},
    "video 256 wide, 64 tokens a frame": {
        "video_width": 256,
        "width": 192,
        "head_dim": 64,
        "pictures": {"pixels": (40, 40, 3)},
    },
}
VARIANTS = ("fast", "joint", "idm")
KEPT = ", frame kept"  # where the present frame is computed once a plan and not at every step: the same comes out


@dataclass(frozen=True)
class Times:
    """Milliseconds of plans [calls] of each variant, made in turns.

    ``first_ms`` is that of the fast variant until its first action, streaming; ``operations`` are those that the cost
    model counts.
    """

    parameters: int
    plan_ms: Mapping[str, np.ndarray]
    first_ms: np.ndarray
    operations: Mapping[str, float]

    def predicted(self, name: str) -> float:
        """How many times as much as the fast variant one computes."""
        return self.operations[name] / self.operations["fast"]


def _policy(variant: str, seed: int, changes: Mapping[str, Any], **more: Any) -> Any:
    import torch

    from ...models.wam.config import WamConfig
    from ...models.wam.policy import WamPolicy

    sizes: dict[str, Any] = {"pictures": {"pixels": (20, 20, 3)}, "latent": 0, "text": 4, **changes, **more}
    config = WamConfig(2, 12, variant=variant, normalization={"action": "mean_std"}, **sizes)  # type: ignore[arg-type]
    return WamPolicy(config, torch.Generator().manual_seed(seed))


def plan_times(size: str, calls: int, seed: int) -> Times:
    """Time ``calls`` plans of each variant on one thread, in turns, so that a busy machine slows all of them."""
    import torch

    from ...models.flow.schedules import ConstantSchedule, HorizonAwareSchedule
    from ...models.wam.cost import plan_cost

    policies = {variant: _policy(variant, seed, SIZES[size]) for variant in VARIANTS}
    policies |= {f"{name}{KEPT}": _policy(name, seed, SIZES[size], reuse_first=True) for name in VARIANTS[1:]}
    config = policies["fast"].config
    draw = torch.Generator().manual_seed(seed)
    picture = torch.randint(0, 256, (1, *config.pictures["pixels"]), generator=draw, dtype=torch.uint8)
    seen = {"pixels": picture, "instruction": torch.rand(1, 4, generator=draw)}
    noise = torch.randn(1, config.horizon, config.action_size, generator=draw)
    constant = ConstantSchedule(config.horizon, STEPS)
    streamed = HorizonAwareSchedule(config.horizon, STEPS, 0.8)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    taken: dict[str, list[float]] = {name: [] for name in (*policies, "first")}
    try:
        with torch.inference_mode():
            for call in range(calls + 2):
                for name in taken:
                    policy = policies["fast" if name == "first" else name]
                    began = time.perf_counter()
                    stream = policy.stream(policy.encode(seen), noise, streamed if name == "first" else constant)
                    for evaluation in stream:
                        if name == "first" and bool(evaluation.newly_final.any()):
                            break
                    if call >= 2:  # the first calls warm up
                        taken[name].append(1e3 * (time.perf_counter() - began))
    finally:
        torch.set_num_threads(threads)
    return Times(
        sum(p.numel() for p in policies["fast"].parameters()),
        {name: np.array(taken[name]) for name in policies},
        np.array(taken["first"]),
        {name: getattr(plan_cost(one.config, STEPS), one.config.variant) for name, one in policies.items()},
    )


def identities(seed: int) -> dict[str, float]:
    """The largest change of the actions' velocity, in float64, with random weights.

    ``fast without future``: from the pass of training to the path without any future; ``fast, another future`` and
    ``joint, another future``: from one noisy future to another. Only the last one may be anything but rounding.
    """
    import torch

    from ...models.wam.field import Footage, WamContext

    found = {}
    for variant in ("fast", "joint"):
        draw = torch.Generator().manual_seed(seed)
        policy = _policy(variant, seed, {}).double()
        with torch.no_grad():
            for parameter in policy.parameters():  # heads start at zero, and would hide everything
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype))
        field, config = policy.velocity, policy.config
        seen = {
            "pixels": torch.randint(0, 256, (3, 20, 20, 3), generator=draw, dtype=torch.uint8),
            "instruction": torch.rand(3, 4, generator=draw),
        }
        futures = torch.randn(2, 3, *config.video_shape, generator=draw, dtype=torch.float64)
        x = torch.randn(3, config.horizon, config.action_size, generator=draw, dtype=torch.float64)
        tau, t = (torch.rand(3, n, generator=draw, dtype=torch.float64) for n in (config.horizon, 1))
        valid = torch.ones(3, config.horizon, dtype=torch.bool)
        shown = torch.ones(3, len(config.future), dtype=torch.bool)
        with torch.inference_mode():
            context: WamContext = policy.encode(seen)
            one, other = (
                field.together(context, [Footage(future, t[:, 0])], x, tau, valid, shown)[0] for future in futures
            )
            found[f"{variant}, another future"] = float((one - other).abs().max())
            if variant == "fast":
                found["fast without future"] = float((one - field(context, x, tau)).abs().max())
    return found
