"""The FAVLA policy: a slow pass that sees and foresees, a fast expert that samples chunks from what it left and feels.

"FAVLA: A Force-Adaptive Fast-Slow VLA model for Contact-Rich Robotic Manipulation", arXiv 2602.23648. One
:meth:`~FavlaPolicy.encode_slow` serves many :meth:`~FavlaPolicy.context`: as often as the forecast asks for, the newest
state and wrench are read, and a chunk sampled by ``stream``, which is that of every flow policy. So it may stream by
any schedule, continue a prefix, or be guided.

Acting, the slow context is up to a slow period old (and more, when thinking takes time). Training must show that:
a batch may hold under ``"slow"`` what was observed some ticks before ``"observation"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..flow.action_flow import ActionFlow, Observation
from ..flow.objective import draw_training, flow_loss, training_times
from .config import FavlaConfig
from .expert import Expert, ExpertContext
from .slow import SlowContext, SlowEncoder


class FavlaPolicy(ActionFlow):
    """The policy. Actions and observations go in and come out in their own units; normalisation is inside.

    ``generator`` draws the initial weights (default: a fixed seed; the global generator is left alone).
    """

    config: FavlaConfig
    velocity: Expert

    def __init__(self, config: FavlaConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        with torch.random.fork_rng(devices=[]):  # layers draw weights when made, which are then overwritten
            self.slow = SlowEncoder(config)
            self.velocity = Expert(config)
        generator = generator or torch.Generator().manual_seed(0)
        self.slow.initialize(generator)
        self.velocity.initialize(generator)

    def encode_slow(self, observation: Observation) -> SlowContext:
        """The slow pass over a batch of observations.

        Reads every key of ``state`` and ``pictures``, ``"wrench"`` [B, samples, 6] unless ``fusion`` is "none", and
        ``"instruction"`` [B, bytes] if ``text`` is set. Raises ``ValueError`` naming a key that is missing or of
        another shape, and for a wrench with NaN.
        """
        config = self.config
        inputs = self._normal(observation, self.normalize)
        for key in (*config.pictures, *(("instruction",) if config.text else ())):
            inputs[key] = self._entry(observation, key)
        return self.slow(inputs)

    def context(self, slow: SlowContext, observation: Observation) -> ExpertContext:
        """The fast pass that precedes a call of ``stream``: the ``fast`` keys and the newest ``"wrench"``.

        ``observation`` has as many samples as ``slow``. The result's ``gate`` says how the layers balance seeing and
        feeling. Raises ``ValueError`` as :meth:`encode_slow` does.
        """
        config = self.config
        inputs = self._normal(observation, (*config.fast, "wrench") if config.feels_now else config.fast)
        state = torch.cat([inputs[key] for key in config.fast], dim=-1)
        if len(state) != len(slow):
            raise ValueError(f"observation holds {len(state)} samples and slow {len(slow)}, expected as many")
        if not config.feels_now:
            return self.velocity.context(slow, state)
        wrench = inputs["wrench"]
        nothing = self.normalize["wrench"](wrench.new_zeros(wrench.shape[-1]))
        magnitude = (wrench[:, -1] - nothing).square().mean(-1).sqrt()
        return self.velocity.context(slow, state, wrench, magnitude)

    def encode(self, observation: Observation) -> ExpertContext:
        """Both passes from one observation."""
        return self.context(self.encode_slow(observation), observation)

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
        """Losses of a batch: ``observation``, ``slow``, ``label`` [B], ``actions`` [B, H, D], ``valid`` [B, H].

        ``slow`` is what the slow pass saw, some ticks earlier (missing: ``observation``), and ``label`` how much the
        force varied after that, see :mod:`.variance`. ``valid`` is false beyond the end of an episode; those actions
        are not counted. ``delay`` [B], if there, says how many of the actions were given; without it, prefix lengths
        are drawn. ``"loss"`` is ``"flow"`` (see :func:`flow_loss`, also for ``"near"``) and ``variance_weight`` times
        ``"variance"``, the squared error of the forecast.
        """
        if "label" not in batch:
            raise ValueError("the batch has no 'label': the variance of the coming force, from variance_label()")
        actions = self.normalize_action(batch["actions"].to(self.dtype))
        slow = self.encode_slow(batch.get("slow", batch["observation"]))
        context = self.context(slow, batch["observation"])
        draw = draw_training(len(actions), self.config, generator, actions)
        if "delay" in batch:
            draw = draw._replace(delay=batch["delay"])
        valid = batch["valid"]
        tau, counted = training_times(self.config, draw, valid)
        losses = flow_loss(
            lambda x, tau: self.velocity(context, x, tau, valid), actions, draw.noise, tau, counted, draw.delay
        )
        variance = (slow.raw - batch["label"].to(slow.raw)).square().mean()
        return {"loss": losses["flow"] + self.config.variance_weight * variance, **losses, "variance": variance}

    def _features(self, key: str, values: Tensor) -> Tensor:
        """Of a wrench [n, samples, 6] the samples stay apart: they share the statistics of their axis."""
        return values.to(self.dtype) if key == "wrench" else super()._features(key, values)

    def _normal(self, observation: Observation, keys: Iterable[str]) -> dict[str, Tensor]:
        values = {key: self._entry(observation, key) for key in keys}
        if "wrench" in values and not bool(torch.isfinite(values["wrench"]).all()):
            raise ValueError("observation['wrench'] holds NaN or infinity; check the sensor before the robot moves")
        return {key: self.normalize[key](self._features(key, value)) for key, value in values.items()}

    def _entry(self, observation: Observation, key: str) -> Tensor:
        if key not in observation:
            raise ValueError(f"the observation has no {key!r}, which this policy reads; it has {sorted(observation)}")
        values, shape = observation[key], tuple(self.config.inputs[key])
        if tuple(values.shape[1:]) != shape:
            wanted = ", ".join(("B", *map(str, shape)))
            filled = "; fill a shorter history up with its first sample" if key == "wrench" else ""
            raise ValueError(f"observation[{key!r}] has shape {tuple(values.shape)}, expected [{wanted}]{filled}")
        return values
