"""Rule discovery with number triples: find the hidden rule by testing triples, after Wason's 2-4-6 task.

From "Failing to Falsify: Evaluating and Mitigating Confirmation Bias in Language Models" (arXiv 2604.02485): its 40
rules in ten groups of four, its seed triples, which fit all four rules of a group, and its protocol. The paper's judges
are language models; here a rule is a line of a small language, and two rules are the same if they agree on 35,000
triples.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from gymnasium import spaces

from .inquiry import FormatError, Inquiry

# The language of rules -----------------------------------------------------------------------------------------------

LARGEST = 1_000_000  # size of a number that may be tested, or stand in a rule
_LONGEST = 400  # characters of a rule
_DEEPEST = 40  # levels of nesting

Values = np.ndarray
"""Numbers or truth values of triples, [n]; of their members, [3, n]."""


class RuleError(ValueError):
    """A text is no rule of the language; says which piece, and what is expected."""


class UnsafeRuleError(RuleError):
    """A text asks for something that no rule needs: a name, a call or a construct that is not in the language."""


@dataclass(frozen=True)
class Rule:
    """A rule that can be asked: ``rule(triples)`` is bool [n] for whole numbers [n, 3].

    The text is an expression of Python's grammar in ``a``, ``b``, ``c`` with whole numbers, ``+ - * %``, comparisons,
    ``and or not``, and the functions ``abs min max distinct prime cube``. In ``all(...)``, ``any(...)`` and
    ``count(...)`` stands a condition on ``x``, which is each of the three in turn: ``count(x % 2 == 0) == 2``.

    Division by zero, and whatever is computed with it, compares as false; so does ``prime`` of more than a million.
    Numbers are exact up to 2^53. The text is read piece by piece and never evaluated as a program. Made by
    :func:`read_rule`.
    """

    text: str
    _holds: Callable[[dict[str, Values]], Values]

    def __call__(self, triples: np.ndarray) -> np.ndarray:
        """Which of the triples [n, 3] keep the rule, bool [n]."""
        members = np.asarray(triples, float).reshape(-1, 3).T
        with np.errstate(all="ignore"):
            held = self._holds({"a": members[0], "b": members[1], "c": members[2], "x": members})
        return np.broadcast_to(held, members.shape[1:])


class _Term(NamedTuple):
    """A piece of a rule: truth or number, whether it is about each ``x``, and how to compute it."""

    truth: bool
    each: bool
    value: Callable[[dict[str, Values]], Values]


def _remainder(left: Values, right: Values) -> Values:
    return np.where(right == 0, np.nan, np.mod(left, np.where(right == 0, 1, right)))


def _distinct(*values: Values) -> Values:
    rows = np.sort(np.stack(np.broadcast_arrays(*values)), axis=0)
    return np.where(np.isnan(rows[-1]), np.nan, 1 + (np.diff(rows, axis=0) != 0).sum(axis=0))


@lru_cache(maxsize=1)
def _primes() -> np.ndarray:
    sieve = np.ones(LARGEST + 1, bool)
    sieve[:2] = False
    for k in range(2, int(LARGEST**0.5) + 1):
        if sieve[k]:
            sieve[k * k :: k] = False
    return sieve


def _prime(value: Values) -> Values:
    """Whether it is a prime; no number above :data:`LARGEST` counts as one."""
    inside = (value >= 0) & (value <= LARGEST)
    return inside & _primes()[np.where(inside, value, 0).astype(np.int64)]


_ARITHMETIC: dict[type, Callable[..., Values]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Mod: _remainder,
}
_COMPARISONS: dict[type, Callable[..., Values]] = {
    ast.Eq: np.equal,
    ast.NotEq: lambda left, right: (left < right) | (left > right),  # false with nan, as the others
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
_FUNCTIONS: dict[str, tuple[bool, int, int, Callable[..., Values]]] = {  # truth, least and most arguments
    "abs": (False, 1, 1, np.abs),
    "min": (False, 2, 3, lambda *values: np.minimum.reduce(np.broadcast_arrays(*values))),
    "max": (False, 2, 3, lambda *values: np.maximum.reduce(np.broadcast_arrays(*values))),
    "distinct": (False, 2, 3, _distinct),
    "prime": (True, 1, 1, _prime),
    "cube": (True, 1, 1, lambda value: np.rint(np.cbrt(value)) ** 3 == value),
}
_QUANTIFIERS: dict[str, tuple[bool, Callable[..., Values]]] = {
    "all": (True, lambda held: held.all(axis=0)),
    "any": (True, lambda held: held.any(axis=0)),
    "count": (False, lambda held: held.sum(axis=0)),
}


@lru_cache(maxsize=4096)
def read_rule(text: str) -> Rule:
    """The rule that ``text`` says. Raises :class:`RuleError`, and :class:`UnsafeRuleError` for what is outside."""
    if len(text) > _LONGEST:
        raise RuleError(f"the rule has {len(text)} characters, expected at most {_LONGEST}")
    try:
        with warnings.catch_warnings():  # the parser has opinions on "1and", which are not for whoever plays
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise RuleError(f"{text[:80]!r} cannot be read: {getattr(error, 'msg', error)}") from None
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise RuleError(f"the rule is nested deeper than {_DEEPEST} levels")
    term = _term(tree, False)
    if not term.truth:
        raise RuleError(f"{text[:80]!r} is a number, expected a condition such as a < b")
    return Rule(text.strip(), term.value)


def _term(node: ast.expr, each: bool) -> _Term:
    """A piece of the tree; ``each`` inside a quantifier, where ``x`` has a meaning."""
    match node:
        case ast.Constant(value=int(value)) if type(value) is int and abs(value) <= LARGEST:
            constant = np.asarray(float(value))
            return _Term(False, False, lambda _: constant)
        case ast.Name(id=("a" | "b" | "c") as name):
            return _Term(False, False, lambda triple: triple[name])
        case ast.Name(id="x"):
            if not each:
                raise RuleError("x stands outside of all(...), any(...) and count(...), where it has no meaning")
            return _Term(False, True, lambda triple: triple["x"])
        case ast.UnaryOp(op=ast.USub() | ast.Not() as op, operand=operand):
            inner = _need(operand, isinstance(op, ast.Not), each)
            apply = np.logical_not if inner.truth else np.negative
            return _Term(inner.truth, inner.each, lambda triple: apply(inner.value(triple)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _joined(_ARITHMETIC[type(op)], False, [_need(part, False, each) for part in (left, right)])
        case ast.BoolOp(op=op, values=values):
            join = np.logical_and if isinstance(op, ast.And) else np.logical_or
            parts = [_need(part, True, each) for part in values]
            return _joined(lambda *held: join.reduce(np.broadcast_arrays(*held)), True, parts)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
            parts = [_need(part, False, each) for part in (left, *others)]
            compare = [_COMPARISONS[type(op)] for op in ops]

            def chained(*numbers: Values) -> Values:
                pairs = zip(compare, numbers, numbers[1:], strict=False)
                return np.logical_and.reduce(np.broadcast_arrays(*(c(left, right) for c, left, right in pairs)))

            return _joined(chained, True, parts)
        case ast.Call(func=ast.Name(id=name), args=[condition], keywords=[]) if name in _QUANTIFIERS:
            if each:
                raise RuleError(f"{name}(...) stands inside another all, any or count, where x would mean two things")
            truth, over = _QUANTIFIERS[name]
            inner = _need(condition, True, True)
            if not inner.each:
                raise RuleError(f"{name}(...) holds no x; write a condition on each number, such as {name}(x > 0)")
            return _Term(truth, False, lambda triple: over(inner.value(triple)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            truth, least, most, function = _FUNCTIONS[name]
            if not least <= len(args) <= most:
                raise RuleError(f"{name} got {len(args)} arguments, expected {least} to {most}")
            return _joined(function, truth, [_need(part, False, each) for part in args])
    said = ast.unparse(node)
    raise UnsafeRuleError(
        f"{said[:60]!r} is not in the language of rules: a, b, c, whole numbers up to {LARGEST}, + - * %, comparisons, "
        f"and, or, not, {', '.join([*_FUNCTIONS, *_QUANTIFIERS])}"
    )


def _need(node: ast.expr, truth: bool, each: bool) -> _Term:
    term = _term(node, each)
    if term.truth != truth:
        kinds = ("a number", "a condition")
        raise RuleError(f"{ast.unparse(node)[:60]!r} is {kinds[term.truth]}, expected {kinds[truth]}")
    return term


def _joined(function: Callable[..., Values], truth: bool, parts: list[_Term]) -> _Term:
    return _Term(truth, any(part.each for part in parts), lambda triple: function(*(p.value(triple) for p in parts)))


# The bank of rules ---------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """A rule of the bank: in words, and as :func:`read_rule` reads it."""

    gloss: str
    text: str


GROUPS: dict[str, tuple[Known, Known, Known, Known]] = {
    "T1": (
        Known("all even", "all(x % 2 == 0)"),
        Known("each number divides the next", "b % a == 0 and c % b == 0"),
        Known("exactly two numbers are equal", "distinct(a, b, c) == 2"),
        Known("at least one even", "any(x % 2 == 0)"),
    ),
    "T2": (
        Known("all end with 6", "all(abs(x) % 10 == 6)"),
        Known("ascending with increasing gaps", "0 < b - a < c - b"),
        Known("the first is the smallest", "a <= min(b, c)"),
        Known("all different", "distinct(a, b, c) == 3"),
    ),
    "T3": (
        Known("all divisible by 5", "all(x % 5 == 0)"),
        Known("the first is the largest", "a >= max(b, c)"),
        Known("the middle is above or below both ends", "(a - b) * (b - c) < 0"),
        Known("at least two divisible by 5", "count(x % 5 == 0) >= 2"),
    ),
    "T4": (
        Known("all divisible by 3", "all(x % 3 == 0)"),
        Known("even and odd alternate", "a % 2 != b % 2 and a % 2 == c % 2"),
        Known("ascending", "a < b < c"),
        Known("non-decreasing", "a <= b <= c"),
    ),
    "V1": (
        Known("all end with 9", "all(abs(x) % 10 == 9)"),
        Known("non-decreasing gaps", "b - a <= c - b"),
        Known("the last is the largest", "c >= max(a, b)"),
        Known("equal gaps", "b - a == c - b"),
    ),
    "V2": (
        Known("all divisible by 7", "all(x % 7 == 0)"),
        Known("exactly two even", "count(x % 2 == 0) == 2"),
        Known("at least one divisible by 4", "any(x % 4 == 0)"),
        Known("at least two different", "distinct(a, b, c) >= 2"),
    ),
    "O1": (
        Known("all end with 1", "all(abs(x) % 10 == 1)"),
        Known("the last is the smallest", "c <= min(a, b)"),
        Known("all negative", "all(x < 0)"),
        Known("descending", "a > b > c"),
    ),
    "O2": (
        Known("all odd", "all(x % 2 == 1)"),
        Known("the middle is the largest by itself", "b > max(a, c)"),
        Known("both signs occur", "1 <= count(x < 0) <= 2"),
        Known("at least one divisible by 3", "any(x % 3 == 0)"),
    ),
    "O3": (
        Known("all prime", "all(prime(x))"),
        Known("non-increasing", "a >= b >= c"),
        Known("all positive", "all(x > 0)"),
        Known("at least one prime", "any(prime(x))"),
    ),
    "O4": (
        Known("all cubes", "all(cube(x))"),
        Known("exactly two odd", "count(x % 2 == 1) == 2"),
        Known("decreasing gaps", "b - a > c - b"),
        Known("at least one odd", "any(x % 2 == 1)"),
    ),
}
"""The 40 rules; a group's seed triples fit all four, roughly from specific to general."""

