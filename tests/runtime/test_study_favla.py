"""The study `favla`, small: the scheduling law without learning, and that its claims follow from what it measured."""

from dataclasses import replace

import numpy as np
import pytest

from palaestra.agents.inference_rate import Random, Static
from palaestra.runtime.store import Store
from palaestra.runtime.studies import favla
from palaestra.runtime.studies._pressing import Forecast, press
from palaestra.runtime.study import Lab


def test_looking_often_hits_less_hard_and_being_told_when_costs_fewer_calls():
    seeds = range(12)

    def pressed(rate):
        return np.array(press(rate, seeds))

    fixed = {calls: pressed(lambda _, calls=calls: Static(calls)) for calls in (1, 2, 4, 8)}
    peaks = [fixed[calls][:, 0].mean() for calls in fixed]
    assert peaks == sorted(peaks, reverse=True) and peaks[0] > 2 * peaks[-1]
    for calls, episodes in fixed.items():
        whole = episodes[:, 0] <= 25  # the guard ends an episode early, which may cut a cycle
        assert whole.any() and (episodes[whole, 1] == calls).all()
    told = pressed(lambda world: Forecast(8, world.foresee))
    assert told[:, 1].mean() < 4 and told[:, 0].mean() < peaks[2]
    chance = pressed(lambda _: Random(told[:, 1].mean(), 8))
    assert told[:, 0].mean() < 0.6 * chance[:, 0].mean()


def test_the_study_measures_what_it_claims(tmp_path, monkeypatch):
    ways = (favla._static(1), favla._static(4), favla.FAMI, favla.EQUAL, favla.RANDOM, favla.THRESHOLD)
    small = replace(
        favla.QUICK,
        episodes=6,
        calibration=3,
        presses=4,
        worlds={favla.WIPE: favla.World(("xvla-4060",), ways, ways[:3])},
    )
    monkeypatch.setattr(favla, "QUICK", small)
    told = []
    lab = Lab(Store(tmp_path / "store.sqlite"), tmp_path, 1, lambda word, done, total: told.append(word))
    study = favla.run("quick", lab)
    assert {"pressing", "matching", "episodes", "forecasts"} <= set(told)
    tables = {table.title: table for table in study.tables}
    rows = {row[0]: row for row in tables["GuardedWipe-v0, no latency"].rows}
    assert all(row[-1] == 0 for table in list(tables.values())[1:3] for row in table.rows), "no episode may fail"
    claims = {claim.text: claim for claim in study.claims}
    peak = {name: row[2].mean for name, row in rows.items()}
    less = claims["GuardedWipe-v0, no latency: peak force (N) of four plans asked for a cycle less that of one"]
    assert less.measured == pytest.approx(peak["static 4"] - peak["static 1"])
    share = claims["GuardedWipe-v0, no latency: peak force of FAMI over that of one plan a cycle"]
    assert share.measured == pytest.approx(peak["FAMI"] / peak["static 1"])
    plans = {name: row[4] for name, row in rows.items()}
    assert plans["static 4"] > 2 * plans["static 1"]
    for other in ("static", "random", "threshold"):
        assert plans["FAMI"] == pytest.approx(plans[f"{other}, as many calls"], rel=0.3)  # from three episodes
    ages = {name: row[7] for name, row in rows.items()}
    assert ages["static 4"] < ages["static 1"]  # what looks more often acts on what is newer
    late = {row[0]: row for row in tables["GuardedWipe-v0, xvla-4060"].rows}
    assert late["static 4"][7] > ages["static 4"] and late["static 4"][4] < plans["static 4"]
    again = favla.run("quick", lab)  # what was run is not run again, and says the same
    assert [claim.measured for claim in again.claims] == [claim.measured for claim in study.claims]
