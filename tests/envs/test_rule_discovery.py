"""Number triples: the rules mean what their words say, the language is read and never run, turns alternate."""

import operator
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import assert_gymnasium_accepts

from palaestra.envs.decision.inquiry import ANNOUNCE, RETRIES, TEST, EpisodeError, FormatError, Log
from palaestra.envs.decision.rule_discovery import (
    GROUPS,
    LARGEST,
    RULES,
    SPLITS,
    RuleDiscovery,
    RuleError,
    UnsafeRuleError,
    in_words,
    is_held_out,
    parse_triple,
    probes,
    read_rule,
    same,
    seed_triples,
    write_triple,
)

# --- the bank ---


def is_prime(n):
    return n > 1 and all(n % k for k in range(2, int(n**0.5) + 1))


def is_cube(n):
    root = round(abs(n) ** (1 / 3))
    return any(k**3 == abs(n) for k in (root - 1, root, root + 1))


def ends(n, digit):
    return str(n)[-1] == str(digit)


def how_many(triple, holds):
    return len([n for n in triple if holds(n)])


def evens(triple):
    return how_many(triple, lambda n: n / 2 == n // 2)


WORDS = {  # the rules of the paper's bank, by their words and in its order
    "T1": [
        lambda a, b, c: evens((a, b, c)) == 3,
        lambda a, b, c: (
            a != 0
            and b != 0
            and any(a * k == b for k in range(-500, 501))
            and any(b * k == c for k in range(-500, 501))
        ),
        lambda a, b, c: len({a, b, c}) == 2,
        lambda a, b, c: evens((a, b, c)) > 0,
    ],
    "T2": [
        lambda *t: all(ends(n, 6) for n in t),
        lambda a, b, c: b > a and c - b > b - a,
        lambda a, b, c: a == min(a, b, c),
        lambda a, b, c: len({a, b, c}) == 3,
    ],
    "T3": [
        lambda *t: all(n in range(-500, 501, 5) for n in t),
        lambda a, b, c: a == max(a, b, c),
        lambda a, b, c: (b > a and b > c) or (b < a and b < c),
        lambda *t: how_many(t, lambda n: n in range(-500, 501, 5)) >= 2,
    ],
    "T4": [
        lambda *t: all(n in range(-501, 502, 3) for n in t),
        lambda a, b, c: [evens([n]) for n in (a, b, c)] in ([0, 1, 0], [1, 0, 1]),
        lambda a, b, c: a < b and b < c,
        lambda a, b, c: [a, b, c] == sorted([a, b, c]),
    ],
    "V1": [
        lambda *t: all(ends(n, 9) for n in t),
        lambda a, b, c: c - b >= b - a,
        lambda a, b, c: c == max(a, b, c),
        lambda a, b, c: a + c == 2 * b,
    ],
    "V2": [
        lambda *t: all(n in range(-497, 498, 7) for n in t),
        lambda *t: evens(t) == 2,
        lambda *t: any(n in range(-500, 501, 4) for n in t),
        lambda a, b, c: len({a, b, c}) > 1,
    ],
    "O1": [
        lambda *t: all(ends(n, 1) for n in t),
        lambda a, b, c: c == min(a, b, c),
        lambda a, b, c: max(a, b, c) < 0,
        lambda a, b, c: a > b and b > c,
    ],
    "O2": [
        lambda *t: evens(t) == 0,
        lambda a, b, c: b > a and b > c,
        lambda *t: how_many(t, lambda n: n < 0) in (1, 2),
        lambda *t: any(n in range(-501, 502, 3) for n in t),
    ],
    "O3": [
        lambda *t: all(map(is_prime, t)),
        lambda a, b, c: [c, b, a] == sorted([a, b, c]),
        lambda a, b, c: min(a, b, c) > 0,
        lambda *t: any(map(is_prime, t)),
    ],
    "O4": [
        lambda *t: all(map(is_cube, t)),
        lambda *t: evens(t) == 1,
        lambda a, b, c: b - a > c - b,
        lambda *t: evens(t) < 3,
    ],
}
EDGES = (-125, -27, -16, -9, -8, -7, -2, -1, 0, 1, 2, 3, 6, 9, 15, 21, 27, 61, 64, 97)
TRIPLES = np.array([*product(EDGES, repeat=3), *np.random.default_rng(3).integers(-200, 201, (1000, 3))])


@pytest.mark.parametrize("group", GROUPS)
def test_every_rule_means_what_its_words_say(group):
    for known, says in zip(GROUPS[group], WORDS[group], strict=True):
        expected = [bool(says(*triple)) for triple in TRIPLES.tolist()]
        assert read_rule(known.text)(TRIPLES).tolist() == expected, known
        assert 0 < sum(expected) < len(expected)


@pytest.mark.parametrize("group", GROUPS)
def test_every_seed_triple_fits_the_four_rules_of_its_group_and_no_others_do(group):
    seeds = seed_triples(group)
    rules = [read_rule(known.text) for known in GROUPS[group]]
    assert len(seeds) >= 50 and len(np.unique(seeds, axis=0)) == len(seeds) and np.abs(seeds).max() <= 99
    assert all(rule(seeds).all() for rule in rules)
    drawn = np.random.default_rng(0).integers(-99, 100, (20_000, 3))
    fitting = drawn[np.logical_and.reduce([rule(drawn) for rule in rules])]
    assert {tuple(triple) for triple in fitting} <= {tuple(triple) for triple in seeds}


def test_no_two_rules_of_the_bank_are_the_same_and_no_rule_is_of_two_splits():
    read = [read_rule(rule.text) for rule in RULES]
    assert len(RULES) == 40 and len({rule.gloss for rule in RULES}) == 40
    assert all(same(one, other) == (one is other) for one in read for other in read)
    learned, validated, tested = (set(SPLITS[split]) for split in ("train", "validation", "test"))
    assert learned | validated | tested == set(GROUPS) and not learned & validated | validated & tested
    assert not learned & tested and SPLITS["held_out"] == SPLITS["train"]


def test_training_episodes_never_show_a_seed_triple_that_is_held_out():
    shown = {}
    for split in ("train", "held_out"):
        env = RuleDiscovery(split)
        shown[split] = {tuple(env.reset(seed=seed)[0]["triple"].tolist()) for seed in range(300)}
        assert all(is_held_out(np.array(triple)) == (split == "held_out") for triple in shown[split])
    assert not shown["train"] & shown["held_out"]
    for group in SPLITS["train"]:
        share = np.mean([is_held_out(triple) for triple in seed_triples(group)[:2000]])
        assert 0.15 < share < 0.25, "one in five"


def test_seeds_go_through_all_rules_of_a_split_equally():
    env = RuleDiscovery("test")
    hidden = []
    for seed in range(32):
        env.reset(seed=seed)
        hidden.append(env.expert()()["announcement"])
    assert hidden[:16] == hidden[16:] == [known.text for group in SPLITS["test"] for known in GROUPS[group]]


# --- the language ---


class Said(NamedTuple):
    """A piece of a rule as text, and what Python makes of it for a dict of names; None is a division by zero."""

    text: str
    value: Callable[[dict], Any]


def said(form, function, *parts, undefined=None):
    """A piece made of others; ``undefined`` where one of them is."""

    def value(names):
        values = [part.value(names) for part in parts]
        return undefined if None in values else function(*values)

    return Said(form.format(*(part.text for part in parts)), value)


NUMBERS = {
    "({} + {})": operator.add,
    "({} - {})": operator.sub,
    "({} * {})": operator.mul,
    "({} % {})": lambda left, right: left % right if right else None,
    "-{}": operator.neg,
    "abs({})": abs,
    "min({}, {})": min,
    "max({}, {})": max,
    "distinct({}, {})": lambda *values: len(set(values)),
}
ORDERS = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
CONDITIONS = {
    **{f"{{}} {sign} {{}}": holds for sign, holds in ORDERS.items()},
    "{} < {} <= {}": lambda a, b, c: a < b <= c,
    "{} >= {} != {}": lambda a, b, c: a >= b != c,
    "prime({})": lambda n: n <= LARGEST and is_prime(n),
    "cube({})": is_cube,
}
JOINED = {
    "({}) and ({})": lambda one, other: one and other,
    "({}) or ({})": lambda one, other: one or other,
    "not ({})": operator.not_,
}
QUANTIFIED = {"all({})": lambda n: n == 3, "any({})": lambda n: n > 0, "count({}) % 2 == 1": lambda n: n % 2 == 1}


def any_of(forms, parts, **options):
    return st.one_of(
        *(st.builds(partial(said, form, f, **options), *[parts] * form.count("{}")) for form, f in forms.items())
    )


def conditions(names):
    name = st.sampled_from(names).map(lambda name: Said(name, lambda values: values[name]))
    constant = st.integers(0, 40).map(lambda n: Said(str(n), lambda _: n))
    # seven leaves, so that floats are exact: 40^7 < 2^53
    numbers = st.recursive(name | constant, partial(any_of, NUMBERS), max_leaves=7)
    return st.recursive(any_of(CONDITIONS, numbers, undefined=False), partial(any_of, JOINED), max_leaves=3)


def of_each(form, condition):
    def value(names):
        return QUANTIFIED[form](sum(bool(condition.value({**names, "x": names[member]})) for member in "abc"))

    return Said(form.format(condition.text), value)


OF_EACH = conditions(["x", "a"]).filter(lambda condition: "x" in condition.text.replace("max", ""))
RULE = conditions(["a", "b", "c"]) | st.builds(of_each, st.sampled_from(list(QUANTIFIED)), OF_EACH)


@settings(deadline=None)
@given(RULE.filter(lambda rule: len(rule.text) <= 400), st.lists(st.tuples(*[st.integers(-30, 30)] * 3), min_size=1))
def test_a_rule_holds_where_python_says_so(rule, triples):
    expected = [bool(rule.value(dict(zip("abc", triple, strict=True)))) for triple in triples]
    assert read_rule(rule.text)(np.array(triples)).tolist() == expected, rule.text


def test_division_by_zero_is_false_whatever_is_made_of_it():
    zero = np.array([[0, 0, 0]])
    for text in (
        "b % a == 0", "b % a != 0", "abs(b % a) >= 0", "min(1, b % a) == 1", "max(b % a, 1) >= 1", "-(b % a) < 5",
        "distinct(b % a, 1) == 2", "distinct(b % a, 1) == 1", "prime(b % a)", "cube(b % a)", "all(7 % x < 9)",
        "(1 - b % a) * 0 == 0",
    ):  # fmt: skip
        assert not read_rule(text)(zero)[0], text
    assert read_rule("not b % a == 0")(zero)[0]


HOSTILE = [
    "__import__('os').system('touch broken')", "open('broken', 'w')", "a.__class__ == b", "a.real < b",
    "(lambda: a)() < b", "all(x > 0 for x in (a, b))", "[a for a in (1,)] == b", "{a: b} == c", "a if b else c",
    "a ** b < c", "a // b == c", "a / b == c", "a << 9 == c", "a | b == c", "~a < b", "+a < b", "a is b",
    "a in (b, c)", "(a := 3) < b", "f'{a}' < b", "'a' < 'b'", "'\\d' < a", "1.5 < a", "1e999 < a", "9" * 390 + " < a",
    "1000001 < a", "1j < a", "True", "None", "...", "a < True", "d < a", "abs(a, b) < c", "abs() < c", "min(a) < b",
    "min(*(a, b)) < c", "abs(x=a) < b", "all(x for x in a)", "all(all(x > 0))", "count(x > 0)",
    "count(any(x > 0)) == 1", "all(a < b)", "x > 0", "prime(x)", "a", "a + b", "not a", "a and b", "(a < b) + 1 == 2",
    "(a < b) == (b < c)", "a < b <", "a < b; c", "import os", "a = b", "yield a", "await a", "", " ", "\n", "\0",
    "a < b\0", "\ud800 < a", "é < a", "ａ.ｂ < c", "a" * 10_000, "(" * 5000, "[" + "-" * 390 + "a]",
    "-" * 390 + "a < b", "not " * 97 + "a < b", "abs(" * 79 + "a" + ")" * 79 + "<b", "a" + "+a" * 190 + " < b",
    "1and", "0777 < a", "0x < a", "a < b\\", "'''", "# a < b", "eval('1') < a", "{", "@",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:30])
