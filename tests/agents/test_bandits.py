"""Matching bandits: estimator, design and sampler against brute force, certificates and an independent solver."""

from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from palaestra.agents.agent import Episode, Transition
from palaestra.agents.bandits.bilinear_ridge import BilinearRidge, outer_products
from palaestra.agents.bandits.c2ucb import C2UCB
from palaestra.agents.bandits.comblin_ts import CombLinTS
from palaestra.agents.bandits.greedy import EpsilonGreedy, ExploreThenCommit, Greedy, RandomMatching
from palaestra.agents.bandits.hybrid_rrd import HybridRRD
from palaestra.agents.bandits.matching import Belief, Catalogue
from palaestra.agents.bandits.row_design import design_matrices, solve_row_design
from palaestra.envs.decision.matching_bandit import MatchingBandit

AGENTS = (HybridRRD, C2UCB, CombLinTS, Greedy, EpsilonGreedy, ExploreThenCommit, RandomMatching)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def play(agent, seed=0, rounds=200, watch=None, **options):
    """An episode in the world itself; returns its last info and the agent's memory."""
    env = MatchingBandit(rounds=rounds, **options)
    observation, _ = env.reset(seed=seed)
    episode = Episode(seed, "bandit", env.observation_space, env.action_space, env.interface)
    memory, over = agent.reset(episode), False
    while not over:
        action = agent.act(memory, observation)
        assert env.action_space.contains(action)
        if watch:
            watch(memory, action)
        after, reward, _, over, info = env.step(action)
        agent.learn(memory, Transition(observation, action, reward, after, False, over))
        observation = after
    return info, memory, env


# Estimator -----------------------------------------------------------------------------------------------------------


def test_the_estimator_agrees_with_plain_ridge_regression_and_its_widths_with_brute_force():
    draw = np.random.default_rng(0)
    ridge, d1, d2, lam = BilinearRidge(3, 2, 0.7), 3, 2, 0.7
    features, targets = np.zeros((0, 6)), np.zeros(0)
    for _ in range(40):
        users, items, rewards = draw.normal(size=(4, d1)), draw.normal(size=(4, d2)), draw.normal(size=4)
        ridge.update(users, items, rewards)
        features = np.vstack([features, [np.kron(x, y) for x, y in zip(users, items, strict=True)]])
        targets = np.append(targets, rewards)
    matrix = lam * np.eye(6) + features.T @ features
    np.testing.assert_allclose(ridge.inverse, np.linalg.inv(matrix), atol=1e-10)
    np.testing.assert_allclose(ridge.theta.ravel(), np.linalg.solve(matrix, features.T @ targets), atol=1e-10)
    assert ridge.logdet == pytest.approx(np.linalg.slogdet(matrix / lam)[1], abs=1e-9)
    users, items = draw.normal(size=(5, d1)), draw.normal(size=(7, d2))
    expected = [[np.kron(x, y) @ np.linalg.solve(matrix, np.kron(x, y)) for y in items] for x in users]
    np.testing.assert_allclose(ridge.squared_widths(outer_products(users), outer_products(items)), expected, atol=1e-10)


def test_without_noise_only_the_penalty_is_between_estimate_and_truth():
    _, memory, env = play(RandomMatching(lam=0.5), noise=0.0, rounds=60, users=3, items=6, d1=2, d2=2)
    least = np.linalg.eigvalsh(np.linalg.inv(memory.ridge.inverse))[0]
    assert np.linalg.norm(memory.ridge.theta - env._theta) <= 0.5 * np.linalg.norm(env._theta) / least + 1e-12


# Matchings -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), users=st.integers(1, 4), kinds=st.integers(1, 3))
def test_the_best_matching_is_that_of_exhaustive_search_also_with_copies(seed, users, kinds):
    draw = np.random.default_rng(seed)
    items = draw.integers(kinds, size=users + int(draw.integers(3)))[:, None] * np.ones(2)
    catalogue = Catalogue.of(items)
    values = draw.integers(-3, 4, (users, len(catalogue.kinds))).astype(float)  # ties happen
    full = values[:, catalogue.shelf]
    best = max(sum(full[i, j] for i, j in enumerate(m)) for m in permutations(range(len(items)), users))
    chosen = catalogue.best_matching(values)
    assert values[np.arange(users), chosen].sum() == best
    handed = catalogue.hand_out(chosen)
    assert len(set(handed.tolist())) == users
    np.testing.assert_array_equal(items[handed], catalogue.kinds[chosen])


# Design --------------------------------------------------------------------------------------------------------------


