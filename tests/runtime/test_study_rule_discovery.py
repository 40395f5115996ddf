"""The study `rule_discovery`, small: its numbers follow from stored episodes, and can come out otherwise."""

from dataclasses import replace

import numpy as np
import pytest

from palaestra.runtime.store import Store
from palaestra.runtime.studies import rule_discovery as study
from palaestra.runtime.studies._trials import Outcome
from palaestra.runtime.study import Lab


def outcome(solved, taken, incompatible):
    solved = np.array(solved, bool)
    taken = np.where(solved, taken, np.nan)
    n = len(solved)
    columns = {"tests_to_solve": taken, "incompatibility_all": np.array(incompatible, float)}
    return Outcome(solved.astype(float), solved, 0, {}, {**columns, "no_per_yes": np.ones(n)})


def test_the_rank_correlation_is_that_of_the_means_and_can_be_negative():
    draw = np.random.default_rng(0)
    rates = {f"falsify {p}": outcome(draw.random(400) < p, 5, np.full(400, p)) for p in (0.1, 0.5, 0.9)}
    found = study._rank(rates, lambda one: one.success, seed=0)
    assert found.mean == 1 and found.low == 1
    turned = {name: outcome(~one.success, 5, study._incompatible(one)) for name, one in rates.items()}
    assert study._rank(turned, lambda one: one.success, seed=0).mean == -1
    assert study._bias_claims(rates, 0)[0].holds and study._bias_claims(turned, 0)[0].holds is False


def test_an_unsolved_episode_counts_as_all_tests():
    assert study._until_solved(outcome([True, False], [3, 9], [0, 0])).tolist() == [3, study.TESTS]


def test_a_control_that_gains_as_much_refutes_the_intervention():
    good, bad = (outcome([won] * 32, 5, [0.2] * 32) for won in (True, False))
    asked = {
        "confirming": bad,
        "confirming, opposites": good,
        "confirming, control": good,
        "confirming, counter-examples": good,
        "unbiased, as often": good,
    }
    assert [claim.holds for claim in study._intervention_claims(asked)] == [True, False, False, True]


def test_a_teacher_that_teaches_as_much_without_the_intervention_refutes_the_transfer():
    draw = np.random.default_rng(1)
    some = [outcome(draw.random(96) < 0.9, 10, [0.2] * 96) for _ in range(2)]
    none, told = [outcome([False] * 96, 0, [0.0] * 96)] * 2, [outcome([True] * 96, 5, [0.3] * 96)] * 2
    names = {"base, not told": none, "base, told": told, "from opposites": some, "from unbiased": some}
    selected = {(where, name): names.get(name, none) for where in ("rules", "blickets") for name in study._SELECTORS}
    claims = {claim.text: claim for claim in study._selector_claims(selected)}
    text = "On Blickets, a student of opposites discovers at least 0.02 more than "
    assert claims[f"{text}the base"].holds is True
    assert claims[f"{text}one of a teacher that is unbiased at the same rate"].holds is False
    selected["rules", "base, told"] = none  # then the base has learned nothing that could be distilled
    assert {claim.text: claim for claim in study._selector_claims(selected)}[f"{text}the base"].holds is None


def test_the_study_measures_what_it_claims(tmp_path, monkeypatch):
    small = replace(
        study.QUICK,
        episodes=16,
        recipe=(("demonstrations", 6), ("steps", 60), ("tests", 20)),
        selected=16,
        conditions=study.BLICKETS[:1],
    )
    monkeypatch.setattr(study, "QUICK", small)
    told = []
    lab = Lab(Store(tmp_path / "store.sqlite"), tmp_path, 1, lambda word, done, total: told.append(word))
    found = study.run("quick", lab)
    assert {"agents", "selectors", "distillation", "selections"} <= set(told)
    rows = {row[0]: row for row in found.tables[0].rows}
    assert rows["falsify 0"][3].mean == 0 and rows["falsify 1"][3].mean == 1
    claims = {claim.text: claim for claim in found.claims}
    gain = claims["Thinking in opposites discovers more"].measured
    assert gain == pytest.approx(rows["confirming, opposites"][1].mean - rows["confirming"][1].mean)
    again = study.run("quick", lab)  # what was run is not run again, and says the same
    assert [claim.measured for claim in again.claims] == [claim.measured for claim in found.claims]