def test_what_is_not_in_the_language_is_refused_with_a_sentence_and_never_run(text, tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuleError) as refused:
        read_rule(text)
    assert 10 < len(str(refused.value)) < 600 and not recwarn.list
    assert not list(tmp_path.iterdir())


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("abcx()<>=%+-*., 0123456789andornotmincubeprime[]_'", max_size=60))
def test_any_text_is_a_rule_or_a_rule_error(text):
    with suppress(RuleError):
        read_rule(text)(np.zeros((2, 3), int))
    in_words(text)


def test_a_call_or_a_name_of_python_is_called_unsafe():
    for text in ("open(a) < b", "a.real < b", "lambda: a", "os < a", "[a] == b", "a ** 9 < b"):
        with pytest.raises(UnsafeRuleError, match="not in the language of rules"):
            read_rule(text)


def test_what_a_rule_says_of_many_triples_is_what_it_says_of_each():
    triples = TRIPLES[:3]  # as many as members, where broadcasting might go wrong
    for rule in (*(known.text for known in RULES), "all(x > a)", "1 < 2", "count(x == min(a, b, c)) == 1"):
        read = read_rule(rule)
        assert read(triples).tolist() == [read(triple)[0] for triple in triples]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("a < b < c", "a <= b <= c", False),
        ("distinct(a, b, c) == 3", "distinct(a, b, c) >= 2", False),
        ("all(x % 2 == 1)", "all(x % 2 != 0)", True),
        ("a < b < c", "c > b and not a >= b", True),
        ("a >= max(b, c)", "a == max(a, b, c)", True),
        ("all(x % 2 == 0)", "all(x % 2 == 0) and b - a == c - b", False),
        ("all(prime(x))", "all(x % 2 == 1 and x > 1)", False),
        ("all(cube(x))", "all(cube(x) and x < 60)", False),
        ("all(x > 0)", "all(x >= 0)", False),
        ("all(x > 0)", "all(x > -1)", False),
    ],
)
def test_rules_are_the_same_if_they_agree_wherever_it_matters(one, other, equal):
    one, other = read_rule(one), read_rule(other)
    assert same(one, other) == same(other, one) == equal
    assert same(one, one) and same(other, other)