def design(seed, users=4, n=6, d2=3, gamma=10.0, rho=0.01, steps=400, tolerance=1e-4, rewards=None, copies=1):
    draw = np.random.default_rng(seed)
    items = np.repeat(unit(draw.normal(size=(n, d2))), copies, axis=0)
    catalogue = Catalogue.of(items)
    rewards = draw.uniform(-1, 1, (users, n)) if rewards is None else np.full((users, n), rewards)
    atoms = np.stack([catalogue.random_matching(users, draw) for _ in range(2 * d2)])
    weights = np.full(len(atoms), 1 / len(atoms))
    found = solve_row_design(rewards, catalogue, gamma, rho, atoms, weights, steps=steps, tolerance=tolerance)
    return found, catalogue, rewards


def objective(marginals, catalogue, rewards, gamma, rho):
    spread = np.linalg.slogdet(design_matrices(marginals, catalogue, rho))[1].sum()
    return float((rewards * marginals).sum() + spread / gamma)


@pytest.mark.parametrize("seed", range(4))
def test_a_design_is_a_mixture_of_matchings_and_draws_each_pair_as_often_as_it_says(seed):
    found, _, _ = design(seed)
    mixed = np.zeros_like(found.marginals)
    for atom, weight in zip(found.atoms, found.weights, strict=True):
        assert len(set(atom.tolist())) == len(atom)
        mixed[np.arange(len(atom)), atom] += weight
    np.testing.assert_allclose(found.marginals, mixed, atol=1e-12)
    assert found.weights.sum() == pytest.approx(1, abs=1e-12) and found.weights.min() > 0
    assert found.marginals.sum(axis=1) == pytest.approx([1] * 4, abs=1e-12)
    assert (found.marginals.sum(axis=0) <= 1 + 1e-12).all()
    draw, counts, n = np.random.default_rng(seed), np.zeros_like(found.marginals), 20_000
    for _ in range(n):
        counts[np.arange(4), found.sample(draw)] += 1
    error = np.sqrt(found.marginals * (1 - found.marginals) / n)
    assert (np.abs(counts / n - found.marginals) <= 4.5 * error + 1e-9).all()


@pytest.mark.parametrize("seed", range(4))
def test_the_certificate_holds_for_every_matching_and_is_tight_at_the_worst(seed):
    gamma, rho, d2 = 10.0, 0.01, 3
    for steps in (3, 300):  # converged or not
        found, catalogue, rewards = design(seed, gamma=gamma, rho=rho, steps=steps)
        matrices = design_matrices(found.marginals, catalogue, rho)
        inverses = np.linalg.inv(matrices)
        played = (rewards * found.marginals).sum()
        sides = []
        for matching in permutations(range(6), 4):
            good = sum(rewards[i, j] for i, j in enumerate(matching)) - played
            told = sum(catalogue.kinds[j] @ inverses[i] @ catalogue.kinds[j] for i, j in enumerate(matching))
            sides.append(gamma * good + told)
        middle = sum(np.trace(a_inv @ (a - rho * np.eye(d2))) for a_inv, a in zip(inverses, matrices, strict=True))
        assert max(sides) == pytest.approx(middle + gamma * found.gap, abs=1e-8)
        assert middle <= 4 * d2


@pytest.mark.parametrize("seed", range(3))
def test_the_solver_finds_the_optimum_of_an_independent_one_and_never_goes_down(seed):
    users, n, gamma, rho = 3, 5, 6.0, 0.05
    found, catalogue, rewards = design(seed, users=users, n=n, d2=2, gamma=gamma, rho=rho, tolerance=1e-6)

    def loss(flat):
        return -objective(flat.reshape(users, n), catalogue, rewards, gamma, rho)

    constraints = [
        {"type": "eq", "fun": lambda flat: flat.reshape(users, n).sum(axis=1) - 1},
        {"type": "ineq", "fun": lambda flat: 1 - flat.reshape(users, n).sum(axis=0)},
    ]
    start = np.full(users * n, 1 / n)
    reference = minimize(
        loss, start, bounds=[(0, 1)] * (users * n), constraints=constraints, options={"maxiter": 500, "ftol": 1e-12}
    )
    assert objective(found.marginals, catalogue, rewards, gamma, rho) == pytest.approx(-reference.fun, abs=1e-3)
    values = [
        objective(design(seed, users=users, n=n, d2=2, gamma=gamma, rho=rho, steps=k)[0].marginals, *rest)
        for rest in [(catalogue, rewards, gamma, rho)]
        for k in range(12)
    ]
    assert (np.diff(values) >= -1e-12).all()


