"""BallIntercept: its physics against closed forms, its difficulty against the published response to delay."""

import gymnasium
import numpy as np
import pytest
from playing import assert_gymnasium_accepts, assert_same_in_another_process, play

import palaestra  # noqa: F401 - registers the ids
from palaestra.envs.dynamic.ball_intercept import BallIntercept
from palaestra.envs.offscreen import available

DT = 1 / 30
G = 9.81


@pytest.fixture(scope="module")
def env():
    return BallIntercept()


def test_ball_flies_on_a_parabola_to_the_plane_and_is_kicked_once(env):
    for seed in range(50):
        observations, infos, _ = play(env, seed)
        ball = np.array([o["environment_state"] for o in observations], np.float64)
        launched = np.flatnonzero(ball[:, 6])[0]
        assert 6 <= launched - 1 <= 23
        np.testing.assert_allclose(ball[:launched, :3], [[2, 0, 1]] * launched, atol=1e-6)
        assert abs(ball[-1, 0]) < 1e-6  # the last tick ends in the plane

        (tick,) = (i for i, info in enumerate(infos) if "event" in info)
        event = infos[tick]["event"]
        assert event["name"] == "kick"
        assert tick * DT < event["time_s"] <= (tick + 1) * DT + 1e-9
        for flight in (ball[launched : tick + 1, :3], ball[tick + 1 : -1, :3]):  # before and after the kick
            bend = np.diff(flight, 2, axis=0)
            np.testing.assert_allclose(bend, np.broadcast_to([0, 0, -G * DT**2], bend.shape), atol=1e-5)

        # The kick's size, from where a parabola through the last state before it and the final point would end.
        before = ball[tick]
        left_s = -before[0] / before[3]
        would_cross = before[1:3] + before[4:6] * left_s - [0, G * left_s**2 / 2]
        moved = np.linalg.norm(ball[-1, 1:3] - would_cross)
        assert 0.2 - 0.025 < moved < 0.45 + 0.025  # MuJoCo's Euler steps fall up to 2 cm further than t²/2
        flight_s = before[0] / -before[3] + (tick - launched + 1) * DT
        assert 0.8 - 1e-2 < flight_s < 1.1 + 1e-2
        assert 0.25 - 1e-2 < (event["time_s"] - (launched - 1) * DT) / flight_s < 0.5 + 1e-2


def test_score_follows_the_distance_at_the_plane(env):
    seen = set()
    for seed in range(60):
        observations, infos, total = play(env, seed, delay=seed % 7)
        paddle, ball = observations[-1]["agent_pos"][:2], observations[-1]["environment_state"][1:3]
        miss = np.hypot(*(paddle - ball))
        assert infos[-1]["metrics"]["miss_m"] == pytest.approx(miss, abs=1e-5)
        score = 1.0 if miss < 0.08 else 0.5 if miss < 0.16 else 0.0
        assert infos[-1]["score"] == total == score
        assert [info["success"] for info in infos] == [False] * (len(infos) - 1) + [score == 1]
        seen.add(score)
    assert seen == {0.0, 0.5, 1.0}


def test_paddle_follows_the_commanded_velocity_and_stops_at_its_rails(env):
    env.reset(seed=1)
    for _ in range(5):
        observation, *_ = env.step(np.array([0.6, -0.4], np.float32))
    np.testing.assert_allclose(observation["agent_pos"][2:], [0.6, -0.4], atol=0.01)
    for sign in (-1.5, 1.5):
        for seed in range(3):
            env.reset(seed=seed)
            terminated = False
            while not terminated:
                observation, _, terminated, _, _ = env.step(np.full(2, sign, np.float32))
                assert observation in env.observation_space
            np.testing.assert_allclose(observation["agent_pos"][:2], np.sign(sign) + np.array([0.0, 1.0]), atol=0.02)


def test_response_to_pure_delay_is_the_published_one(env):
    # faster prototype: 0-3 ticks 1.00, 4 .75, 6 .46, 8 .34, 10 .17, 12 .14, from as many episodes as here.
    # The standard error of a difference of two such means is about 0.045.
    for delay, published, tolerance in (
        (0, 1.0, 0.01),
        (3, 1.0, 0.03),
        (4, 0.75, 0.1),
        (8, 0.34, 0.1),
        (12, 0.14, 0.1),
    ):
        score = np.mean([play(env, seed, delay=delay)[2] for seed in range(200)])
        assert abs(score - published) <= tolerance, f"delay {delay}: {score}"


def test_gymnasium_accepts_it():
    assert_gymnasium_accepts(gymnasium.make("palaestra/BallIntercept-v0"))


@pytest.mark.skipif(available() is None, reason="no OpenGL on this machine")
def test_pixels_show_the_ball_and_leave_the_world_unchanged(env):
    made = gymnasium.make("palaestra/BallIntercept-v0", pixels=48, render_mode="rgb_array")
    assert_gymnasium_accepts(made, skip_render_check=False)
    seeing = made.unwrapped
    assert isinstance(seeing, BallIntercept)
    plain, _, _ = play(env, 5)
    with_pixels, _, _ = play(seeing, 5)
    for a, b in zip(plain, with_pixels, strict=True):
        np.testing.assert_array_equal(a["environment_state"], b["environment_state"])
        np.testing.assert_array_equal(a["agent_pos"], b["agent_pos"])
    picture = seeing.render()
    assert picture is not None
    assert picture.shape == (480, 640, 3)
    orange = (picture[..., 0] > 150) & (picture[..., 2] < 90)
    assert orange.sum() > 50
    assert seeing.interface.observation["pixels"][0].quantity == "image"
    seeing.close()


def test_same_seed_same_episode_in_another_process(env):
    assert_same_in_another_process(env, ticks=30)


def test_bad_input_gets_a_sentence(env):
    for pixels in (0, 4, 64.0, "64", True, 5000):
        with pytest.raises(ValueError, match="pixels="):
            BallIntercept(pixels=pixels)
    with pytest.raises(ValueError, match="render_mode='human'"):
        BallIntercept(render_mode="human")
    env.reset(seed=0)
    for action in (np.zeros(3), 0.5, [np.nan, 0], [np.inf, 0]):
        with pytest.raises(ValueError, match="two finite velocities"):
            env.step(action)
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        BallIntercept().step(np.zeros(2))
