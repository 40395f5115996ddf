"""A flow-matching policy: observation to a chunk of actions (Lipman et al., "Flow Matching"; Black et al., "pi0").

Between noise and actions ``x = tau * noise + (1 - tau) * actions`` with tau = 1 for noise and 0 for actions, and the
network learns ``noise - actions`` (see :mod:`.objective`), for any time of each action and after a prefix of given
ones. How a plan is sampled is the schedule's choice.

One thing is ours. A linear map of the encoded observation regresses the chunk during training, which gives the encoder
a gradient without the noise of the flow's targets. It is a help to the encoder, not a need: with lagged demonstrations
(see ``models.data.demonstrations``) BallIntercept-v0 scores the same without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .action_flow import ActionFlow, Observation
from .config import FlowConfig
from .encoder import ObservationEncoder
from .mlp import Mlp
from .objective import draw_training, flow_loss, training_times
from .velocity import Transformer, Velocity


class FlowPolicy(ActionFlow):
    """The policy. Actions and observations go in and come out in their own units; normalisation is inside.

    ``generator`` draws the initial weights (default: a fixed seed; the global generator is left alone).
    """

    def __init__(self, config: FlowConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        with torch.random.fork_rng(devices=[]):  # layers draw weights when made, which are then overwritten
            self.encoder = ObservationEncoder(
                sum(config.features.values()), config.pictures, config.width, config.hidden
            )
            self.velocity = _backbone(config)
            self.regression = nn.Linear(config.width, config.horizon * config.action_size)
        generator = generator or torch.Generator().manual_seed(0)
        self.encoder.initialize(generator)
        self.velocity.initialize(generator)
        nn.init.xavier_uniform_(self.regression.weight, generator=generator)
        nn.init.zeros_(self.regression.bias)

    def encode(self, observation: Observation) -> Any:
        """Encode a batch of observations, once a plan; what comes out is the backbone's affair."""
        return self.velocity.context(*self._encode(observation))

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
        """Losses of a batch: ``observation``, ``actions`` [B, H, D], ``valid`` [B, H] and perhaps ``delay`` [B].

        ``valid`` is false beyond the end of an episode; those actions are not counted. ``delay`` says how many of the
        actions were given (at most ``max_delay``); without it, prefix lengths are drawn. ``"loss"`` is the sum of
        ``"flow"`` (see :func:`flow_loss`) and ``"regression"``; ``"near"`` is the flow loss of the first free action.
        """
        valid = batch["valid"]
        actions = self.normalize_action(batch["actions"].to(self.dtype))
        vector, tokens = self._encode(batch["observation"])
        context = self.velocity.context(vector, tokens)
        draw = draw_training(len(actions), self.config, generator, actions)
        told = valid
        if "delay" in batch:
            draw = draw._replace(delay=batch["delay"])
            told = valid & (draw.delay == 0)[:, None]  # the observation alone does not tell what follows a prefix
        tau, counted = training_times(self.config, draw, valid)
        losses = flow_loss(
            lambda x, tau: self.velocity(context, x, tau, valid), actions, draw.noise, tau, counted, draw.delay
        )
        error = (self.regression(vector).view_as(actions) - actions).square().mean(-1)
        regression = (error * told).sum() / told.sum().clamp(min=1)
        return {"loss": losses["flow"] + regression, **losses, "regression": regression}

    def _encode(self, observation: Observation) -> tuple[Tensor, Tensor | None]:
        parts = [normalizer(self._features(key, observation[key])) for key, normalizer in self.normalize.items()]
        return self.encoder(torch.cat(parts, dim=-1) if parts else None, observation)


def _backbone(config: FlowConfig) -> Velocity:
    if config.backbone == "mlp":
        return Mlp(config.action_size, config.horizon, width=config.width, depth=config.depth, conditioned=config.width)
    return Transformer(
        config.action_size,
        config.horizon,
        width=config.width,
        depth=config.depth,
        heads=config.heads,
        expansion=config.expansion,
    )
