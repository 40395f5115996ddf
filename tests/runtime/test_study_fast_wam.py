"""The study `fast_wam`, small: every path of the full one, and that its claims follow from what it measured."""

from dataclasses import replace

import numpy as np
import pytest

from palaestra.models.checkpoint import load_card
from palaestra.runtime.store import Store
from palaestra.runtime.studies import _world_model, fast_wam
from palaestra.runtime.studies._trials import Outcome, weights
from palaestra.runtime.studies._world_model_plans import SIZES, identities, plan_times
from palaestra.runtime.study import Lab


def test_what_is_exact_and_what_imagining_costs():
    exact = identities(3)
    assert exact["fast, another future"] == 0 and exact["fast without future"] < 1e-12
    assert exact["joint, another future"] > 1e-3
    found = plan_times("video 256 wide, 16 tokens a frame", 4, 0)
    fast = np.median(found.plan_ms["fast"])
    assert found.predicted("joint") > 3 and found.predicted("idm") > found.predicted("joint")
    assert np.median(found.plan_ms["joint"]) > 1.5 * fast and np.median(found.first_ms) < fast


def test_every_row_is_executed_as_its_arrivals_allow():
    rows = {row.name: row for row in fast_wam.ROWS}
    assert fast_wam._execution(rows["idm, 810 ms"], "async").horizon == 25
    assert fast_wam._execution(rows["joint, 580 ms"], "async").horizon == 18
    assert fast_wam._execution(rows["fast, 190 ms"], "prefix").horizon == 6
    assert fast_wam._execution(rows["fast, 190 ms, streamed"], "prefix").horizon < 6
    assert fast_wam._execution(rows["fast, 110 ms"], "sync").horizon == fast_wam.SYNC_TICKS


def outcome(*success, **costs):
    success = np.array(success, bool)
    return Outcome(success.astype(float), success, 0, {name: np.array(one) for name, one in costs.items()}, {})


def test_the_claims_about_latency_follow_from_the_episodes():
    def runs(**rows):
        patterns = {"all": [1] * 40, "most": [1] * 30 + [0] * 10, "few": [1] * 4 + [0] * 36}
        return {(name, "async"): [outcome(*patterns[what])] * 2 for name, what in rows.items()}

    names = {"joint, no latency": "all", "fast, no latency": "all", "joint, 580 ms": "few", "fast, 190 ms": "most"}
    claims = {claim.text: claim for claim in fast_wam._late_claims(runs(**names))}
    slower = claims["PixelIntercept: success of fast, 190 ms (async) less joint, 580 ms (async)"]
    assert slower.measured == pytest.approx(0.65) and slower.holds
    lost = claims["PixelIntercept: success that joint, 580 ms loses by its latency less what fast loses by 190 ms"]
    assert lost.measured == pytest.approx(0.9 - 0.25) and lost.holds
    turned = names | {"joint, 580 ms": "all", "fast, 190 ms": "few"}
    claims = {claim.text: claim for claim in fast_wam._late_claims(runs(**turned))}
    assert claims[slower.text].holds is False and claims[lost.text].holds is False
    poor = names | {"joint, no latency": "most"}
    claims = {claim.text: claim for claim in fast_wam._late_claims(runs(**poor))}
    assert claims[slower.text].holds is None and "not learned: success 0.75" in claims[slower.text].reason


def test_all_networks_of_a_size_start_alike_and_take_the_same_steps():
    networks = fast_wam._networks(fast_wam.FULL, 7)
    size = f"{fast_wam.FULL.most} demonstrations"
    for seed in range(3):
        ones = {name: networks[fast_wam.REACH, name, size][seed] for name in fast_wam.NETWORKS}
        assert {one.seed for one in ones.values()} == {7 + seed} and len({one.start for one in ones.values()}) == 1
        changes = {name: dict(one.changes) for name, one in ones.items()}
        longer = changes.pop("no co-training, as long")
        assert longer.pop("steps") == round(fast_wam.AS_LONG * fast_wam.FULL.few["steps"])
        for name, one in changes.items():
            apart = {key for key in one if one.get(key) != changes["fast"].get(key)}
            assert apart == set(fast_wam.NETWORKS[name])


def test_a_probe_finds_what_is_there_and_nothing_else():
    draw = np.random.default_rng(0)
    truth = draw.uniform(size=(1000, 4))
    mixed = truth @ draw.normal(size=(4, 12))
    assert _world_model._told(mixed, truth) < 1e-3
    guess = _world_model._told(draw.normal(size=(1000, 12)), truth)
    middle = np.linalg.norm((truth - 0.5).reshape(1000, 2, 2), axis=-1).mean()
    assert guess == pytest.approx(middle, rel=0.1)


def test_the_study_measures_what_it_claims(tmp_path, monkeypatch):
    tiny = {"steps": 2, "batch": 4}
    plan = fast_wam.Plan(
        seeds=(0,),
        sizes=(6,),
        few=tiny,
        pretraining={"actions": False, "demonstrations": 8, "video_weight": 1.0, **tiny},
        instructed={"demonstrations": 8, **tiny},
        intercepting={"demonstrations": 8, "horizon": 32, **tiny},
        episodes=3,
        tuning=2,
        calls=dict.fromkeys(list(SIZES)[:2], 3),
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
    assert [row[0] for row in late] == [row.name for row in fast_wam.ROWS]
    first = {row[0]: row[4] for row in late}  # ms, of plans that are whole and of those that stream
    whole = {"fast, 190 ms": 190, "fast, 110 ms": 110, "joint, 580 ms": 580, "idm, 810 ms": 810}
    whole |= {"joint, 3 steps, 174 ms": 174, "idm, imagining in 1 step, 288 ms": 288}
    assert {name: first[name] for name in whole} == pytest.approx(whole)
    assert first["fast, 190 ms, streamed"] == pytest.approx(18 + 17.2)
    assert all(row[-1] == 0 for table in list(tables.values())[:3] for row in table.rows), "no episode may fail"
    claims = {claim.text: claim for claim in study.claims}
    gain = claims["One disc, 6 demonstrations: success with co-training less without"]
    success = {name: reached[name, "6 demonstrations"][2].mean for name in kept}
    assert gain.measured == pytest.approx(success["fast"] - success["no co-training"])
    assert gain.holds is None and "not learned" in gain.reason
    error = claims["One disc, 6 demonstrations: error of actions on other episodes, present less co-training"]
    errors = {name: reached[name, "6 demonstrations"][3] for name in kept}
    assert error.measured == pytest.approx(errors["present"] - errors["fast"])
    start = weights(tmp_path, fast_wam.REACH, "video", fast_wam.OTHERS)
    one = weights(tmp_path, fast_wam.REACH, "idm-6-demonstrations", 0)
    assert load_card(one)["start"] == load_card(start)["weights"]["sha256"]
    again = fast_wam.run("full", replace(lab, workers=1))  # what was done is not done again, and says the same
    same = [(c.text, c.measured) for c in study.claims if "a plan of" not in c.text]
    assert same == [(c.text, c.measured) for c in again.claims if "a plan of" not in c.text]
