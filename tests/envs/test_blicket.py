"""The Blicket test: three rules by their truth tables, and the same turns as with number triples."""

import subprocess
import sys
from itertools import combinations

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import assert_gymnasium_accepts

from palaestra.envs.decision.blicket import (
    RULES,
    Blicket,
    Machine,
    machines,
    parse_machine,
    parse_objects,
    write_objects,
)
from palaestra.envs.decision.inquiry import ANNOUNCE, TEST, EpisodeError, FormatError


@pytest.mark.parametrize(
    ("blickets", "rule", "on"),  # how the machine answers 0, 1, 2, 3 blickets
    [
        (2, "disjunctive", (0, 1, 1)),
        (2, "conjunctive", (0, 0, 1)),
        (2, "xor", (0, 1, 0)),
        (3, "disjunctive", (0, 1, 1, 1)),
        (3, "conjunctive", (0, 0, 0, 1)),
        (3, "xor", (0, 1, 0, 0)),  # exactly one: no parity
    ],
)
def test_the_machine_answers_by_the_number_of_blickets_on_it(blickets, rule, on):
    machine = Machine(frozenset(range(1, 1 + blickets)), rule)
    for size in range(6):
        for chosen in combinations(range(5), size):
            objects = frozenset(chosen)
            assert machine.lights(objects) == on[len([k for k in objects if 1 <= k <= blickets])]


def test_every_machine_is_believed_once_and_stays_dark_with_nothing_on_it():
    believed = machines(4)
    assert len(set(believed)) == len(believed) == 3 * (6 + 4)
    assert len(machines(8)) == 3 * (28 + 56) and len(machines(2)) == 3
    assert not any(machine.lights(frozenset()) for machine in believed)
    answers = {tuple(m.lights(frozenset(c)) for n in range(5) for c in combinations(range(4), n)) for m in believed}
    assert len(answers) == len(believed), "each can be told from all others"


@settings(deadline=None)
@given(st.frozensets(st.integers(0, 11)))
def test_objects_and_machines_are_read_back_as_they_were_written(objects):
    assert parse_objects(write_objects(objects), 12) == objects
    for rule in RULES:
        machine = Machine(objects, rule)
        assert parse_machine(str(machine), 12) == machine


@pytest.mark.parametrize(
    "text",
    [
        "", "object 1", "[1, 2]", "[object 1 object 2]", "[object 1,]", "[object]", "[object 1; object 2]",
        "[ object -1]", "[object 4]", "[object 99999999999]", "[object 1",
        "[[object 1]]", "[object 1.5]", "[é]", "[object 1]\0",
    ],
)  # fmt: skip
def test_what_is_no_list_of_known_objects_is_refused(text):
    with pytest.raises(FormatError, match=r"is not a list like|there are object 0 to object 3"):
        parse_objects(text, 4)
    with pytest.raises(FormatError):
        parse_machine(f"blickets={text}; rule=xor", 4)


@pytest.mark.parametrize(
    "text",
    ["", "xor", "blickets=[object 1]", "blickets=[object 1]; rule=", "blickets=[object 1]; rule=and", "rule=xor",
     "blickets=[object 1], rule=xor", "blickets=[object 1]; rule=xor or so"],
)  # fmt: skip
def test_what_is_no_machine_is_not_understood(text):
    with pytest.raises(FormatError, match="blickets="):
        parse_machine(text, 4)
    env = Blicket(tests=1, actions="text")
    env.reset(seed=0)
    env.step(f"Announce: {text or '?'}")
    env.step("Test: []")
    *_, info = env.step("Announce: Blickets = [ object 0,object 1 ] ; Rule = XOR.")
    assert info["metrics"]["unparseable"] == 0.5, "and small differences in form do no harm"


# --- the turns ---


def say(machine="blickets=[object 0, object 1]; rule=xor", n=4):
    return {"kind": ANNOUNCE, "objects": np.zeros(n, np.int8), "announcement": machine}


