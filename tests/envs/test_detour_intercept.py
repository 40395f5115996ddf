"""DetourIntercept: its post against rigid-body mechanics, its two routes against what averaging them does."""

from collections import deque

import gymnasium
import numpy as np
import pytest
from playing import assert_gymnasium_accepts, assert_same_in_another_process, play

import palaestra  # noqa: F401 - registers the ids
from palaestra.envs.dynamic.detour_intercept import DetourIntercept
from palaestra.envs.offscreen import available

DT = 1 / 30
G = 9.81


@pytest.fixture(scope="module")
def env():
    return DetourIntercept()


def drive(env, velocity, ticks):
    for _ in range(ticks):
        observation, *_ = env.step(np.array(velocity, np.float32))
    return observation["agent_pos"]


def test_post_stops_the_paddle_at_its_rim(env):
    env.reset(seed=0)
    stopped = drive(env, [-1.5, 0], 20)
    # Post half as wide as 0.02 m, paddle of radius 0.08 m; the contact is a stiff spring, so a millimetre may be lost.
    np.testing.assert_allclose(stopped, [0.1, 1.0, 0, 0], atol=2e-3)


def test_post_holds_what_presses_on_it_by_coulomb_friction(env):
    for press in (0.0, 0.1, 0.3, 0.5):
        # The servos push with 40 and 16 N per m/s of command that is not followed.
        sticks_below = 0.8 * 40 * press / 16
        for share in (0.8, 1.3):
            env.reset(seed=0)
            drive(env, [-1.5, 0], 10)
            drive(env, [-press, 0], 4)
            along = max(0.05, share * sticks_below)
            z = drive(env, [-press, along], 4)[1]
            if press and share < 1:
                assert z == pytest.approx(1.0, abs=2e-3), (press, along)
            else:
                assert z > 1.0 + 0.5 * 4 * DT * (along - sticks_below), (press, along)


@pytest.mark.parametrize("side", [1, -1])
def test_paddle_passes_freely_over_and_under_the_post(env, side):
    env.reset(seed=0)
    drive(env, [0, side * 0.51], 10)  # 0.16 m: the post is half as high as 0.06 m, the paddle has 0.08 m
    crossed = drive(env, [-1.5, 0], 15)
    # Away from contact a slide follows its command with a time constant of 1/40 s: 15 ticks less that.
    assert crossed[0] == pytest.approx(0.3 - 1.5 * (15 * DT - 1 / 40), abs=0.01)
    assert crossed[1] - 1 == pytest.approx(side * 0.17, abs=0.01)


def test_ball_starts_toward_one_half_and_the_kick_sends_it_to_the_other(env):
    for seed in range(60):
        observations, infos, _ = play(env, seed)
        ball = np.array([o["environment_state"] for o in observations], np.float64)
        (tick,) = (i for i, info in enumerate(infos) if "event" in info)
        assert infos[tick]["event"]["name"] == "kick"
        assert tick * DT < infos[tick]["event"]["time_s"] <= (tick + 1) * DT + 1e-9
        launch = np.flatnonzero(ball[:, 6])[0] - 1
        flight_s = -2 / ball[launch + 1, 3]
        assert 1.3 - 1e-2 < flight_s < 1.4 + 1e-2
        assert 0.08 - 1e-2 < (infos[tick]["event"]["time_s"] - launch * DT) / flight_s < 0.25 + 1e-2
        if ball[tick, 6]:  # the kick may come in the very tick of the launch
            left_s = -ball[tick, 0] / ball[tick, 3]
            would_cross = ball[tick, 1:3] + ball[tick, 4:6] * left_s - [0, G * left_s**2 / 2]
            # MuJoCo's Euler steps fall up to 3 cm further than t²/2
            assert np.all(np.abs(would_cross - [0.3, 1.0]) < [0.04 + 1e-3, 0.06 + 0.03])
        assert np.all(np.abs(ball[-1, 1:3] - [-0.22, 1.0]) < [0.06 + 1e-3, 0.15 + 1e-3])