def test_the_probes_hold_what_tells_rules_apart():
    found = {tuple(triple) for triple in probes().tolist()}
    assert set(product((-12, -1, 0, 1, 12), repeat=3)) <= found
    assert len(found) == len(probes()) > 30_000
    wide = [triple for triple in sorted(found) if max(map(abs, triple)) > 12][::4]
    for says in (group[n] for group in WORDS.values() for n in range(4)):
        assert sum(bool(says(*triple)) for triple in wide) > 5
    with pytest.raises(ValueError, match="read-only"):
        probes()[0] = 0


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("All numbers are even.", "all(x % 2 == 0)"),
        ("every number is odd", "all(x % 2 == 1)"),
        ("The rule is that all three numbers must be prime", "all(prime(x))"),
        ("at least one of the numbers is negative", "any(x < 0)"),
        ("exactly two primes", "count(prime(x)) == 2"),
        ("no multiples of 7", "not any(x % 7 == 0)"),
        ("at least two are divisible by 5!", "count(x % 5 == 0) >= 2"),
        ("all end in 6", "all(abs(x) % 10 == 6)"),
        ("numbers ending with 1", "all(abs(x) % 10 == 1)"),
        ("strictly increasing order", "a < b < c"),
        ("descending", "a > b > c"),
        ("an ascending mess", None),
        ("all even and ascending", "all(x % 2 == 0) and a < b < c"),
        ("all positive and all odd and decreasing", "all(x > 0) and all(x % 2 == 1) and a > b > c"),
        ("all even and whatever else", None),
        ("the numbers add up to seven", None),
        ("", None),
        ("a sentence " * 900, None),
        ("and " * 99, None),
    ],
)
def test_simple_sentences_are_understood_and_others_are_not(words, rule):
    understood = in_words(words)
    assert (understood is None) == (rule is None)
    assert rule is None or same(read_rule(understood), read_rule(rule))


