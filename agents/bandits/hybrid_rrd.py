"""HybridRRD: a matching bandit for rewards ``x^T Theta y`` that explores the items, and not the users.

After the abstract of "bilinear matching bandits / HybridRRD" (NeurIPS 2026), of which no more was public: this is a
reconstruction that has the published rate, regret O~(d2 sqrt(d1 M T) + M d1 d2), term by term.

Why.

(a) A batch of M rewards arrives at once, so widths are only controlled once their sum over a matching is O(1): while
some matching has more than ``tau``, the widest is played, which raises log det V by log(1 + tau) at least and so
happens at most d log(1 + T M / (d lam)) / log(1 + tau) times, for O(M) each. That is the term M d1 d2.

(b) With e_i = (Theta* - Theta)^T x_i, optimality of the design and Young's inequality give, per round,

    <R*, P* - P>  <=  M (d2 + 1) / gamma  +  (gamma / 2) sum_i E (e_i^T y)^2.

Summed over T rounds the first part is T M d2 / gamma; the second is gamma times the prediction error of ridge
regression, O(gamma d1 d2 log T). The gamma that balances them gives d2 sqrt(d1 M T).
"""

from __future__ import annotations

from math import log, sqrt

import numpy as np

from .matching import Belief, MatchingAgent, positive
from .row_design import solve_row_design

_LATER_STEPS = 5  # of Frank-Wolfe a round; the design of the round before is nearly that of this one


class HybridRRD(MatchingAgent):
    """Explores the items and not the pairs: at first the widest matchings, then draws from a row-wise design.

    While a matching is wider than ``tau`` the widest is played. gamma = ``c`` * sqrt(T M / (d1 log T)) weighs what is
    earned against what is learned, with T the ``horizon`` in rounds: 0 takes what the world says, or else the rounds
    played so far. ``rho`` regularises the design, ``lam`` the estimate. Raises ``ValueError`` for options that are not
    above 0.
    """

    def __init__(self, c: float = 8.0, tau: float = 2.0, rho: float = 0.01, lam: float = 1.0, horizon: int = 0) -> None:
        super().__init__(lam)
        self._c, self._tau, self._rho = positive("c", c), positive("tau", tau), positive("rho", rho)
        if type(horizon) is not int or horizon < 0:
            raise ValueError(f"horizon={horizon!r}, expected a number of rounds, or 0 for what the world says")
        self._horizon = horizon

    def gamma(self, belief: Belief) -> float:
        """The weight of this round's reward against its information."""
        rounds = max(self._horizon or belief.horizon or belief.rounds, 3)
        users, d1 = belief.users.shape
        return self._c * sqrt(rounds * users / (d1 * log(rounds)))

    def match(self, belief: Belief) -> np.ndarray:
        """The widest matching, or a draw from the design."""
        catalogue, widths = belief.catalogue, belief.squared_widths()
        if widths.max(axis=1).sum() > self._tau:  # more than any matching has
            widest = catalogue.best_matching(widths)
            if widths[np.arange(len(widths)), widest].sum() > self._tau:
                return widest
        users, (n, d2) = len(belief.users), catalogue.kinds.shape
        mixture = belief.notes.get("mixture")
        steps = _LATER_STEPS if belief.notes.get("catalogue") is catalogue else 4 * _LATER_STEPS
        belief.notes["catalogue"] = catalogue
        if mixture is None or belief.notes["offered"] != (users, n, tuple(catalogue.capacity)):
            start = [catalogue.random_matching(users, belief.generator) for _ in range(2 * d2)]
            mixture, steps = (np.stack(start), np.full(2 * d2, 0.5 / d2)), 20 * _LATER_STEPS
            belief.notes["offered"] = (users, n, tuple(catalogue.capacity))
        rewards = np.clip(belief.rewards(), -1.0, 1.0)
        design = solve_row_design(rewards, catalogue, self.gamma(belief), self._rho, *mixture, steps=steps)
        belief.notes["mixture"] = design.atoms, design.weights
        return design.sample(belief.generator)
