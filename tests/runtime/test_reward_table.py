"""Tables of rewards: they say what the store holds, files are read with distrust, and a dispatcher plays them."""

import json
import sys

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from palaestra.runtime import reward_table as module
from palaestra.runtime.cli.main import main
from palaestra.runtime.registry import make_env
from palaestra.runtime.reward_table import (
    bilinear_fit,
    features,
    pair_means,
    read_table,
    reward_table,
    shipped_table,
    write_table,
)
from palaestra.runtime.rollout import run
from palaestra.runtime.store import EpisodeRow, Store
from palaestra.runtime.studies import _dispatcher
from palaestra.runtime.study import Lab

AGENTS = ("admittance:damping=10.0", "admittance:damping=50.0")
WORLDS = ("a/Wipe-v0:flat=true", "a/Wipe-v0", "a/Wipe-v0+sensor_noise:std=0.1,key=wrench")


def row(agent, world, seed, score=0.5, **others):
    others = {"run_id": f"{agent}@{world}", "provenance": {"palaestra": "1.0"}} | others
    return EpisodeRow(seed=seed, env_id=world, agent=agent, score=score, **others)


def rows(n=5):
    """Episodes whose score says which pair and seed they are of."""
    return [
        row(agent, world, seed, 0.1 * i + 0.01 * j + 0.001 * seed)
        for i, agent in enumerate(AGENTS)
        for j, world in enumerate(WORLDS)
        for seed in range(n)
    ]


def test_a_table_holds_the_scores_of_each_pair_by_seed():
    table = reward_table(reversed(rows()))
    assert table["users"]["names"] == list(AGENTS)
    assert table["items"]["names"] == sorted(WORLDS)
    for i, agent in enumerate(table["users"]["names"]):
        for j, world in enumerate(table["items"]["names"]):
            expected = 0.1 * AGENTS.index(agent) + 0.01 * WORLDS.index(world) + 0.001 * np.arange(5)
            assert table["rewards"][i][j] == pytest.approx(expected)
    made_by = table["made_by"]
    assert (made_by["episodes"], made_by["same_seeds"], made_by["seeds"]) == (30, True, [0, 1, 2, 3, 4])
    assert (made_by["clock"], made_by["palaestra"]) == ("lockstep", "1.0")


def test_what_was_run_again_counts_once_and_what_failed_is_counted_apart():
    first = rows()
    again = row(AGENTS[0], WORLDS[0], 0, 0.9, run_id="later")
    failed = row(AGENTS[0], WORLDS[0], 7, None, failed=True, reason="fell over")
    table = reward_table([again, *first, failed])
    assert table["rewards"][0][table["items"]["names"].index(WORLDS[0])][0] == 0.9
    assert table["made_by"]["run_again"] == table["made_by"]["episodes_without_score"] == 1


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], "no stored episodes"),
        (rows()[:-1], "1 of 6 pairs have fewer than 5 .* the first with 4"),
        ([r for r in rows() if r.env_id == WORLDS[0]], "2 agents and 1 environments"),
        ([*rows(), row("zero", WORLDS[0], 0)], "3 of 9 pairs"),
        ([*rows(), row(AGENTS[0], WORLDS[0], 9, clock="virtual", profile="zero")], "differ in their clock: 'lockstep'"),
        ([*rows(), row(AGENTS[0], WORLDS[0], 9, provenance={"palaestra": "2.0"})], "differ in their version"),
    ],
)
def test_episodes_that_make_no_table_are_refused(found, words):
    with pytest.raises(ValueError, match=words):
        reward_table(found)


def test_features_are_what_the_names_say():
    names, rows = features([{"gain": 1.0, "arm": "a"}, {"gain": 10.0, "arm": "b"}, {"gain": 100.0, "arm": "a"}])
    longest = np.sqrt(1 + 1 + 1.5)
    expected = np.array([[1, 1, -np.sqrt(1.5)], [1, 0, 0], [1, 1, np.sqrt(1.5)]]) / longest
    assert names == ["1", "arm=a", "log gain"], "arm=b is one less arm=a, and says nothing new"
    assert rows == pytest.approx(expected)
    assert np.linalg.norm(rows, axis=1).max() == pytest.approx(1)


def test_what_a_name_lacks_is_marked_and_a_word_makes_another_perturbation():
    table = reward_table(rows())
    items = dict(zip(table["items"]["feature_names"], np.array(table["items"]["features"]).T, strict=True))
    plain, noisy, flat = (table["items"]["names"].index(WORLDS[k]) for k in (1, 2, 0))
    mark = items["+sensor_noise:key=wrench given"]
    assert mark[noisy] > 0 and mark[plain] == mark[flat] == 0
    assert items["flat given"][flat] > 0 and items["flat given"][noisy] == 0
    assert len(items) == 3, "three names differ in no more than three ways"


