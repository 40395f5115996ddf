"""GuardedWipe and the wrist sensor: forces against statics, the guard, the label of the task, the expert."""

import gymnasium
import mujoco
import numpy as np
import pytest
from playing import assert_gymnasium_accepts, assert_same_in_another_process, play

import palaestra  # noqa: F401 - registers the ids
from palaestra.envs.contact import guarded_wipe as world
from palaestra.envs.contact.guarded_wipe import GuardedWipe
from palaestra.envs.contact.wrist import Wrist, substeps
from palaestra.envs.offscreen import available
from palaestra.runtime.registry import make_env


@pytest.fixture(scope="module")
def env():
    return GuardedWipe()


@pytest.fixture(scope="module")
def flat():
    return GuardedWipe(flat=True)


def lower(env, set_point, ticks=60):
    """Bring the set point to this height and wait; returns the last observation."""
    for _ in range(ticks):
        delta = np.clip(set_point - env.data.act[1], -0.002, 0.002)
        observation, _, terminated, _, info = env.step(np.array([0, delta]))
        assert not terminated
    return observation, info


def test_the_environment_keeps_gymnasiums_promises():
    assert_gymnasium_accepts(gymnasium.make("palaestra/GuardedWipe-v0"), skip_render_check=True)


def test_the_same_seed_is_the_same_episode_everywhere(env):
    assert_same_in_another_process(env, 60)
    assert env.reset(seed=1)[0]["pixels"].tobytes() != env.reset(seed=2)[0]["pixels"].tobytes()


def test_physics_ticks_and_samples_keep_their_rates():
    counts = [substeps(tick, 30) for tick in range(300)]
    assert sum(counts) == 10_000 and set(counts) == {33, 34}


def test_a_tool_that_hangs_free_and_at_rest_feels_nothing(env):
    for seed in range(5):  # whatever it weighs
        observation, _ = env.reset(seed=seed)
        for _ in range(10):
            observation, *_ = env.step(np.zeros(2))
        assert np.abs(observation["wrench"]).max() < 0.05


def test_added_weight_reads_its_weight(flat):
    flat.reset(seed=0)
    tool = flat.model.body("tool").id
    flat.data.xfrc_applied[tool, 2] = -0.2 * 9.81  # 200 g hung on the tool: the arm has to hold it up
    for _ in range(20):
        observation, *_ = flat.step(np.zeros(2))
    flat.data.xfrc_applied[tool, 2] = 0
    np.testing.assert_allclose(observation["wrench"][-1, :3], [0, 0, 0.2 * 9.81], atol=0.02)


def test_pressing_reads_the_springs_in_series(flat):
    """The set point 8 mm under the table: servo and table share it as springs do, and the arm pushes downwards."""
    flat.reset(seed=3)
    sag = flat.model.body_mass[flat.model.body("tool").id] * 9.81 / world.STIFFNESS
    observation, _ = lower(flat, flat._table.height + sag - 0.008)
    expected = 0.008 / (1 / 1200 + 1 / 2500)
    np.testing.assert_allclose(observation["wrench"][-1, 2], -expected, rtol=0.03)
    force = np.zeros(6)
    mujoco.mj_contactForce(flat.model, flat.data, 0, force)
    np.testing.assert_allclose(flat._wrist.contact_n[-1], np.linalg.norm(force[:3]), rtol=1e-3)
    assert np.abs(observation["wrench"][-1, 3:]).max() < 1e-3  # right under the wrist there is no lever


def test_the_peak_is_measured_between_the_samples(env):
    peaks, sampled = [], []
    for seed in range(10):
        observations, infos, _ = play(env, seed)
        peaks.append(infos[-1]["metrics"]["peak_force_n"])
        sampled.append(max(np.linalg.norm(seen["wrench"][:, :3], axis=1).max() for seen in observations))
    assert (np.array(peaks) > 0.97 * np.array(sampled)).all()  # contacts lack the tool's inertia, which the wrist feels
    assert np.mean(peaks) > np.mean(sampled) - 0.1


def test_windows_overlap_and_hold_200_samples_a_second(env):
    env.reset(seed=4)
    act, before, fresh = env.expert(), env._wrist.window.copy(), 0
    for _ in range(60):
        window = env.step(act())[0]["wrench"]
        new = next(k for k in range(11) if np.array_equal(window[: 10 - k], before[k:].astype(np.float32)))
        fresh, before = fresh + new, window.astype(np.float64)
        assert new in (6, 7) or not window.any()
    assert env._tick == 60


def test_the_guard_stops_a_tool_that_pushes_on_and_counts_a_failure(env):
    _, infos, _ = play(env, 5, act=lambda: np.array([0.0, -0.002]))
    last = infos[-1]
    assert not last["success"] and last["score"] == 0.0
    assert 25.0 < last["metrics"]["peak_force_n"] < 27.0  # at the first physics step beyond the limit
    touches = [info["event"] for info in infos if "event" in info]
    assert [touch["name"] for touch in touches] == ["touch"]
    start_z, surface = world.START[1], env._table.height + np.tan(env._table.slope) * world.START[0]
    assert touches[0]["time_s"] == pytest.approx((start_z - surface) / 0.06, abs=0.15)


