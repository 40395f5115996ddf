"""PegInsert: its wrist against statics and MuJoCo's own contact forces, its geometry, the guard, and the expert."""

import gymnasium
import mujoco
import numpy as np
import pytest
from playing import assert_gymnasium_accepts, assert_same_in_another_process, play

import palaestra  # noqa: F401 - registers the ids
from palaestra.envs.contact.peg_insert import MAX_DELTA, PegInsert, _feel_in
from palaestra.envs.offscreen import available

TICK = 1 / 30
STILL = np.zeros(3)
DOWN = np.array([0, 0, -0.0005])
KEYS = ("agent_pos", "environment_state", "wrench")


@pytest.fixture(scope="module")
def env():
    return PegInsert()


def place(env, x, y, z, seed=0):
    """Begin an episode with the tip there, relative to the true hole (m)."""
    env.reset(seed=seed)
    env.data.qpos[:3] = env.data.act[:] = env.data.mocap_pos[0] + [x, y, z]
    mujoco.mj_forward(env.model, env.data)


def settle(env, action=STILL, ticks=20):
    for _ in range(ticks):
        env.step(action)
    return env.step(STILL)[0]


def contact_wrench(env):
    """Force and torque about the wrist's site that the block exerts on the peg: MuJoCo's contacts, one by one."""
    total, wrench = np.zeros(6), np.zeros(6)
    mujoco.mj_forward(env.model, env.data)
    for index, contact in enumerate(env.data.contact):
        mujoco.mj_contactForce(env.model, env.data, index, wrench)
        onto_peg = 1.0 if env.model.geom_bodyid[contact.geom[1]] == env.model.body("peg").id else -1.0
        force = onto_peg * contact.frame.reshape(3, 3).T @ wrench[:3]
        total += np.concatenate([force, np.cross(contact.pos - env.data.site("wrist").xpos, force)])
    return total


def test_hanging_free_and_at_rest_it_reads_nothing(env):
    for seed in range(5):
        start = env.reset(seed=seed)[0]
        observation = settle(env)
        assert np.abs(observation["wrench"]).max() < 0.05
        np.testing.assert_allclose(observation["agent_pos"], start["agent_pos"], atol=1e-6)


def test_a_weight_hung_on_the_peg_reads_its_weight(env):
    env.reset(seed=0)
    env.data.xfrc_applied[env.model.body("peg").id, 2] = -0.1 * 9.81
    wrench = settle(env)["wrench"][-1]
    np.testing.assert_allclose(wrench[:3], [0, 0, 0.981], atol=1e-3)  # the arm holds it up


@pytest.mark.parametrize("side", [(0, 0), (0.001, 0), (-0.0005, 0.001)])
def test_in_contact_the_wrist_reads_what_the_servos_and_the_contacts_exert(env, side):
    place(env, 0.012, -0.009, 0.001)
    settle(env, DOWN, 8)
    settle(env, np.array([*side, 0]), 2)
    wrench = settle(env)["wrench"][-1].astype(float)
    assert -6 < wrench[2] < -1  # pressing down is negative along an upward axis
    servo = 800 * (env.data.act - env.data.qpos[:3])  # statics: nothing else moves the carriage
    np.testing.assert_allclose(wrench[:3], servo, atol=0.02)
    assert (np.abs(wrench + contact_wrench(env)) < [0.02] * 3 + [1e-3] * 3).all()


def test_at_the_edge_of_the_hole_the_load_is_carried_on_the_other_side(env):
    for angle in np.linspace(0, 2 * np.pi, 7)[:-1]:
        aside = np.array([np.cos(angle), np.sin(angle)])
        place(env, 0.0035 * aside[0], 0.0035 * aside[1], 0.001)
        wrench = settle(env, DOWN, 8)["wrench"][-1]
        centre = np.array([wrench[4] + 0.04 * wrench[0], -wrench[3] + 0.04 * wrench[1]]) / -wrench[2]
        assert 0.001 < centre @ aside < 0.004
        action = _feel_in(env.data.qpos[:3], env._seems, wrench.astype(float))
        assert action[:2] @ aside < -0.0002  # and the expert goes there


def test_the_hole_takes_the_peg_within_its_clearance_and_no_further_than_its_chamfer_leads(env):
    for aside, touches, enters in ((0.0003, False, True), (0.001, True, True), (0.003, True, False)):
        place(env, aside, 0, 0.002)
        ended, depth, info = False, [], {}
        while not ended and len(depth) < 40:
            observation, _, ended, _, info = env.step(DOWN if enters or len(depth) < 12 else STILL)
            depth.append(-observation["agent_pos"][2])
        assert info["success"] == enters
        assert (env._wrist.peak_n > 0.01) == touches
        assert (depth[-1] > 0.015) == enters and (enters or depth[-1] < 0.0005)


