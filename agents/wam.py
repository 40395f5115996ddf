"""The world-action agent: it has learned to foresee pictures, and acts from what the present one leaves in its memory.

"Fast-WAM: Do World Action Models Need Test-time Future Imagination?" (arXiv 2603.16666). A plan is one pass of the
video expert over the present frame and then steps of the action expert, which stream (``schedule=has``): the first
action costs the pass and one step. Variants that imagine the future first are checkpoints too, which
``palaestra train wam ENV --variant idm`` (or ``joint``) makes.

Options (``wam:steps=4``): ``steps``, ``execute``, ``schedule`` and ``alpha`` are those of ``flow``. A checkpoint of the
idm variant imagines in ``imagine_steps`` steps (default: its configuration's). With ``imagine`` every plan also says
which frames it foresees (``extras["imagined"]``, uint8 [T, S, S, C]) and at how many ticks after the observation
(``extras["imagined_in"]``, int [T]): a diagnostic, with which nothing is done but to film it, and for which the first
action waits. With ``imagine=euler`` or ``heun`` it is the scheduler of that name in ``diffusers`` that makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..models.checkpoint import Checkpoint
from ..models.data.demonstrations import TEXT_BYTES
from ..models.flow.imitation import Trainer
from ..models.flow.schedules import Schedule
from ..models.text_encoder import embed
from ..models.wam.config import WamConfig
from ..models.wam.field import WamContext
from ..models.wam.policy import WamPolicy
from ..models.wam.train import TRAINER, text_of
from .agent import Call, Episode
from .flow import Begun, Flow, FlowMemory, policy_tensors, samples_of, sampling_schedule

_SOLVERS = {"euler": "FlowMatchEulerDiscreteScheduler", "heun": "FlowMatchHeunDiscreteScheduler"}  # of diffusers


@dataclass(kw_only=True)
class WamMemory(FlowMemory):
    """As that of a flow policy, with a source of noise for what is imagined, apart from that of actions."""

    video: np.random.Generator


class Wam(Flow):
    """Acts from one look at a picture, by a world-action model that has learned to foresee pictures.

    Plans chunks with a :class:`WamPolicy`.

    ``known`` maps instructions to their embeddings; others are embedded when they are first met, which needs the
    package of ``models.text_encoder``. ``imagines`` is, with ``imagine``, which picture of the observation every plan
    foresees, by key, and at how many ticks after it; else ``None``.
    """

    name: ClassVar[str] = "wam"
    trainer: ClassVar[Trainer] = TRAINER
    config: WamConfig

    def __init__(
        self,
        policy: WamPolicy,
        *,
        schedule: Schedule,
        execute: int,
        imagine: bool | str = False,
        imagine_steps: int | None = None,
        known: Mapping[str, Sequence[float]] | None = None,
        samples: Mapping[str, Any] | None = None,
    ) -> None:
        if imagine not in (False, True, *_SOLVERS):
            raise ValueError(f"imagine={imagine!r} is not known; choose true, false or {', '.join(_SOLVERS)}")
        if imagine_steps is not None and (type(imagine_steps) is not int or not 1 <= imagine_steps <= 1000):
            raise ValueError(f"imagine_steps={imagine_steps!r}, expected 1 to 1000")
        super().__init__(policy, schedule=schedule, execute=execute, samples=samples)
        self.imagine_steps = imagine_steps or self.config.imagine_steps
        self._solver = _SOLVERS.get(str(imagine))
        self.imagines = (self.config.picture, self.config.future) if imagine else None
        self._known = _vectors({} if known is None else known, self.config.text)

    @classmethod
    def from_checkpoint(  # type: ignore[override]  # its options
        cls,
        checkpoint: Checkpoint,
        *,
        steps: int | None = None,
        execute: int | None = None,
        schedule: str | None = None,
        alpha: float | None = None,
        imagine: bool | str = False,
        imagine_steps: int | None = None,
    ) -> Wam:
        """The agent of a checkpoint, whose tensors are ``policy.*`` and, for calibration, ``samples.*``."""
        if not checkpoint.card.get("recipe", {}).get("actions", True):
            raise ValueError("the checkpoint has learned video alone and cannot act; train from it with --from")
        policy = TRAINER.read(checkpoint.config, policy_tensors(checkpoint))
        sampling = checkpoint.card.get("sampling", {})
        return cls(
            policy,
            schedule=sampling_schedule(checkpoint.card, policy.config.horizon, steps, schedule, alpha),
            execute=sampling.get("execute", policy.config.horizon) if execute is None else execute,
            imagine=imagine,
            imagine_steps=imagine_steps,
            known=checkpoint.card.get("instructions"),
            samples=samples_of(checkpoint),
        )

    @property
    def inputs(self) -> Mapping[str, tuple[int, ...]]:
        """What it reads of an observation; the instruction as text."""
        return {**self.config.inputs, **({"instruction": (TEXT_BYTES,)} if self.config.text else {})}

    def reset(self, episode: Episode) -> WamMemory:
        """As that of a flow policy."""
        video = np.random.default_rng(np.random.SeedSequence(episode.seed, spawn_key=(3,)))
        return WamMemory(**vars(super().reset(episode)), video=video)

    def _begin(self, jobs: Sequence[tuple[Any, Call]]) -> Begun:
        """As a flow policy does, and what every job foresees if it is to say so."""
        seen, noise = self._batch(jobs, self.inputs), None
        if self.config.variant != "fast" or self.imagines is not None:
            drawn = [memory.video.standard_normal(self.config.video_shape, np.float32) for memory, _ in jobs]
            noise = torch.from_numpy(np.stack(drawn)).to(self.policy.device)
        context = self.policy.encode(seen, noise, self.imagine_steps)
        begun = self._begun(jobs, context)
        if self.imagines is None:
            return begun
        frames, ahead = self._foreseen(seen, noise, context).cpu().numpy(), np.array(self.config.future)
        return begun._replace(extras=[{"imagined": one, "imagined_in": ahead} for one in frames])

    def _foreseen(self, seen: Mapping[str, Tensor], noise: Tensor | None, context: WamContext) -> Tensor:
        """Frames of the future: those that are acted on, in the variants that act on any."""
        if self._solver is not None:
            import diffusers

            solver = getattr(diffusers, self._solver)(shift=self.config.shift)
            return self.policy.imagine(seen, self.imagine_steps, noise, solver)
        if context.imagined is not None:
            return self.policy.latent.decode(context.imagined)
        steps = self.schedule.steps if self.config.variant == "joint" else self.imagine_steps
        return self.policy.imagine(seen, steps, noise)

    def _batch(self, jobs: Sequence[tuple[Any, Call]], keys: Iterable[str]) -> dict[str, Tensor]:
        """The observations of several calls as one batch; an instruction is its embedding."""
        batch = super()._batch(jobs, keys)
        if "instruction" in batch:
            vectors = np.stack([self._embedded(text_of(row)) for row in batch["instruction"].cpu().numpy()])
            batch["instruction"] = torch.from_numpy(vectors).to(self.policy.device)
        return batch

    def _embedded(self, text: str) -> np.ndarray:
        if not text.strip():
            raise ValueError(f"instruction={text!r}, expected a sentence: this policy reads what to do")
        if text not in self._known:
            self._known[text] = embed([text])[0]
        return self._known[text]


def _vectors(known: Any, size: int) -> dict[str, np.ndarray]:
    """Embeddings by text, as a card states them. Raises ``ValueError`` naming the one that is none."""
    if not isinstance(known, Mapping):
        raise ValueError(f"instructions is a {type(known).__name__}, expected an object of texts with their embeddings")
    vectors = {}
    for text, numbers in known.items():
        try:
            vectors[text] = np.array(numbers, np.float32)
        except (TypeError, ValueError):
            vectors[text] = np.empty(0, np.float32)
        if vectors[text].shape != (size,) or not np.isfinite(vectors[text]).all() or not vectors[text].any():
            raise ValueError(f"instructions[{text!r}] is no embedding, expected {size} finite numbers, not all zero")
    return vectors