def test_both_routes_lead_to_the_ball_and_the_seed_draws_one_of_them(env):
    drawn = []
    for seed in range(100):
        free, infos, _ = play(env, seed)
        drawn.append(infos[-1]["metrics"]["route"])
        for route, side in (("over", 1.0), ("under", -1.0)):
            env.reset(seed=seed)
            observations, infos, _ = play(env, seed, env.expert(route))
            assert infos[-1]["success"] and infos[-1]["score"] == 1.0
            assert infos[-1]["metrics"]["route"] == side
            # The route tells nothing about the throw: ball and event are those of the free demonstration.
            for a, b in zip(free, observations, strict=True):
                np.testing.assert_array_equal(a["environment_state"], b["environment_state"])
    # A fair coin: 100 throws leave 0.5 by more than 0.15 once in 400 times.
    assert set(drawn) == {1.0, -1.0}
    assert abs(np.mean(drawn)) < 0.3


def test_mean_of_the_two_routes_runs_into_the_post(env):
    for seed in range(60):
        env.reset(seed=seed)
        over, under = env.expert("over"), env.expert("under")
        observations, infos, _ = play(env, seed, lambda over=over, under=under: (over() + under()) / 2)
        assert infos[-1]["score"] == 0.0
        assert infos[-1]["metrics"]["route"] == 0.0
        assert observations[-1]["agent_pos"][0] < 0.15  # it went there, and no further


def test_an_averaged_beginning_is_mended_by_a_choice(env):
    """A plan may average its first actions, as long as a later one chooses."""
    scores = []
    for seed in range(60):
        env.reset(seed=seed)
        over, under = env.expert("over"), env.expert("under")
        kicked = []

        def hesitate(over=over, under=under, kicked=kicked):
            if env._now > env._kick:
                kicked.append(1)
            return over() if len(kicked) > 4 else (over() + under()) / 2

        scores.append(play(env, seed, hesitate)[1][-1]["score"])
    assert np.mean(scores) > 0.95


def test_response_to_pure_delay_is_the_documented_one(env):
    # The standard error of such a mean is at most 0.035.
    for delay, documented, tolerance in (
        (0, 1.0, 0.01),
        (3, 0.99, 0.03),
        (4, 0.44, 0.1),
        (6, 0.02, 0.05),
    ):
        score = np.mean([play(env, seed, delay=delay)[1][-1]["score"] for seed in range(200)])
        assert abs(score - documented) <= tolerance, f"delay {delay}: {score}"


def test_response_to_late_news_is_the_documented_one(env, monkeypatch):
    goal = env._goal
    for delay, documented, tolerance in ((8, 0.99, 0.02), (12, 0.83, 0.08), (16, 0.39, 0.1)):
        scores = []
        for seed in range(200):
            seen = deque(maxlen=delay + 1)

            def late(seen=seen):
                seen.append(goal())
                return seen[0]

            monkeypatch.setattr(env, "_goal", late)
            scores.append(play(env, seed)[1][-1]["score"])
        assert abs(np.mean(scores) - documented) <= tolerance, f"delay {delay}: {np.mean(scores)}"


def test_gymnasium_accepts_it():
    made = gymnasium.make("palaestra/DetourIntercept-v0")
    assert_gymnasium_accepts(made)
    assert made.unwrapped.interface.episode_ticks == 65


@pytest.mark.skipif(available() is None, reason="no OpenGL on this machine")
def test_pixels_show_ball_and_post_throughout(env):
    seeing = gymnasium.make("palaestra/DetourIntercept-v0", pixels=96, render_mode="rgb_array").unwrapped
    observations, _, _ = play(seeing, 5)
    plain, _, _ = play(env, 5)
    for a, b in zip(plain, observations, strict=True):
        np.testing.assert_array_equal(a["environment_state"], b["environment_state"])
        red, green, blue = np.moveaxis(b["pixels"].astype(int), -1, 0)
        assert ((red > green + 50) & (red > blue + 80)).any()  # the ball, wherever it flies
        assert ((red > green + 25) & (abs(green - blue) < 25)).sum() > 5  # the post
    assert seeing.render().shape == (480, 640, 3)
    seeing.close()


def test_same_seed_same_episode_and_route_in_another_process(env):
    assert_same_in_another_process(env, ticks=40)


def test_bad_input_gets_a_sentence(env):
    with pytest.raises(ValueError, match="route='left', expected 'over' or 'under'"):
        env.expert("left")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="two finite velocities"):
        env.step(np.zeros(3))
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        DetourIntercept().step(np.zeros(2))