def ask(*mask):
    return {"kind": TEST, "objects": np.array(mask, np.int8), "announcement": ""}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("blickets", [2, 3])
def test_all_sets_tell_which_machine_it_is(rule, blickets):
    """A player that crosses out what an answer contradicts is left with the hidden machine."""
    env = Blicket(5, blickets, rule)
    for seed in range(4):
        seen, _ = env.reset(seed=seed)
        left = machines(5)
        for code in range(32):
            objects = frozenset(np.flatnonzero(seen["objects"]).tolist())
            left = [machine for machine in left if machine.lights(objects) == bool(seen["feedback"])]
            env.step(say(n=5))
            seen, *_ = env.step(ask(*((code >> k) & 1 for k in range(5))))
        assert [str(machine) for machine in left] == [env.expert()()["announcement"]]
        assert left[0].rule == rule and len(left[0].blickets) == blickets


def test_an_episode_is_46_announcements_and_45_tests_in_turn():
    env = Blicket()
    seen, _ = env.reset(seed=4)
    act, turns, ended = env.expert(), [], False
    while not ended:
        turns.append(int(seen["turn"]))
        seen, reward, ended, _, info = env.step(act())
        assert seen in env.observation_space
    assert turns == [ANNOUNCE, TEST] * 45 + [ANNOUNCE] and reward == info["score"] == 1.0
    assert info["metrics"]["first_guess"] == 1


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_noise_turns_answers_round_as_often_as_it_says(noise):
    env = Blicket(noise=noise, tests=1000, rule="disjunctive")
    env.reset(seed=1)
    truth = parse_machine(env.expert()()["announcement"], 4)
    wrong, draw = 0, np.random.default_rng(0)
    for _ in range(1000):
        env.step(say())
        mask = draw.integers(2, size=4)
        seen, *_ = env.step(ask(*mask))
        wrong += bool(seen["feedback"]) != truth.lights(frozenset(np.flatnonzero(mask).tolist()))
    assert abs(wrong - 1000 * noise) <= 4 * (1000 * noise * (1 - noise)) ** 0.5, "within four standard deviations"


def test_both_the_blickets_and_the_rule_must_be_right():
    env = Blicket(rule="conjunctive", tests=3)
    env.reset(seed=0)
    truth = parse_machine(env.expert()()["announcement"], 4)
    wrong = [truth._replace(rule="xor"), truth._replace(blickets=frozenset({0, 1, 2, 3} - truth.blickets))]
    for machine in (*wrong, truth):
        env.step(say(str(machine)))
        env.step(ask(0, 0, 0, 0))
    *_, over, _, info = env.step(say(str(wrong[0])))
    assert over and info["success"] and info["metrics"]["tests_to_solve"] == 2
    assert info["metrics"]["incompatibility"] == 1, "nobody predicts a light with nothing on the machine"


def test_compatible_is_a_test_that_the_announced_machine_predicts_to_light_it():
    logs = set()
    for rule in RULES:
        env = Blicket(rule=rule, tests=4)
        env.reset(seed=3)
        for machine, mask in (
            ("blickets=[object 0, object 1]; rule=xor", (1, 0, 1, 1)),
            ("blickets=[object 0, object 1]; rule=xor", (1, 1, 0, 0)),
            ("no idea", (1, 1, 0, 0)),
            ("blickets=[object 0, object 1]; rule=conjunctive", (1, 1, 0, 0)),
        ):
            env.step(say(machine))
            env.step(ask(*mask))
        logs.add(tuple(env._log.compatible))
    assert logs == {(True, False, None, True)}, "whatever the hidden rule"