def test_the_words_of_the_bank_are_understood():
    for rule in RULES:
        assert in_words(f"The rule: {rule.gloss.capitalize()}.") == rule.text


# --- the turns ---


def say(announcement="a < b < c"):
    return {"kind": ANNOUNCE, "triple": np.zeros(3, int), "announcement": announcement}


def ask(*triple):
    return {"kind": TEST, "triple": np.array(triple), "announcement": ""}


def test_an_episode_is_46_announcements_and_45_tests_in_turn():
    env = RuleDiscovery()
    observation, info = env.reset(seed=5)
    act, turns, rewards, ended = env.expert(), [], [], False
    while not ended:
        assert observation in env.observation_space
        turns.append(int(observation["turn"]))
        observation, reward, ended, truncated, info = env.step(act())
        rewards.append(reward)
        assert not truncated and not observation["refused"]
    assert turns == [ANNOUNCE, TEST] * 45 + [ANNOUNCE]
    assert rewards == [0.0] * 90 + [1.0] and info["success"] and info["score"] == 1.0
    assert info["metrics"]["tests"] == 45 and info["metrics"]["tests_to_solve"] == 0
    assert env.interface.episode_ticks == len(turns)
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        env.step(act())


def test_the_rule_answers_tests_and_nobody_answers_announcements():
    env = RuleDiscovery("train", "ascending", tests=3)
    seen, _ = env.reset(seed=0)
    assert seen["feedback"] == 1 and seen["triple"][0] < seen["triple"][1] < seen["triple"][2]
    for triple, fits in (((1, 2, 3), 1), ((3, 2, 1), 0), ((1, 1, 2), 0)):
        before = seen
        seen, _, over, _, info = env.step(say("all(x > 5)" if fits else "ascending"))
        assert seen["feedback"] == before["feedback"] and seen["triple"].tolist() == before["triple"].tolist()
        assert not over and set(info) == {"success"} and "YES" not in seen["message"]
        seen, *_ = env.step(ask(*triple))
        assert seen["feedback"] == fits and seen["triple"].tolist() == list(triple)
        assert seen["message"].startswith(f"[{', '.join(map(str, triple))}]: {'YES' if fits else 'NO'}. Announce")
    _, reward, over, _, info = env.step(say("all negative"))
    assert over and reward == 1.0 and info["metrics"]["tests_to_solve"] == 1, "an earlier announcement was right"


