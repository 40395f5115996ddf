"""An agent that learned how to choose a test, from the traces of others; see ``distillation.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from ...models.checkpoint import Checkpoint
from ..network import NetworkAgent
from .candidates import draw, see
from .distillation import Distillation, read_network
from .inquirer import Belief, Inquirer


class Selector(Inquirer, NetworkAgent):
    """Draws 32 tests, looks at each, and chooses one by the network's probabilities.

    ``told`` says that it was told to think in opposites; a selector that is distilled need not be. ``error`` is how
    often it thinks an answer to be wrong, see :class:`~.inquirer.Inquirer`.
    """

    name: ClassVar[str] = "selector"
    trainer: ClassVar[Distillation] = Distillation()

    def __init__(self, networks: Mapping[str, torch.nn.Module], told: bool, error: float) -> None:
        super().__init__(error)
        if not isinstance(told, bool):
            raise ValueError(f"told={told!r}, expected true or false")
        self.networks, self._told = dict(networks), told

    @classmethod
    def from_checkpoint(  # type: ignore[override]  # its options
        cls, checkpoint: Checkpoint, *, told: bool = False, error: float = 0.001
    ) -> Selector:
        """A selector from a checkpoint. Raises ``ValueError`` for what does not fit."""
        return cls({"choice": read_network(checkpoint.config, checkpoint.tensors)}, told, error)

    def calibration(self, n: int) -> Mapping[str, Any] | None:
        """None are kept: the network has a thousand weights."""
        return None

    @torch.no_grad()
    def choose(self, belief: Belief) -> int:
        """One of the candidates, with the network's probability."""
        numbers = draw(belief)
        scores = self.networks["choice"](torch.from_numpy(see(belief, numbers, self._told)))
        chances = torch.softmax(scores.double(), -1).numpy()
        return int(belief.generator.choice(numbers, p=chances / chances.sum()))