def test_set_point_moves_by_the_action_and_ticks_last_a_thirtieth(env):
    observation, _ = env.reset(seed=3)
    began, start = env.data.time, observation["agent_pos"][:3]
    action = np.array([0.001, -0.002, 0.0005])
    for _ in range(3):
        observation, *_ = env.step(action)
    assert env.data.time - began == pytest.approx(0.1, abs=1e-9)
    np.testing.assert_allclose(observation["agent_pos"][3:], 30 * action, atol=0.01)
    np.testing.assert_allclose(settle(env)["agent_pos"][:3], start + 3 * action, atol=1e-5)
    env.reset(seed=3)
    env.step(np.array([1.0, -1.0, 1.0]))  # what lies outside is clipped
    np.testing.assert_allclose(settle(env)["agent_pos"][:3] - start, MAX_DELTA * np.array([1, -1, 1]), atol=1e-5)


def test_expert_inserts_gently(env):
    for seed in range(20):
        observations, infos, total = play(env, seed)
        assert infos[-1]["success"] and infos[-1]["score"] == 1 and total == pytest.approx(1)
        metrics = infos[-1]["metrics"]
        assert metrics["depth_mm"] >= 15 and metrics["peak_force_n"] < 10
        assert metrics["duration_s"] == pytest.approx(len(infos) * TICK)
        assert not any(info["success"] for info in infos[:-1])
        assert observations[-1]["agent_pos"][2] < -0.015


def test_expert_acts_on_what_is_observed_alone_and_comes_back_from_disturbances(env):
    generator = np.random.default_rng(0)
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        expert, ended, info, push = env.expert(), False, {}, np.zeros(3)
        while not ended:
            action = expert()
            assert action in env.action_space
            felt = observation["wrench"][-4:].mean(axis=0).astype(float)
            told = _feel_in(observation["agent_pos"][:3].astype(float), observation["environment_state"], felt)
            np.testing.assert_allclose(told, action, atol=1e-6)
            push = 0.7 * push + generator.normal(0, 0.7 * 0.1 * MAX_DELTA, 3)
            observation, _, terminated, truncated, info = env.step(action + push)
            ended = terminated or truncated
        assert info["success"]
        assert expert() in env.action_space  # whoever asks after the end gets an answer


def test_without_feeling_it_often_fails(env):
    def blind():
        return _feel_in(env.data.qpos[:3], env._seems, np.zeros(6))

    ends = [play(env, seed, act=blind)[1][-1] for seed in range(30)]
    assert 0.4 < np.mean([end["success"] for end in ends]) < 0.85
    assert all(end["success"] or end["metrics"]["peak_force_n"] > 20 for end in ends)


def test_guard_stops_at_20_n_and_that_is_a_failure(env):
    place(env, 0.012, 0, 0.002)
    rewards, peaks, terminated, info = [], [], False, {}
    while not terminated:
        _, reward, terminated, truncated, info = env.step(np.array([0, 0, -0.003]))
        assert not truncated and not info["success"]
        rewards.append(reward)
        peaks.append(env._wrist.peak_n)
    assert peaks[-1] > 20 and max(peaks[:-1]) <= 20
    assert info["metrics"]["peak_force_n"] == peaks[-1]
    assert info["score"] == 0 == pytest.approx(sum(rewards))
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        env.step(STILL)
    # A peg that is stopped halfway in gives back what it was paid.
    place(env, 0, 0, -0.010)
    paid, terminated = [env.step(STILL)[1]], False
    while not terminated:
        _, reward, terminated, _, info = env.step(np.array([0.003, 0.003, 0]))
        paid.append(reward)
    assert paid[0] == pytest.approx(2 / 3, abs=1e-3) and info["score"] == 0 == pytest.approx(sum(paid))


def test_peak_force_is_what_200_samples_a_second_may_miss(env):
    for seed in range(5):
        observations, infos, _ = play(env, seed, delay=5)
        pressed = max(np.abs(o["wrench"][:, 2]).max() for o in observations if o["agent_pos"][2] < 0.0005)
        assert infos[-1]["metrics"]["peak_force_n"] >= pressed - 0.05
    place(env, 0.012, 0, 0.002)  # a hard landing: the impact is shorter than a sample
    seen = [env.step(np.array([0, 0, -0.002]))[0]["wrench"] for _ in range(3)]
    assert env._wrist.peak_n > np.abs(seen).max() + 0.1


def test_time_runs_out_after_8_s(env):
    env.reset(seed=0)
    began, ends = env.data.time, []
    for _ in range(240):
        _, reward, terminated, truncated, info = env.step(STILL)
        ends.append(truncated)
        assert reward == 0 and not terminated
    assert ends == [False] * 239 + [True]
    assert info["metrics"] == {"peak_force_n": 0, "contact_force_n": 0, "depth_mm": 0, "duration_s": 8}
    assert env.data.time - began == pytest.approx(8)