def test_what_does_not_fit_the_turn_is_asked_again_and_costs_no_test():
    env = RuleDiscovery(tests=2)
    first, _ = env.reset(seed=3)
    for wrong in (ask(1, 2, 3), say(""), say("a" * 401)):
        seen, reward, over, _, _ = env.step(wrong)
        assert seen["refused"] == 1 and seen["turn"] == ANNOUNCE and seen["tests"] == 0 and not over and reward == 0
        assert seen["message"].endswith("Announce, in the form `Announce: one short sentence`.")
    seen, *_ = env.step(say())
    assert seen["turn"] == TEST and not seen["refused"]
    for wrong, why in (
        (say(), "that is an announcement, expected a test"),
        (ask(*first["triple"]), "is the first triple; test a different one"),
        (ask(0, 0, LARGEST + 1), "beyond 1000000"),
        (ask(0, 0, -(2**63)), "beyond 1000000"),
    ):
        seen, *_ = env.step(wrong)
        assert seen["refused"] == 1 and seen["tests"] == 0 and why in seen["message"]
    seen, *_ = env.step(ask(1, 2, 3))
    assert seen["tests"] == 1 and not seen["refused"]
    env.step(say())
    env.step(ask(1, 2, 4))
    *_, over, _, info = env.step(say())
    assert over and info["metrics"]["retries"] == 7


