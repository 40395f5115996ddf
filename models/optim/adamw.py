"""``optim=adamw``: Loshchilov and Hutter, "Decoupled Weight Decay Regularization"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn


@dataclass(frozen=True)
class AdamW:
    """``torch.optim.AdamW`` over the trainable parameters, with weight decay on matrices only.

    ``lr`` > 0, ``weight_decay`` >= 0, ``beta1`` and ``beta2`` in [0, 1), ``eps`` > 0. Vectors (biases, gains,
    single embeddings) are not decayed: shrinking them regularises nothing. Raises ``ValueError`` naming what is
    out of range.
    """

    name: ClassVar[str] = "adamw"

    lr: float = 1e-3
    weight_decay: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        for argument, value, good in (
            ("lr", self.lr, self.lr > 0),
            ("weight_decay", self.weight_decay, self.weight_decay >= 0),
            ("beta1", self.beta1, 0 <= self.beta1 < 1),
            ("beta2", self.beta2, 0 <= self.beta2 < 1),
            ("eps", self.eps, self.eps > 0),
        ):
            if not good:
                raise ValueError(f"{argument}={value} is out of range; see AdamW for the ranges")

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimizer. Raises ``ValueError`` when ``module`` has nothing to train."""
        trainable = [p for p in module.parameters() if p.requires_grad]
        if not trainable:
            raise ValueError(f"{type(module).__name__} has no parameter with requires_grad=True, nothing to train")
        groups = [
            {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps
        )
