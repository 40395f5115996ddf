"""A random matching that is good and tells much: the row-wise regularised design of HybridRRD, and its solver.

P maximises F(P) = sum_ij P_ij R_ij + (1 / gamma) sum_i log det A_i(P) over the fractional matchings, with one design
matrix A_i(P) = rho I + sum_j P_ij y_j y_j^T for each row, which is each user. The users are not chosen, for every one
is played every round; so only the items have to be explored, and that is what turns a factor of d1 d2 into d2.

At the optimum, for every matching pi: gamma (<R, pi> - <R, P>) + sum_i |y_pi(i)|^2 in A_i^-1  <=  M d2 + gamma gap:
what is good is played, or tells little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .matching import Catalogue

_LEAST = 1e-6  # an atom that would keep less weight gives all of it
_GRID = np.arange(1, 65)[:, None] / 64  # where a line search looks at once, as a share of what is left
_REFINEMENTS = 4  # at most; two, where the step is not a tiny one


@dataclass(frozen=True)
class Design:
    """A mixture of matchings: ``atoms`` int [K, M] (kinds of item), ``weights`` [K] that sum to 1, and the FW ``gap``.

    ``marginals`` [M, n] is P: with which probability each user gets each kind.
    """

    atoms: np.ndarray
    weights: np.ndarray
    marginals: np.ndarray
    gap: float

    def sample(self, generator: np.random.Generator) -> np.ndarray:
        """A matching, int [M]; over many, each user gets each kind as often as ``marginals`` says, exactly."""
        total = self.weights.cumsum()
        return self.atoms[min(int(total.searchsorted(generator.random() * total[-1], "right")), len(total) - 1)]


def design_matrices(marginals: np.ndarray, catalogue: Catalogue, rho: float) -> np.ndarray:
    """A_i(P) of each user, [M, d2, d2], for marginals [M, n]."""
    d2 = catalogue.kinds.shape[1]
    return rho * np.eye(d2) + (marginals @ catalogue.squares).reshape(-1, d2, d2)


def solve_row_design(
    rewards: np.ndarray,
    catalogue: Catalogue,
    gamma: float,
    rho: float,
    atoms: np.ndarray,
    weights: np.ndarray,
    *,
    steps: int = 5,
    tolerance: float = 0.05,
) -> Design:
    """Pairwise Frank-Wolfe from a mixture of ``atoms`` [K, M] with ``weights`` [K], for at most ``steps`` steps.

    ``rewards`` [M, n] are those of each user with each kind. It ends early at a gap of ``tolerance`` * M d2 / gamma. A
    step moves weight from the worst atom to the best matching; both differ in one item a user, so a line search needs
    only the quadratic det(A_i + m D_i) / det A_i = 1 + m (a - b) + m^2 (c^2 - a b) of each row. The iterate is a convex
    combination of matchings all along, so that nothing has to be decomposed to draw one.

    Raises ``ValueError`` for gamma or rho that are not above 0.
    """
    if not (gamma > 0 and rho > 0):
        raise ValueError(f"gamma={gamma}, rho={rho}, expected numbers above 0")
    users, kinds = len(rewards), catalogue.kinds
    rows = np.arange(users)
    marginals = np.zeros(rewards.shape)
    np.add.at(marginals, (rows, atoms), weights[:, None])
    limit = tolerance * users * kinds.shape[1] / gamma
    for step in range(steps + 1):
        inverses = np.linalg.inv(design_matrices(marginals, catalogue, rho))
        leverage = inverses.reshape(users, -1) @ catalogue.squares.T
        gradient = rewards + leverage / gamma
        toward = catalogue.best_matching(gradient)
        gap = float(gradient[rows, toward].sum() - (gradient * marginals).sum())
        if gap <= limit or step == steps:
            break
        worst = int(gradient[rows, atoms].sum(axis=1).argmin())
        away, most = atoms[worst], float(weights[worst])
        slope = float((rewards[rows, toward] - rewards[rows, away]).sum())
        a, b = leverage[rows, toward], leverage[rows, away]
        c = (kinds[toward][:, None, :] @ inverses @ kinds[away][:, :, None])[:, 0, 0]
        moved = _line_search(slope, a - b, c * c - a * b, gamma, most)
        if most - moved < _LEAST:
            moved = most
        marginals[rows, toward] += moved
        marginals[rows, away] -= moved
        atoms, weights = _moved(atoms, weights, worst, toward, moved)
    return Design(atoms, weights, marginals, max(gap, 0.0))


def _line_search(slope: float, linear: np.ndarray, square: np.ndarray, gamma: float, most: float) -> float:
    """The m in [0, most] that maximises m * slope + (1 / gamma) sum_i log(1 + m linear_i + m^2 square_i)."""
    low, width = 0.0, most
    for refinement in range(_REFINEMENTS):
        if refinement >= 2 and low > 0:
            break
        m = low + width * _GRID
        bend = m * square
        rises = (linear + 2 * bend) / (1 + m * (linear + bend))
        steps = int((slope + rises.sum(axis=1) / gamma > 0).sum())  # it is concave: it rises up to the maximum
        if steps == len(_GRID) and low + width >= most:
            return most
        low, width = low + width * steps / len(_GRID), width / len(_GRID)
    return low


def _moved(
    atoms: np.ndarray, weights: np.ndarray, worst: int, toward: np.ndarray, moved: float
) -> tuple[np.ndarray, np.ndarray]:
    """The mixture after ``moved`` went from one atom to another matching, which may be new; nothing is lost."""
    weights = weights.copy()
    weights[worst] -= moved
    there = np.flatnonzero((atoms == toward).all(axis=1))
    if len(there):
        weights[there[0]] += moved
    else:
        atoms, weights = np.concatenate([atoms, toward[None]]), np.append(weights, moved)
    if weights[worst] > 0:
        return atoms, weights
    kept = np.arange(len(weights)) != worst
    return atoms[kept], weights[kept]
