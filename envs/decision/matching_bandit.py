"""Who goes with what? Matching with bilinear rewards that have to be learned while they are earned.

The problem of "bilinear matching bandits / HybridRRD" (NeurIPS 2026), its sign-vector instance of the lower bound, and
a dispatcher that sends robot policies to tasks, with the scores of real episodes as rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from scipy.optimize import linear_sum_assignment

from ..interface import Interface

INSTANCES = ("gaussian", "hard", "dispatcher")
CURVE = 8  # rounds at which the regret so far is among the metrics
_LARGEST = 4096  # users; and items up to 256 times as many
_TIED = 1e-5  # of the largest mean, by which matchings may differ on average and still be equally good
_GREATEST = 1e12  # of the numbers in a table, and of noise and gap


class Matchings(spaces.MultiDiscrete):
    """An item for each user, int64 [M] below N, all different."""

    def __init__(self, users: int, items: int, seed: int | np.random.Generator | None = None) -> None:
        super().__init__([items] * users, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> np.ndarray:
        """A uniform one; ``mask`` and ``probability`` are not used."""
        return self.np_random.choice(int(self.nvec[0]), len(self.nvec), replace=False)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is one."""
        return super().contains(x) and len(set(np.asarray(x).tolist())) == len(self.nvec)

    def __repr__(self) -> str:
        return f"Matchings({len(self.nvec)} users, {self.nvec[0]} items)"


