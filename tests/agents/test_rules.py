"""Agents that ask questions: beliefs by Bayes' rule, bias where it is asked for, and the door for language models."""

import json
import math
from itertools import product

import numpy as np
import pytest
from gymnasium import spaces

from palaestra.agents.agent import Episode
from palaestra.agents.rules.game import Game, blicket_game, game_of, number_game
from palaestra.agents.rules.hypothesis import CHOICES, ConfirmationBiased, Hypothesis, counter_example, opposite
from palaestra.agents.rules.information_gain import InformationGain, RandomTest, entropy_bits
from palaestra.agents.rules.inquirer import Belief
from palaestra.agents.rules.interventions import INTERVENTIONS as PROMPTS
from palaestra.agents.rules.interventions import WORDS, answers, first_message
from palaestra.agents.rules.proposer import Proposer
from palaestra.envs.decision.blicket import Blicket, parse_machine
from palaestra.envs.decision.inquiry import EpisodeError
from palaestra.envs.decision.rule_discovery import GROUPS, RULES, SPLITS, RuleDiscovery, probes, read_rule, same
from palaestra.runtime.client import RemoteAgent
from palaestra.runtime.registry import make_agent, make_env
from palaestra.runtime.rollout import run
from palaestra.runtime.server import PolicyServer

NUMBERS, MACHINE = "palaestra/RuleDiscovery-v0", "palaestra/Blicket-v0"


def episode_of(env, seed=0, env_id="a game"):
    return Episode(seed, env_id, env.observation_space, env.action_space, instruction=env.unwrapped.instruction)


def play(env, agent, seed=0):
    """An episode; its last info, the agent's memory, and what was announced."""
    observation, _ = env.reset(seed=seed)
    memory, over, announced = agent.reset(episode_of(env, seed)), False, []
    while not over:
        action = agent.act(memory, observation)
        if isinstance(action, dict):
            assert env.action_space.contains(action)
            if action["kind"] == 0:
                announced.append(action["announcement"])
        observation, _, over, _, info = env.step(action)
    return info, memory, announced


def tiny_game(truth, traits=None, log_prior=None):
    """Hypotheses by their answers; the tests are numbers in a row."""
    truth = np.array(truth, bool)
    traits = np.zeros((1, truth.shape[1]), bool) if traits is None else np.array(traits, bool)
    return Game(
        "number",
        tuple(f"hypothesis {h}" for h in range(len(truth))),
        np.zeros(len(truth)) if log_prior is None else np.array(log_prior),
        np.arange(truth.shape[1])[:, None],
        truth,
        traits,
        lambda tests: truth[:, tests[:, 0]],
        lambda tests: traits[:, tests[:, 0]],
    )


def belief_in(game, seen=(), seed=0, **options):
    belief = Belief(game, np.random.default_rng(seed), **options)
    for test, answer in seen:
        belief.learn(game.tests[test], answer)
    return belief


# --- the games ---


def test_hypotheses_about_numbers_predict_what_the_world_says_of_their_announcements():
    game = number_game()
    assert len(game.announcements) == len(set(game.announcements)) == len(game.truth) == len(game.log_prior)
    assert {rule.text for rule in RULES} <= set(game.announcements)
    assert np.array_equal(game.tests, probes())
    elsewhere = np.random.default_rng(0).integers(-500, 501, (200, 3))
    foretold = game.foretell(elsewhere)
    for h in range(0, len(game.truth), 23):
        rule = read_rule(game.announcements[h])
        assert np.array_equal(game.truth[h], rule(game.tests)) and np.array_equal(foretold[h], rule(elsewhere))
    assert len({row.tobytes() for row in np.packbits(game.truth, axis=1)}) == len(game.truth), "no two are the same"
    spoken = [rule for split in ("train", "validation") for group in SPLITS[split] for rule in GROUPS[group]]
    for trait, rule in zip(game.traits, spoken, strict=True):  # none that is tested
        assert np.array_equal(trait, read_rule(rule.text)(game.tests))
    assert np.array_equal(game.describe(game.tests[:50]), game.traits[:, :50])


