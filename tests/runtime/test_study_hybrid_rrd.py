"""The study `hybrid_rrd`, small: ratios and exponents of known laws, and that its claims can fail."""

from dataclasses import replace

import numpy as np
import pytest

from palaestra.runtime.store import Store
from palaestra.runtime.studies import hybrid_rrd as study
from palaestra.runtime.studies._trials import Outcome
from palaestra.runtime.study import Lab, Table


def law(exponent, noise=0.05):
    draw = np.random.default_rng(0)
    gaps = np.array([[0.5], [1.0], [0.7]])
    return {size: 3.0 * size**exponent * gaps * np.exp(noise * draw.normal(size=(3, 40))) for size in (2, 4, 8, 16)}


def test_an_exponent_is_found_and_that_of_a_ratio_is_the_difference():
    assert study._slope(law(0.5, noise=0)).mean == pytest.approx(0.5)
    found = study._slope(law(0.5))
    assert found.low < 0.5 < found.high and found.high - found.low < 0.1
    assert study._slope(law(0.5), law(1.0)).mean == pytest.approx(-0.5)


def test_worst_is_the_largest_of_the_means_over_gaps_and_never_of_single_seeds():
    regrets = np.array([[1.0, 9.0], [6.0, 6.0], [3.0, 2.0]])
    assert study._worst(regrets) == 6
    assert study._ratio(regrets, np.array([[3.0, 3.0], [1.0, 1.0]])).mean == 2


def test_a_ratio_that_rises_with_d1_refutes_the_claim():
    falls = study._worst_claims({"HybridRRD": law(0.5), "C2UCB": law(1.0)})
    assert all(claim.holds for claim in falls[:-1])
    assert falls[-1].holds and falls[-1].measured == pytest.approx(-0.5)
    rises = study._worst_claims({"HybridRRD": law(1.0), "C2UCB": law(0.5)})
    assert rises[-1].holds is False and not any(claim.holds for claim in rises)


def test_an_exponent_of_t_that_is_too_large_refutes_the_claim():
    for exponent, holds in ((0.5, True), (1.0, False)):
        sweeps = {"rounds": {"HybridRRD": law(exponent), "C2UCB": law(0.5)}}
        assert study._exponent_claims(sweeps)[0].holds is holds


def test_an_episode_that_failed_is_not_passed_over():
    with pytest.raises(RuntimeError, match="2 episodes"):
        study._regret(Outcome(np.zeros(2), np.zeros(2, bool), 2, {}, {}))


def test_the_study_measures_what_it_claims(tmp_path, monkeypatch):
    base = {**study.QUICK.base, "rounds": 40}
    small = replace(study.QUICK, d1=(2, 3), users=3, rounds=40, seeds=3, gaps=(0.4, 0.8), base=base, tuning=2)
    small = replace(small, sweeps={"rounds": (20, 40), "items": (8, 16)}, gaussian=("context=fresh",))
    monkeypatch.setattr(study, "QUICK", small)
    monkeypatch.setattr(study, "dispatched", lambda scale, lab: ([], Table("none", ("a",), ())))
    told = []
    lab = Lab(Store(tmp_path / "store.sqlite"), tmp_path, 1, lambda word, done, total: told.append(word))
    found = study.run("quick", lab)
    assert {"theory", "tuning", "tuned"} <= set(told)
    assert [row[0] for row in found.tables[-2].rows] == ["d1", "d1", "T", "T", "N", "N"]
    rows = {(row[0], row[1]): row for row in found.tables[0].rows}
    worst = {key: max(row[2].mean, row[3].mean) for key, row in rows.items()}
    largest = max(worst[d1, "HybridRRD"] / worst[d1, "C2UCB"] for d1 in (2, 3))
    claims = {claim.text: claim for claim in found.claims}
    ratio = claims["HybridRRD's worst regret over C2UCB's, the largest of d1 = 2 to 3"].measured
    assert ratio == pytest.approx(largest)
    shown = {(row[0], row[1]): row[2].mean for row in found.tables[1].rows}
    assert shown[3, "HybridRRD"] == rows[3, "HybridRRD"][2].mean  # at the gap that both tables have
    titles = [table.title for table in found.tables]
    assert "Gaussian, fresh features, T = 40, tuned on other seeds" in titles
    again = study.run("quick", lab)
    assert [claim.measured for claim in again.claims] == [claim.measured for claim in found.claims]
