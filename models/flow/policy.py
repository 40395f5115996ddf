"""A flow-matching policy: observation to a chunk of actions (Lipman et al., "Flow Matching"; Black et al., "pi0").

Between noise and actions ``x = tau * noise + (1 - tau) * actions`` with tau = 1 for noise and 0 for actions, and the
network learns ``noise - actions`` (see :mod:`.objective`), for any time of each action and after a prefix of given
ones. How a plan is sampled is the schedule's choice.

One thing is ours. A linear map of the encoded observation regresses the chunk during training, which gives the encoder
a gradient without the noise of the flow's targets. It is a help to the encoder, not a need: with lagged demonstrations
(see ``models.data.demonstrations``) BallIntercept-v0 scores the same without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..normalization import Kind, Normalizer, check_statistics
from .encoder import ObservationEncoder, unfold_quaternions
from .guidance import Guidance, guided
from .mlp import Mlp
from .objective import draw_training, flow_loss, training_times
from .schedules import FINAL, ConstantSchedule, HorizonAwareSchedule, Schedule
from .velocity import Transformer, Velocity

Observation = Mapping[str, Tensor]
"""Key to a batch [B, ...]: float vectors, uint8 pictures [B, height, width, 3]."""


@dataclass(frozen=True)
class FlowConfig:
    """Shapes and hyperparameters of a :class:`FlowPolicy`.

    ``action_size`` D and ``horizon`` H give the chunk [H, D]. ``state`` maps a key to the shape of its floats
    (flattened), ``pictures`` to [height, width, 3]; at least one key in all. ``quaternions`` says where in a flattened
    state key orientations stand, as (start, ``"xyzw"`` or ``"wxyz"``); the network sees them as matrices.
    ``max_delay`` < H is the longest prefix.
    ``normalization`` states the kind for each key of ``state`` and for ``"action"``.
    ``backbone`` is ``"transformer"`` (``width``, ``depth``, ``heads``, ``expansion``) or ``"mlp"`` (``width``,
    ``depth``); ``hidden`` is the encoder's width. The rest says how training draws times and prefixes, see
    :mod:`.objective`: ``prefix_rate``, ``mix``, ``times``, ``alpha``, ``first_hit`` and ``mask_finished``.
    """

    action_size: int
    horizon: int = 16
    state: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pictures: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    quaternions: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    normalization: Mapping[str, Kind] = field(default_factory=dict)
    max_delay: int = 8
    width: int = 96
    depth: int = 3
    heads: int = 4
    expansion: int = 4
    hidden: int = 128
    backbone: Literal["transformer", "mlp"] = "transformer"
    prefix_rate: float = 0.5
    mix: float = 0.0
    times: Literal["has", "independent"] = "has"
    alpha: float = 0.6
    first_hit: float = 0.9
    mask_finished: bool = True

    def __post_init__(self) -> None:
        for argument in ("action_size", "horizon", "width", "depth", "heads", "expansion", "hidden"):
            value = getattr(self, argument)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{argument}={value!r}, expected an integer of at least 1")
        if not isinstance(self.max_delay, int) or not 0 <= self.max_delay < self.horizon:
            raise ValueError(
                f"max_delay={self.max_delay!r}, expected an integer with 0 <= max_delay < horizon={self.horizon}"
            )
        for argument in ("prefix_rate", "mix"):
            if not 0 <= getattr(self, argument) <= 1:
                raise ValueError(f"{argument}={getattr(self, argument)}, expected a share in [0, 1]")
        for argument, known in (("backbone", ("transformer", "mlp")), ("times", ("has", "independent"))):
            if getattr(self, argument) not in known:
                raise ValueError(
                    f"{argument}={getattr(self, argument)!r} is not known; choose one of {', '.join(known)}"
                )
        HorizonAwareSchedule(self.horizon, 1, self.alpha, self.first_hit)  # which checks its own numbers
        if not self.state and not self.pictures:
            raise ValueError("state and pictures are both empty; a policy needs at least one observation key")
        for key, shape in self.pictures.items():
            if len(shape) != 3:
                raise ValueError(f"pictures[{key!r}]={shape}, expected (height, width, channels)")
        for key, places in self.quaternions.items():
            for start, order in places:
                if (
                    key not in self.state
                    or not 0 <= start <= prod(self.state[key]) - 4
                    or order not in ("xyzw", "wxyz")
                ):
                    raise ValueError(
                        f"quaternions[{key!r}] names ({start}, {order!r}), expected four numbers inside "
                        f"state[{key!r}] in the order xyzw or wxyz"
                    )
        bad = [key for key in (*self.state, *self.pictures) if "." in key or not key]
        if bad:
            raise ValueError(f"observation keys {bad} hold a dot or are empty, which a module name cannot; rename them")
        missing = [key for key in (*self.state, "action") if key not in self.normalization]
        if missing:
            raise ValueError(f"normalization states no kind for {missing}; give one of mean_std, min_max, quantile")

    @property
    def features(self) -> dict[str, int]:
        """Key of ``state`` to how many numbers the network sees of it."""
        return {key: prod(shape) + 2 * len(self.quaternions.get(key, ())) for key, shape in self.state.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data that :meth:`from_json` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FlowConfig:
        """Read what :meth:`to_json` wrote. Raises ``ValueError`` naming what is unknown, missing or out of range."""
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(data) - known):
            raise ValueError(f"not a flow configuration: unknown entries {unknown}, known are {sorted(known)}")
        try:
            shapes = {
                key: {name: tuple(int(n) for n in shape) for name, shape in data.get(key, {}).items()}
                for key in ("state", "pictures")
            }
            quaternions = {
                name: tuple((int(start), str(order)) for start, order in places)
                for name, places in data.get("quaternions", {}).items()
            }
            return cls(**{**data, **shapes, "quaternions": quaternions})
        except (TypeError, AttributeError) as error:  # a value of another kind than its field
            raise ValueError(f"not a flow configuration: {error}") from None


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
