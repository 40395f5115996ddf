"""An agent with a hypothesis that tries to confirm it, or to refute it; and what may be done about the former.

The scripted agents behind the study of "Failing to Falsify" (arXiv 2604.02485). The paper's interventions are prompts
for language models; here each is what the prompt asks for, as a rule of how to choose a test.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .inquirer import Belief, Inquirer

_IMAGINED = 256  # tests that an intervention looks at


def opposite(belief: Belief, kept: bool = False) -> int:
    """Think in opposites: name a trait of the last example, and imagine a test that lacks it and is otherwise like it.

    With ``kept`` the trait stays: the same thinking without the opposite, which is the control.
    """
    game, draw = belief.game, belief.generator
    traits = belief.example
    named = int(draw.choice(np.flatnonzero(traits) if traits.any() else len(traits)))
    among = np.flatnonzero((game.traits[named] == (traits[named] == kept)) & belief.open)
    if not len(among):
        return belief.any_of(belief.open)
    among = draw.choice(among, min(_IMAGINED, len(among)), replace=False)
    return int(among[(game.traits[:, among] == traits[:, None]).sum(axis=0).argmax()])


def counter_example(belief: Belief) -> int:
    """Consider counter-examples: of what the own hypothesis excludes, test what is likeliest to be a yes after all."""
    excluded = np.flatnonzero(~belief.game.truth[belief.best] & belief.open)
    if not len(excluded):
        return belief.any_of(belief.open)
    among = belief.generator.choice(excluded, min(_IMAGINED, len(excluded)), replace=False)
    return int(among[belief.chance_of_yes(among).argmax()])


CHOICES: dict[str, Callable[[Belief], int]] = {
    "opposites": opposite,
    "counterexamples": counter_example,
    "control": lambda belief: opposite(belief, kept=True),
}


class Hypothesis(Inquirer):
    """Announces the likeliest hypothesis, and tests it by what it predicts or by what it excludes.

    A test goes against the hypothesis with probability ``falsify``. With ``falsify=0`` every test is one that the
    hypothesis predicts to be answered with yes, which is pure confirmation; with 1 every test is one that it excludes.
    ``intervention`` replaces the choice of a test with probability ``heed``: ``opposites`` and ``counterexamples``, or
    ``control``, which thinks as long and to no purpose. Raises ``ValueError`` for a rate outside [0, 1] or an unknown
    intervention.
    """

    def __init__(
        self,
        falsify: float = 0.3,
        intervention: str = "",
        heed: float = 0.5,
        error: float = 0.001,
        patience: int = 1,
    ) -> None:
        super().__init__(error, patience)
        for name, value in (("falsify", falsify), ("heed", heed)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ValueError(f"{name}={value!r}, expected a probability from 0 to 1")
        if intervention and intervention not in CHOICES:
            raise ValueError(f"intervention={intervention!r}, expected one of {', '.join(CHOICES)}")
        self._falsify, self._heed = float(falsify), float(heed)
        self._intervene = CHOICES.get(intervention)

    def choose(self, belief: Belief) -> int:
        """A test by the intervention, or one that fits the hypothesis or not."""
        heeds = belief.generator.random() < self._heed  # drawn either way, so that all share their chance
        if self._intervene and heeds:
            return self._intervene(belief)
        predicted = belief.game.truth[belief.best]
        return belief.any_of(~predicted if belief.generator.random() < self._falsify else predicted)


class ConfirmationBiased(Hypothesis):
    """Seeks what confirms and overlooks what does not: tests what its hypothesis predicts, and gives it up late.

    It holds on to a hypothesis until ``patience`` answers have spoken against it. With ``falsify`` above 0 it now and
    then tests against its hypothesis.
    """

    def __init__(self, patience: int = 2, falsify: float = 0.0, error: float = 0.001) -> None:
        super().__init__(falsify, error=error, patience=patience)
