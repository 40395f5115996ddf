"""How much the contact force will vary soon, from demonstrations: what the slow pass learns to foresee.

"FAVLA: A Force-Adaptive Fast-Slow VLA model for Contact-Rich Robotic Manipulation", arXiv 2602.23648: the label is
``tanh(sqrt(EMA(nu)) / sigma)``, nu being the weighted variance of the future force. The weights (one over the variance
over the data set, so that newtons and newton metres compare) and sigma (the deviation of ``sqrt(EMA(nu))``) are ours,
because the paper does not state them. Variance is blind to a force that is large and steady.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

FRESH = 7  # samples that count as the present force: about a tick of 30 Hz at 200 Hz
_SMALLEST_SPREAD = 1e-4  # N or N·m; an axis under it shows rounding, not contact


def future_variance(
    wrench: np.ndarray, lengths: np.ndarray, window: int, weights: np.ndarray, *, fresh: int = FRESH
) -> np.ndarray:
    """nu [T]: for each tick the variance of the force over it and the ``window - 1`` ticks that follow.

    ``wrench`` [T, N, 6] are the sensor's windows (N and N·m, newest sample last) at the ticks of all episodes, which
    are ``lengths`` [E] ticks long. The force of a tick is the mean of its ``fresh`` newest samples (7 of 200 Hz at
    30 Hz; windows overlap), the variance of each axis that of the population, cut at the end of the episode;
    ``weights`` [6] >= 0 add the axes up.

    Raises ``ValueError`` naming what is out of range, not finite or of another shape.
    """
    forces = _forces(wrench, lengths, fresh)
    weights = _weights(weights)
    return _variance(forces, np.asarray(lengths), window, weights)


def variance_label(
    wrench: np.ndarray,
    lengths: np.ndarray,
    window: int,
    alpha: float = 0.3,
    weights: np.ndarray | None = None,
    sigma: float | None = None,
    *,
    fresh: int = FRESH,
) -> tuple[np.ndarray, np.ndarray, float]:
    """The label y [T] (float32, in [0, 1)) of every tick, and the ``weights`` [6] and ``sigma`` it was made with.

    ``alpha`` in (0, 1] is the share of the newest tick in the moving average, which runs forwards through each episode
    and begins with its first tick (1: no average). ``weights`` and ``sigma`` > 0 are taken from these data; given, they
    label other data by the same scale. An axis that never varies has the weight 0. Shapes, ``fresh`` and
    errors as in :func:`future_variance`; ``ValueError`` too where ``sigma`` is not given and the force never varies.
    """
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha={alpha}, expected a share in (0, 1]")
    if sigma is not None and not (sigma > 0 and np.isfinite(sigma)):
        raise ValueError(f"sigma={sigma}, expected a number above 0, or None to take it from the data")
    forces = _forces(wrench, lengths, fresh)
    lengths = np.asarray(lengths)
    if weights is None:
        spread = forces.std(1)
        varies = spread >= _SMALLEST_SPREAD
        weights = np.where(varies, 1 / np.where(varies, spread, 1.0) ** 2, 0.0)
    weights = _weights(weights)
    nu = _variance(forces, lengths, window, weights)
    rest = 1 - alpha
    smooth = [lfilter([alpha], [1, -rest], e, zi=[rest * e[0]])[0] for e in np.split(nu, np.cumsum(lengths)[:-1])]
    deviation = np.sqrt(np.concatenate(smooth))
    if sigma is None:
        sigma = float(deviation.std())
        if not sigma > 0:
            raise ValueError(
                f"sigma={sigma}: the variance of wrench is the same at every tick, so it has no scale; "
                "give data with contact, or sigma"
            )
    below_one = np.nextafter(np.float32(1), np.float32(0))
    return np.minimum(np.tanh(deviation / sigma).astype(np.float32), below_one), weights, sigma


def _forces(wrench: np.ndarray, lengths: np.ndarray, fresh: int) -> np.ndarray:
    """The force of each tick [6, T]; axes first, so that what follows runs over memory in order."""
    wrench, lengths = np.asarray(wrench), np.asarray(lengths)
    if wrench.ndim != 3 or wrench.shape[2] != 6 or not wrench.shape[1]:
        raise ValueError(f"wrench has shape {wrench.shape}, expected [T, N, 6]: a window of N samples a tick")
    if isinstance(fresh, bool) or not isinstance(fresh, int) or not 1 <= fresh <= wrench.shape[1]:
        raise ValueError(f"fresh={fresh!r}, expected how many of the {wrench.shape[1]} samples of a window are new")
    if lengths.ndim != 1 or (lengths < 1).any() or lengths.sum() != len(wrench) or not len(wrench):
        raise ValueError(
            f"lengths (shape {lengths.shape}) add up to {lengths.sum()}, expected positive numbers of ticks that "
            f"add up to the {len(wrench)} of wrench"
        )
    forces = wrench[:, -fresh:].mean(1, dtype=np.float64)
    if not np.isfinite(forces).all():
        tick = int(np.argmin(np.isfinite(forces).all(1)))
        raise ValueError(f"wrench holds NaN or infinity at tick {tick}; drop that episode, or mend the sensor")
    return np.ascontiguousarray(forces.T)


def _weights(weights: np.ndarray) -> np.ndarray:
    weights = np.asarray(weights, dtype=np.float64)
    if weights.shape != (6,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"weights={weights}, expected six finite numbers of at least 0, one an axis")
    return weights


def _variance(forces: np.ndarray, lengths: np.ndarray, window: int, weights: np.ndarray) -> np.ndarray:
    if isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1:
        raise ValueError(f"window={window!r}, expected a number of ticks of at least 1")
    ticks = forces.shape[1]
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(ticks)  # ticks to the end of the episode
    first, second = np.zeros_like(forces), np.zeros_like(forces)
    # Moments about the window's own first tick: a constant force has exactly no variance, whatever its size.
    for ahead in range(1, min(window, int(lengths.max()))):
        apart = (forces[:, ahead:] - forces[:, :-ahead]) * (left[:-ahead] > ahead)
        first[:, :-ahead] += apart
        second[:, :-ahead] += apart * apart
    count = np.minimum(left, window)
    return weights @ np.maximum(second / count - (first / count) ** 2, 0)