def test_text_and_structured_actions_are_the_same_game():
    written, structured = Blicket(actions="text", tests=2, noise=0.3), Blicket(tests=2, noise=0.3)
    one, other = written.reset(seed=8)[0], structured.reset(seed=8)[0]
    for line, action in (
        ("Announce: blickets=[object 0, object 1]; rule=xor", say()),
        ("Announce: again", say("again")),
        ("test: [object 0,object 2, object 0]", ask(1, 0, 1, 0)),
        ("Announce: no idea", say("no idea")),
        ("Test: []", ask(0, 0, 0, 0)),
        ("Announce: no idea", say("no idea")),
    ):
        assert all(np.array_equal(one[key], other[key]) for key in one)
        one, *rest = written.step(line)
        other, *others = structured.step(action)
        assert rest == others
    assert all(np.array_equal(one[key], other[key]) for key in one) and rest[1]


def test_an_unknown_object_is_asked_for_again_and_the_eleventh_time_is_an_error():
    env = Blicket(actions="text")
    env.reset(seed=0)
    env.step("Announce: no idea")
    for _ in range(10):
        seen, *_ = env.step("Test: [object 4]")
        assert seen["refused"] and seen["tests"] == 0
        assert seen["message"].startswith(
            "object 4 is not known; there are object 0 to object 3. Test, in the form `Test:"
        )
    with pytest.raises(EpisodeError, match="object 4 is not known"):
        env.step("Test: [object 4]")


@pytest.mark.parametrize("mask", [(1, 0), (0, 1, 2, 0), (0.0, 1.0, 0.0, 1.0), "1010", (1, 0, 0, -1)])
def test_a_set_that_is_none_raises_a_sentence(mask):
    env = Blicket()
    env.reset(seed=0)
    env.step(say())
    with pytest.raises(ValueError, match="expected 4 numbers, each 0 or 1"):
        env.step({**ask(), "objects": np.array(mask)})


# --- as an environment ---


@pytest.mark.parametrize("options", [{}, {"actions": "text"}, {"n_objects": 8, "n_blickets": 3, "noise": 0.1}])
def test_gymnasium_accepts_it(options):
    assert_gymnasium_accepts(gymnasium.make("palaestra/Blicket-v0", render_mode="rgb_array", **options))


def test_blickets_and_rules_are_uniform():
    env = Blicket(4, 2)
    hidden = []
    for seed in range(600):
        env.reset(seed=seed)
        hidden.append(env.expert()()["announcement"])
    counts = [hidden.count(machine) for machine in map(str, machines(4)) if machine in set(hidden)]
    assert len(counts) == 18 and sum(counts) == 600
    assert sum((count - 600 / 18) ** 2 / (600 / 18) for count in counts) < 40.8, "chi-squared, 17 degrees, 0.1 %"


_PROGRAM = """
from palaestra.envs.decision.blicket import Blicket
env = Blicket(noise=0.4, actions="text", tests=4)
env.reset(seed=2); env.step("Announce: a"); env.step("Test: []"); env.reset(seed=19)
act = env.expert()
print([str(value) for _ in range(9) for value in env.step(act())[0].values()])
"""


def test_the_same_seed_is_the_same_episode_in_another_process():
    elsewhere = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout
    env = Blicket(noise=0.4, actions="text", tests=4)
    env.reset(seed=19)
    act = env.expert()
    assert str([str(value) for _ in range(9) for value in env.step(act())[0].values()]) == elsewhere.strip()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"n_objects": 1}, "n_objects=1, expected 2 to 12"),
        ({"n_objects": 13}, "n_objects=13"),
        ({"n_objects": 4.0}, "n_objects=4.0"),
        ({"n_objects": 2, "n_blickets": 3}, "n_blickets=3, expected 2 or 3 of the n_objects=2"),
        ({"n_blickets": 1}, "n_blickets=1"),
        ({"n_blickets": 2.0}, "n_blickets=2.0"),
        ({"rule": "parity"}, "rule='parity', expected one of disjunctive"),
        ({"noise": 1.0}, r"noise=1.0, expected the probability of a wrong answer, in \[0, 1\)"),
        ({"noise": -0.1}, "noise=-0.1"),
        ({"noise": float("nan")}, "noise=nan"),
        ({"noise": True}, "noise=True"),
        ({"tests": 1001}, "tests=1001"),
        ({"actions": ""}, "actions=''"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        Blicket(**arguments)