def test_a_later_reaction_is_a_harder_hit(env):
    def peak(delay):
        hits = []
        for seed in range(8):
            _, infos, _ = play(env, seed, delay=delay)
            hits.append(infos[-1]["metrics"]["peak_force_n"])
        return np.mean(hits)

    on_time, late, later = peak(0), peak(3), peak(6)
    assert on_time < late < later


def test_the_expert_succeeds_and_the_score_is_what_it_says(env):
    results = []
    for seed in range(40):
        observations, infos, total = play(env, seed)
        last, metrics = infos[-1], infos[-1]["metrics"]
        results.append(last["success"])
        assert last["score"] == pytest.approx(metrics["coverage"] * metrics["in_band"])
        assert last["success"] == (
            metrics["coverage"] > 0.9 and metrics["in_band"] >= 0.8 and metrics["peak_force_n"] < 15
        )
        assert total <= metrics["coverage"] + 1e-9
        asked = float(observations[0]["instruction"].split()[-2])
        assert asked in (5, 8)
    assert np.mean(results) >= 0.95


def test_only_what_the_tool_has_passed_is_wiped(flat):
    flat.reset(seed=2)
    act, reached = flat.expert(), world.START[0]
    for _ in range(150):
        flat.step(act())
        reached = max(reached, flat.data.qpos[0])
        passed = (reached - world.STRIP[0]) / (world.STRIP[1] - world.STRIP[0]) * world.CELLS
        assert flat._wiped.sum() <= max(0, passed + 1)
    assert 0 < flat._wiped.sum() < world.CELLS
    assert ((flat.model.geom_rgba[flat._dirt, 3] == 0) == flat._wiped).all()


def test_what_is_foreseen_is_what_then_happens_and_changes_nothing(env):
    env.reset(seed=6)
    act = env.expert()
    for _ in range(35):
        env.step(act())
    actions = np.array([[0.001, -0.002]] * 12)
    before = env.data.qpos.copy(), env.data.sensordata.copy(), env._wrist.window.copy()
    foreseen = env.foresee(actions)
    for now, then in zip((env.data.qpos, env.data.sensordata, env._wrist.window), before, strict=True):
        np.testing.assert_array_equal(now, then)
    for tick, action in enumerate(actions):
        env.step(action)
        felt = (env._wrist._log[: substeps(35 + tick, 30), :6] - env._wrist._tare[:6]).mean(axis=0)
        np.testing.assert_allclose(foreseen[tick], felt, atol=1e-9)
    assert np.abs(foreseen[:, 2]).max() > 1.0  # it foresaw the table


def test_the_picture_shows_the_table_where_it_seems_to_be(env):
    for seed in range(20):
        pixels = env.reset(seed=seed)[0]["pixels"].astype(float)
        column = pixels[:, 8]  # the middle: x = 6 mm
        ground, sky = np.array([180.0, 135, 90]), np.array([235.0, 240, 245])
        covered = ((sky - column) / (sky - ground)).mean(axis=1)
        surface = 0.1 - 0.01 * (16 - covered.sum())  # rows of 10 mm from the top
        expected = env._table.seems + 0.00625 * np.tan(env._table.slope)
        assert surface == pytest.approx(expected, abs=0.001)
        assert abs(env._table.seems - env._table.height) <= 0.01


def test_wrong_arguments_and_actions_are_named(env):
    env.reset(seed=0)
    for bad in (np.zeros(3), np.array([np.nan, 0]), 0.1):
        with pytest.raises(ValueError, match="two finite distances in m"):
            env.step(bad)
    for bad in (np.zeros(2), np.zeros((3, 3)), np.full((2, 2), np.nan)):
        with pytest.raises(ValueError, match=r"expected an array \[n, 2\]"):
            env.foresee(bad)
    for call in (GuardedWipe().step, GuardedWipe().foresee):
        with pytest.raises(RuntimeError, match="call reset"):
            call(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="render_mode"):
        GuardedWipe(render_mode="human")
    with pytest.raises(ValueError, match="flat='banana'"):
        GuardedWipe(flat="banana")
    empty = mujoco.MjModel.from_xml_string("<mujoco/>")
    with pytest.raises(ValueError, match="expected force and torque"):
        Wrist(empty, mujoco.MjData(empty))


def test_what_would_perturb_a_scene_is_refused():
    for perturbation in ("distractor", "viewpoint"):
        with pytest.raises(ValueError, match="draws by itself"):
            make_env(f"palaestra/GuardedWipe-v0+{perturbation}")


@pytest.mark.skipif(available() is None, reason="no OpenGL here")
def test_it_can_be_seen():
    env = GuardedWipe(render_mode="rgb_array")
    env.reset(seed=1)
    picture = env.render()
    assert picture.shape == (480, 640, 3) and picture.std() > 20
    env.close()