def test_the_eleventh_refusal_of_a_turn_ends_the_episode_and_retries_of_other_turns_do_not_count():
    env = RuleDiscovery()
    env.reset(seed=0)
    for _ in range(2):
        for _ in range(RETRIES):
            env.step(ask(0, 0, 0))
        env.step(say())
        for _ in range(RETRIES):
            env.step(say())
        env.step(ask(9, 9, 8))
    for _ in range(10):
        env.step(ask(0, 0, 0))
    with pytest.raises(EpisodeError, match="11 times"):
        env.step(ask(0, 0, 0))
    with pytest.raises(RuntimeError, match="reset"):
        env.step(say())
    assert env.reset(seed=0)[0]["tests"] == 0


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        (ask(1, 2), "expected three integers"),
        (ask(1.0, 2.0, 3.0), "expected three integers"),
        (ask(1, 2, 10**30), "expected three integers"),
        ({**ask(1, 2, 3), "triple": "1, 2, 3"}, "expected three integers"),
        ({**ask(1, 2, 3), "triple": [1, [2], 3]}, "expected an array"),
        ({**ask(1, 2, 3), "kind": 2}, "kind=2, expected 0 to announce or 1 to test"),
        ({"kind": 1}, "expected a dict with kind, triple and announcement"),
        ("Check: [1, 2, 3]", "expected a dict"),
        ({**say(), "announcement": 5}, "announcement=5, expected text"),
    ],
    ids=range(9),
)
def test_an_action_that_is_none_raises_a_sentence(action, complaint):
    env = RuleDiscovery()
    env.reset(seed=0)
    if not isinstance(action, dict) or action.get("announcement") == "":
        env.step(say())
    with pytest.raises(ValueError, match=complaint):
        env.step(action)


LINES = [
    "Announce: all even",
    "Check: [2, 4, 6]",
    "Check: [2, 4, 6]",  # not its turn
    "  announce :  a  <  b < c ",
    "CHECK:[-3,0 , 5]",
    "Announce: who knows",
    "Check: [1, 1, 1]",
    "Announce: any(x % 3 == 0)",
]


def test_text_and_structured_actions_are_the_same_game():
    written, structured = RuleDiscovery(actions="text", tests=3), RuleDiscovery(tests=3)
    one, other = written.reset(seed=11)[0], structured.reset(seed=11)[0]
    for line in LINES:
        for key in one:
            assert np.array_equal(one[key], other[key]), key
        verb, _, content = line.partition(":")
        announces = verb.strip().lower() == "announce"
        one, *rest = written.step(line)
        other, *others = structured.step(say(content) if announces else ask(*parse_triple(content)))
        assert rest == others
    assert rest[1] and rest[3]["metrics"]["retries"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "", "[1, 2, 3]", "Check [1, 2, 3]", "Check: 1, 2, 3", "Check: [1, 2]", "Check: [1, 2, 3, 4]",
        "Check: [1, 2, 3.0]", "Check: [1, 2, x]", "Check: [1, 2, 9999999]", "Check: [1, 2, 3] or so",
        "Test: [1, 2, 3]", "Announce: yes", "Check: [1, 2, 3]\nCheck: [1, 2, 4]", "I think\nCheck: [1, 2, 3]",
        "Check: [1, 2, " + "3" * 50_000 + "]", "Check: [" + " " * 50_000, "Check:" + " " * 50_000 + "\n.",
        "Ünïcode: \0 \ud800", "Check: [é, \0, \ud800]",
    ],
    ids=range(19),
)  # fmt: skip
def test_a_line_in_another_form_is_refused(line):
    env = RuleDiscovery(actions="text")
    env.reset(seed=0)
    env.step("Announce: all even")
    seen, *_ = env.step(line)
    assert seen["refused"] == 1 and seen["tests"] == 0 and seen in env.observation_space


@settings(deadline=None)
@given(st.tuples(*[st.integers(-LARGEST, LARGEST)] * 3))
def test_a_triple_is_read_back_as_it_was_written(triple):
    assert tuple(parse_triple(write_triple(np.array(triple)))) == triple
    with pytest.raises(FormatError):
        parse_triple(write_triple(np.array(triple))[:-1])


# --- what is measured ---


def log(correct, compatible, answers=None):
    """A hand-made log; every announcement is understood unless it is None."""
    return Log(
        understood=[right is not None for right in correct],
        correct=[bool(right) for right in correct],
        answers=answers or [True] * len(compatible),
        compatible=compatible,
    )


