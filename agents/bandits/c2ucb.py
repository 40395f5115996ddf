"""C2UCB: optimism for each pair, with the linearised features of the pair.

"Contextual Combinatorial Bandit and its Application on Diversified Online Recommendation", with the modification of
"Near-Optimal Regret Bounds for Contextual Combinatorial Semi-Bandits with Linear Payoff Functions" (arXiv 2101.07957).
Regret O~(d1 d2 sqrt(M T)): all d1 d2 directions are explored as if the learner chose both sides of a pair.
"""

from __future__ import annotations

import numpy as np

from .matching import Belief, MatchingAgent, positive, share

_CLEARED_FIRST = 1e6  # added to the score of a pair of which next to nothing is known


class C2UCB(MatchingAgent):
    """Optimism for each pair: the best matching by the upper ends of intervals.

    Half an interval is ``scale`` times the radius of confidence times the width. The radius is
    noise * sqrt(log det (V / lam) + 2 log(1 / delta)) + sqrt(lam) * norm, which theory asks for with ``scale=1``; 0.1
    to 0.3 are what one tunes it to. ``noise`` bounds the noise of a reward, ``norm`` the Frobenius norm of Theta.
    ``modified`` plays pairs of a width above 1 before all others; where features are no longer than 1, no pair has one
    unless ``lam`` is below 1. Raises ``ValueError`` for what is out of range.
    """

    def __init__(
        self,
        scale: float = 1.0,
        modified: bool = False,
        noise: float = 1.0,
        norm: float = 1.0,
        delta: float = 0.05,
        lam: float = 1.0,
    ) -> None:
        super().__init__(lam)
        self._scale, self._noise = positive("scale", scale), positive("noise", noise)
        self._norm = positive("norm", norm)
        if not isinstance(modified, bool):
            raise ValueError(f"modified={modified!r}, expected true or false")
        self._modified, self._delta = modified, positive("delta", share("delta", delta))

    def radius(self, belief: Belief) -> float:
        """How many widths the truth is away at most, with probability 1 - delta."""
        spread = np.sqrt(belief.ridge.logdet + 2 * np.log(1 / self._delta))
        return self._noise * float(spread) + self._lam**0.5 * self._norm

    def match(self, belief: Belief) -> np.ndarray:
        """The best one by the upper ends of the intervals."""
        widths = np.sqrt(belief.squared_widths())
        scores = belief.rewards() + self._scale * self.radius(belief) * widths
        if self._modified:
            scores = scores + _CLEARED_FIRST * (widths > 1)
        return belief.catalogue.best_matching(scores)