def test_fewer_triples_and_no_and_make_a_hypothesis_likelier():
    game = number_game()
    chance = dict(zip(game.announcements, np.exp(game.log_prior), strict=True))
    even, ascending = "all(x % 2 == 0)", "a < b < c"
    both = f"({even}) and ({ascending})"
    fitting = {text: int(read_rule(text)(probes()).sum()) for text in (even, ascending, both)}
    assert chance[even] / chance[ascending] == pytest.approx(fitting[ascending] / fitting[even])
    assert chance[both] / chance[even] == pytest.approx(fitting[even] / fitting[both] / math.e)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_hypotheses_about_the_machine_predict_what_it_does(n):
    game = blicket_game(n)
    assert len(game.tests) == 2**n == len(np.unique(game.tests, axis=0))
    for h, announced in enumerate(game.announcements):
        machine = parse_machine(announced, n)
        lit = [machine.lights(frozenset(np.flatnonzero(test).tolist())) for test in game.tests]
        assert game.truth[h].tolist() == lit
    assert np.array_equal(game.foretell(game.tests), game.truth)
    assert all(game.find(test) == c for c, test in enumerate(game.tests)) and game.find(np.full(n, 2)) is None


def test_a_world_without_questions_is_refused_with_a_sentence():
    space = spaces.Box(-1, 1, (2,))
    with pytest.raises(ValueError, match=r"ball takes no tests .* expected RuleDiscovery or Blicket"):
        game_of(Episode(0, "ball", space, space))
    with pytest.raises(ValueError, match="actions='structured'"):
        run(f"{NUMBERS}:actions=text", "hypothesis", episodes=1)


# --- what is believed ---


@pytest.mark.parametrize("error", [0.001, 0.2])
def test_weights_are_the_posterior(error):
    draw = np.random.default_rng(1)
    truth = draw.integers(2, size=(6, 9)).astype(bool)
    prior = draw.dirichlet(np.ones(6))
    game = tiny_game(truth, log_prior=np.log(prior))
    belief, expected = belief_in(game, error=error), prior.copy()
    for test, answer in ((0, True), (3, False), (3, True), (8, True), (1, False)):
        belief.learn(game.tests[test], answer)
        for h in range(6):
            expected[h] *= 1 - error if truth[h, test] == answer else error
        expected /= expected.sum()
        assert belief.weights == pytest.approx(expected)
        chance = [sum(expected[h] for h in range(6) if truth[h, c]) for c in range(9)]
        assert belief.chance_of_yes(np.arange(9)) == pytest.approx(chance, abs=1e-8)
    assert belief.asked.tolist() == [c in (0, 1, 3, 8) for c in range(9)]


def test_a_test_that_is_not_in_the_table_is_learned_from_as_well():
    game, far = number_game(), np.array([1001, 2002, 3003])
    belief = Belief(game, np.random.default_rng(0))
    assert game.find(far) is None
    belief.learn(far, True)
    held = np.array([read_rule(text)(far[None])[0] for text in game.announcements])
    prior = np.exp(game.log_prior) * np.where(held, 0.999, 0.001)
    assert belief.weights == pytest.approx(prior / prior.sum())


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_a_hypothesis_is_given_up_after_as_many_contradictions_as_there_is_patience(patience):
    game = tiny_game([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], log_prior=[0.0, -1.0])
    belief = belief_in(game, [(0, True)], patience=patience)
    assert belief.best == 0
    for contradictions, test in enumerate((1, 2, 3), start=1):
        belief.learn(game.tests[test], False)
        assert belief.best == (contradictions >= patience)
        assert belief.weights.argmax() == 1, "what is likely does not wait"


def test_the_example_is_the_last_yes_and_progress_counts_tests():
    game = tiny_game([[1, 0, 1, 0]], traits=np.eye(4))
    belief = belief_in(game, [(1, False)], limit=4)
    assert belief.example.tolist() == [0, 1, 0, 0] and belief.progress == 0, "the first of all, until there is a yes"
    belief.learn(game.tests[2], True)
    belief.learn(game.tests[3], False)
    assert belief.example.tolist() == [0, 0, 1, 0] and belief.progress == 0.5
    assert belief.open.tolist() == [True, False, False, False]
    belief.learn(game.tests[0], True)
    assert belief.open.all(), "all again, once all were made"


# --- which test is made ---


@pytest.mark.parametrize("env", [NUMBERS, MACHINE, f"{MACHINE}:n_objects=8,n_blickets=3"])
@pytest.mark.parametrize(("falsify", "share"), [(0, 0.0), (1, 1.0)])
def test_without_falsification_every_test_is_compatible_and_with_nothing_else_none_is(env, falsify, share):
    for row in run(env, f"hypothesis:falsify={falsify}", episodes=4).rows:
        assert not row.failed and row.metrics["incompatibility_all"] == share and row.metrics["unparseable"] == 0


