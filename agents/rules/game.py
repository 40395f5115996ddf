"""A game of questions as its player sees it: what may be announced, what may be tested, and who predicts what.

The same table serves number triples and the Blicket test, so that an agent that asks well in one asks well in the
other. It is computed from the rules of the games, which stand beside the worlds and which every player knows; the
hidden rule is not among what an agent can see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from gymnasium import spaces

from ...envs.decision.blicket import machines
from ...envs.decision.rule_discovery import GROUPS, RULES, SPLITS, probes, read_rule
from ..agent import Episode


@dataclass(frozen=True)
class Game:
    """H hypotheses, C tests, F traits of a test.

    ``announcements`` [H] are the hypotheses as they are announced, ``log_prior`` [H] how likely each is at first;
    ``tests`` [C, ...] are members of the space ``key``; ``truth`` bool [H, C] says which hypothesis predicts yes to
    which test, ``traits`` bool [F, C] what can be said of a test without knowing the rule. ``foretell`` and
    ``describe`` give the same columns for tests [n, ...] that need not be among them.
    """

    key: str
    announcements: tuple[str, ...]
    log_prior: np.ndarray
    tests: np.ndarray
    truth: np.ndarray
    traits: np.ndarray
    foretell: Callable[[np.ndarray], np.ndarray]
    describe: Callable[[np.ndarray], np.ndarray]
    _index: dict[bytes, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for shared in (self.log_prior, self.tests, self.truth, self.traits):  # by all episodes, and by actions
            shared.setflags(write=False)
        object.__setattr__(self, "_index", {test.tobytes(): n for n, test in enumerate(self.tests)})

    def find(self, test: np.ndarray) -> int | None:
        """Which of ``tests`` this is; ``None`` if it is none of them."""
        return self._index.get(np.asarray(test, self.tests.dtype).tobytes())


def game_of(episode: Episode) -> Game:
    """The game that an episode plays. Raises ``ValueError`` for a world in which no questions are asked."""
    space = episode.action_space
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    match parts.get("triple"), parts.get("objects"):
        case spaces.Box(), None:
            return number_game()
        case None, spaces.MultiBinary() as objects:
            return blicket_game(int(np.prod(objects.shape)))
    raise ValueError(
        f"{episode.env_id} takes no tests of triples or objects; expected RuleDiscovery or Blicket with "
        "actions='structured'"
    )


_TESTED = {rule for group in SPLITS["test"] for rule in GROUPS[group]}


@lru_cache(maxsize=1)
def number_game() -> Game:
    """Number triples: the 40 rules of the bank and all pairs of them, less those that others are equal to.

    Tests are the triples on which the world compares rules. The size principle: the fewer triples a rule allows, the
    likelier it is, for the first one fits it; two rules joined by "and" are less likely by a factor of e. What can be
    said of a triple are the rules of the training and validation groups, so that nobody who names a trait names a rule
    that is tested.
    """
    rules = [read_rule(rule.text) for rule in RULES]
    tests = probes()
    atoms = np.stack([rule(tests) for rule in rules])
    left, right = np.triu_indices(len(rules), 1)
    first, second = np.concatenate([np.arange(len(rules)), left]), np.concatenate([np.arange(len(rules)), right])
    truth = atoms[first] & atoms[second]
    _, kept = np.unique(np.packbits(truth, axis=1), axis=0, return_index=True)
    kept = np.sort(kept[truth[kept].any(axis=1)])  # of equal ones the first, which is the simplest
    first, second, truth = first[kept], second[kept], truth[kept]

    spoken = [n for n, rule in enumerate(RULES) if rule not in _TESTED]

    def describe(triples: np.ndarray) -> np.ndarray:
        return np.stack([rules[n](triples) for n in spoken])

    def foretell(triples: np.ndarray) -> np.ndarray:
        held = np.stack([rule(triples) for rule in rules])
        return held[first] & held[second]

    joined = first != second
    texts = [rule.text for rule in RULES]
    announcements = tuple(
        texts[i] if i == j else f"({texts[i]}) and ({texts[j]})" for i, j in zip(first, second, strict=True)
    )
    log_prior = -np.log(truth.sum(axis=1)) - joined
    return Game("triple", announcements, log_prior, tests, truth, atoms[spoken], foretell, describe)


@lru_cache(maxsize=11)
def blicket_game(n_objects: int) -> Game:
    """The Blicket test: every pair and every three objects under every rule, all equally likely.

    Tests are all sets of objects. What can be said of a set is which objects are in it, and of how many they are.
    """
    believed = machines(n_objects)
    tests = ((np.arange(2**n_objects)[:, None] >> np.arange(n_objects)) & 1).astype(np.int8)
    blickets = np.zeros((len(believed), n_objects), np.int64)
    for n, machine in enumerate(believed):
        blickets[n, list(machine.blickets)] = 1
    rules = np.array([machine.rule for machine in believed])[:, None]
    size = blickets.sum(axis=1)[:, None]

    def foretell(sets: np.ndarray) -> np.ndarray:
        on = blickets @ np.asarray(sets, np.int64).T
        return np.where(rules == "disjunctive", on >= 1, np.where(rules == "conjunctive", on == size, on == 1))

    def describe(sets: np.ndarray) -> np.ndarray:
        sets = np.asarray(sets, np.int64)
        return np.concatenate([sets.T == 1, sets.sum(axis=1) >= np.arange(1, n_objects)[:, None]])

    prior = np.zeros(len(believed))
    announcements = tuple(str(machine) for machine in believed)
    return Game("objects", announcements, prior, tests, foretell(tests), describe(tests), foretell, describe)