SPLITS = {
    "train": ("T1", "T2", "T3", "T4"),
    "held_out": ("T1", "T2", "T3", "T4"),
    "validation": ("V1", "V2"),
    "test": ("O1", "O2", "O3", "O4"),
}
"""Groups by split; ``held_out`` are seed triples of the training rules that ``train`` never shows."""

_SEEDS_WITHIN = 99  # seed triples have members from -99 to 99
_HELD_OUT = 5  # one in five of a training group's seed triples

RULES = tuple(rule for group in GROUPS.values() for rule in group)
"""All rules of the bank, in the order of their groups."""


@lru_cache(maxsize=len(GROUPS))
def seed_triples(group: str) -> np.ndarray:
    """Every triple with members in [-99, 99] that fits the four rules of a group, int64 [n, 3], in a fixed order."""
    rules = [read_rule(rule.text) for rule in GROUPS[group]]
    numbers = np.arange(-_SEEDS_WITHIN, _SEEDS_WITHIN + 1)
    numbers = numbers[rules[0](np.repeat(numbers[:, None], 3, axis=1))]  # a group's first rule is of each number alone
    triples = np.stack(np.meshgrid(numbers, numbers, numbers, indexing="ij"), axis=-1).reshape(-1, 3)
    for rule in rules[1:]:
        triples = triples[rule(triples)]
    triples.setflags(write=False)
    return triples


