"""The training loop, the only one: a generator, so that what happens around a step is a statement in its body.

::

    average = Average(model, decay=0.999)
    for step in steps(model, batches, optimizer, CosineSchedule(3000), generator):
        average.update(model)
        if step.index % 500 == 0:
            print(step.index, step.losses["loss"], step.lr)
    average.copy_to(model)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .backend import Backend


class Model(Protocol):
    """What can be trained: an ``nn.Module`` whose ``loss`` returns named scalars; "loss" is the one to minimise."""

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
        """Named scalar losses of a batch; the entry ``"loss"`` is minimised, the others are reported."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """As ``nn.Module.parameters``."""


@dataclass(frozen=True)
class Progress:
    """Where training is: ``phase`` ("demonstrations" or "training"), ``done`` of ``total``, smoothed ``losses``."""

    phase: str
    done: int
    total: int
    losses: Mapping[str, float] = field(default_factory=dict)


class Trainer(Protocol):
    """How ``palaestra train`` makes an agent: an agent's class names its own as ``trainer``.

    A recipe is a frozen dataclass with ``demonstrations``, ``steps`` and ``seed``, which decides everything that chance
    decides; the card of the checkpoint holds it, and the hash of the weights that training went on from.
    """

    def recipe_for(self, env_id: str, variant: str = "") -> Any:
        """The recipe of the shipped checkpoint for an environment, or of a variant of it. Raises ``ValueError``."""

    def train(
        self,
        env: Any,
        recipe: Any,
        out: Path,
        *,
        backend: Backend | None = None,
        start: Path | None = None,
        progress: Callable[[Progress], None] | None = None,
        card: Mapping[str, Any] | None = None,
    ) -> Path:
        """Train for an environment and write the checkpoint ``out``; returns its path."""


class NonFiniteLoss(ArithmeticError):
    """The loss became NaN or infinite. The weights are still those before the step that failed."""


@dataclass(frozen=True)
class Step:
    """What one optimisation step was. ``index`` counts from 0; ``grad_norm`` is the norm before clipping."""

    index: int
    losses: Mapping[str, float]
    lr: float
    grad_norm: float


@dataclass(frozen=True)
class CosineSchedule:
    """Learning-rate factor: a linear rise over ``warmup`` steps, then half a cosine down to ``floor`` at ``total``.

    ``total`` >= 1 steps, 0 <= ``warmup`` < ``total``, ``floor`` in [0, 1]. Calling it with a step index gives the
    factor in (0, 1] for that step; ``len(schedule)`` is ``total``.
    """

    total: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.total < 1 or not 0 <= self.warmup < self.total or not 0 <= self.floor <= 1:
            raise ValueError(
                f"total={self.total}, warmup={self.warmup}, floor={self.floor}: expected total >= 1, "
                "0 <= warmup < total and floor in [0, 1]"
            )

    def __len__(self) -> int:
        return self.total

    def __call__(self, index: int) -> float:
        """The factor for the step ``index``."""
        if index < self.warmup:
            return (index + 1) / (self.warmup + 1)
        progress = min(1.0, (index - self.warmup) / (self.total - self.warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


class Average:
    """Exponential moving average of a model's parameters, a value that the loop's body updates.

    ``decay`` in [0, 1). Early on the effective decay is ``(1 + n) / (10 + n)`` after n updates, so that the first
    weights do not linger.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}, expected a number in [0, 1)")
        self.decay = decay
        self.updates = 0
        self._parameters = list(model.parameters())
        self.values = [p.detach().clone() for p in self._parameters]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move towards the present parameters of ``model``, which is the one given at construction."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self.values, list(model.parameters()), 1 - decay)
        self.updates += 1

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Overwrite the parameters of ``model`` with the average."""
        for parameter, value in zip(model.parameters(), self.values, strict=True):
            parameter.copy_(value)


def steps(
    model: Model,
    batches: Iterable[Mapping[str, Any]],
    optimizer: torch.optim.Optimizer,
    schedule: Callable[[int], float] | None,
    generator: torch.Generator,
    *,
    clip: float | None = 1.0,
) -> Iterator[Step]:
    """Train: yields after every optimisation step, until ``batches`` ends or a ``schedule`` with a length does.

    ``schedule(index)`` is the factor on each parameter group's own learning rate (None: constant).
    ``generator`` is all the randomness that ``model.loss`` uses. ``clip`` is the largest norm of the gradient
    (None: unclipped). Raises :class:`NonFiniteLoss` before a step with a NaN or infinite loss or gradient is taken.
    """
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip}, expected a norm above 0, or None")
    total = len(schedule) if hasattr(schedule, "__len__") else None  # type: ignore[arg-type]
    rates = [group["lr"] for group in optimizer.param_groups]
    trainable = [p for group in optimizer.param_groups for p in group["params"]]
    for index, batch in enumerate(batches):
        if index == total:
            return
        factor = schedule(index) if schedule else 1.0
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        losses = model.loss(batch, generator)
        optimizer.zero_grad(set_to_none=True)
        losses["loss"].backward()
        norm = float(nn.utils.clip_grad_norm_(trainable, math.inf if clip is None else clip))
        reported = {name: float(value.detach()) for name, value in losses.items()}
        if not math.isfinite(reported["loss"]) or not math.isfinite(norm):
            raise NonFiniteLoss(
                f"step {index}: {reported} with a gradient norm of {norm} at lr={rates[0] * factor:g}; the weights are "
                "those before this step. Lower the learning rate, or look at this batch for NaN or huge values"
            )
        optimizer.step()
        yield Step(index, reported, rates[0] * factor, norm)