def test_with_all_weight_on_rewards_the_design_is_the_greedy_matching():
    found, catalogue, rewards = design(0, gamma=1e9)
    best = catalogue.best_matching(rewards)
    assert found.marginals[np.arange(4), best] == pytest.approx([1] * 4, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_without_rewards_each_row_is_a_d_optimal_design(seed):
    users, d2 = 3, 2
    found, catalogue, _ = design(
        seed, users=users, n=6, d2=d2, gamma=1.0, rho=1e-7, copies=users, rewards=0.0, tolerance=1e-3, steps=2000
    )
    inverses = np.linalg.inv(design_matrices(found.marginals, catalogue, 1e-7))
    leverage = inverses.reshape(users, -1) @ catalogue.squares.T
    assert leverage.max(axis=1) == pytest.approx([d2] * users, rel=0.02)  # Kiefer and Wolfowitz


def test_zero_features_and_equal_items_break_nothing():
    catalogue = Catalogue.of(np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    atoms = np.array([[0, 1], [0, 0]])
    found = solve_row_design(np.zeros((2, 2)), catalogue, 1.0, 0.01, atoms, np.array([0.5, 0.5]), steps=50)
    assert np.isfinite(found.marginals).all() and (found.marginals.sum(axis=0) <= catalogue.capacity + 1e-9).all()


@pytest.mark.parametrize(("gamma", "rho"), [(0.0, 0.1), (-1.0, 0.1), (1.0, 0.0)])
def test_a_design_without_weights_is_refused(gamma, rho):
    catalogue = Catalogue.of(np.eye(2))
    with pytest.raises(ValueError, match="above 0"):
        solve_row_design(np.zeros((1, 2)), catalogue, gamma, rho, np.array([[0]]), np.ones(1))


# Agents --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instance", ["gaussian", "hard"])
def test_rounds_of_the_widest_matching_are_as_few_as_the_analysis_says(instance):
    agent, tau, users, wide = HybridRRD(), 2.0, 8, []

    def watch(memory, action):
        catalogue, widths = memory.catalogue, memory.squared_widths()
        best = catalogue.best_matching(widths)
        if widths[np.arange(len(widths)), best].sum() > tau:
            assert np.linalg.eigvalsh(np.linalg.inv(memory.ridge.inverse))[0] < users / tau
            wide.append(widths[np.arange(len(widths)), catalogue.shelf[action]].sum())

    play(agent, rounds=300, instance=instance, watch=watch)
    d = 12
    assert 0 < len(wide) <= d * np.log(1 + 300 * users / d) / np.log(1 + tau)
    assert min(wide) > tau  # and then it is the widest that is played


def test_linearised_and_bilinear_optimism_choose_the_same():
    draw = np.random.default_rng(0)
    agent = C2UCB(scale=0.5, noise=2.0, norm=3.0, delta=0.1, lam=0.5)

    def watch(memory, action):
        ridge = memory.ridge
        pairs = np.array([[np.kron(x, y) for y in memory.catalogue.items] for x in memory.users])
        spread = np.sqrt(np.einsum("mnd,de,mne->mn", pairs, ridge.inverse, pairs))
        volume = np.linalg.slogdet(np.linalg.inv(ridge.inverse) / 0.5)[1]
        radius = 2.0 * np.sqrt(volume + 2 * np.log(10)) + 0.5**0.5 * 3.0
        scores = pairs @ ridge.theta.ravel() + 0.5 * radius * spread
        best = max(permutations(range(5), 3), key=lambda m: sum(scores[i, j] for i, j in enumerate(m)))
        assert scores[range(3), list(best)].sum() == pytest.approx(scores[range(3), action].sum())

    play(agent, rounds=40, users=3, items=5, d1=2, d2=2, watch=watch, seed=int(draw.integers(100)))


def test_modified_optimism_first_plays_as_many_pairs_as_can_be_of_which_nothing_is_known():
    cleared = []

    def watch(memory, action):
        wide = memory.squared_widths()[:, memory.catalogue.shelf] > 1
        most = max(sum(wide[i, j] for i, j in enumerate(m)) for m in permutations(range(5), 3))
        assert wide[range(3), action].sum() == most
        cleared.append(most)

    play(C2UCB(modified=True, lam=0.2), rounds=40, users=3, items=5, d1=2, d2=2, watch=watch)
    assert cleared[0] == 3 and cleared[-1] == 0


def test_a_sampled_belief_has_the_mean_and_the_covariance_of_the_posterior():
    agent, drawn = CombLinTS(scale=0.5), []
    _, memory, _ = play(agent, rounds=10, users=2, items=3, d1=2, d2=1)
    memory.look(np.eye(2), np.ones((3, 1)))
    memory.catalogue = SimpleNamespace(kinds=np.ones((1, 1)), best_matching=lambda values: drawn.append(values.ravel()))
    for _ in range(20_000):
        agent.match(memory)
    np.testing.assert_allclose(np.mean(drawn, axis=0), memory.ridge.theta.ravel(), atol=0.01)
    np.testing.assert_allclose(np.cov(np.transpose(drawn)), 0.25 * memory.ridge.inverse, atol=0.005)


def test_permuting_the_users_permutes_the_design():
    draw = np.random.default_rng(0)
    rewards, order = draw.uniform(-1, 1, (4, 6)), np.array([2, 0, 3, 1])
    catalogue = Catalogue.of(unit(draw.normal(size=(6, 3))))
    atoms, weights = np.array([[0, 1, 2, 3], [5, 4, 3, 2]]), np.array([0.5, 0.5])
    one = solve_row_design(rewards, catalogue, 5.0, 0.01, atoms, weights, steps=3000, tolerance=1e-7)
    two = solve_row_design(rewards[order], catalogue, 5.0, 0.01, atoms[:, order], weights, steps=3000, tolerance=1e-7)
    np.testing.assert_allclose(two.marginals, one.marginals[order], atol=2e-3)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(
    "options",
    [
        {"users": 1, "items": 1, "d1": 1, "d2": 1},
        {"users": 3, "items": 3},
        {"context": "fresh"},
        {"instance": "hard", "users": 2, "d2": 2},
    ],
)
def test_every_agent_plays_every_instance_the_same_way_twice(agent, options):
    one, two = (play(agent(), seed=4, rounds=30, **options)[0] for _ in range(2))
    assert one == two
    if options.get("items") == 1:
        assert one["metrics"]["regret"] == 0


def test_who_learns_regrets_less_than_chance():
    scores = {agent: play(agent(), rounds=600, instance="hard")[0]["score"] for agent in (HybridRRD, C2UCB, CombLinTS)}
    assert all(score > 0.4 for score in scores.values())
    assert abs(play(RandomMatching(), rounds=600, instance="hard")[0]["score"]) < 0.05


def test_gamma_is_that_of_the_analysis_whoever_knows_the_horizon():
    belief = Belief(4, 3, 1.0, np.random.default_rng(0), 1000)
    belief.look(np.ones((8, 4)), np.ones((8, 3)))
    expected = 8 * np.sqrt(1000 * 8 / (4 * np.log(1000)))
    assert HybridRRD().gamma(belief) == pytest.approx(expected)
    belief.horizon, belief.rounds = None, 1000
    assert HybridRRD().gamma(belief) == pytest.approx(expected)
    assert HybridRRD(horizon=10).gamma(belief) < expected


@pytest.mark.parametrize(
    ("agent", "options"),
    [
        (HybridRRD, {"c": 0.0}),
        (HybridRRD, {"tau": -1.0}),
        (HybridRRD, {"rho": float("nan")}),
        (HybridRRD, {"lam": 0}),
        (HybridRRD, {"horizon": -1}),
        (C2UCB, {"scale": 0.0}),
        (C2UCB, {"modified": 1}),
        (C2UCB, {"delta": 0.0}),
        (C2UCB, {"delta": 1.5}),
        (CombLinTS, {"noise": "loud"}),
        (EpsilonGreedy, {"epsilon": 1.1}),
        (ExploreThenCommit, {"explore": 0.5}),
    ],
)
def test_options_out_of_range_are_refused_by_name(agent, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        agent(**options)


def test_worlds_and_observations_that_are_none_are_refused():
    agent = Greedy()
    with pytest.raises(ValueError, match="features of users and items"):
        agent.reset(Episode(0, "Pendulum-v1", spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (1,))))
    env = MatchingBandit(users=2, items=3, d1=2, d2=2)
    memory = agent.reset(Episode(0, "bandit", env.observation_space, env.action_space))
    with pytest.raises(ValueError, match="at least as many items as users"):
        agent.act(memory, {"users": np.ones((2, 2)), "items": np.ones((1, 2))})
    with pytest.raises(ValueError, match="users hold nan"):
        agent.act(memory, {"users": np.full((2, 2), np.nan), "items": np.ones((3, 2))})
    observation = {"users": np.ones((2, 2)), "items": np.ones((3, 2)), "rewards": np.zeros(3)}
    with pytest.raises(ValueError, match="rewards for 2 users"):
        agent.learn(memory, Transition(observation, np.array([0, 1]), 0.0, observation, False, False))
