"""What all matching bandits believe: ridge regression of rewards ``x^T Theta y`` on pairs of features.

In d = d1 * d2 numbers, as for the linearised problem; but what is asked of the estimator is computed for all pairs at
once, without ever forming their d-dimensional features.
"""

from __future__ import annotations

import numpy as np


def outer_products(rows: np.ndarray) -> np.ndarray:
    """The flattened ``row row^T`` of each row, [n, k * k] for rows [n, k]."""
    return (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)


class BilinearRidge:
    """Ridge regression with the penalty ``lam``: ``inverse`` [d, d] of V = lam I + sum of z z^T, ``theta`` [d1, d2].

    z is the row-major ``x y^T`` of a pair. ``logdet`` is log det (V / lam). One update a round, as the analysis has it.
    """

    def __init__(self, d1: int, d2: int, lam: float = 1.0) -> None:
        self.d1, self.d2, self.lam = d1, d2, lam
        self.inverse = np.eye(d1 * d2) / lam
        self.theta = np.zeros((d1, d2))
        self.logdet = 0.0
        self._sum = np.zeros(d1 * d2)

    def rewards(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """The expected reward of each user [M, d1] with each item [n, d2], [M, n]."""
        return users @ self.theta @ items.T

    def squared_widths(self, user_squares: np.ndarray, item_squares: np.ndarray) -> np.ndarray:
        """z^T V^-1 z of each pair, [M, n], of the :func:`outer_products` of users and items."""
        d1, d2 = self.d1, self.d2
        kernel = self.inverse.reshape(d1, d2, d1, d2).transpose(0, 2, 1, 3).reshape(d1 * d1, d2 * d2)
        return np.maximum(user_squares @ kernel @ item_squares.T, 0.0)  # rounding may take it below

    def update(self, users: np.ndarray, items: np.ndarray, rewards: np.ndarray) -> None:
        """Take in the rewards [M] of M pairs of users [M, d1] and items [M, d2], by the Woodbury identity."""
        pairs = (users[:, :, None] * items[:, None, :]).reshape(len(users), -1)
        gain = pairs @ self.inverse
        innovation = np.eye(len(pairs)) + gain @ pairs.T
        self.inverse -= gain.T @ np.linalg.solve(innovation, gain)
        self.inverse = (self.inverse + self.inverse.T) / 2  # what rounding makes unequal would grow
        self.logdet += float(np.linalg.slogdet(innovation)[1])
        self._sum += rewards @ pairs
        self.theta = (self.inverse @ self._sum).reshape(self.d1, self.d2)
