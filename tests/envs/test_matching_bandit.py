"""MatchingBandit: what it pays against exhaustive search, who may know what, and what it refuses."""

from itertools import permutations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import palaestra  # noqa: F401 - registers the ids
from palaestra.envs.decision.matching_bandit import CURVE, MatchingBandit

TABLE = {
    "users": {"names": ["careful", "fast"], "features": [[1.0, 0.0], [1.0, 3.0]]},
    "items": {"names": ["near", "far", "heavy"], "features": [[1.0], [0.5], [-1.0]]},
    "rewards": [[[1.0, 1.0], [0.5], [0.0, 1.0]], [[0.0], [0.25, 0.75], [1.0]]],
}


def play(env, seed, act):
    observation, _ = env.reset(seed=seed)
    seen, infos, over = [observation], [], False
    while not over:
        observation, _, _, over, info = env.step(act(observation))
        seen.append(observation)
        infos.append(info)
    return seen, infos


@pytest.mark.parametrize(
    "options",
    [{}, {"context": "fresh"}, {"instance": "hard", "users": 3}, {"instance": "dispatcher", "rewards": TABLE}],
)
@pytest.mark.filterwarnings("ignore:.*infinity")  # rewards are unbounded
def test_gymnasium_accepts_it_and_whoever_samples_its_actions_plays(options):
    env = MatchingBandit(rounds=30, **options)
    check_env(env, skip_render_check=True)
    env.action_space.seed(0)
    seen, _ = play(env, 1, lambda observation: env.action_space.sample())
    assert all(observation in env.observation_space for observation in seen)
    assert np.zeros(len(env.action_space.nvec), np.int64) not in env.action_space


def test_the_same_seed_is_the_same_world():
    env = MatchingBandit()
    observation, _ = env.reset(seed=7)
    again, _ = MatchingBandit().reset(seed=7)
    for key in observation:
        np.testing.assert_array_equal(observation[key], again[key])


@pytest.mark.parametrize(
    "options",
    [
        {"users": 3, "items": 5, "d1": 2, "d2": 3},
        {"users": 4, "items": 4},
        {"users": 3, "items": 4, "context": "fresh"},
        {"instance": "hard", "users": 2, "d1": 2, "d2": 1},
        {"instance": "dispatcher", "rewards": TABLE},
    ],
)
def test_the_oracle_is_the_best_of_all_matchings_and_has_no_regret(options):
    env = MatchingBandit(rounds=4, **options)
    env.reset(seed=3)
    oracle, over = env.expert(), False
    while not over:
        means = env._means
        best = max(sum(means[i, j] for i, j in enumerate(m)) for m in permutations(range(means.shape[1]), len(means)))
        _, _, _, over, info = env.step(oracle())
        assert info["regret"] == pytest.approx(0, abs=1e-12)
        assert info["optimal"] == pytest.approx(best)
    assert info["score"] == pytest.approx(1)
    assert info["metrics"]["regret"] == pytest.approx(0, abs=1e-9)


def test_means_are_bilinear_in_what_is_seen_and_the_noise_is_what_it_says():
    env = MatchingBandit(users=3, items=6, d1=2, d2=3, rounds=4000, noise=0.5)
    seen, _ = play(env, 5, lambda observation: np.array([4, 0, 2]))
    paid = np.array([observation["rewards"] for observation in seen[1:]])
    pairs = np.stack([np.kron(seen[0]["users"][i], seen[0]["items"][j]) for i, j in enumerate([4, 0, 2])])
    assert np.linalg.norm(env._theta) == pytest.approx(1)
    means = pairs @ env._theta.ravel()
    assert paid.mean(axis=0) == pytest.approx(means, abs=5 * 0.5 / 4000**0.5)
    assert paid.std(axis=0) == pytest.approx([0.5] * 3, rel=0.05)
    assert all(np.linalg.norm(seen[0][key], axis=1) == pytest.approx(1) for key in ("users", "items"))


def test_the_hard_instance_is_that_of_the_lower_bound():
    env = MatchingBandit("hard", users=4, d1=3, d2=2, gap=0.6)
    observation, _ = env.reset(seed=0)
    assert observation["users"].tolist() == np.eye(3)[[0, 1, 2, 0]].tolist()
    signs, copies = np.unique(observation["items"], axis=0, return_counts=True)
    assert len(signs) == 4 and (copies == 4).all() and np.abs(signs) == pytest.approx(0.5**0.5)
    assert env._means.max(axis=1) == pytest.approx([0.6] * 4)
    assert env._means.mean(axis=1) == pytest.approx([0] * 4)


