"""The world-action agent: it has learned to foresee pictures, and acts from what the present one leaves in its memory.

"Fast-WAM: Do World Action Models Need Test-time Future Imagination?" (arXiv 2603.16666). A plan is one pass of the
video expert over the present frame and then steps of the action expert, which stream (``schedule=has``): the first
action costs the pass and one step. Variants that imagine the future first are checkpoints too (``variant=idm``).

Options (``wam:steps=4``): ``steps``, ``execute``, ``schedule`` and ``alpha`` are those of ``flow``. With ``imagine``
every plan also says which frames it foresees (``extras["imagined"]``, uint8 [T, S, S, C]) and at how many ticks after
the observation (``extras["imagined_in"]``, int [T]): a diagnostic, with which nothing is done but to film it. With
``imagine=euler`` or ``heun`` it is the scheduler of that name in ``diffusers`` that makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from ..models.wam.policy import WamPolicy
from ..models.wam.train import TRAINER, text_of
from .agent import Call
from .flow import Begun, Flow, policy_tensors, samples_of, sampling_schedule

_SOLVERS = {"euler": "FlowMatchEulerDiscreteScheduler", "heun": "FlowMatchHeunDiscreteScheduler"}  # of diffusers


class Wam(Flow):
    """Plans chunks with a :class:`WamPolicy`.

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
        known: Mapping[str, Sequence[float]] | None = None,
        samples: Mapping[str, Any] | None = None,
    ) -> None:
        if imagine not in (False, True, *_SOLVERS):
            raise ValueError(f"imagine={imagine!r} is not known; choose true, false or {', '.join(_SOLVERS)}")
        super().__init__(policy, schedule=schedule, execute=execute, samples=samples)
        self._solver = _SOLVERS.get(str(imagine))
        self.imagines = (self.config.picture, self.config.future) if imagine else None
        self._known = {text: np.array(vector, np.float32) for text, vector in (known or {}).items()}

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
    ) -> Wam:
        """The agent of a checkpoint, whose tensors are ``policy.*`` and, for calibration, ``samples.*``."""
        policy = TRAINER.read(checkpoint.config, policy_tensors(checkpoint))
        sampling = checkpoint.card.get("sampling", {})
        return cls(
            policy,
            schedule=sampling_schedule(checkpoint.card, policy.config.horizon, steps, schedule, alpha),
            execute=sampling.get("execute", policy.config.horizon) if execute is None else execute,
            imagine=imagine,
            known=checkpoint.card.get("instructions"),
            samples=samples_of(checkpoint),
        )

    @property
    def inputs(self) -> Mapping[str, tuple[int, ...]]:
        """What it reads of an observation; the instruction as text."""
        return {**self.config.inputs, **({"instruction": (TEXT_BYTES,)} if self.config.text else {})}

    def _begin(self, jobs: Sequence[tuple[Any, Call]]) -> Begun:
        """As a flow policy does, and what every job foresees if it is to say so."""
        begun = super()._begin(jobs)
        if self.imagines is None:
            return begun
        noise = [self.policy.video_noise(1, torch.Generator().manual_seed(0)) for _ in jobs]
        seen = self._batch(jobs, self.inputs)
        frames = self.policy.imagine(seen, noise=torch.cat(noise), solver=self._make_solver()).cpu().numpy()
        ahead = np.array(self.config.future)
        return begun._replace(extras=[{"imagined": one, "imagined_in": ahead} for one in frames])

    def _make_solver(self) -> Any:
        if self._solver is None:
            return None
        import diffusers

        return getattr(diffusers, self._solver)(shift=self.config.shift)

    def _batch(self, jobs: Sequence[tuple[Any, Call]], keys: Iterable[str]) -> dict[str, Tensor]:
        """The observations of several calls as one batch; an instruction is its embedding."""
        batch = super()._batch(jobs, keys)
        if "instruction" in batch:
            vectors = np.stack([self._embedded(text_of(row)) for row in batch["instruction"].cpu().numpy()])
            batch["instruction"] = torch.from_numpy(vectors).to(self.policy.device)
        return batch

    def _embedded(self, text: str) -> np.ndarray:
        if text not in self._known:
            self._known[text] = embed([text])[0]
        return self._known[text]