def test_the_measures_of_hand_made_logs():
    yes, no = True, False
    at_once = log([yes, no, no], [yes, no]).measures()
    assert at_once["first_guess"] == 1 and at_once["tests_to_solve"] == 0 and at_once["tests"] == 2
    assert "incompatibility" not in at_once and at_once["incompatibility_all"] == 0.5

    after_one = log([no, yes, no, yes], [no, yes, yes], [no, yes, no]).measures()
    assert after_one["tests_to_solve"] == 1 and after_one["first_guess"] == 0
    assert after_one["incompatible"] == 1 and after_one["compatible"] == 0 and after_one["incompatibility"] == 1
    assert "incompatible_per_compatible" not in after_one and after_one["incompatibility_all"] == pytest.approx(1 / 3)
    assert after_one["no_per_yes"] == 2

    at_last = log([no] * 45 + [yes], [yes] * 36 + [no] * 9).measures()
    assert at_last["tests_to_solve"] == 45 and at_last["incompatibility"] == 0.2
    assert at_last["incompatible_per_compatible"] == 0.25

    never = log([no] * 46, [yes] * 40 + [no] * 5).measures()
    assert "tests_to_solve" not in never and never["incompatible"] == 5 and never["unparseable"] == 0

    dark = log([None, None, no], [None, None], [no, no]).measures()
    assert dark["unparseable"] == pytest.approx(2 / 3) and "incompatibility" not in dark and "no_per_yes" not in dark


def compatibility(rule):
    env = RuleDiscovery("train", rule, tests=4)
    env.reset(seed=1)
    for announced, triple in (
        ("a < b < c", (1, 2, 3)),
        ("ascending", (3, 2, 1)),
        ("what?", (1, 2, 3)),
        ("all even", (2, 2, 2)),
    ):
        env.step(say(announced))
        env.step(ask(*triple))
    return env._log.compatible, env._log.answers


def test_whether_a_test_is_compatible_does_not_depend_on_the_hidden_rule():
    compatible, answers = compatibility("all even")
    assert compatible == [True, False, None, True] and answers == [False, False, False, True]
    for rule in ("ascending", "all different", "exactly two numbers are equal", "all cubes"):
        assert compatibility(rule)[0] == compatible


def test_free_text_can_be_interpreted():
    asked = []

    def interpret(sentence):
        asked.append(sentence)
        return {"they go up": "a < b < c", "nonsense": "import os"}.get(sentence)

    env = RuleDiscovery("train", "ascending", tests=3, interpret=interpret)
    env.reset(seed=0)
    for sentence in ("they go up", "nonsense", "no idea"):
        env.step(say(sentence))
        env.step(ask(1, 2, 3))
    *_, info = env.step(say("all even"))
    assert asked == ["they go up", "nonsense", "no idea"]
    assert info["metrics"]["tests_to_solve"] == 0 and info["metrics"]["unparseable"] == 0.5


# --- as an environment ---


@pytest.mark.parametrize("actions", ["structured", "text"])
def test_gymnasium_accepts_it(actions):
    env = gymnasium.make("palaestra/RuleDiscovery-v0", actions=actions, render_mode="rgb_array")
    assert_gymnasium_accepts(env)
    env.reset(seed=0)
    page = env.unwrapped.render()
    env.step("Announce: all even" if actions == "text" else say("all even"))
    assert page.shape == (480, 640, 3) and page.dtype == np.uint8 and (env.unwrapped.render() != page).any()


_PROGRAM = """
from palaestra.envs.decision.rule_discovery import RuleDiscovery
env = RuleDiscovery("train", actions="text", tests=4)
env.reset(seed=2); env.step("Announce: all even"); env.reset(seed=19)
act = env.expert()
seen = [env.step(act()) for _ in range(9)]
print([[str(value) for value in one[0].values()] + list(one[1:]) for one in seen])
"""


def test_the_same_seed_is_the_same_episode_in_another_process():
    elsewhere = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout
    env = RuleDiscovery("train", actions="text", tests=4)
    env.reset(seed=19)
    act = env.expert()
    seen = [env.step(act()) for _ in range(9)]
    assert str([[str(value) for value in one[0].values()] + list(one[1:]) for one in seen]) == elsewhere.strip()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"split": "dev"}, "split='dev', expected one of train, held_out"),
        ({"rule": "all green"}, "rule='all green' is not in the bank; it has all even"),
        ({"tests": 0}, "tests=0, expected how many may be made, from 1 to 1000"),
        ({"tests": 4.5}, "tests=4.5"),
        ({"actions": "speech"}, "actions='speech', expected 'structured' or 'text'"),
        ({"render_mode": "human"}, "render_mode='human', expected 'rgb_array' or None"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        RuleDiscovery(**arguments)
