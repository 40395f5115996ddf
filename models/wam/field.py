"""The network of a world-action model: latents of pictures and noisy actions in, the velocities of both out.

It stands between the mixture, which knows only tokens, and the policy, which knows cameras and units. Both velocities
are preconditioned as in :mod:`..flow.velocity`: latents, like actions, have about unit variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..flow.encoder import GatedBlock
from ..flow.velocity import Velocity
from ..kv_cache import KVCache
from .config import WamConfig
from .masks import wam_mask
from .mixture import Expert, MixtureOfTransformers, Modulation


@dataclass(frozen=True)
class WamContext:
    """What the steps of one plan share.

    ``first`` [B, G, d] are the latents of the present frame and ``condition`` [B, C] what modulates all tokens;
    ``told`` [B, 1, _] is that and the ``summary`` [B, C] of the frame, read by the expert of actions. ``cache`` are the
    video tokens that actions see: the present frame (fast), or also the finished future (idm), whose latents
    [B, T, G, d] are ``imagined``. In the joint variant the cache is another one at every step and ``None`` before the
    first; ``noise`` [B, T, G, d] is where its video begins. ``present`` is the cache of the present frame, which
    imagination reuses if it is there.
    """

    first: Tensor
    condition: Tensor | None
    told: Tensor | None = None
    summary: Tensor | None = None
    cache: KVCache | None = None
    imagined: Tensor | None = None
    noise: Tensor | None = None
    present: KVCache | None = None

    def __len__(self) -> int:
        return len(self.first)


class Footage(NamedTuple):
    """A future [B, T, G, d], noisy as at the times ``t`` [B or 1]."""

    future: Tensor
    t: Tensor


class WorldActionField(Velocity):
    """The field: an expert of video and one of actions in a mixture, with what they read and write.

    As a :class:`Velocity` it is that of actions, of a context that :meth:`context` made.
    """

    def __init__(self, config: WamConfig) -> None:
        super().__init__()
        self.variant = config.variant
        self.cells, self.frames, self.horizon = config.cells, len(config.future), config.horizon
        size, width, condition = config.latent_size, config.video_width, config.condition_size
        shape = (config.depth, config.heads, config.head_dim, config.expansion)
        self.mixture = MixtureOfTransformers(
            {
                "video": Expert(width, *shape, condition),
                "action": Expert(config.width, *shape, config.hidden if config.summary else condition),
            }
        )
        self.summary = nn.Linear(self.cells * width, config.hidden) if config.summary else None
        self.join = GatedBlock(config.hidden) if config.summary else None
        self.embed_video = nn.Linear(size, width)
        self.cell = nn.Parameter(torch.zeros(self.cells, width))
        self.now = nn.Parameter(torch.zeros(width))
        self.later = nn.Parameter(torch.zeros(self.frames, 1, width))
        self.head_video = nn.Linear(width, size)
        self.embed = nn.Linear(config.action_size, config.width)
        self.position = nn.Parameter(torch.zeros(config.horizon, config.width))
        self.head = nn.Linear(config.width, config.action_size)
        self.mask: Tensor
        mask = wam_mask(self.cells, self.frames * self.cells, self.horizon, config.variant)
        self.register_buffer("mask", mask, persistent=False)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights. Heads start at zero: a new field is the best guess for numbers of unit variance."""
        for layer in (*self.children(), *(() if self.join is None else self.join.children())):
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, generator=generator)
                nn.init.zeros_(layer.bias)
        for expert in self.mixture.experts.values():
            expert.initialize(generator)  # type: ignore[operator]
        # A place is as large as the patch or action that stands there. Much smaller, and the normalisation of a layer
        # all but erases it: where something is in the picture is then learned last. Neighbours start alike, so that
        # what is learned at one place serves the next: from few demonstrations that is most of the success.
        waves = _waves(self.cells)
        mix = torch.randn(waves.shape[1], self.cell.shape[1], generator=generator) / waves.shape[1] ** 0.5
        self.cell.copy_(waves @ mix)
        for position in (self.now, self.later):
            nn.init.normal_(position, generator=generator)
        nn.init.normal_(self.position, std=0.3, generator=generator)
        for head in (self.head_video, self.head):
            nn.init.zeros_(head.weight)

    def expert(self, name: str) -> Expert:
        """The expert of ``"video"`` or ``"action"``."""
        expert = self.mixture.experts[name]
        assert isinstance(expert, Expert)
        return expert

    def context(self, first: Tensor, condition: Tensor | None, look: bool = True) -> WamContext:
        """The context of the present frame [B, G, d]; with a ``look``, the pass over it that the fast variant needs.

        A summary takes the look anyway.
        """
        if not look and self.summary is None:
            return WamContext(first, condition, self.expert("action").read(condition))
        expert = self.expert("video")
        tokens, modulation = self._present(first), expert.modulate(first.new_zeros(1, 1), expert.read(condition))
        summary = None
        if self.summary is None:
            cache = self.mixture.prefill("video", tokens, modulation)
        else:
            out, cache = self.mixture({"video": tokens}, {"video": modulation})
            assert self.join is not None
            read = functional.silu(self.summary(out["video"].flatten(1)))
            summary = self.join(read if condition is None else read + condition)
        told = self.expert("action").read(condition if summary is None else summary)
        return WamContext(first, condition, told, summary, present=cache)

    def rest(self, context: WamContext, x: Tensor, tau: Tensor, valid: Tensor | None) -> Tensor:
        """One pass over the action tokens, which see the context's cache; nobody attends to one beyond the end.

        Raises ``ValueError`` for a context without a cache, which the joint variant has between its steps.
        """
        if context.cache is None:
            raise ValueError(
                "the context has no cache: a model of variant='joint' acts on a future that changes with every step, "
                "so fast inference from the first frame is not what it was trained for; sample it with stream()"
            )
        mask = None
        if valid is not None:
            mask = functional.pad(valid[:, None, None, :], (context.cache.length, 0), value=True)
        expert = self.expert("action")
        h = self.embed(x) + self.position
        return self.head(self.mixture.step("action", h, expert.modulate(tau, context.told), context.cache, mask))

    def together(
        self, context: WamContext, copies: Sequence[Footage], x: Tensor, tau: Tensor, valid: Tensor, shown: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The pass of training over video and actions: the velocity of actions [B, H, D], and the tokens of the future.

        Those are of the first of the ``copies`` (the idm variant has a second one, which actions see), after the last
        layer [B, T, G, W]. ``valid`` [B, H] and ``shown`` [B, T] are false beyond the end of an episode.
        """
        tokens, modulation = self._video(context, copies)
        action = self.expert("action")
        scale, slope = _straight(tau)
        mask = self.mask & torch.cat([self._seen(shown, len(copies)), valid[:, None, None, :]], dim=-1)
        out, _ = self.mixture(
            {"video": tokens, "action": self.embed(x / scale) + self.position},
            {"video": modulation, "action": action.modulate(tau, context.told)},
            mask,
        )
        return slope * x + self.head(out["action"]) / scale, self._future(out["video"])

    def watch(self, context: WamContext, footage: Footage, shown: Tensor | None = None) -> tuple[Tensor, KVCache]:
        """The video alone: the tokens of the future after the last layer [B, T, G, W], and the cache of all tokens.

        ``shown`` [B, T] is false for frames beyond the end of an episode.
        """
        tokens, modulation, mask = self._alone(context, footage, shown)
        out, cache = self.mixture({"video": tokens}, {"video": modulation}, mask, context.present)
        return self._future(out["video"]), cache

    def remember(self, context: WamContext, future: Tensor) -> KVCache:
        """The cache of the present frame and of a clean future [B, T, G, d]."""
        tokens, modulation, mask = self._alone(context, Footage(future, future.new_zeros(1)), None)
        return self.mixture.prefill("video", tokens, modulation, mask, context.present)

    def video_velocity(self, footage: Footage, tokens: Tensor) -> Tensor:
        """The velocity of a future [B, T, G, d], of its tokens after the last layer."""
        scale, slope = _straight(footage.t.view(-1, 1, 1))
        return slope * footage.future + self.head_video(tokens) / scale

    def _present(self, first: Tensor) -> Tensor:
        return self.embed_video(first) + (self.cell + self.now)

    def _later(self, footage: Footage) -> Tensor:
        scale, _ = _straight(footage.t.view(-1, 1, 1))
        return (self.embed_video(footage.future / scale) + (self.cell + self.later)).flatten(1, 2)

    def _video(self, context: WamContext, copies: Sequence[Footage]) -> tuple[Tensor, Modulation]:
        """Tokens [present | future] of each copy, one after another, and their modulation."""
        expert, present = self.expert("video"), self._present(context.first)
        tokens, times = [], []
        for footage in copies:
            tokens += [present, self._later(footage)]
            times += [torch.zeros_like(footage.t), footage.t]
        counts = [self.cells, self.frames * self.cells] * len(copies)
        modulation = expert.modulate(torch.stack(times, dim=1), expert.read(context.condition), counts)
        return torch.cat(tokens, dim=1), modulation

    def _alone(
        self, context: WamContext, footage: Footage, shown: Tensor | None
    ) -> tuple[Tensor, Modulation, Tensor | None]:
        """Tokens of the video alone, their modulation and mask; without the present frame where that is in a cache."""
        if context.present is not None:
            expert = self.expert("video")
            modulation = expert.modulate(footage.t[:, None], expert.read(context.condition))
            return self._later(footage), modulation, None  # everything may be seen
        count = (1 + self.frames) * self.cells
        mask = self.mask[:count, :count]
        if shown is not None:
            mask = mask & self._seen(shown, 1)
        return *self._video(context, [footage]), mask

    def _future(self, tokens: Tensor) -> Tensor:
        """The future's tokens, of the first copy [present | future] or of a future that stands alone."""
        end = min((1 + self.frames) * self.cells, tokens.shape[1])
        return tokens[:, end - self.frames * self.cells : end].unflatten(1, (self.frames, self.cells))

    def _seen(self, shown: Tensor, copies: int) -> Tensor:
        """Which video tokens may be keys [B, 1, 1, n]."""
        frames = functional.pad(shown, (1, 0), value=True).repeat_interleave(self.cells, dim=1)
        return frames.repeat(1, copies)[:, None, None, :]


def _straight(tau: Tensor) -> tuple[Tensor, Tensor]:
    """Of numbers [..., d] of unit variance at times ``tau`` [...]: their deviation, and the slope of the best linear
    guess of their velocity, see :class:`Velocity`."""
    variance = (tau * tau + (1 - tau) ** 2)[..., None]
    return variance.sqrt(), (2 * tau[..., None] - 1) / variance


def _waves(cells: int) -> Tensor:
    """Slow waves [cells, 8] over a square of cells, across and down: half a period and a quarter of one."""
    side = round(cells**0.5)
    place = (torch.arange(side) + 0.5) / side * 2 - 1
    down, across = torch.meshgrid(place, place, indexing="ij")
    angles = [torch.pi * rate * axis for axis in (across, down) for rate in (0.25, 0.5)]
    return torch.stack([2**0.5 * wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], -1).flatten(0, 1)
