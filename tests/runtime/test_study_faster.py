"""The study `faster`, small: its timing rules, and that what it claims follows from what it measured."""

from dataclasses import replace

import numpy as np
import pytest

from palaestra.runtime.latency import profile
from palaestra.runtime.store import Store
from palaestra.runtime.studies import faster
from palaestra.runtime.study import Lab


def test_every_method_runs_at_the_horizon_that_its_arrivals_allow():
    for name, constant, streamed in (("pi05-4090", (3, 3), (2, 2)), ("xvla-4090", (4, 4), (2, 2))):
        assert faster.timing(faster.TRAINED, profile(name))[:2] == constant
        assert faster.timing(faster.FASTER, profile(name))[:2] == streamed
    assert faster.timing(faster.TRAINED, profile("xvla-4060"))[:2] == (12, 12)
    assert faster.timing(faster.ONE, profile("xvla-4060"))[:2] == (4, 4)
    delay, horizon, arrivals = faster.timing(faster.FASTER, profile("xvla-4060"))
    assert delay == 4
    assert arrivals[horizon - 1] <= horizon / 30 < arrivals[-1]
    assert arrivals == sorted(arrivals)


def test_the_study_measures_what_it_claims(tmp_path, monkeypatch):
    worlds = {
        faster.BALL: faster.World(faster.PROFILES, faster.BRIEF, 30),
        faster.DETOUR: faster.World(("xvla-4090",), faster.FEW, 20),
        faster.TABLE: faster.World((), faster.FEW, 2),
    }
    small = replace(faster.QUICK, worlds=worlds, sweep=(8,), events=60, rounds=3)
    monkeypatch.setattr(faster, "QUICK", small)
    told = []
    lab = Lab(Store(tmp_path / "store.sqlite"), tmp_path, 1, lambda word, done, total: told.append((word, done, total)))
    study = faster.run("quick", lab)
    assert {word for word, _, _ in told} == {"episodes", "reactions", "first actions"}
    by_text = {claim.text: claim for claim in study.claims}
    tables = {table.title: table for table in study.tables}
    under = tables["BallIntercept-v0 under xvla-4060"]
    scores = {row[0]: row[2].mean for row in under.rows}
    assert all(row[-1] == 0 for row in under.rows), "no episode may fail"
    assert scores["FASTER"] > scores["training-time RTC"]
    gain = next(
        claim for text, claim in by_text.items() if text.startswith("BallIntercept-v0, xvla-4060: FASTER scores more")
    )
    best = max(scores["naive async"], scores["training-time RTC"])
    assert gain.measured == pytest.approx(scores["FASTER"] - best)
    reaction = tables["Reaction to injected events, at 30 Hz"]
    for row in reaction.rows:
        sync, slow, quick = (value.mean for value in row[1:4])
        assert sync > slow > quick
        np.testing.assert_allclose([sync, slow, quick], row[4:7], rtol=0.1)  # sixty events against the closed form
    again = faster.run("quick", lab)  # what was run is not run again, and says the same
    assert [c.measured for c in again.claims[:-1]] == [c.measured for c in study.claims[:-1]]
