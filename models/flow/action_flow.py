"""What every policy of this family shares, whatever it reads: normalisation inside, and the sampler."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..normalization import Normalizer, check_statistics
from .config import FlowConfig
from .encoder import unfold_quaternions
from .guidance import Guidance, guided
from .schedules import FINAL, ConstantSchedule, Schedule
from .velocity import Velocity

Observation = Mapping[str, Tensor]
"""Key to a batch [B, ...]: float vectors, uint8 pictures [B, height, width, 3]."""
Self = TypeVar("Self", bound="ActionFlow")


class Evaluation(NamedTuple):
    """One step of the sampler: its index, the chunk [B, H, D] in action units as far as it is, and which actions
    [B, H] became final with this step. ``actions`` is meaningful where an action is final."""

    step: int
    actions: Tensor
    newly_final: Tensor


class ActionFlow(nn.Module):
    """A policy that makes chunks of actions from noise. Derive, make ``velocity``, and write ``encode`` and ``loss``.

    Actions and observations go in and come out in their own units.
    """

    config: FlowConfig
    velocity: Velocity

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.normalize = nn.ModuleDict(
            {key: Normalizer(config.normalization[key], n, limit=10.0) for key, n in config.features.items()}
        )
        self.normalize_action = Normalizer(config.normalization["action"], config.action_size)

    @classmethod
    def from_tensors(cls: type[Self], config: Any, tensors: Mapping[str, Tensor]) -> Self:
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
            normalizer.fit(self._features(key, observations[key]).flatten(0, -2))  # type: ignore[operator]
        self.normalize_action.fit(actions)

    @property
    def dtype(self) -> torch.dtype:
        """The weights' type; whoever samples brings noise of it."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @abstractmethod
    def encode(self, observation: Observation) -> Any:
        """Encode a batch of observations, once a plan; what comes out is the backbone's affair."""

    @abstractmethod
    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
        """Losses of a batch of windows; ``"loss"`` is what training minimises."""

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
        for step, now in enumerate(self._contexts(context, schedule.steps)):
            tau, following = table[step], table[step + 1]
            # Most plans have one time for all actions; one row is then enough for the network.
            shared = not some_given and bool((tau == tau[0, 0]).all())
            velocity = guided(partial(self.velocity, now), x, tau[:1, :1] if shared else tau, pull)
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

    def _contexts(self, context: Any, steps: int) -> Iterator[Any]:
        """What each of the ``steps`` of :meth:`stream` reads; a policy whose context moves with them overrides it."""
        return repeat(context, steps)

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