class MatchingBandit(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """Each round, match every user with an item of its own; each pair pays what nobody knows, and noise.

    ## Description
    M users have features x_i (d1 numbers), N items have features y_j (d2 numbers), all of length 1 at most. A pair
    pays x_i^T Theta y_j on average. Theta is hidden. Every round each user gets one item and no item goes to two
    users; the reward of every pair is seen.

    | instance | users and items | Theta |
    |---|---|---|
    | `"gaussian"` | of length 1, in any direction | of norm 1, in any direction |
    | `"hard"` | the (i mod d1)-th unit vector; all sign vectors, M of each | the best item pays `gap` |
    | `"dispatcher"` | policies and tasks, as `rewards` describes them | there is none |

    In the hard instance, that of the lower bound, the average item pays 0, and nobody takes anything away from
    anybody. A dispatcher's reward is the score of one of the episodes that such a policy has played in such a task,
    drawn anew each time; there the mean need not be bilinear.

    ## Action
    `Matchings(M, N)`, a `MultiDiscrete([N] * M)` whose members are all different: the item of each user.

    ## Observation
    | key | observation |
    |---|---|
    | users, float64 [M, d1] | the features of the users |
    | items, float64 [N, d2] | the features of the items |
    | rewards, float64 [M] | what each pair of the last round paid; 0 before the first |

    ## Reward
    The sum over the pairs. `info` says what nobody who plays may know: `regret` of this round, by means, and `optimal`,
    the mean reward of the best matching. At the end `score` is 1 - regret / regret of random matchings: 1 for the best
    matching in every round, 0 for random ones, below 0 for worse. `metrics`: `regret` and `optimal` over all rounds,
    `random_regret` (expected of random matchings), and `regret_at_K` after 8 rounds K that are evenly spaced.

    ## Start
    Theta, features and noise are drawn from the seed. With `context="fresh"` features are drawn anew every round.

    ## End
    `truncated` after `rounds`.

    Args:
        instance: `"gaussian"`, `"hard"` or `"dispatcher"`.
        context: `"fixed"`, or `"fresh"` for Gaussian features that are drawn anew each round.
        users: M, 1 to 4096.
        items: N, from M to 2^20; 0 takes twice as many as users. The hard instance has M * 2^d2.
        d1: Features of a user, 1 to 64.
        d2: Features of an item, 1 to 64; 1 to 8 in the hard instance.
        rounds: T, at least 1.
        noise: Standard deviation of the noise of each reward, at least 0; a dispatcher's is in its episodes.
        gap: What the best item pays in the hard instance, above 0; the average one pays 0.
        rewards: For a dispatcher `{"users": {"names", "features"}, "items": {"names", "features"}, "rewards"}`, with
            lists of names and of feature rows, and `rewards[i][j]` the scores of the episodes of pair i, j. It decides
            M, N, d1 and d2. Features are scaled by one factor where a row is longer than 1.

    Raises:
        ValueError: for an argument outside these ranges, or an action that is no matching.
        RuntimeError: from `step`, when no episode is running.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        instance: str = "gaussian",
        context: str = "fixed",
        users: int = 8,
        items: int = 0,
        d1: int = 4,
        d2: int = 3,
        rounds: int = 1000,
        noise: float = 1.0,
        gap: float = 0.3,
        rewards: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        if instance not in INSTANCES:
            raise ValueError(f"instance={instance!r}, expected one of {', '.join(INSTANCES)}")
        if context not in ("fixed", "fresh") or (context == "fresh" and instance != "gaussian"):
            raise ValueError(f"context={context!r}, expected 'fixed', or 'fresh' with instance='gaussian'")
        if (rewards is None) == (instance == "dispatcher"):
            raise ValueError(
                f"instance={instance!r}, rewards={'None' if rewards is None else 'given'}: a dispatcher and a table of "
                "rewards belong together; `palaestra run` gives it the one that ships"
            )
        if render_mode is not None:
            raise ValueError(f"render_mode={render_mode!r}: there is nothing to be seen, expected None")
        self._table = None if rewards is None else _Table(rewards)
        if self._table is not None:
            users, items = self._table.means.shape
            d1, d2 = self._table.users.shape[1], self._table.items.shape[1]
        elif instance == "hard":
            _whole("d2", d2, 1, 8)
            items = _whole("users", users, 1, _LARGEST) * 2**d2
        for name, value, least, most in (
            ("users", users, 1, _LARGEST),
            ("d1", d1, 1, 64),
            ("d2", d2, 1, 64),
            ("rounds", rounds, 1, 10**9),
        ):
            _whole(name, value, least, most)
        items = _whole("items", items or 2 * users, 1, _LARGEST * 256)
        if items < users:
            raise ValueError(f"items={items}, users={users}: need at least as many items as users")
        for name, number, fits in (("noise", noise, _is_number(noise)), ("gap", gap, _is_number(gap) and gap > 0)):
            if not fits:
                raise ValueError(
                    f"{name}={number!r}, expected a number {'above' if name == 'gap' else 'from'} 0 to {_GREATEST:g}"
                )
        self.render_mode = render_mode
        self._instance, self._fresh = instance, context == "fresh"
        self._rounds, self._noise, self._gap = rounds, float(noise), float(gap)
        self._shape = (users, items, d1, d2)
        numbers = {"users": ((users, d1), 1.0), "items": ((items, d2), 1.0), "rewards": ((users,), np.inf)}
        self.observation_space: spaces.Space = spaces.Dict(
            {key: spaces.Box(-most, most, shape, np.float64) for key, (shape, most) in numbers.items()}
        )
        self.action_space = Matchings(users, items)
        self.interface = Interface(control_hz=None, episode_ticks=rounds)
        self._marks = {round(rounds * (k + 1) / CURVE) for k in range(CURVE)} - {0}
        self._theta = np.zeros((d1, d2))
        self._users, self._items = np.zeros((users, d1)), np.zeros((items, d2))
        self._means = np.zeros((users, items))
        self._best = np.arange(users)
        self._round, self._regret, self._optimal, self._random = rounds, 0.0, 0.0, 0.0
        self._curve: dict[str, float] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Draw the instance from ``seed``; ``options`` are not used."""
        super().reset(seed=seed)
        self._round, self._regret, self._optimal, self._random = 0, 0.0, 0.0, 0.0
        self._curve = {}
        self._draw_instance()
        self._meet()
        return self._observation(np.zeros(self._shape[0])), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Play a matching."""
        if self._round >= self._rounds:
            raise RuntimeError("no episode is running: call reset() first")
        matching = self._matching(action)
        rows = np.arange(len(matching))
        rewards = self._pay(rows, matching)
        optimal = float(self._means[rows, self._best].sum())
        regret = optimal - float(self._means[rows, matching].sum())
        self._round += 1
        self._regret += regret
        self._optimal += optimal
        self._random += optimal - float(self._means.mean(axis=1).sum())
        if self._round in self._marks:
            self._curve[f"regret_at_{self._round}"] = self._regret
        info: dict[str, Any] = {"regret": regret, "optimal": optimal}
        over = self._round == self._rounds
        if over:
            least = _TIED * self._rounds * len(rows) * float(np.abs(self._means).max())
            info["score"] = 1.0 - self._regret / self._random if self._random > least else 1.0
            sums = {"regret": self._regret, "optimal": self._optimal, "random_regret": self._random}
            info["metrics"] = {**sums, **self._curve}
        elif self._fresh:
            self._meet()
        return self._observation(rewards), float(rewards.sum()), False, over, info

    def expert(self) -> Callable[[], np.ndarray]:
        """The oracle: plays the best matching by the hidden means, int64 [M]; a function without arguments."""
        return lambda: self._best.copy()

    def _draw_instance(self) -> None:
        users, _, d1, d2 = self._shape
        if self._table is not None:
            self._users, self._items = self._table.users, self._table.items
        elif self._instance == "hard":
            signs = np.array(list(product((-1.0, 1.0), repeat=d2))) / np.sqrt(d2)
            self._users, self._items = np.eye(d1)[np.arange(users) % d1], np.repeat(signs, users, axis=0)
            self._theta = self._gap / np.sqrt(d2) * self.np_random.choice((-1.0, 1.0), (d1, d2))
        else:
            self._theta = _unit_rows(self.np_random.standard_normal((1, d1 * d2))).reshape(d1, d2)
            if not self._fresh:
                self._draw_features()

    def _draw_features(self) -> None:
        users, items, d1, d2 = self._shape
        self._users = _unit_rows(self.np_random.standard_normal((users, d1)))
        self._items = _unit_rows(self.np_random.standard_normal((items, d2)))

    def _meet(self) -> None:
        """Those who are there this round, what their pairs pay, and the best matching."""
        if self._fresh:
            self._draw_features()
        self._means = self._users @ self._theta @ self._items.T if self._table is None else self._table.means
        self._best = linear_sum_assignment(self._means, maximize=True)[1]

    def _pay(self, rows: np.ndarray, matching: np.ndarray) -> np.ndarray:
        if self._table is not None:
            return self._table.draw(rows, matching, self.np_random)
        return self._means[rows, matching] + self._noise * self.np_random.standard_normal(len(rows))

    def _observation(self, rewards: np.ndarray) -> dict[str, np.ndarray]:
        return {"users": self._users.copy(), "items": self._items.copy(), "rewards": rewards}

    def _matching(self, action: np.ndarray) -> np.ndarray:
        """The action as item numbers, all different. Raises ``ValueError``."""
        users, items = self._shape[:2]
        try:
            matching = np.asarray(action)
        except ValueError:  # numpy's word for lists of unequal length
            matching = np.asarray(None)
        if matching.shape != (users,) or matching.dtype.kind not in "iu":
            raise ValueError(f"action={action!r:.200}, expected the number of an item for each of the {users} users")
        if outside := [int(item) for item in matching if not 0 <= item < items]:
            raise ValueError(f"action={matching.tolist()!r:.200} names item {outside[0]}, expected 0 to {items - 1}")
        taken, count = np.unique(matching, return_counts=True)
        if (count > 1).any():
            twice = int(taken[count > 1][0])
            raise ValueError(f"action={matching.tolist()!r:.200} gives item {twice} to more than one user")
        return matching.astype(np.int64)


class _Table:
    """The episodes that a dispatcher draws from: features [M, d1] and [N, d2], ``means`` [M, N], and a draw of scores.

    Raises ``ValueError`` naming what is wrong with the plain data.
    """

    def __init__(self, rewards: Mapping[str, Any]) -> None:
        try:
            self.users, self.items = (_features(key, rewards[key]) for key in ("users", "items"))
            scores = [[np.asarray(episodes, float) for episodes in row] for row in rewards["rewards"]]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"rewards= is no table of rewards: {type(error).__name__}: {error}") from None
        shape = len(self.users), len(self.items)
        if [len(row) for row in scores] != [shape[1]] * shape[0]:
            raise ValueError(f"rewards= has rewards of {[len(row) for row in scores]} items, expected {shape} pairs")
        for i, row in enumerate(scores):
            for j, episodes in enumerate(row):
                if episodes.ndim != 1 or not len(episodes) or not (np.abs(episodes) <= _GREATEST).all():
                    raise ValueError(
                        f"rewards= has {episodes!r:.80} for pair {i}, {j}, expected scores of at most {_GREATEST:g}"
                    )
        self._scores = np.concatenate([episodes for row in scores for episodes in row])
        self._count = np.array([[len(episodes) for episodes in row] for row in scores])
        self._first = np.cumsum(np.ravel(self._count)).reshape(shape) - self._count
        self.means = np.array([[episodes.mean() for episodes in row] for row in scores])

    def draw(self, rows: np.ndarray, matching: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """The score of one episode of each pair."""
        return self._scores[self._first[rows, matching] + generator.integers(self._count[rows, matching])]


def _features(key: str, described: Mapping[str, Any]) -> np.ndarray:
    """Feature rows, scaled by one factor so that none is longer than 1."""
    rows = np.asarray(described["features"], float)
    if rows.ndim != 2 or rows.shape[0] != len(described["names"]) or not 1 <= rows.shape[1] <= 64:
        raise ValueError(f"{key} has features of shape {rows.shape} for {len(described['names'])} names")
    if not (np.abs(rows) <= _GREATEST).all():
        raise ValueError(f"{key} has features that are no numbers, or above {_GREATEST:g}")
    return rows / max(1.0, float(np.linalg.norm(rows, axis=1).max()))


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _is_number(value: Any) -> bool:
    """Whether it is a number from 0 to the greatest that is taken."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _GREATEST


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise ValueError(f"{name}={value!r}, expected a whole number from {least} to {most}")
    return int(value)