def test_the_bilinear_fit_agrees_with_least_squares_on_all_pairs_of_features():
    table = shipped_table()
    x, y = (np.array(table[side]["features"]) for side in ("users", "items"))
    means = pair_means(table)
    pairs = np.kron(x, y)
    theta = np.linalg.lstsq(pairs, means.ravel(), rcond=None)[0]
    left = ((pairs @ theta - means.ravel()) ** 2).sum()
    assert bilinear_fit(table)[1] == pytest.approx(1 - left / ((means - means.mean()) ** 2).sum(), abs=1e-9)
    bilinear = {**table, "rewards": [[[value] for value in row] for row in (x @ np.ones((x.shape[1], 1)) @ y[:, :1].T)]}
    assert bilinear_fit(bilinear)[1] == pytest.approx(1)


def test_a_file_gives_back_what_was_written(tmp_path):
    table = reward_table(rows())
    write_table(tmp_path / "t.json", table)
    assert read_table(tmp_path / "t.json") == table
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    with pytest.raises(ValueError, match="is no folder"):
        write_table(tmp_path / "none" / "t.json", table)


def broken(change):
    table = json.loads(json.dumps(reward_table(rows())))
    change(table)
    return json.dumps(table)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no table"),
        (broken(lambda t: t.pop("items")), "is no table"),
        (broken(lambda t: t["rewards"][1].pop()), "rewards is not 2 rows of 3 lists"),
        (broken(lambda t: t["rewards"][1][2].clear()), "pair 1, 2"),
        (broken(lambda t: t["rewards"][0][1].append("1.0")), "pair 0, 1"),
        (broken(lambda t: t["rewards"][0][1].append(True)), "pair 0, 1"),
        (broken(lambda t: t["rewards"][0][1].append(float("nan"))), "NaN is not a number"),
        (broken(lambda t: t["rewards"][0][1].append(10**400)), "pair 0, 1"),
        (broken(lambda t: t["users"]["features"][0].append(1.0)), "users.features is not 2 rows"),
        (broken(lambda t: t["users"].update(names=["a", "a"])), "users.names is not"),
        (broken(lambda t: t.update(users=t["items"], items=t["users"])), "3 users and 2 items"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, text, words):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_table(tmp_path / "t.json")


def test_a_file_that_is_too_large_or_not_there_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_table(tmp_path / "none.json")
    (tmp_path / "t.json").write_text(json.dumps(reward_table(rows())))
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="is larger than"):
        read_table(tmp_path / "t.json")


def test_the_shipped_table_is_worth_dispatching():
    table = shipped_table()
    means = pair_means(table)
    users, items = means.shape
    assert (users, items) == (6, 12)
    assert min(len(scores) for row in table["rewards"] for scores in row) >= 20
    assert table["made_by"]["same_seeds"] and not table["made_by"]["privileged"]
    best = means[np.arange(users), linear_sum_assignment(means, maximize=True)[1]].mean()
    assert best > means.mean() + 0.3, "the right matching earns more than a random one"
    assert best > np.sort(means.mean(axis=0))[-users:].mean() + 0.1, "and more than the easiest tasks at random"
    assert len(set(means.argmax(axis=0))) >= 3, "no policy is the best everywhere"
    assert 0.5 < bilinear_fit(table)[1] < 0.95, "the model of the bandits is wrong, but says something"


def test_the_registry_binds_the_shipped_table_and_a_file(tmp_path):
    bandit = "palaestra/MatchingBandit-v0:instance=dispatcher"
    assert make_env(bandit).action_space.shape == (6,)
    write_table(tmp_path / "t.json", reward_table(rows()))
    env = make_env(f"{bandit},rewards={tmp_path}/t.json,rounds=5")
    observation, _ = env.reset(seed=0)
    assert observation["users"].shape[0] == 2 and observation["items"].shape[0] == 3
    assert "rewards" not in make_env("palaestra/MatchingBandit-v0").spec.kwargs
    with pytest.raises(ValueError, match="expected the path"):
        make_env(f"{bandit},rewards=3")
    with pytest.raises(ValueError, match="cannot be read"):
        make_env(f"{bandit},rewards=/none.json")


