"""The world-action policy: it learns to foresee pictures while it learns to act, and may act without foreseeing any.

"Fast-WAM: Do World Action Models Need Test-time Future Imagination?", arXiv 2603.16666. One configuration field sets
the variants apart: the fast one looks at the present frame once and samples actions from what that left; the joint one
denoises the video along with the actions; the idm one imagines the future first and then acts on it. All train on the
same batches and sample by any schedule, near actions first if wanted ("FASTER", arXiv 2603.19199), after any prefix.

Imagined video is noise made into pictures, so whoever imagines brings the noise: see :meth:`WamPolicy.video_noise`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..flow.action_flow import ActionFlow, Observation
from ..flow.encoder import GatedBlock
from ..flow.objective import draw_training, flow_loss, training_times
from ..kv_cache import KVCache
from .config import WamConfig
from .field import Footage, WamContext, WorldActionField
from .latents import PatchLatent, PCALatent
from .scheduler import ShiftedFlow

_OF_THE_VIDEO = (
    "normalize.",
    "latent.",
    "condition.",
    "velocity.mixture.experts.video.",
    "velocity.embed_video.",
    "velocity.head_video.",
    "velocity.cell",
    "velocity.now",
    "velocity.later",
)


class WamPolicy(ActionFlow):
    """The policy. Actions and observations go in and come out in their own units; normalisation is inside.

    ``generator`` draws the initial weights (default: a fixed seed; the global generator is left alone). With
    ``latent`` components in the configuration, :meth:`fit_latent` must see frames before anything else.
    """

    config: WamConfig
    velocity: WorldActionField

    def __init__(self, config: WamConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        side, _, channels = config.pictures[config.picture]
        self.scheduler = ShiftedFlow(config.shift)
        self.latent = (
            PCALatent(side, config.patch, channels, config.latent)
            if config.latent
            else PatchLatent(side, config.patch, channels)
        )
        with torch.random.fork_rng(devices=[]):  # layers draw weights when made, which are then overwritten
            self.condition = Condition(config)
            self.velocity = WorldActionField(config)
            size = config.horizon * config.action_size
            self.regression = nn.Linear(config.hidden, size) if config.summary else None
            self.inverse = (
                nn.Linear(len(config.future) * config.video_width, size) if config.control == "inverse" else None
            )
        generator = generator or torch.Generator().manual_seed(0)
        self.condition.initialize(generator)
        self.velocity.initialize(generator)
        for reader in (self.regression, self.inverse):
            if reader is not None:
                nn.init.xavier_uniform_(reader.weight, generator=generator)
                nn.init.zeros_(reader.bias)

    # Pre-training

    def fit_latent(self, frames: Tensor) -> None:
        """Take the statistics of the latents from frames uint8 [n, S, S, C]."""
        self.latent.fit(frames)

    def video_tensors(self) -> dict[str, Tensor]:
        """What was learned of video: its expert, and everything that stands before and after it."""
        return {name: tensor for name, tensor in self.state_dict().items() if name.startswith(_OF_THE_VIDEO)}

    def load_video(self, tensors: Mapping[str, Tensor], *, action: bool = False) -> None:
        """Start from a video expert: take the tensors that :meth:`video_tensors` gives, of any variant.

        Others are left out, so a whole ``state_dict`` will do. Statistics are taken too, which a later
        ``fit_normalization`` or :meth:`fit_latent` replaces. With ``action``, the expert of actions starts from the
        same weights, interpolated to its width. Raises ``ValueError`` naming what is missing or of another shape.
        """
        own = self.video_tensors()
        problems = [f"{n} is missing" for n in own if n not in tensors]
        problems += [
            f"{n} has shape {tuple(tensors[n].shape)}, not {tuple(t.shape)}"
            for n, t in own.items()
            if n in tensors and tensors[n].shape != t.shape
        ]
        if problems:
            raise ValueError(f"these are not the tensors of such a video expert: {'; '.join(problems[:4])}")
        self.load_state_dict({name: tensors[name] for name in own}, strict=False)
        if action:
            self.velocity.expert("action").resample_from(self.velocity.expert("video"))

    @classmethod
    def from_video(
        cls,
        config: WamConfig,
        tensors: Mapping[str, Tensor],
        generator: torch.Generator | None = None,
        *,
        action: bool = False,
    ) -> WamPolicy:
        """A new policy that starts from a video expert, see :meth:`load_video`."""
        policy = cls(config, generator)
        policy.load_video(tensors, action=action)
        return policy

    # Acting

    def video_noise(self, size: int, generator: torch.Generator) -> Tensor:
        """Noise [size, T, G, d] of which so many futures can be imagined."""
        return torch.randn(size, *self.config.video_shape, generator=generator).to(self.device, self.dtype)

    def encode(self, observation: Observation, noise: Tensor | None = None, steps: int | None = None) -> WamContext:
        """Encode a batch of observations, once a plan; for the idm variant that is to imagine what follows.

        ``noise`` [B, T, G, d] is where imagined video begins (default: the same for every sample and call), and
        ``steps`` how many are taken from there (default: ``config.imagine_steps``); the fast variant needs neither.
        Raises ``ValueError`` naming a key that is missing or of another shape, and for noise of another shape.
        """
        context = self._context(observation)
        if self.config.variant == "fast":
            return replace(context, cache=context.present)
        noise = self._noise(len(context), noise)
        if self.config.variant == "joint":
            return replace(context, noise=noise)
        *_, (_, imagined) = self._dream(context, noise, steps or self.config.imagine_steps)
        return replace(context, cache=self.velocity.remember(context, imagined), imagined=imagined)

    def imagine(
        self, observation: Observation, steps: int = 10, noise: Tensor | None = None, solver: Any = None
    ) -> Tensor:
        """The future as the model foresees it: frames uint8 [B, T, S, S, C] at the ticks ``config.future``.

        In the joint variant these are the frames that the actions are sampled along with, when noise and steps are the
        same: video never looks at actions. One step gives the mean of all that may come. ``solver``, a flow-match
        scheduler of ``diffusers``, takes its own ``steps`` in place of Euler's. Raises ``ValueError`` as :meth:`encode`
        does, and for ``steps`` below 1.
        """
        context = self._context(observation)
        future = self._noise(len(context), noise)
        if solver is None:
            *_, (_, future) = self._dream(context, future, steps)
            return self.latent.decode(future)
        self.scheduler.grid(steps)  # which checks them
        solver.set_timesteps(steps)
        for time in solver.timesteps:
            footage = Footage(future, (time / solver.config.num_train_timesteps).to(future)[None])
            tokens, _ = self.velocity.watch(context, footage)
            future = solver.step(self.velocity.video_velocity(footage, tokens), time, future).prev_sample
        return self.latent.decode(future)

    def _contexts(self, context: WamContext, steps: int) -> Iterator[WamContext]:
        if self.config.variant != "joint":
            return super()._contexts(context, steps)
        assert context.noise is not None  # encode put it there
        return (replace(context, cache=cache) for cache, _ in self._dream(context, context.noise, steps))

    def _dream(self, context: WamContext, future: Tensor, steps: int) -> Iterator[tuple[KVCache, Tensor]]:
        """Denoise a future; of every step, what the video left in the attention before it, and the future after it.

        The present frame is no part of what is denoised: it enters every step as it was seen.
        """
        for t, following in pairwise(self.scheduler.grid(steps).to(future)):
            footage = Footage(future, t[None])
            tokens, cache = self.velocity.watch(context, footage)
            future = future + (following - t) * self.velocity.video_velocity(footage, tokens)
            yield cache, future

    # Learning

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
        """Losses of a batch of windows: ``observation``, ``future``, ``future_valid``, ``actions`` and ``valid``.

        ``future`` maps ``config.picture`` to the frames uint8 [B, T, S, S, C] at the ticks ``config.future``;
        ``future_valid`` [B, T] and ``valid`` [B, H] are false beyond the end of an episode: what is there is neither
        counted nor looked at. ``actions`` is [B, H, D]. ``delay`` [B], if there, says how many of the actions were
        given; without it, prefix lengths are drawn.

        ``"loss"`` is the sum of ``"flow"`` (see :func:`flow_loss`, also for ``"near"``), of ``"regression"`` where a
        summary regresses the chunk, and of ``video_weight`` times ``"video"``: the error of the video's velocity or,
        for ``control="inverse"``, of the actions told from frames. With ``video_weight=0`` no future is read, which
        changes nothing for actions. A batch without actions is one for :meth:`video_loss`. Raises ``ValueError`` for
        actions and futures of another shape.
        """
        if "actions" not in batch:
            return self.video_loss(batch, generator)
        shape = self.config.horizon, self.config.action_size
        if tuple(batch["actions"].shape[1:]) != shape or batch["valid"].shape != batch["actions"].shape[:2]:
            raise ValueError(
                f"actions have shape {tuple(batch['actions'].shape)} and valid {tuple(batch['valid'].shape)}, expected "
                f"[B, {shape[0]}, {shape[1]}] and [B, {shape[0]}]"
            )
        actions = self.normalize_action(batch["actions"].to(self.dtype))
        draw = draw_training(len(actions), self.config, generator, actions)
        if "delay" in batch:
            draw = draw._replace(delay=batch["delay"])
        valid = batch["valid"]
        tau, counted = training_times(self.config, draw, valid)
        weight = self.config.discount ** torch.arange(shape[0], device=actions.device)
        counted = counted * weight
        context = self.velocity.context(*self._see(batch["observation"]), look=not self.config.video_weight)
        added = {}
        if self.regression is not None:
            told = valid & (draw.delay == 0)[:, None]  # the observation alone does not tell what follows a prefix
            added["regression"] = _error(self.regression(context.summary), actions, told * weight)
        if not self.config.video_weight:
            context = replace(context, cache=context.present)
            losses = flow_loss(
                lambda x, tau: self.velocity(context, x, tau, valid), actions, draw.noise, tau, counted, draw.delay
            )
            return {"loss": losses["flow"] + sum(added.values()), **losses, **added}
        film = self._film(batch, context.first, generator)
        copies = [film.footage]
        if self.config.variant == "idm":
            copies.append(self._shown_to_actions(film, generator))
        seen: list[Tensor] = []

        def velocity(x: Tensor, tau: Tensor) -> Tensor:
            moved, tokens = self.velocity.together(context, copies, x, tau, valid, film.shown)
            seen.append(tokens)
            return moved

        losses = flow_loss(velocity, actions, draw.noise, tau, counted, draw.delay)
        if self.inverse is None:
            video = self._video_error(film, seen[0])
        else:
            video = self._inverse_error(film, seen[0], actions, valid)
        loss = losses["flow"] + sum(added.values()) + self.config.video_weight * video
        return {"loss": loss, **losses, **added, "video": video}

    def video_loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
        """The loss of the video alone, of a batch without actions: ``observation``, ``future`` and ``future_valid``.

        Everything is as in :meth:`loss`; ``"loss"`` is ``"video"``.
        """
        if self.inverse is not None:
            raise ValueError("control='inverse' has no video to learn; pre-train with control='future'")
        context = WamContext(*self._see(batch["observation"]))
        film = self._film(batch, context.first, generator)
        tokens, _ = self.velocity.watch(context, film.footage, film.shown)
        video = self._video_error(film, tokens)
        return {"loss": video, "video": video}

    def _film(self, batch: Mapping[str, Any], first: Tensor, generator: torch.Generator) -> Film:
        """The future that a batch is trained on, with what chance decides about it."""
        config = self.config
        future, shown = self._future(batch, len(first))
        clean = self.latent(future)
        if config.control == "present":
            clean = first[:, None].expand_as(clean)
        elif config.control == "shuffled":
            if len(clean) < 2:
                raise ValueError("control='shuffled' takes the future of another sample; give batches of at least two")
            clean, shown = clean.roll(1, dims=0), shown.roll(1, dims=0)
        noise = torch.randn(clean.shape, generator=generator).to(clean)
        t = self.scheduler.draw(len(clean), generator).to(clean)
        if config.control == "inverse":
            t = torch.zeros_like(t)
        return Film(clean, noise, t, shown)

    def _shown_to_actions(self, film: Film, generator: torch.Generator) -> Footage:
        """The future as actions see it in the idm variant: clean or, as imagined ones are not perfect, noisy."""
        size = len(film.clean)
        t = self.scheduler.draw(size, generator)
        t = torch.where(torch.rand(size, generator=generator) < self.config.condition_noise, t, 0).to(film.clean)
        noise = torch.randn(film.clean.shape, generator=generator).to(film.clean)
        return Footage(torch.lerp(film.clean, noise, t.view(-1, 1, 1, 1)), t)

    def _video_error(self, film: Film, tokens: Tensor) -> Tensor:
        velocity = self.velocity.video_velocity(film.footage, tokens)
        error = (velocity - (film.noise - film.clean)).square().mean((-1, -2))
        weight = film.shown.to(error)
        if self.config.weighted:
            error = error * self.scheduler.weight(film.t)[:, None]
        return (error * weight).sum() / weight.sum().clamp(min=1)

    def _inverse_error(self, film: Film, tokens: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
        assert self.inverse is not None
        features = functional.layer_norm(tokens.mean(2) * film.shown[..., None], tokens.shape[-1:])
        return _error(self.inverse(features.flatten(1)), actions, valid)

    # Doors

    def _context(self, observation: Observation) -> WamContext:
        config = self.config
        context = self.velocity.context(*self._see(observation), look=config.variant == "fast" or config.reuse_first)
        return context if config.variant == "fast" or config.reuse_first else replace(context, present=None)

    def _see(self, observation: Observation) -> tuple[Tensor, Tensor | None]:
        """Latents of the present frame [B, G, d], and the condition [B, C]."""
        config = self.config
        first = self.latent(self._entry(observation, config.picture))
        state = [n(self._features(key, self._entry(observation, key))) for key, n in self.normalize.items()]
        text = self._entry(observation, "instruction").to(self.dtype) if config.text else None
        return first, self.condition(torch.cat(state, dim=-1) if state else None, text)

    def _entry(self, observation: Observation, key: str) -> Tensor:
        if key not in observation:
            raise ValueError(f"the observation has no {key!r}, which this policy reads; it has {sorted(observation)}")
        values, shape = observation[key], tuple(self.config.inputs[key])
        if tuple(values.shape[1:]) != shape:
            wanted = ", ".join(("B", *map(str, shape)))
            raise ValueError(f"observation[{key!r}] has shape {tuple(values.shape)}, expected [{wanted}]")
        return values

    def _future(self, batch: Mapping[str, Any], size: int) -> tuple[Tensor, Tensor]:
        picture, ticks = self.config.picture, self.config.future
        if "future_valid" not in batch or picture not in batch.get("future", ()):
            raise ValueError(
                f"the batch lacks 'future' with {picture!r} or 'future_valid': the frames {ticks} ticks later, and "
                "whether they are before the end; only video_weight=0 does without"
            )
        frames, shown = batch["future"][picture], batch["future_valid"]
        wanted = (size, len(ticks), *self.config.pictures[picture])
        if tuple(frames.shape) != wanted or tuple(shown.shape) != wanted[:2]:
            raise ValueError(
                f"future[{picture!r}] has shape {tuple(frames.shape)} and future_valid {tuple(shown.shape)}, expected "
                f"{wanted} and {wanted[:2]}: a frame for each of the ticks {ticks}"
            )
        return frames, shown

    def _noise(self, size: int, noise: Tensor | None) -> Tensor:
        if noise is None:
            return self.video_noise(1, torch.Generator().manual_seed(0)).expand(size, -1, -1, -1)
        wanted = (size, *self.config.video_shape)
        if tuple(noise.shape) != wanted:
            raise ValueError(f"noise has shape {tuple(noise.shape)}, expected {wanted}; video_noise() makes it")
        return noise.to(self.device, self.dtype)


def _error(chunks: Tensor, actions: Tensor, counted: Tensor) -> Tensor:
    """The mean squared error of chunks [B, H * D] over the actions [B, H, D] that are counted [B, H]."""
    error = (chunks.view_as(actions) - actions).square().mean(-1)
    return (error * counted).sum() / counted.sum().clamp(min=1)


class Film(NamedTuple):
    """A future to learn from: ``clean`` and ``noise`` [B, T, G, d], times ``t`` [B], and which frames count [B, T]."""

    clean: Tensor
    noise: Tensor
    t: Tensor
    shown: Tensor

    @property
    def footage(self) -> Footage:
        """The future as noisy as it is at its times."""
        return Footage(torch.lerp(self.clean, self.noise, self.t.view(-1, 1, 1, 1)), self.t)


class Condition(nn.Module):
    """State [B, n] and the embedding of an instruction [B, E] to one vector [B, hidden]; ``None`` without either."""

    def __init__(self, config: WamConfig) -> None:
        super().__init__()
        size = sum(config.features.values())
        self.state = nn.Sequential(nn.Linear(size, config.hidden), GatedBlock(config.hidden)) if size else None
        self.text = nn.Linear(config.text, config.hidden) if config.text else None

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, generator=generator)
                nn.init.zeros_(layer.bias)

    def forward(self, state: Tensor | None, text: Tensor | None) -> Tensor | None:
        """The condition."""
        parts = []
        if self.state is not None and state is not None:
            parts.append(self.state(state))
        if self.text is not None and text is not None:
            # Embeddings of unit length have tiny numbers, one-hot ones do not: their scale is not looked at.
            parts.append(self.text(functional.layer_norm(text, text.shape[-1:])))
        return torch.stack(parts).sum(0) if parts else None