def test_who_only_confirms_never_leaves_a_hypothesis_that_the_rule_contains():
    """The trap of positive tests: all answers are yes, and nothing speaks against what is announced."""
    env = RuleDiscovery("test", "at least one prime")  # its seed triples are of three different primes
    info, memory, announced = play(env, Hypothesis(falsify=0.0), seed=1)
    assert len(set(announced)) == 1 and not same(read_rule(announced[0]), read_rule("any(prime(x))"))
    assert not info["success"] and info["metrics"]["no_per_yes"] == 0
    assert not (read_rule(announced[0])(probes()) & ~read_rule("any(prime(x))")(probes())).any()
    true = memory.game.announcements.index("any(prime(x))")
    assert 0 < memory.weights[true] < memory.weights[memory.best]
    assert play(env, Hypothesis(falsify=0.5), seed=1)[0]["success"], "that some falsification gets out of"


def test_falsification_happens_as_often_as_it_is_asked_for():
    rows = run(NUMBERS, "hypothesis:falsify=0.3", episodes=8).rows
    share = np.mean([row.metrics["incompatibility_all"] for row in rows])
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / (8 * 45)) ** 0.5


def test_the_information_of_a_test_is_the_mutual_information_of_answer_and_hypothesis():
    draw = np.random.default_rng(2)
    truth = draw.integers(2, size=(5, 12)).astype(bool)
    truth[:, 4] = True  # all agree
    prior = draw.dirichlet(np.ones(5))
    belief = belief_in(tiny_game(truth, log_prior=np.log(prior)))
    gain = entropy_bits(belief.chance_of_yes(np.arange(12)))
    for c in range(12):
        joint = {(h, y): prior[h] * (truth[h, c] == y) for h, y in product(range(5), (False, True))}
        of_answer = {y: sum(joint[h, y] for h in range(5)) for y in (False, True)}
        information = sum(p * math.log2(p / prior[h] / of_answer[y]) for (h, y), p in joint.items() if p)
        assert gain[c] == pytest.approx(information, abs=1e-9)
    assert gain.max() <= 1 and gain[4] == 0
    best = np.flatnonzero(gain >= gain.max() - 1e-9)
    assert {InformationGain().choose(belief) for _ in range(20)} <= set(best)
    assert entropy_bits(np.array([0, 0.5, 1])) == pytest.approx([0, 1, 0])


def test_the_most_informative_tests_find_a_machine_in_the_fewest_tests():
    """One of 30 machines takes five answers at least, and hardly more; the first example may be one of them."""
    few, any_, confirming = (
        [row.metrics.get("tests_to_solve", 45.0) for row in run(MACHINE, agent, episodes=25).rows]
        for agent in ("information_gain", "random_test", "confirmation_biased")
    )
    assert max(few) <= 7 and np.mean(few) < np.mean(any_) < np.mean(confirming)


def test_random_tests_do_not_repeat_before_all_were_made():
    _, memory, _ = play(Blicket(tests=15), RandomTest(), seed=3)
    assert memory.asked.all(), "the example and 15 others are all 16"


def test_thinking_in_opposites_drops_the_trait_that_was_named_and_the_control_keeps_it():
    """The example has one trait, so that this is the one that is named."""
    columns = list(product((0, 1), repeat=4))
    game = tiny_game(np.ones((1, 16)), traits=np.array(columns).T)
    for seed in range(10):
        example = columns.index((0, 1, 0, 0))
        belief = belief_in(game, [(example, True)], seed)
        assert columns[opposite(belief)] == (0, 0, 0, 0), "lacks it, and is otherwise like the example"
        kept = columns[CHOICES["control"](belief)]
        assert kept[1] == 1 and sum(kept) == 2, "has it, and is the nearest that was not made"


def test_what_is_named_is_a_trait_that_the_example_has():
    columns = list(product((0, 1), repeat=4))
    game = tiny_game(np.ones((1, 16)), traits=np.array(columns).T)
    chosen = set()
    for seed in range(30):
        belief = belief_in(game, [(columns.index((1, 1, 0, 1)), True)], seed)
        chosen.add(columns[opposite(belief)])
    assert chosen == {(0, 1, 0, 1), (1, 0, 0, 1), (1, 1, 0, 0)}


