"""CombLinTS: plays what would be best if a draw from the belief were true.

"Efficient Learning in Large-Scale Combinatorial Semi-Bandits", with the linearised features of a pair.
"""

from __future__ import annotations

import numpy as np

from .matching import Belief, MatchingAgent, positive


class CombLinTS(MatchingAgent):
    """Plays what would be best if a draw from its belief were true.

    Theta is drawn from N(theta, (scale * noise)^2 V^-1); a ``scale`` of 1 is the theory's. Raises ``ValueError`` for
    options that are not above 0.
    """

    def __init__(self, scale: float = 1.0, noise: float = 1.0, lam: float = 1.0) -> None:
        super().__init__(lam)
        self._spread = positive("scale", scale) * positive("noise", noise)

    def match(self, belief: Belief) -> np.ndarray:
        """The best one by the draw."""
        ridge = belief.ridge
        drawn = np.linalg.cholesky(ridge.inverse) @ belief.generator.standard_normal(len(ridge.inverse))
        theta = ridge.theta + self._spread * drawn.reshape(ridge.theta.shape)
        return belief.catalogue.best_matching(belief.users @ theta @ belief.catalogue.kinds.T)
