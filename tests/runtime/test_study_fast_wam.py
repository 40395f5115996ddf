"""The study `fast_wam`, small: every path of the full one, and that its claims follow from what it measured."""

from dataclasses import replace

import numpy as np
import pytest

from palaestra.models.checkpoint import load_card
from palaestra.runtime.store import Store
from palaestra.runtime.studies import _world_model, fast_wam
from palaestra.runtime.studies._trials import weights
from palaestra.runtime.studies._world_model_plans import SIZES, identities, plan_times
from palaestra.runtime.study import Lab


def test_what_is_exact_and_what_imagining_costs():
    exact = identities(3)
    assert exact["fast, another future"] == 0 and exact["fast without future"] < 1e-12
    assert exact["joint, another future"] > 1e-3
    found = plan_times("video 256 wide, 16 tokens a frame", 4, 0)
    fast = np.median(found.plan_ms["fast"])
    assert found.predicted["joint"] > 3 and found.predicted["idm"] > found.predicted["joint"]
    assert np.median(found.plan_ms["joint"]) > 1.5 * fast and np.median(found.first_ms) < fast


def test_every_row_is_executed_as_its_arrivals_allow():
    rows = {row.name: row for row in fast_wam.ROWS}
    assert fast_wam._execution(rows["idm, 810 ms"], "async").horizon == 25
    assert fast_wam._execution(rows["joint, 580 ms"], "async").horizon == 18
    assert fast_wam._execution(rows["fast, 190 ms"], "prefix").horizon == 6
    assert fast_wam._execution(rows["fast, 190 ms, streamed"], "prefix").horizon < 6
    assert fast_wam._execution(rows["fast, 110 ms"], "sync").horizon == fast_wam.SYNC_TICKS


def test_the_study_measures_what_it_claims(tmp_path, monkeypatch):
    tiny = {"steps": 2, "batch": 4}
    plan = fast_wam.Plan(
        seeds=(0,),
        sizes=(6,),
        few=tiny,
        pretraining={"actions": False, "demonstrations": 8, "video_weight": 1.0, **tiny},
        instructed={"demonstrations": 8, **tiny},
        intercepting={"demonstrations": 8, "horizon": 32, **tiny},
        few_seeds=(0,),
        episodes=3,
        calls=dict.fromkeys(list(SIZES)[:1], 3),
    )
    kept = ("fast", "no co-training", "no co-training, as long", "joint", "idm", "present")
    monkeypatch.setattr(fast_wam, "FULL", plan)
    monkeypatch.setattr(fast_wam, "NETWORKS", {name: fast_wam.NETWORKS[name] for name in kept})
    monkeypatch.setattr(fast_wam, "CONTROLS", ("present",))
    monkeypatch.setattr(fast_wam, "WEIGHTS", (1.0,))
    for what, few in (("EPISODES", 12), ("WINDOWS", 32), ("LAYOUTS", 200)):
        monkeypatch.setattr(_world_model, what, few)
    lab = Lab(Store(tmp_path / "store.sqlite"), tmp_path)
    study = fast_wam.run("full", lab)
    tables = {table.title: table for table in study.tables}
    reached = {row[:2]: row for row in tables["PixelReach-v0, one disc"].rows}
    assert len(reached) == len(kept) + 2 + 1 and len(tables["PixelReach-v0, three discs"].rows) == 4
    late = tables["PixelIntercept-v0"].rows
    assert len(late) == 4 + 3 * (len(fast_wam.ROWS) - 4)
    assert all(row[-1] == 0 for table in list(tables.values())[:3] for row in table.rows), "no episode may fail"
    claims = {claim.text: claim for claim in study.claims}
    gain = claims["One disc, 6 demonstrations: success with co-training less without"]
    success = {name: reached[name, "6 demonstrations"][2].mean for name in kept}
    assert gain.measured == pytest.approx(success["fast"] - success["no co-training"])
    assert gain.holds is None and "expected 0.5" in gain.reason, "nothing is said of what nobody has learned"
    error = claims["One disc, 6 demonstrations together: error of actions on other episodes, present less co-training"]
    errors = {name: reached[name, "6 demonstrations"][3] for name in kept}
    assert error.measured == pytest.approx(errors["present"] - errors["fast"])
    start = weights(tmp_path, fast_wam.REACH, "video", fast_wam.OTHERS)
    one = weights(tmp_path, fast_wam.REACH, "idm-6-demonstrations", 0)
    assert load_card(one)["start"] == load_card(start)["weights"]["sha256"]
    again = fast_wam.run("full", replace(lab, workers=1))  # what was done is not done again, and says the same
    same = [(c.text, c.measured) for c in study.claims if not c.text.startswith("A plan")]
    assert same == [(c.text, c.measured) for c in again.claims if not c.text.startswith("A plan")]