def test_a_counter_example_is_excluded_by_the_own_hypothesis_and_likely_by_the_others():
    truth = [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
    game = tiny_game(truth, log_prior=np.log([0.5, 0.3, 0.2]))
    belief = belief_in(game, [(0, True)])
    assert counter_example(belief) == 2
    belief.learn(game.tests[2], False)
    assert counter_example(belief) in (3, 4), "of what is left"


def test_interventions_make_a_confirming_agent_falsify_and_find_rules_and_the_control_does_not():
    def outcome(**options):
        agent = Hypothesis(0.03, heed=0.5, **options)
        rows = run(NUMBERS, agent, episodes=32).rows
        return [
            np.mean([f(row) for row in rows]) for f in (lambda r: r.success, lambda r: r.metrics["incompatibility"])
        ]

    plain, control = outcome(), outcome(intervention="control")
    for intervention in ("opposites", "counterexamples"):
        helped = outcome(intervention=intervention)
        assert helped[0] > max(plain[0], control[0]) and helped[1] > max(plain[1], control[1]) + 0.1


@pytest.mark.parametrize("env", [NUMBERS, MACHINE])
@pytest.mark.parametrize("agent", ["hypothesis", "confirmation_biased", "information_gain", "random_test"])
def test_agents_play_to_the_end_and_the_same_again(env, agent):
    one, again = (run(env, agent, episodes=2, seed=4).rows for _ in range(2))
    for a, b in zip(one, again, strict=True):
        assert not a.failed and a.ticks == 91 and a.metrics["tests"] == 45 and a.metrics["unparseable"] == 0
        assert (a.success, a.score, dict(a.metrics)) == (b.success, b.score, dict(b.metrics))


def test_an_answer_is_learned_from_once_however_often_the_turn_is_asked():
    env, agent = Blicket(), RandomTest()
    observation, _ = env.reset(seed=0)
    memory = agent.reset(episode_of(env))
    agent.act(memory, observation)
    before = memory.weights.copy()
    observation, *_ = env.step({"kind": 1, "objects": np.zeros(4, np.int8), "announcement": ""})
    assert observation["refused"]
    agent.act(memory, observation)
    assert np.array_equal(memory.weights, before) and len(memory.traits) == 1


def test_noise_is_lived_with_by_who_expects_it():
    rows = run(f"{MACHINE}:noise=0.1", "information_gain:error=0.1", episodes=20).rows
    sure = run(f"{MACHINE}:noise=0.1", "information_gain:error=0.1,patience=3", episodes=20).rows
    assert np.mean([row.success for row in rows]) >= 0.8 and not any(row.failed for row in sure)


def test_a_remote_agent_asks_the_same_questions():
    """Actions of turns with text and numbers go through the socket unchanged."""
    agent = make_agent("hypothesis", NUMBERS)
    for world in (NUMBERS, MACHINE):
        env = make_env(world)
        with PolicyServer(agent, episode_of(env, env_id=world), "tcp://127.0.0.1:*", warmup=False) as server:
            remote = RemoteAgent(server.bind, patience_s=5.0)
            try:
                there = run(world, remote, episodes=2, seed=9).rows
            finally:
                remote.close()
        here = run(world, agent, episodes=2, seed=9).rows
        for a, b in zip(here, there, strict=True):
            assert not b.failed, b.reason
            assert (a.success, a.ticks, dict(a.metrics)) == (b.success, b.ticks, dict(b.metrics))


@pytest.mark.parametrize(
    ("agent", "complaint"),
    [
        ("hypothesis:falsify=1.5", "falsify=1.5, expected a probability from 0 to 1"),
        ("hypothesis:heed=-1", "heed=-1"),
        ("hypothesis:falsify=true", "falsify=True"),
        ("hypothesis:intervention=prayer", "intervention='prayer', expected one of opposites"),
        ("hypothesis:error=0", "error=0, expected how often an answer is wrong"),
        ("information_gain:error=0.5", "error=0.5"),
        ("random_test:patience=0", "patience=0, expected 1 or more answers"),
        ("confirmation_biased:patience=1.5", "patience=1.5"),
        ("confirmation_biased:doubt=1", "doubt"),
    ],
)
def test_bad_options_get_a_sentence(agent, complaint):
    with pytest.raises(ValueError, match=complaint):
        make_agent(agent, NUMBERS)


def test_the_biased_agent_is_a_hypothesis_agent_that_waits():
    rows = run(NUMBERS, ConfirmationBiased(patience=3), episodes=4).rows
    same_rows = run(NUMBERS, Hypothesis(0.0, patience=3), episodes=4).rows
    assert [dict(row.metrics) for row in rows] == [dict(row.metrics) for row in same_rows]


# --- prompts ---

FALSIFYING = ("opposite", "contradict", "refut", "falsif", "disprove", "counter", "forbid", "wrong", "against",
              "challenge", "negative", "not fit", "exclude", "DAX", "MED")  # fmt: skip


def prompt(intervention, env, answer=True):
    key = "triple" if isinstance(env, RuleDiscovery) else "objects"
    return first_message(intervention, env.instruction, WORDS[key], "[2, 4, 6]", answer)


@pytest.mark.parametrize("env", [RuleDiscovery(), Blicket()], ids=["numbers", "machine"])
def test_the_plain_prompt_and_the_control_say_nothing_of_refuting(env):
    for intervention in ("plain", "control"):
        said = prompt(intervention, env)
        assert not [word for word in FALSIFYING if word.lower() in said.lower()], intervention
    for intervention in ("opposites", "counterexamples", "dual_goal"):
        assert [word for word in FALSIFYING if word.lower() in prompt(intervention, env).lower()]
    plain = len(prompt("plain", env))
    control, opposites = (len(prompt(name, env)) - plain for name in ("control", "opposites"))
    assert abs(control - opposites) <= 0.15 * opposites
    words = [len(PROMPTS[name].split()) for name in ("control", "opposites")]
    assert abs(words[0] - words[1]) <= 0.15 * words[1]


@pytest.mark.parametrize("env", [RuleDiscovery(), Blicket()], ids=["numbers", "machine"])
@pytest.mark.parametrize("intervention", PROMPTS)
def test_every_prompt_has_the_task_the_forms_and_the_example(env, intervention):
    said = prompt(intervention, env)
    key = "triple" if isinstance(env, RuleDiscovery) else "objects"
    assert env.instruction in said and WORDS[key].test in said and "{" not in said
    yes, no = answers(intervention, WORDS[key])[::-1]
    assert said.endswith(f"is [2, 4, 6]: {yes}.") and prompt(intervention, env, False).endswith(f": {no}.")
    dual = intervention == "dual_goal"
    assert (yes, no) == (("DAX", "MED") if dual else WORDS[key].answers[::-1])
    for name in ("`Announce DAX: ", "`Announce MED: "):
        assert (name in said) == dual
    assert ("`Announce: " in said) != dual
    with pytest.raises(ValueError, match="intervention='trust me', expected one of plain, control"):
        prompt("trust me", env)


# --- the door for language models ---


class Script:
    """Replies with a thought and the next of its lines; remembers every conversation that it was asked to go on."""

    def __init__(self, announcement, *tests):
        self.announcement, self.tests, self.asked = announcement, iter(tests), []

    def __call__(self, conversation, generator):
        assert isinstance(generator, np.random.Generator)
        self.asked.append([dict(message) for message in conversation])
        if "Now test" in conversation[-1]["content"]:
            return f"Let me think: what if Test: were a word?\n  `{next(self.tests)}`  \n"
        return f"<think>It may be\nAnnounce: something else.</think>\n{self.announcement}\nDone."


def test_a_language_model_plays_number_triples_to_the_end():
    script = Script("Announce: `all even`", "Check: [1, 2, 3]", "Check: [0, 2, 8]", "Check: [7, 7, 7]")
    env = RuleDiscovery("train", "all even", tests=3, actions="text")
    info, memory, _ = play(env, Proposer(script))
    assert info["success"] and info["metrics"]["tests"] == 3 and info["metrics"]["retries"] == 0
    assert env._log.answers == [False, True, False] and env._log.compatible == [False, True, False]
    roles = [message["role"] for message in memory.messages]
    assert roles == ["user", "assistant"] * 6 + ["user"]
    said = [message["content"] for message in memory.messages if message["role"] == "assistant"]
    assert said == ["Announce: all even", "Check: [1, 2, 3]", "Announce: all even", "Check: [0, 2, 8]",
                    "Announce: all even", "Check: [7, 7, 7]"]  # fmt: skip
    assert all("think" in reply.lower() for reply in memory.replies) and len(memory.replies) == 7
    heard = [message["content"] for message in memory.messages if message["role"] == "user"]
    assert heard[0].startswith(env.instruction) and heard[2].startswith("[1, 2, 3]: NO.\nNow say what you believe")
    assert heard[1] == "Now test: `Check: [a, b, c]`" and heard[4].startswith("[0, 2, 8]: YES.")
    assert json.dumps(memory.messages), "a conversation is plain data"


def test_a_language_model_plays_the_blicket_test_to_the_end():
    script = Script(
        "Announce: blickets=[object 0, object 1]; rule=xor", "Test: [object 0]", "Test: []", "Test: [object 3]"
    )
    env = Blicket(tests=3, actions="text")
    info, memory, _ = play(env, Proposer(script, "opposites"))
    assert info["metrics"]["tests"] == 3 and info["metrics"]["unparseable"] == 0 and info["metrics"]["retries"] == 0
    assert PROMPTS["opposites"].format(thing="set of objects") in memory.messages[0]["content"]
    assert memory.messages[4]["content"].startswith(f"[object 0]: {'ON' if env._log.answers[0] else 'OFF'}.")


def test_of_two_announced_rules_the_dax_line_counts():
    script = Script("Announce DAX: all even\nAnnounce MED: at least one odd", "Check: [1, 2, 3]", "Check: [0, 2, 8]")
    env = RuleDiscovery("train", "all even", tests=2, actions="text")
    info, memory, _ = play(env, Proposer(script, "dual_goal"))
    assert info["success"] and info["metrics"]["first_guess"] == 1 and info["metrics"]["unparseable"] == 0
    assert memory.messages[4]["content"].startswith("[1, 2, 3]: MED.\nNow say what you believe: `Announce DAX: ")
    assert memory.messages[-1]["content"].startswith("[0, 2, 8]: DAX.")


def test_retries_say_what_was_refused_and_leave_no_trace():
    env = RuleDiscovery("train", "all even", tests=2, actions="text")
    seed = env.reset(seed=0)[0]["triple"].tolist()
    script = Script("Announce: all even", "Check: 1, 2, 3", f"Check: {seed}", "Check: [1, 2, 3]", "Check: [1, 1, 1]")
    info, memory, _ = play(env, Proposer(script))
    assert info["metrics"]["retries"] == 2 and info["metrics"]["tests"] == 2
    refused, repeated = script.asked[2][-1]["content"], script.asked[3][-1]["content"]
    assert refused.startswith("Now test: `Check: [a, b, c]`\n") and "'1, 2, 3' is not a list of three" in refused
    assert "is the first triple; test a different one" in repeated and "'1, 2, 3'" not in repeated
    assert len(script.asked[2]) == len(script.asked[1]) == len(script.asked[3])
    assert "refused" not in str(memory.messages) and "'1, 2, 3'" not in str(memory.messages)
    assert len(memory.replies) == 7 and len(memory.messages) == 9


@pytest.mark.parametrize("reply", ["", "I would rather not.", "Announce", "Test: Check: [1, 2]", "\0\ud800é",
                                   "Check: [1]\n" * 999, "Announce:" + " " * 9999], ids=range(7))  # fmt: skip
def test_nonsense_is_an_error_after_ten_retries(reply):
    env = RuleDiscovery(actions="text")
    with pytest.raises(EpisodeError, match="asked 11 times"):
        play(env, Proposer(lambda *_: reply))
    assert env._log.retries == 10 and not env._log.understood


def test_nonsense_fails_the_episode_and_not_the_run():
    rows = run(f"{MACHINE}:actions=text", Proposer(lambda *_: "hm"), episodes=2).rows
    assert all(row.failed and "asked 11 times" in row.reason for row in rows)


def test_a_proposer_is_refused_with_a_sentence_where_it_cannot_play():
    with pytest.raises(ValueError, match="intervention='pray', expected one of plain"):
        Proposer(lambda *_: "", "pray")
    for env in (RuleDiscovery(), Blicket()):
        with pytest.raises(ValueError, match="make RuleDiscovery or Blicket with actions='text'"):
            Proposer(lambda *_: "").reset(episode_of(env))
    with pytest.raises(TypeError, match="propose returned None, expected the text of a reply"):
        play(RuleDiscovery(actions="text"), Proposer(lambda *_: None))


@pytest.mark.parametrize("env", [RuleDiscovery(), Blicket()], ids=["numbers", "machine"])
def test_the_chance_of_an_agent_is_not_that_by_which_the_world_hides_its_rule(env):
    env.reset(seed=5)
    agent = RandomTest()
    drawn = agent.reset(episode_of(env, 5)).generator.random(4)
    assert np.array_equal(drawn, agent.reset(episode_of(env, 5)).generator.random(4))
    assert not np.array_equal(drawn, np.random.default_rng(5).random(4))


def test_agents_do_not_test_the_seed_triple_again():
    env = RuleDiscovery("train", "all even", tests=45)
    assert sum(play(env, Hypothesis(0.0), seed)[0]["metrics"]["retries"] for seed in range(10)) == 0