def test_regret_is_by_means_and_random_matchings_score_zero():
    env = MatchingBandit(users=3, items=7, rounds=3000, noise=10.0)
    draw = np.random.default_rng(1)
    _, infos = play(env, 2, lambda observation: draw.permutation(7)[:3])
    metrics = infos[-1]["metrics"]
    assert metrics["regret"] == pytest.approx(sum(info["regret"] for info in infos))
    assert min(info["regret"] for info in infos) >= 0
    assert infos[-1]["score"] == pytest.approx(0, abs=0.06)
    curve = [metrics[f"regret_at_{round(3000 * (k + 1) / CURVE)}"] for k in range(CURVE)]
    assert curve == sorted(curve) and curve[-1] == metrics["regret"]


def test_fresh_features_change_every_round_and_fixed_ones_never():
    for context, same in (("fixed", True), ("fresh", False)):
        seen, _ = play(MatchingBandit(context=context, rounds=3), 1, lambda observation: np.arange(8))
        assert np.array_equal(seen[0]["users"], seen[1]["users"]) == same
        assert np.array_equal(seen[0]["items"], seen[1]["items"]) == same


def test_a_dispatcher_pays_the_episodes_of_its_table():
    env = MatchingBandit("dispatcher", rewards=TABLE, rounds=400)
    seen, infos = play(env, 0, lambda observation: np.array([2, 1]))
    paid = np.array([observation["rewards"] for observation in seen[1:]])
    assert set(paid[:, 0]) == {0.0, 1.0} and set(paid[:, 1]) == {0.25, 0.75}
    assert paid.mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.1)
    assert np.linalg.norm(seen[0]["users"], axis=1).max() == pytest.approx(1)
    assert seen[0]["users"][1] == pytest.approx(np.array([1, 3]) / 10**0.5)  # one factor for all
    assert infos[0]["optimal"] == 2.0


def test_where_all_matchings_are_equally_good_everybody_scores_one():
    means = [[[round(0.1 + 0.2 * i + 0.3 * j, 1)] for j in range(3)] for i in range(3)]
    side = {"names": ["a", "b", "c"], "features": [[1.0]] * 3}
    env = MatchingBandit("dispatcher", rewards={"users": side, "items": side, "rewards": means}, rounds=50)
    draw = np.random.default_rng(0)
    _, infos = play(env, 0, lambda observation: draw.permutation(3))
    assert infos[-1]["score"] == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"instance": "easy"}, "instance='easy'"),
        ({"instance": "hard", "context": "fresh"}, "context='fresh'"),
        ({"users": 5, "items": 4}, "at least as many items as users"),
        ({"users": 0}, "users=0"),
        ({"rounds": 0}, "rounds=0"),
        ({"noise": -1.0}, "noise=-1.0"),
        ({"noise": float("nan")}, "noise=nan"),
        ({"noise": "loud"}, "noise='loud'"),
        ({"instance": "dispatcher", "rewards": {**TABLE, "rewards": [[[1e300]] * 3] * 2}}, "at most 1e"),
        ({"instance": "dispatcher", "rewards": {**TABLE, "rewards": [[[10**400]] * 3] * 2}}, "no table of rewards"),
        ({"gap": 0.0}, "gap=0.0"),
        ({"instance": "hard", "d2": 9}, "d2=9"),
        ({"instance": "dispatcher"}, "belong together"),
        ({"rewards": TABLE}, "belong together"),
        ({"instance": "dispatcher", "rewards": {}}, "no table of rewards"),
        ({"instance": "dispatcher", "rewards": {**TABLE, "rewards": TABLE["rewards"][:1]}}, "pairs"),
        ({"instance": "dispatcher", "rewards": {**TABLE, "rewards": [[[1.0], [], [1.0]]] * 2}}, "pair 0, 1"),
        ({"instance": "dispatcher", "rewards": {**TABLE, "users": {"names": ["a"], "features": [[1.0]] * 2}}}, "users"),
        ({"instance": "dispatcher", "rewards": "file.json"}, "no table of rewards"),
    ],
)
def test_what_is_not_an_instance_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        MatchingBandit(**options)


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ([0, 1], "each of the 3 users"),
        ([0, 1, 1], "item 1 to more than one user"),
        ([0, 1, 6], "names item 6"),
        ([0, -1, 2], "names item -1"),
        ([0.0, 1.0, 2.0], "number of an item"),
        (None, "number of an item"),
    ],
)
def test_what_is_no_matching_is_refused(action, said):
    env = MatchingBandit(users=3, items=6)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=said):
        env.step(action if action is None else np.array(action))


def test_nobody_plays_before_the_reset_or_after_the_end():
    env = MatchingBandit(rounds=1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="reset"):
            env.step(np.arange(8))
        env.reset(seed=0)
        env.step(np.arange(8))
    assert gymnasium.make("palaestra/MatchingBandit-v0", rounds=5).unwrapped.interface.episode_ticks == 5