def test_the_command_writes_a_table_of_the_episodes_it_is_asked_for(tmp_path, monkeypatch, capsys):
    def palaestra(*arguments):
        monkeypatch.setattr(sys, "argv", ["palaestra", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, capsys.readouterr().out

    monkeypatch.setenv("PALAESTRA_DB", str(tmp_path / "store.sqlite"))
    with Store() as store:
        store.add_episodes([*rows(), row("zero", WORLDS[0], 0)])
    file = str(tmp_path / "t.json")
    code, out = palaestra("episodes", "--agent", "admittance*", "--env", "*Wipe-v0*", "--rewards", file, "--json")
    assert code == 0 and json.loads(out)["users"] == list(AGENTS)
    assert read_table(file) == json.loads(json.dumps(reward_table(rows())))
    code, out = palaestra("episodes", "--agent", "adm*", "--rewards", file)
    assert code == 0 and "mean scores of 30 episodes" in out
    assert palaestra("episodes", "--rewards", file)[0] == 2, "zero has one episode in one world"
    code, out = palaestra("episodes", "--agent", "*damping=10.0", "--json")
    assert {found["agent"] for found in json.loads(out)} == {AGENTS[0]} and len(json.loads(out)) == 3


def test_a_bandit_dispatches_and_its_episodes_are_stored(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    env = "palaestra/MatchingBandit-v0:instance=dispatcher,rounds=100"
    chance, learned, oracle = (
        run(env, agent, episodes=4, store=store).score for agent in ("random_matching", "greedy", "expert")
    )
    assert oracle.mean == pytest.approx(1) and learned.mean > 0.3 > 0.15 > abs(chance.mean)


def test_the_shipped_table_is_of_the_experiment_in_the_study_and_can_be_repeated(tmp_path):
    table = shipped_table()
    calls = [f"{_dispatcher.POLICY}:{options}" for options in _dispatcher.POLICIES]
    assert table["users"]["names"] == sorted(calls) and table["items"]["names"] == sorted(_dispatcher.TASKS)
    store = Store(tmp_path / "store.sqlite")
    for user in (0, 3):
        again = run(_dispatcher.WIPE, table["users"]["names"][user], episodes=2, store=store)
        kept = table["rewards"][user][table["items"]["names"].index(_dispatcher.WIPE)][:2]
        assert [row.score for row in again.rows] == pytest.approx(kept, abs=0.05)


def test_the_study_compares_what_was_earned_on_the_same_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(_dispatcher, "QUICK", _dispatcher.Plan(rounds=30, plays=3, tuning=1))
    claims, table = _dispatcher.rows("quick", Lab(Store(tmp_path / "store.sqlite"), tmp_path))
    score = {row[0]: row[2].mean for row in table.rows}
    assert score["random"] < score["HybridRRD"] < score["best matching"] and all(row[-1] == 0 for row in table.rows)
    assert claims[0].holds and claims[0].measured == pytest.approx(score["HybridRRD"] - score["random"])
    assert claims[3].measured == pytest.approx(score["HybridRRD"] - score["greedy"])
    rivals = [name for name in score if name.endswith("tuned") and not name.startswith("HybridRRD")] + ["greedy"]
    assert claims[4].measured == pytest.approx(score["HybridRRD, tuned"] - max(score[name] for name in rivals))
    means = pair_means(shipped_table())
    best = means[np.arange(6), linear_sum_assignment(means, maximize=True)[1]].mean()
    assert score["best matching"] == pytest.approx(best)


def test_measuring_makes_a_table_of_the_episodes_that_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(_dispatcher, "POLICIES", _dispatcher.POLICIES[1:2])
    monkeypatch.setattr(_dispatcher, "TASKS", _dispatcher.TASKS[:2])
    monkeypatch.setattr(_dispatcher, "EPISODES", 2)
    table = _dispatcher.measure(Lab(Store(tmp_path / "store.sqlite"), tmp_path))
    shipped = shipped_table()
    user = shipped["users"]["names"].index(table["users"]["names"][0])
    for name, scores in zip(table["items"]["names"], table["rewards"][0], strict=True):
        assert scores == pytest.approx(shipped["rewards"][user][shipped["items"]["names"].index(name)][:2], abs=0.05)


@pytest.mark.parametrize(("path", "said"), [("there/is/none.json", "no folder"), ("a" * 300, "cannot be written")])
def test_a_path_that_cannot_be_written_gets_a_sentence(tmp_path, path, said):
    with pytest.raises(ValueError, match=said):
        write_table(tmp_path / path, shipped_table())
    assert not list(tmp_path.iterdir())


def test_a_device_is_left_alone_and_a_link_is_followed(tmp_path):
    with pytest.raises(ValueError, match="a folder or a device"):
        write_table("/dev/null", shipped_table())
    link, target = tmp_path / "link.json", tmp_path / "target.json"
    target.write_text("old")
    link.symlink_to(target)
    write_table(link, shipped_table())
    assert link.is_symlink() and read_table(target) == shipped_table()
