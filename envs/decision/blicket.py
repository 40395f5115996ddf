"""The Blicket test: which objects make the machine light up, and how many of them does it take?

Used in "Failing to Falsify" (arXiv 2604.02485) to see whether an agent that learned to look for counter-examples among
numbers does so here; its conditions (4 or 8 objects, 2 or 3 blickets, three rules) extend those of "Language Agents
Mirror Human Causal Reasoning Biases" (arXiv 2505.09614).
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from .inquiry import FormatError, Inquiry

RULES = ("disjunctive", "conjunctive", "xor")
BLICKETS = (2, 3)  # how many there may be: what a player may assume

_OBJECT = re.compile(r"object ([0-9]+)")
_LIST = re.compile(r"\[\s*(object [0-9]{1,9}(?:\s*,\s*object [0-9]{1,9})*)?\s*\]")
_ANNOUNCED = re.compile(r"blickets\s*=\s*(\[[^\]]*\])\s*;\s*rule\s*=\s*(\w+)\W*", re.IGNORECASE)


class Machine(NamedTuple):
    """What can be believed of the machine: which objects are blickets, and which rule drives it."""

    blickets: frozenset[int]
    rule: str

    def lights(self, objects: frozenset[int]) -> bool:
        """Whether it lights up with these objects on it. ``xor`` is *exactly one*, also of three blickets."""
        on = len(self.blickets & objects)
        match self.rule:
            case "disjunctive":
                return on >= 1
            case "conjunctive":
                return on == len(self.blickets)
            case _:
                return on == 1

    def __str__(self) -> str:
        return f"blickets={write_objects(self.blickets)}; rule={self.rule}"


def machines(n_objects: int) -> list[Machine]:
    """Everything that a player may believe of ``n_objects`` objects, in a fixed order."""
    return [
        Machine(frozenset(chosen), rule)
        for count in BLICKETS
        if count <= n_objects
        for chosen in combinations(range(n_objects), count)
        for rule in RULES
    ]


def write_objects(objects: frozenset[int]) -> str:
    """Objects as they stand in a line: ``[object 0, object 3]``."""
    return f"[{', '.join(f'object {k}' for k in sorted(objects))}]"


def parse_objects(text: str, n_objects: int) -> frozenset[int]:
    """The objects of ``[object 0, object 3]``. Raises ``FormatError`` for another form or an unknown object."""
    if not _LIST.fullmatch(text.strip()):
        raise FormatError(f"{text[:80]!a} is not a list like [object 0, object 3]")
    named = [int(k) for k in _OBJECT.findall(text)]
    if unknown := [k for k in named if k >= n_objects]:
        raise FormatError(f"object {unknown[0]} is not known; there are object 0 to object {n_objects - 1}")
    return frozenset(named)


def parse_machine(text: str, n_objects: int) -> Machine:
    """The machine of ``blickets=[object 0, object 3]; rule=conjunctive``. Raises ``FormatError``."""
    line = _ANNOUNCED.fullmatch(text.strip())
    if line is None or line[2].lower() not in RULES:
        raise FormatError(f"{text[:120]!a} is not of the form blickets=[...]; rule={' | '.join(RULES)}")
    return Machine(parse_objects(line[1], n_objects), line[2].lower())


class Blicket(Inquiry[Machine]):
    """Find out which objects are blickets, and by which rule they light up the machine, by putting some on it.

    ## Description
    Of `n_objects` objects `n_blickets` are blickets. With a set of objects on it, the machine is ON if, by its rule, at
    least one blicket is among them (`disjunctive`), all blickets are (`conjunctive`), or exactly one is (`xor`: for two
    blickets parity, for three not). A first set is shown with the machine's answer. Then turns alternate: announce what
    you believe (nobody says whether it is right), put a set of your choice on the machine, announce, and so on, also
    after the first right announcement. What does not fit the turn is asked for again, up to 10 times; then the episode
    ends with an error.

    ## Action
    With `actions="structured"` a `Dict`; what the turn does not ask for is not looked at.

    | key | action |
    |---|---|
    | kind, `Discrete(2)` | 0 announces, 1 tests |
    | objects, `MultiBinary(n_objects)` | 1 for each object to put on the machine; none is allowed |
    | announcement, text | `blickets=[object 0, object 3]; rule=conjunctive` |

    With `actions="text"` one line of at most 400 characters: `Test: [object 0, object 2]`, or
    `Announce: blickets=[object 0, object 3]; rule=conjunctive`.

    ## Observation
    | key | observation |
    |---|---|
    | turn, `Discrete(2)` | what is asked for: 0 an announcement, 1 a test |
    | tests, `Discrete(tests + 1)` | how many were made |
    | objects, `MultiBinary(n_objects)` | the objects of the last test, at first of the example |
    | feedback, `Discrete(2)` | 1: with them the machine was ON |
    | refused, `Discrete(2)` | 1: the last answer did not fit the turn, and the turn is asked again |
    | message, text | the same in words |

    ## Reward
    0, and at the end 1 if any announcement named both the blickets and the rule. That is also the score and
    `info["success"]`. `metrics` are those of `inquiry.Log.measures`: `tests_to_solve`, `incompatibility`, ...

    ## Start
    Blickets, and where it is not stated the rule, uniform from the seed. Every object is on the machine at first or
    not, by the toss of a coin, and the machine says ON or OFF.

    ## End
    `terminated` after the announcement that follows the last test.

    Args:
        n_objects: 2 to 12; the paper has 4 and 8.
        n_blickets: 2 or 3, at most `n_objects`.
        rule: `"disjunctive"`, `"conjunctive"`, `"xor"`, or `"any"` of them.
        noise: Probability that the machine shows the opposite, in [0, 1).
        tests: How many tests are made, 1 to 1000.
        actions: `"structured"` or `"text"`.
        render_mode: `"rgb_array"` or `None`. `render` returns the transcript, uint8 [480, 640, 3].

    Raises:
        ValueError: for an argument outside these ranges; from `step`, for an action that is none of the space.
        EpisodeError: from `step`, when a turn was asked 11 times.
        RuntimeError: from `step`, when no episode is running.
    """

    instruction = (
        "Some objects are blickets, and only they matter to the machine. Find out which objects are blickets and which "
        "rule drives the machine: disjunctive (on with any blicket), conjunctive (on with all blickets together) or "
        "xor (on with exactly one blicket). Test sets of objects, and announce what you believe after each."
    )

    def __init__(
        self,
        n_objects: int = 4,
        n_blickets: int = 2,
        rule: str = "any",
        noise: float = 0.0,
        tests: int = 45,
        actions: str = "structured",
        render_mode: str | None = None,
    ) -> None:
        if type(n_objects) is not int or not 2 <= n_objects <= 12:
            raise ValueError(f"n_objects={n_objects!r}, expected 2 to 12 objects")
        if type(n_blickets) is not int or n_blickets not in BLICKETS or n_blickets > n_objects:
            raise ValueError(f"n_blickets={n_blickets!r}, expected 2 or 3 of the n_objects={n_objects}")
        if rule not in (*RULES, "any"):
            raise ValueError(f"rule={rule!r}, expected one of {', '.join(RULES)}, or any")
        if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < 1:
            raise ValueError(f"noise={noise!r}, expected the probability of a wrong answer, in [0, 1)")
        super().__init__(
            "objects",
            spaces.MultiBinary(n_objects),
            verb="Test",
            answers=("OFF", "ON"),
            forms=("blickets=[object 0, ...]; rule=disjunctive, conjunctive or xor", "[object 0, ...]"),
            tests=tests,
            actions=actions,
            render_mode=render_mode,
        )
        self.n_objects = n_objects
        self._count, self._rule, self._noise = n_blickets, rule, noise
        self._machine = Machine(frozenset(range(n_blickets)), RULES[0])

    def expert(self) -> Any:
        """Announces the truth and tests it: privileged, and a bound on what can be reached.

        Returns a function without arguments that gives the next action, in the form of `actions`.
        """

        def tell() -> Any:
            blickets = frozenset(self._machine.blickets)
            if self._text:
                return f"Test: {write_objects(blickets)}" if self._turn else f"Announce: {self._machine}"
            return {"kind": self._turn, "objects": self._mask(blickets), "announcement": str(self._machine)}

        return tell

    def _begin(self, seed: int | None) -> tuple[np.ndarray, bool]:
        draw = self.np_random
        blickets = draw.choice(self.n_objects, self._count, replace=False)
        rule = str(draw.choice(RULES)) if self._rule == "any" else self._rule
        self._machine = Machine(frozenset(int(k) for k in blickets), rule)
        first = draw.integers(2, size=self.n_objects, dtype=np.int8)
        return first, self._examine(first)

    def _examine(self, test: np.ndarray) -> bool:
        """What the machine shows with these objects on it."""
        lit = self._machine.lights(self._place(frozenset(np.flatnonzero(test).tolist())))
        return lit != (self._noise > 0 and self.np_random.random() < self._noise)

    def _place(self, objects: frozenset[int]) -> frozenset[int]:
        """Put the objects on the machine; returns those that are there then."""
        return objects

    def _read(self, content: Any) -> np.ndarray:
        mask = np.asarray(content)
        if mask.shape != (self.n_objects,) or mask.dtype.kind not in "iub" or not np.isin(mask, (0, 1)).all():
            raise ValueError(f"objects={content!r:.200}, expected {self.n_objects} numbers, each 0 or 1")
        return mask.astype(np.int8)

    def _parse(self, text: str) -> np.ndarray:
        return self._mask(parse_objects(text, self.n_objects))

    def _write(self, test: np.ndarray) -> str:
        return write_objects(frozenset(np.flatnonzero(test).tolist()))

    def _understand(self, announcement: str) -> Machine | None:
        try:
            return parse_machine(announcement, self.n_objects)
        except FormatError:
            return None

    def _predicts(self, hypothesis: Machine, test: np.ndarray) -> bool:
        return hypothesis.lights(frozenset(np.flatnonzero(test).tolist()))

    def _is_right(self, hypothesis: Machine) -> bool:
        return hypothesis == self._machine

    def _mask(self, objects: frozenset[int]) -> np.ndarray:
        mask = np.zeros(self.n_objects, np.int8)
        mask[list(objects)] = 1
        return mask
