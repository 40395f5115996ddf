"""A flow-matching policy: observation to a chunk of actions (Lipman et al., "Flow Matching"; Black et al., "pi0").

Between noise and actions ``x = tau * noise + (1 - tau) * actions`` with tau = 1 for noise and 0 for actions, and the
network learns ``noise - actions`` (see :mod:`.objective`), for any time of each action and after a prefix of given
ones. How a plan is sampled is the schedule's choice.

One thing is ours. A linear map of the encoded observation regresses the chunk during training, which gives the encoder
a gradient without the noise of the flow's targets. It is a help to the encoder, not a need: with lagged demonstrations
(see ``models.data.demonstrations``) BallIntercept-v0 scores the same without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..normalization import Normalizer, check_statistics
from .config import FlowConfig
from .encoder import ObservationEncoder, unfold_quaternions
from .guidance import Guidance, guided
from .mlp import Mlp
from .objective import draw_training, flow_loss, training_times
from .schedules import FINAL, ConstantSchedule, Schedule
from .velocity import Transformer, Velocity

Observation = Mapping[str, Tensor]
"""Key to a batch [B, ...]: float vectors, uint8 pictures [B, height, width, 3]."""


class Evaluation(NamedTuple):
    """One step of the sampler: its index, the chunk [B, H, D] in action units as far as it is, and which actions
    [B, H] became final with this step. ``actions`` is meaningful where an action is final."""

    step: int
    actions: Tensor
    newly_final: Tensor


class FlowPolicy(nn.Module):
    """The policy. Actions and observations go in and come out in their own units; normalisation is inside.

    ``generator`` draws the initial weights (default: a fixed seed; the global generator is left alone).
    """

    def __init__(self, config: FlowConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # layers draw weights when made, which are then overwritten
            self.normalize = nn.ModuleDict(
                {key: Normalizer(config.normalization[key], n, limit=10.0) for key, n in config.features.items()}
            )
            self.normalize_action = Normalizer(config.normalization["action"], config.action_size)
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

    @classmethod
    def from_tensors(cls, config: FlowConfig, tensors: Mapping[str, Tensor]) -> FlowPolicy:
        """A policy with the weights and statistics of a checkpoint.

        Raises ``NormalizationError`` when the statistics are not those that ``config`` states, and ``ValueError``
        naming the tensors that are missing, unknown or of another shape.
        """
        for key, size in config.features.items():
            check_statistics(config.normalization[key], tensors, f"normalize.{key}", size)
        check_statistics(config.normalization["action"], tensors, "normalize_action", config.action_size)
        policy = cls(config)
        wanted = policy.state_dict()
        problems = [f"{n} is missing" for n in wanted if n not in tensors]
        problems += [f"{n} is unknown" for n in tensors if n not in wanted]
        problems += [
            f"{n} has shape {tuple(tensors[n].shape)}, expected {tuple(t.shape)}"
            for n, t in wanted.items()
            if n in tensors and tensors[n].shape != t.shape
        ]
        if problems:
            raise ValueError(f"the tensors do not fit the configuration: {'; '.join(problems[:4])}")
        policy.load_state_dict(dict(tensors))
        return policy

    def fit_normalization(self, observations: Observation, actions: Tensor) -> None:
        """Take the statistics of observations [n, ...] and actions [n, D]."""
        for key, normalizer in self.normalize.items():
            normalizer.fit(self._features(key, observations[key]))  # type: ignore[operator]
        self.normalize_action.fit(actions)

    @property
    def dtype(self) -> torch.dtype:
        """The weights' type; whoever samples brings noise of it."""
        return self.regression.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.regression.weight.device

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

    def stream(
        self,
        context: Any,
        noise: Tensor,
        schedule: Schedule,
        prefixes: Sequence[Tensor] | None = None,
        guidance: Guidance | None = None,
    ) -> Iterator[Evaluation]:
        """Sample, yielding after every evaluation of the network.

        ``noise`` [B, H, D] is standard normal. ``prefixes`` are the given actions of each sample [d, D], in action
        units; they come back bit for bit, whatever the network says. ``guidance`` pulls the samples towards a
        target in action units. Raises ``ValueError`` for a prefix that is
        longer than ``max_delay`` or of another shape.
        """
        delays, given = self._prefix(noise, prefixes)
        columns = {d: schedule.taus(d) for d in set(delays)}
        table = torch.stack([columns[d] for d in delays], dim=1).to(noise)  # [steps + 1, B, H]
        normal_given = self.normalize_action(given)
        is_given = (
            torch.arange(noise.shape[1], device=noise.device) < torch.tensor(delays, device=noise.device)[:, None]
        )
        some_given = bool(is_given.any())
        x = torch.where(is_given[..., None], normal_given, noise) if some_given else noise
        pull = guidance and guidance._replace(target=self.normalize_action(guidance.target))
        for step in range(schedule.steps):
            tau, following = table[step], table[step + 1]
            # Most plans have one time for all actions; one row is then enough for the network.
            shared = not some_given and bool((tau == tau[0, 0]).all())
            velocity = guided(partial(self.velocity, context), x, tau[:1, :1] if shared else tau, pull)
            x = torch.addcmul(x, velocity, (following - tau)[..., None])  # a given action has no time to move
            newly_final = (following < FINAL) & (tau >= FINAL)
            actions = self.normalize_action.inverse(x)
            if some_given:
                actions = torch.where(is_given[..., None], given, actions)
            yield Evaluation(step, actions, newly_final)

    def sample(
        self,
        observation: Observation,
        noise: Tensor,
        schedule: Schedule | None = None,
        prefixes: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Chunks [B, H, D] in action units, after all steps (default: ten equal ones)."""
        ten = ConstantSchedule(self.config.horizon, 10)
        *_, last = self.stream(self.encode(observation), noise, schedule or ten, prefixes)
        return last.actions

    def _encode(self, observation: Observation) -> tuple[Tensor, Tensor | None]:
        parts = [normalizer(self._features(key, observation[key])) for key, normalizer in self.normalize.items()]
        return self.encoder(torch.cat(parts, dim=-1) if parts else None, observation)

    def _features(self, key: str, values: Tensor) -> Tensor:
        vectors = values.flatten(1).to(self.dtype)
        places = self.config.quaternions.get(key)
        return unfold_quaternions(vectors, places) if places else vectors

    def _prefix(self, noise: Tensor, prefixes: Sequence[Tensor] | None) -> tuple[list[int], Tensor]:
        given = torch.zeros_like(noise)
        delays = [0] * len(noise)
        for row, prefix in enumerate(prefixes or ()):
            delays[row] = len(prefix)
            if len(prefix) > self.config.max_delay:
                raise ValueError(
                    f"prefix of {len(prefix)} actions, but max_delay={self.config.max_delay}: this policy was trained "
                    "to continue at most that many; plan earlier, or train with a larger max_delay"
                )
            if len(prefix) and tuple(prefix.shape[1:]) != (self.config.action_size,):
                raise ValueError(f"prefix has shape {tuple(prefix.shape)}, expected [d, {self.config.action_size}]")
            if len(prefix):
                given[row, : len(prefix)] = prefix
        return delays, given


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
