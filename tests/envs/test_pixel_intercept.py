"""PixelIntercept: the flight as its pictures show it, and the documented response to delay."""

import gymnasium
import numpy as np
import pytest
from playing import assert_gymnasium_accepts, assert_same_in_another_process, play

import palaestra  # noqa: F401 - registers the ids
from palaestra.envs.dynamic.pixel_intercept import BALL_COLOUR, GROUND, PADDLE_COLOUR, PixelIntercept
from palaestra.runtime.registry import make_env

DT = 1 / 30


@pytest.fixture(scope="module")
def env():
    return PixelIntercept()


def centre(picture, colour):
    """Where that colour is, x and y in m: pictures show 2.3 m a side, from (-0.15, -1.15) m."""
    size = len(picture)
    over = np.array([BALL_COLOUR, PADDLE_COLOUR], float) - GROUND
    share = ((picture - np.array(GROUND, float)) @ np.linalg.pinv(over))[..., 0 if colour is BALL_COLOUR else 1]
    share = share * (share > 0.5)  # the grey line is a little of both
    middles = 2.3 * (np.arange(size) + 0.5) / size
    x, y = np.meshgrid(-0.15 + middles, -1.15 + middles[::-1])
    return (share * x).sum() / share.sum(), (share * y).sum() / share.sum()


def test_the_pictures_show_a_straight_flight_with_one_kick_and_where_it_ends():
    env = PixelIntercept(size=240)  # 1 cm a pixel
    for seed in range(12):
        observations, infos, _ = play(env, seed)
        ball = np.array([centre(seen["pixels"][..., :3], BALL_COLOUR) for seen in observations])
        (kick,) = (tick for tick, info in enumerate(infos) if "event" in info)
        event = infos[kick]["event"]
        assert event["name"] == "kick" and kick * DT < event["time_s"] <= (kick + 1) * DT + 1e-9

        launch = np.flatnonzero(ball[:, 0] < 2 - 0.02)[0] - 1
        assert 6 <= launch <= 23
        np.testing.assert_allclose(ball[: launch + 1], [[2, 0]] * (launch + 1), atol=2e-3)
        speed = (ball[launch, 0] - ball[-4, 0]) / (len(ball) - 4 - launch) / DT
        flight_s = 2 / speed
        assert 1.0 - 0.02 < flight_s < 1.7 + 0.02
        assert 0.15 - 0.03 < (event["time_s"] - launch * DT) / flight_s < 0.65 + 0.03
        # Near the line the paddle hides the way the ball goes on: up to there, two straight lines.
        for flight in (ball[launch : kick + 1], ball[kick + 1 : -6]):
            assert np.abs(np.diff(flight, 2, axis=0)).max(initial=0) < 4e-3
        aimed_at = ball[kick, 1] * flight_s / ((kick - launch) * DT)
        assert abs(aimed_at) < 0.2 + 0.03
        crosses = np.polyfit(ball[kick + 1 : -6, 0], ball[kick + 1 : -6, 1], 1)[1]
        assert 0.25 - 0.03 < abs(crosses - aimed_at) < 0.5 + 0.03
        paddle = observations[-1]["agent_pos"][0]
        assert infos[-1]["metrics"]["miss_m"] == pytest.approx(abs(crosses - paddle), abs=0.02)


def test_the_pictures_show_the_paddle_where_it_is():
    env = PixelIntercept(size=240)
    env.reset(seed=3)
    for velocity in np.random.default_rng(0).uniform(-1.5, 1.5, 25).repeat(2)[:30]:
        seen, *_ = env.step(np.array([velocity]))
        x, y = centre(seen["pixels"][..., :3], PADDLE_COLOUR)
        assert x < 0 and y == pytest.approx(seen["agent_pos"][0], abs=2e-3)


