"""A network that chooses one of several candidates by what can be seen of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class ChoiceConfig:
    """``features`` numbers are seen of each candidate, ``width`` units are in each of two hidden layers; 1 to 1024."""

    features: int = 7
    width: int = 32

    def __post_init__(self) -> None:
        for argument in ("features", "width"):
            value = getattr(self, argument)
            if type(value) is not int or not 1 <= value <= 1024:
                raise ValueError(f"{argument}={value!r}, expected 1 to 1024")

    def to_json(self) -> dict[str, Any]:
        """The configuration as plain JSON data; ``ChoiceConfig(**data)`` reads it back."""
        return asdict(self)


class Choice(nn.Module):
    """Scores each candidate by itself; the softmax over the scores is the probability to choose it."""

    def __init__(self, config: ChoiceConfig) -> None:
        super().__init__()
        self.config = config
        self.score = nn.Sequential(
            nn.Linear(config.features, config.width),
            nn.SiLU(),
            nn.Linear(config.width, config.width),
            nn.SiLU(),
            nn.Linear(config.width, 1),
        )

    def forward(self, seen: Tensor) -> Tensor:
        """Scores [..., K] of candidates [..., K, features]."""
        return self.score(seen)[..., 0]

    def loss(self, batch: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The cross entropy of what was ``chosen``, int [B] below K, among what was ``seen``, [B, K, features]."""
        scores = self(batch["seen"])
        right = (scores.argmax(-1) == batch["chosen"]).float().mean()
        return {"loss": functional.cross_entropy(scores, batch["chosen"]), "accuracy": right}