def test_touch_is_told_once_with_its_time(env):
    observations, infos, _ = play(env, 2)
    ((tick, event),) = [(k, info["event"]) for k, info in enumerate(infos) if "event" in info]
    assert event["name"] == "touch" and tick * TICK <= event["time_s"] < (tick + 1) * TICK
    before, after = observations[tick], observations[tick + 1]
    assert np.abs(before["wrench"][-1, 2]) < 0.5 and before["agent_pos"][2] > 0 and after["agent_pos"][2] < 1e-3


def test_foresight_comes_true_and_changes_nothing(env):
    generator = np.random.default_rng(1)
    touch = {seed: [("event" in info) for info in play(env, seed)[1]].index(True) for seed in (2, 6)}
    for seed, ticks in ((2, 1), (6, 5), (6, -4)):  # after the first touch, or before it
        actions = generator.uniform(-0.001, 0.001, (6, 3)) + 2 * DOWN
        ways = []
        for looks in (False, True):
            env.reset(seed=seed)
            expert = env.expert()
            for _ in range(touch[seed] + ticks):
                env.step(expert())
            foreseen = env.foresee(actions) if looks else None
            ways.append([env.step(action)[0] for action in actions])
        for a, b in zip(*ways, strict=True):
            assert all(np.array_equal(a[key], b[key]) for key in KEYS)
        felt = [o["wrench"][-6:].mean(axis=0) for o in ways[1]]  # of 33 or 34 ms, 30 at 200 Hz
        assert foreseen.shape == (6, 6) and np.abs(foreseen[:, :3]).max() > 1
        assert (np.abs(foreseen - felt) < [0.4] * 3 + [0.02] * 3).all()


def test_chance_is_as_documented(env):
    holes, errors, starts = [], [], []
    for seed in range(400):
        observation, _ = env.reset(seed=seed)
        holes.append(env.data.mocap_pos[0].copy())
        errors.append(observation["environment_state"] - holes[-1][:2])
        starts.append(observation["agent_pos"][:3])
    assert np.hypot(*np.array(holes)[:, :2].T).max() <= 0.003 and not np.array(holes)[:, 2].any()
    assert np.mean(np.hypot(*np.array(holes)[:, :2].T) < 0.0015) == pytest.approx(0.25, abs=0.07)  # uniform in area
    np.testing.assert_allclose(np.std(errors, axis=0), 0.0015, rtol=0.12)
    np.testing.assert_allclose(np.min(starts, axis=0), [-0.008, -0.008, 0.025], atol=3e-4)
    np.testing.assert_allclose(np.max(starts, axis=0), [0.008, 0.008, 0.040], atol=3e-4)
    assert len(np.unique(errors, axis=0)) == 400


def test_gymnasium_accepts_it():
    assert_gymnasium_accepts(gymnasium.make("palaestra/PegInsert-v0"))


def test_same_seed_same_episode_in_another_process(env):
    assert_same_in_another_process(env, ticks=50)


@pytest.mark.skipif(available() is None, reason="no OpenGL on this machine")
def test_pixels_show_peg_hole_and_belief_and_leave_the_world_unchanged(env):
    seeing = PegInsert(pixels=64, render_mode="rgb_array")
    for a, b in zip(play(env, 5)[0], play(seeing, 5)[0], strict=True):
        assert all(np.array_equal(a[key], b[key]) for key in KEYS)
        assert b["pixels"].shape == (64, 64, 3)
    seeing.reset(seed=5)
    picture = seeing.render().astype(int)
    assert picture.shape == (480, 640, 3)
    red, green, blue = picture[..., 0], picture[..., 1], picture[..., 2]
    assert ((red > 1.3 * green) & (green > 1.5 * blue) & (red > 120)).sum() > 2000  # the peg
    cross = (red > 120) & (green < 60) & (blue < 60)
    assert 30 < cross.sum() < 2000
    before = picture.copy()
    seeing.data.mocap_pos[0, 0] += 0.003
    assert np.abs(seeing.render().astype(int) - before).sum(axis=2).astype(bool).sum() > 1000  # the block has moved
    seeing.close()


def test_bad_input_gets_a_sentence(env):
    for pixels in (4, 64.0, "64"):
        with pytest.raises(ValueError, match="pixels="):
            PegInsert(pixels=pixels)
    env.reset(seed=0)
    for action in (np.zeros(2), 0.5, [np.nan] * 3, [0, 0, np.inf]):
        with pytest.raises(ValueError, match="three finite distances in m"):
            env.step(action)
    for actions in (np.zeros(3), np.zeros((2, 2)), [[np.nan] * 3]):
        with pytest.raises(ValueError, match=r"expected an array \[n, 3\] of finite distances"):
            env.foresee(actions)
    assert env.foresee(np.zeros((0, 3))).shape == (0, 6)
    fresh = PegInsert()
    for call in (fresh.step, lambda action: fresh.foresee(action[None])):
        with pytest.raises(RuntimeError, match=r"reset\(\)"):
            call(STILL)