@pytest.mark.parametrize("lag", [1, 3, 15])
def test_the_second_picture_is_the_first_of_some_ticks_ago(lag):
    observations, _, _ = play(PixelIntercept(lag=lag), seed=4)
    for tick, seen in enumerate(observations):
        earlier = observations[max(tick - lag, 0)]
        np.testing.assert_array_equal(seen["pixels"][..., 3:], earlier["pixels"][..., :3])
    assert (observations[-1]["pixels"][..., 3:] != observations[-1]["pixels"][..., :3]).any()


def test_an_observation_stays_as_it_was_when_the_world_goes_on(env):
    first, _ = env.reset(seed=5)
    kept = {key: np.array(value) for key, value in first.items()}
    act = env.expert()
    for _ in range(30):
        env.step(act())
    for key, value in first.items():
        np.testing.assert_array_equal(value, kept[key])


def test_paddle_follows_the_commanded_velocity_along_its_line(env):
    env.reset(seed=1)
    for _ in range(5):
        seen, *_ = env.step(np.array([0.6]))
    # Servo with a time constant of 0.025 s: five ticks less that.
    np.testing.assert_allclose(seen["agent_pos"], [0.6 * (5 * DT - 0.025), 0.6], atol=0.01)
    assert abs(env.data.qpos[1] - 1.0) < 1e-6


def test_response_to_late_actions_is_the_documented_one(env):
    # The standard error of such a mean is at most 0.035.
    for delay, documented, tolerance in (
        (0, 1.0, 0.005),
        (3, 1.0, 0.01),
        (4, 0.93, 0.08),
        (6, 0.49, 0.1),
        (12, 0.28, 0.1),
    ):
        score = np.mean([play(env, seed, delay=delay)[2] for seed in range(200)])
        assert abs(score - documented) <= tolerance, f"delay {delay}: {score}"


def test_response_to_slow_plans_is_the_documented_one(env, monkeypatch):
    goal = env._goal
    for delay, documented, tolerance in ((4, 0.97, 0.04), (6, 0.88, 0.08), (18, 0.18, 0.08), (25, 0.05, 0.05)):
        scores = []
        for seed in range(200):
            plans = [np.array([0.0, 1.0])]

            def planned(plans=plans, ticks=iter(range(100)), delay=delay):  # noqa: B008 - one iterator an episode
                if next(ticks) % delay == 0:
                    plans.append(goal())
                return plans[-2]

            monkeypatch.setattr(env, "_goal", planned)
            scores.append(play(env, seed)[2])
        assert abs(np.mean(scores) - documented) <= tolerance, f"delay {delay}: {np.mean(scores)}"


def test_gymnasium_accepts_it():
    made = gymnasium.make("palaestra/PixelIntercept-v0", size=33, render_mode="rgb_array")
    assert_gymnasium_accepts(made, skip_render_check=False)
    assert made.unwrapped.interface.episode_ticks == 74
    assert made.unwrapped.render().shape == (480, 480, 3)


def test_a_perturbation_of_a_drawn_scene_is_refused_because_there_is_none():
    with pytest.raises(ValueError, match="draws by itself; leave the perturbation out"):
        make_env("palaestra/PixelIntercept-v0+distractor:count=2")


def test_same_seed_same_episode_in_another_process(env):
    assert_same_in_another_process(env, ticks=30)


def test_bad_input_gets_a_sentence(env):
    for options, sentence in (
        ({"size": 4}, "size=4, expected the side of the pictures"),
        ({"size": "20"}, "size='20'"),
        ({"lag": 0}, "lag=0, expected 1 to 15 ticks"),
        ({"lag": True}, "lag=True"),
        ({"render_mode": "human"}, "render_mode='human'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            PixelIntercept(**options)
    env.reset(seed=0)
    for action in (np.zeros(2), 0.5, [np.nan], [np.inf]):
        with pytest.raises(ValueError, match="one finite velocity"):
            env.step(action)
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        PixelIntercept().step(np.zeros(1))