def is_held_out(triple: np.ndarray) -> bool:
    """Whether a seed triple of a training group is kept for the split ``held_out``; decided by a hash of it."""
    return crc32(np.asarray(triple, "<i8").tobytes()) % _HELD_OUT == 0


@lru_cache(maxsize=1)
def probes() -> np.ndarray:
    """The triples on which rules are compared, int64 [n, 3]: the box [-12, 12]^3 and 20,000 of structure to ±99.

    Among the latter are primes, cubes, multiples, equal last digits, progressions, repeats and ordered triples.
    """
    draw = np.random.default_rng(0)
    box = np.array(list(product(range(-12, 13), repeat=3)))
    wide = np.arange(-_SEEDS_WITHIN, _SEEDS_WITHIN + 1)
    pools = [wide[read_rule(f"all({condition})")(np.repeat(wide[:, None], 3, axis=1))] for condition in _POOLS]
    start, gap = draw.integers(-60, 61, 2000), draw.integers(-19, 20, 2000)
    free = draw.integers(-_SEEDS_WITHIN, _SEEDS_WITHIN + 1, (6000, 3))
    parts = [
        free[:4000],
        np.sort(free[4000:5000], axis=1),
        np.sort(free[5000:], axis=1)[:, ::-1],
        np.stack([start, start + gap, start + 2 * gap], axis=1),
        *(draw.choice(pool, (12_000 // len(pools), 3)) for pool in pools),
    ]
    triples = np.unique(np.concatenate([box, *parts]), axis=0)
    triples.setflags(write=False)
    return triples


_MULTIPLES, _DIGITS = (f"x % {k} == 0" for k in (2, 3, 4, 5, 7)), (f"abs(x) % 10 == {d}" for d in range(10))
_POOLS = ("prime(x)", "cube(x)", *_MULTIPLES, *_DIGITS)


def same(one: Rule, other: Rule) -> bool:
    """Whether two rules agree on all :func:`probes`."""
    return one.text == other.text or _on_probes(one) == _on_probes(other)


@lru_cache(maxsize=2048)
def _on_probes(rule: Rule) -> bytes:
    return np.packbits(rule(probes())).tobytes()


# Plain words ---------------------------------------------------------------------------------------------------------

_KINDS = (  # of a number
    (r"even", "x % 2 == 0"),
    (r"odd", "x % 2 == 1"),
    (r"primes?", "prime(x)"),
    (r"(?:perfect )?cubes?", "cube(x)"),
    (r"positive", "x > 0"),
    (r"negative", "x < 0"),
    (r"(?:divisible by|multiples?) (\d{1,3})", "x % {} == 0"),
    (r"(?:end|ends|ending)(?: with)? (\d)", "abs(x) % 10 == {}"),
)
_HOW_MANY = (
    (r"all|every|each", "all({})"),
    (r"at least one|any|some", "any({})"),
    (r"at least two", "count({}) >= 2"),
    (r"exactly two", "count({}) == 2"),
    (r"exactly one", "count({}) == 1"),
    (r"no|none", "not any({})"),
)
_FILLERS = re.compile(r"\b(?:the|rule|is|are|that|of|them|numbers?|integers?|three|triple|must be|be|it|in|order)\b")
_PLAIN = {
    "increasing": "a < b < c",
    "strictly increasing": "a < b < c",
    "strictly ascending": "a < b < c",
    "decreasing": "a > b > c",
    "strictly decreasing": "a > b > c",
    "strictly descending": "a > b > c",
    "arithmetic progression": "b - a == c - b",
    "all distinct": "distinct(a, b, c) == 3",
    "distinct": "distinct(a, b, c) == 3",
    "different": "distinct(a, b, c) == 3",
    "all equal": "distinct(a, b, c) == 1",
}


def _simple(words: str) -> str:
    return " ".join(_FILLERS.sub(" ", re.sub(r"[^a-z0-9 -]", " ", words.lower())).split())


_GLOSSES = {_simple(rule.gloss): rule.text for rule in RULES} | _PLAIN


def in_words(announcement: str) -> str | None:
    """The rule that a plain sentence says, as text of the language; ``None`` where it is not one of few simple forms.

    Known are the glosses of the bank, kinds of numbers with a quantity ("all even", "at least two divisible by 5"), a
    few words for orders, and two of these joined by "and".
    """
    words = _simple(announcement)
    if words in _GLOSSES:
        return _GLOSSES[words]
    for kind, condition in _KINDS:
        for quantity, form in (*_HOW_MANY, ("", "all({})")):
            if found := re.fullmatch(rf"(?:{quantity}) ?{kind}", words):
                return form.format(condition.format(*found.groups()))
    left, joined, right = words.partition(" and ")
    parts = (in_words(left), in_words(right)) if joined else (None, None)
    return f"({parts[0]}) and ({parts[1]})" if parts[0] and parts[1] else None


# The world -----------------------------------------------------------------------------------------------------------

_TRIPLE = re.compile(r"\[\s*(-?[0-9]{1,9})\s*,\s*(-?[0-9]{1,9})\s*,\s*(-?[0-9]{1,9})\s*\]")


def write_triple(triple: np.ndarray) -> str:
    """A triple as it stands in a line: ``[2, 4, 6]``."""
    return f"[{', '.join(str(int(member)) for member in triple)}]"


def parse_triple(text: str) -> np.ndarray:
    """The triple of ``[2, 4, 6]``, int64 [3]. Raises ``FormatError``."""
    found = _TRIPLE.fullmatch(text.strip())
    if found is None:
        raise FormatError(f"{text[:80]!a} is not a list of three integers like [2, 4, 6]")
    return np.array([int(member) for member in found.groups()])


class RuleDiscovery(Inquiry[Rule]):
    """Find the rule that three numbers keep, by testing triples.

    ## Description
    A hidden rule says YES or NO to any three whole numbers. A first triple that it says YES to is shown; it is chosen
    to fit four rules at least. Then turns alternate: announce what the rule may be (nobody says
    whether it is right), test a triple, hear YES or NO, announce, and so on, also after the first right announcement.
    What does not fit the turn (and the first triple, tested again) is asked for again, up to 10 times; then the
    episode ends with an error.

    ## Action
    With `actions="structured"` a `Dict`; what the turn does not ask for is not looked at.

    | key | action |
    |---|---|
    | kind, `Discrete(2)` | 0 announces, 1 tests |
    | triple, `Box(-10^6, 10^6, (3,), int64)` | the numbers to test |
    | announcement, text | a rule in the language of :class:`Rule`, such as `a < b < c`, or in simple words |

    With `actions="text"` one line of at most 400 characters: `Announce: ascending` or `Check: [2, 4, 6]`.

    ## Observation
    | key | observation |
    |---|---|
    | turn, `Discrete(2)` | what is asked for: 0 an announcement, 1 a test |
    | tests, `Discrete(tests + 1)` | how many were made |
    | triple, int64 [3] | what was tested last, at first the seed triple |
    | feedback, `Discrete(2)` | 1: YES, it keeps the rule |
    | refused, `Discrete(2)` | 1: the last answer did not fit the turn, and the turn is asked again |
    | message, text | the same in words |

    ## Reward
    0, and at the end 1 if any announcement was right: has the rule's truth values on all of `probes()`. That is also
    the score and `info["success"]`. `metrics` are those of `inquiry.Log.measures`: `tests_to_solve`,
    `incompatibility`, ...

    ## Start
    Consecutive seeds go through the rules of the split in turn, so that each is met equally often; the seed triple is
    drawn from all with members in [-99, 99] that fit the four rules of the group.

    ## End
    `terminated` after the announcement that follows the last test.

    Args:
        split: `"test"` (16 rules), `"train"` (16 others), `"held_out"` (these with other seed triples),
            `"validation"` (8).
        rule: The hidden rule by its words ("all even"), from any split; `""` goes through those of the split.
        tests: How many tests are made, 1 to 1000; the paper has 45.
        actions: `"structured"` or `"text"`.
        interpret: Called with an announcement that is neither of the language nor in simple words; returns a rule of
            the language that says the same, or `None`.
        render_mode: `"rgb_array"` or `None`. `render` returns the transcript, uint8 [480, 640, 3].

    Raises:
        ValueError: for an argument outside these; from `step`, for an action that is none of the space.
        EpisodeError: from `step`, when a turn was asked 11 times.
        RuntimeError: from `step`, when no episode is running.
    """

    instruction = (
        "A hidden rule says YES or NO to three whole numbers. It is about attributes of the numbers or relations "
        "between them, not about how large they are. Find it: test triples, and announce what you believe after each."
    )

    def __init__(
        self,
        split: str = "test",
        rule: str = "",
        tests: int = 45,
        actions: str = "structured",
        interpret: Callable[[str], str | None] | None = None,
        render_mode: str | None = None,
    ) -> None:
        if not isinstance(split, str) or split not in SPLITS:
            raise ValueError(f"split={split!r}, expected one of {', '.join(SPLITS)}")
        if not isinstance(rule, str) or rule not in ["", *(known.gloss for known in RULES)]:
            raise ValueError(f"rule={rule!r} is not in the bank; it has {', '.join(known.gloss for known in RULES)}")
        if interpret is not None and not callable(interpret):
            raise ValueError(f"interpret={interpret!r}, expected a function of an announcement, or None")
        super().__init__(
            "triple",
            spaces.Box(-LARGEST, LARGEST, (3,), np.int64),
            verb="Check",
            answers=("NO", "YES"),
            forms=("one short sentence", "[a, b, c]"),
            tests=tests,
            actions=actions,
            render_mode=render_mode,
        )
        groups = SPLITS[split] if not rule else GROUPS
        self._choices = [(g, known) for g in groups for known in GROUPS[g] if rule in ("", known.gloss)]
        self._held_out = {"train": False, "held_out": True}.get(split if not rule else "")
        self._interpret = interpret
        self._rule = read_rule(self._choices[0][1].text)
        self._seed = np.zeros(3, np.int64)

    def expert(self) -> Callable[[], Any]:
        """Announces the hidden rule and tests small numbers: privileged, and a bound on what can be reached.

        Returns a function without arguments that gives the next action, in the form of `actions`.
        """

        def tell() -> Any:
            triple = np.full(3, len(self._log.answers))
            triple += np.array_equal(triple, self._seed)
            if self._text:
                return f"Check: {write_triple(triple)}" if self._turn else f"Announce: {self._rule.text}"
            return {"kind": self._turn, "triple": triple, "announcement": self._rule.text}

        return tell

    def _begin(self, seed: int | None) -> tuple[np.ndarray, bool]:
        draw = self.np_random
        which = draw.integers(len(self._choices)) if seed is None else seed % len(self._choices)
        group, known = self._choices[which]
        self._rule = read_rule(known.text)
        pool = seed_triples(group)
        self._seed = pool[draw.integers(len(pool))]
        while self._held_out is not None and is_held_out(self._seed) != self._held_out:
            self._seed = pool[draw.integers(len(pool))]
        return self._seed, True

    def _examine(self, test: np.ndarray) -> bool:
        return bool(self._rule(test)[0])

    def _read(self, content: Any) -> np.ndarray:
        triple = np.asarray(content)
        if triple.shape != (3,) or triple.dtype.kind not in "iu":
            raise ValueError(f"triple={content!r:.200}, expected three integers")
        if ((triple < -LARGEST) | (triple > LARGEST)).any():
            raise FormatError(f"{write_triple(triple)} has a number beyond {LARGEST}")
        if np.array_equal(triple, self._seed):
            raise FormatError(f"{write_triple(triple)} is the first triple; test a different one")
        return triple.astype(np.int64)

    def _parse(self, text: str) -> np.ndarray:
        return parse_triple(text)

    def _write(self, test: np.ndarray) -> str:
        return write_triple(test)

    def _understand(self, announcement: str) -> Rule | None:
        for reading in (lambda: announcement, lambda: in_words(announcement), lambda: self._asked(announcement)):
            try:
                if (text := reading()) is not None:
                    return read_rule(text)
            except RuleError:
                continue
        return None

    def _asked(self, announcement: str) -> str | None:
        return self._interpret(announcement) if self._interpret else None

    def _predicts(self, hypothesis: Rule, test: np.ndarray) -> bool:
        return bool(hypothesis(test)[0])

    def _is_right(self, hypothesis: Rule) -> bool:
        return same(hypothesis, self._rule)
