"""TableTennis: the ball against an independent integrator and the laws of impact, the arm, the rules, the expert."""

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import assert_gymnasium_accepts, assert_same_in_another_process, play
from scipy.integrate import solve_ivp

import palaestra  # noqa: F401 - registers the ids
from palaestra.envs.dynamic.ball_flight import Ball, Surface, aim
from palaestra.envs.dynamic.table_tennis import MAX_SPEED, RETURN_S, RETURN_TO, RUBBER, TABLE, TableTennis, _return
from palaestra.envs.offscreen import available

TICK = 1 / 30
RADIUS, MASS, G = 0.02, 0.0027, 9.81
INERTIA = 2 / 3 * MASS * RADIUS**2  # a thin hollow sphere
LEVEL = 0.76 + RADIUS


@pytest.fixture(scope="module")
def env():
    return TableTennis()


def fly(state, spin, time_s):
    """Position and velocity after a flight: the equation in the docstring, in the hands of scipy."""
    k = 1.204 * np.pi * RADIUS**2 / (2 * MASS)

    def derivative(_, y):
        v, speed, turning = y[3:], np.linalg.norm(y[3:]), np.linalg.norm(spin)
        lift = np.zeros(3)
        if turning > 0:
            lift = k * speed**2 / (2 + speed / (RADIUS * turning)) * np.cross(spin, v) / (turning * speed)
        return np.concatenate([v, [0, 0, -G] - k * 0.47 * speed * v + lift])

    return solve_ivp(derivative, (0, time_s), state, "DOP853", rtol=1e-11, atol=1e-12).y[:, -1]


def vectors(size):
    return st.tuples(*[st.floats(-size, size)] * 3).map(np.array)


@given(vectors(6), vectors(200), st.floats(0.01, 1.0))
@settings(max_examples=30, deadline=None)
def test_flight_is_the_solution_of_its_equation(velocity, spin, time_s):
    velocity = velocity + [0, 0, 0.1]
    flown = Ball(np.array([1.0, 2, 3]), velocity, spin).fly(time_s)
    expected = fly(np.array([1.0, 2, 3, *velocity]), spin, time_s)
    np.testing.assert_allclose(np.concatenate([flown.position, flown.velocity]), expected, atol=1e-6)
    np.testing.assert_array_equal(flown.spin, spin)


def test_without_air_resistance_to_speak_of_a_ball_falls_as_galileo_says():
    slow = Ball(np.zeros(3), np.array([0, 0, 0.3]), np.zeros(3))
    assert slow.time_to(2, 0.0, 1.0) == pytest.approx(2 * 0.3 / G, rel=2e-3)  # drag at 0.3 m/s is 0.1 % of the weight
    assert slow.time_to(2, 0.1, 0.1) is None
    assert slow.time_to(2, -1.0, 0.2) is None


def test_a_ball_dropped_from_30_cm_comes_back_to_23_to_26_cm():
    dropped = Ball(np.array([0, 0, LEVEL + 0.30]), np.zeros(3), np.zeros(3))
    up = dropped.fly(dropped.time_to(2, LEVEL, 1.0)).bounce(np.array([0, 0, 1.0]), TABLE)
    heights = [up.fly(t).position[2] - LEVEL for t in np.linspace(0, 0.5, 501)]
    assert 0.23 < max(heights) < 0.26
    # Falling and rising against quadratic drag has a closed form, in v² over height.
    c = 0.47 * 1.204 * np.pi * RADIUS**2 / (2 * MASS)
    landing = G / c * (1 - np.exp(-2 * c * 0.30))
    assert max(heights) == pytest.approx(np.log(1 + c / G * TABLE.restitution**2 * landing) / (2 * c), abs=1e-5)


@given(vectors(8), vectors(300), vectors(1), vectors(2), st.floats(0, 1), st.floats(0, 1.5))
@settings(max_examples=200, deadline=None)
def test_impacts_obey_newton_and_coulomb(velocity, spin, normal, surface_velocity, restitution, friction):
    if np.linalg.norm(normal) < 0.1:
        normal = np.array([0, 0, 1.0])
    normal = normal / np.linalg.norm(normal)
    ball = Ball(np.zeros(3), velocity, spin)
    after = ball.bounce(normal, Surface(restitution, friction), surface_velocity)
    approach = (velocity - surface_velocity) @ normal
    if approach >= 0:
        assert after is ball
        return
    assert (after.velocity - surface_velocity) @ normal == pytest.approx(-restitution * approach, abs=1e-9)
    impulse = MASS * (after.velocity - velocity)
    sideways = impulse - (impulse @ normal) * normal
    # The impulse acts at the point of contact, so it changes the angular momentum by its moment.
    arm = -RADIUS * normal
    np.testing.assert_allclose(INERTIA * (after.spin - spin), np.cross(arm, impulse), atol=1e-12)
    # Coulomb: within the friction cone, and at its edge wherever the contact still slips.
    limit = friction * (impulse @ normal)
    assert np.linalg.norm(sideways) <= limit + 1e-12
    slip = after.velocity + np.cross(after.spin, arm) - surface_velocity
    slip -= (slip @ normal) * normal
    if np.linalg.norm(slip) > 1e-9:
        assert np.linalg.norm(sideways) == pytest.approx(limit, abs=1e-9)
        assert sideways @ slip <= 1e-12

    def energy(b):
        relative = b.velocity - surface_velocity
        return MASS / 2 * relative @ relative + INERTIA / 2 * b.spin @ b.spin

    assert energy(after) <= energy(ball) + 1e-12


def test_aimed_balls_arrive_and_the_return_inverts_the_impact(env):
    for seed in range(20):
        env.reset(seed=seed)
        serve = env._served_ball
        there = fly(np.concatenate([serve.position, serve.velocity]), serve.spin, 0.4)
        aimed = aim(serve.position, serve.spin, there[:3], 0.4)
        np.testing.assert_allclose(aimed.velocity, serve.velocity, atol=1e-4)

        normal, speed = _return(serve)  # any ball that comes towards the robot will do
        hit = serve.bounce(normal, RUBBER, speed * normal)
        landed = fly(np.concatenate([hit.position, hit.velocity]), hit.spin, RETURN_S)
        np.testing.assert_allclose(landed[:3], RETURN_TO, atol=0.02)


def test_the_ball_waits_is_served_bounces_once_and_flies_as_it_should(env):
    moments, spins = [], []
    for seed in range(20):
        observations, infos, _ = play(env, seed)
        world = np.array([o["environment_state"] for o in observations], np.float64)
        (tick,) = (i for i, info in enumerate(infos) if "event" in info)
        event = infos[tick]["event"]
        assert event["name"] == "serve"
        assert tick * TICK < event["time_s"] <= (tick + 1) * TICK + 1e-9
        moments.append(event["time_s"] / TICK)
        spins.append(world[-1, 6:9])
        np.testing.assert_allclose(world[: tick + 1], [[1.75, 0, 1.08, 0, 0, 0, 0, 0, 0, 0]] * (tick + 1), atol=1e-6)
        assert (world[tick + 1 :, 9] == 1).all()

        launch_s = event["time_s"] - (tick + 1) * TICK  # from the end of that tick, back
        back = Ball(world[tick + 1, :3], world[tick + 1, 3:6], world[tick + 1, 6:9])
        start = fly(np.concatenate([back.position, back.velocity]), back.spin, launch_s) if launch_s else back.position
        np.testing.assert_allclose(start[:3], [1.75, 0, 1.08], atol=1e-5)

        bounces = 0
        for before, after in zip(world[tick + 1 : -1], world[tick + 2 :], strict=True):
            if np.allclose(before[6:9], after[6:9]):  # spin changes only where the ball meets something
                np.testing.assert_allclose(after[:6], fly(before[:6], before[6:9], TICK), atol=1e-5)
            elif before[3] < 0 and before[5] < 0 < after[5] and before[0] > -1.2:
                bounces += 1
                assert after[0] < -0.5 + 0.01 < before[0] + 0.5
                assert before[2] > LEVEL > after[2] - TICK * after[5] - G * TICK**2
        assert bounces == 1
    assert min(moments) >= 6 and max(moments) <= 23
    assert len({round(m % 1, 3) for m in moments}) > 5  # not on ticks


def test_the_paddle_returns_the_normal_velocity_with_its_restitution(env):
    for seed in range(5):
        observations, _, _ = play(env, seed)
        world = np.array([o["environment_state"] for o in observations], np.float64)
        arm = np.array([o["agent_pos"] for o in observations], np.float64)
        (tick,) = (i for i in range(1, len(world)) if world[i - 1, 3] < -1 and world[i, 3] > 1)
        before, after = world[tick - 1], world[tick]
        # The moment of the hit is where the flight before it, forward, meets the flight after it, backward.
        meetings = []
        for share in np.linspace(0, 1, 101):
            come = fly(before[:6], before[6:9], max(share * TICK, 1e-9))
            gone = fly(after[:6], after[6:9], min((share - 1) * TICK, -1e-9))
            meetings.append((np.linalg.norm(come[:3] - gone[:3]), share, come, gone))
        apart, share, come, gone = min(meetings, key=lambda meeting: meeting[0])
        assert apart < 2e-3
        blade, normal, velocity = (
            (1 - share) * arm[tick - 1, part] + share * arm[tick, part]
            for part in (slice(14, 17), slice(17, 20), slice(20, 23))
        )
        normal /= np.linalg.norm(normal)
        assert (come[:3] - blade) @ normal == pytest.approx(RADIUS + 0.007, abs=4e-3)
        assert np.linalg.norm(come[:3] - blade) < 0.09
        coming, going = (come[3:] - velocity) @ normal, (gone[3:] - velocity) @ normal
        assert going == pytest.approx(-RUBBER.restitution * coming, rel=0.05)


def test_score_follows_what_the_ball_did(env):
    seen = set()
    for seed in range(40):
        observations, infos, total = play(env, seed, delay=seed % 6)
        last, ball = infos[-1], observations[-1]["environment_state"]
        contact, over_net = last["metrics"]["contact"], last["metrics"]["over_net"]
        landed = abs(ball[2] - LEVEL) < 1e-4 and 0 < ball[0] < 1.37 and abs(ball[1]) < 0.7625
        assert last["score"] == total == (1.0 if landed and over_net else 0.5 if over_net else 0.25 if contact else 0.0)
        assert [info["success"] for info in infos] == [False] * (len(infos) - 1) + [total == 1]
        hit = any(o["environment_state"][0] < -1.2 and o["environment_state"][3] > 0 for o in observations)
        assert hit == bool(contact)
        if over_net:
            xs = np.array([o["environment_state"][0] for o in observations])
            assert (xs[np.argmin(xs) :] > 0).any()
        seen.add(total)
    assert {0.0, 0.25, 1.0} <= seen


RULES = {  # how the ball was hit, where from, where to and how fast -> score
    "passes the arm": (False, (-0.3, 0.7, 1.0), (-1.9, 0.7, 0.9), 0.4, 0.0),
    "bounces twice": (False, (-0.5, 0.0, 0.9), (-1.0, 0.0, LEVEL), 0.4, 0.0),
    "lands on the far half": (True, (-1.3, 0.0, 1.0), (0.9, 0.3, LEVEL), 0.6, 1.0),
    "goes into the net": (True, (-1.3, 0.0, 0.9), (0.0, 0.1, 0.85), 0.3, 0.25),
    "touches the top of the net": (True, (-1.3, 0.0, 0.9), (0.0, 0.1, 0.9125 + 0.019), 0.3, 0.25),
    "lands on the near half": (True, (-1.3, 0.0, 1.0), (-0.3, 0.0, LEVEL), 0.4, 0.25),
    "flies past the table": (True, (-1.3, 0.0, 1.0), (1.5, 0.0, 0.9), 0.5, 0.5),
    "flies beside the table": (True, (-1.3, 0.0, 1.0), (0.9, 1.0, LEVEL), 0.6, 0.5),
    "never reaches the net, beside it": (True, (-1.3, 0.8, 1.0), (-0.7, 1.2, 0.5), 0.4, 0.25),
    "goes around the post": (True, (-1.3, 1.9, 0.9), (0.9, 0.6, LEVEL), 0.4, 1.0),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_of_the_game(env, rule):
    touched, start, target, time_s, score = RULES[rule]
    env.reset(seed=0)
    env._serve, env._bounced, env._touched = 0, touched, touched
    env._ball = aim(np.array(start), np.zeros(3), np.array(target), time_s)
    terminated, info = False, {}
    while not terminated:
        _, reward, terminated, _, info = env.step(np.zeros(7))
    assert info["score"] == reward == score
    assert info["metrics"] == {"contact": float(touched), "over_net": float(score >= 0.5)}


def test_hitting_the_ball_before_it_bounced_ends_the_rally(env):
    for bounced in (False, True):
        observation, _ = env.reset(seed=0)
        blade, red_side = observation["agent_pos"][14:17], observation["agent_pos"][17:20]
        env._serve, env._bounced = 0, bounced
        env._ball = aim(blade + 0.5 * red_side, np.zeros(3), blade.astype(float), 0.12)
        for _ in range(5):
            observation, _, terminated, _, info = env.step(np.zeros(7))
            if terminated:
                break
        assert observation["environment_state"][3] > 1  # it came back all the same
        assert terminated != bounced
        assert info.get("score", 0.0) == 0.0


def test_expert_returns_the_serves_and_late_actions_do_not(env):
    assert np.mean([play(env, seed)[2] == 1 for seed in range(20)]) >= 0.95
    late = [play(env, seed, delay=6)[2] for seed in range(20)]
    assert np.mean(late) < 0.4


def test_expert_comes_back_from_a_disturbance(env):
    generator = np.random.default_rng(0)
    successes = 0
    for seed in range(20):
        env.reset(seed=seed)
        expert, terminated, tick = env.expert(), False, 0
        while not terminated:
            action = expert()
            assert action in env.action_space
            pushed = tick % 10 < 3
            noise = generator.normal(0, 0.5, 7) * pushed
            _, reward, terminated, _, _ = env.step(action + noise)
            tick += 1
        assert expert() in env.action_space  # whoever asks after the end gets an answer
        successes += reward == 1
    assert successes >= 17


def test_arm_follows_commands_within_the_real_limits(env):
    env.reset(seed=1)
    start = env.data.qpos.copy()
    for _ in range(5):
        observation, *_ = env.step(np.zeros(7))
    np.testing.assert_allclose(observation["agent_pos"][:7], start, atol=1e-3)  # it carries its weight

    command = np.array([0.4, -0.3, 0.2, 0.3, -0.4, 0.3, 0.5])
    for _ in range(5):
        observation, *_ = env.step(command)
    np.testing.assert_allclose(observation["agent_pos"][7:14], command, atol=0.03)

    env.reset(seed=1)
    for _ in range(10):
        observation, *_ = env.step(np.array([50.0, 0, 0, 0, 0, 0, -50.0]))
    assert observation["agent_pos"][[7, 13]] == pytest.approx([MAX_SPEED[0], -MAX_SPEED[6]], rel=0.02)

    generator = np.random.default_rng(2)
    for seed in range(6):
        env.reset(seed=seed)
        terminated = False
        while not terminated:
            action = 5 * np.sign(generator.normal(size=7))  # far outside of the space
            observation, _, terminated, _, _ = env.step(action)
            assert observation in env.observation_space
            assert (np.abs(env.data.qfrc_actuator) <= [87.01] * 4 + [12.01] * 3).all()


def test_paddle_does_not_go_through_the_table(env):
    env.reset(seed=0)
    place, facing = np.array([-1.25, 0.0, 0.95]), np.array([1.0, 0, 0])
    env.data.qpos[:] = env._posture(place, facing)
    observation, *_ = env.step(np.zeros(7))
    np.testing.assert_allclose(observation["agent_pos"][14:17], place, atol=2e-3)
    np.testing.assert_allclose(observation["agent_pos"][17:20], facing, atol=2e-3)
    for _ in range(15):
        observation, *_ = env.step(np.array([0, 1.0, 0, 0, 0, 0, 0]))
        assert observation["agent_pos"][16] > 0.76
    assert env.data.ncon > 0


def test_gymnasium_accepts_it():
    assert_gymnasium_accepts(gymnasium.make("palaestra/TableTennis-v0"))


@pytest.mark.skipif(available() is None, reason="no OpenGL on this machine")
def test_pixels_show_the_game_and_leave_it_unchanged(env):
    seeing = TableTennis(pixels=64, render_mode="rgb_array")
    plain, _, _ = play(env, 5)
    with_pixels, _, _ = play(seeing, 5)
    for a, b in zip(plain, with_pixels, strict=True):
        np.testing.assert_array_equal(a["environment_state"], b["environment_state"])
        np.testing.assert_array_equal(a["agent_pos"], b["agent_pos"])
        assert b["pixels"].shape == (64, 64, 3)
    picture = seeing.render().astype(int)
    assert picture.shape == (480, 640, 3)
    red, green, blue = picture[..., 0], picture[..., 1], picture[..., 2]
    assert ((blue > 1.5 * red) & (blue > 1.2 * green) & (blue < 160)).sum() > 10_000  # the table
    assert ((red > 200) & (green > 90) & (green < 180) & (blue < 90)).sum() > 10  # the ball
    assert seeing.interface.observation["pixels"][0].quantity == "image"
    seeing.close()


def test_same_seed_same_episode_in_another_process(env):
    assert_same_in_another_process(env, ticks=25)


def test_bad_input_gets_a_sentence(env):
    for pixels in (0, 4, 64.0, "64", True, 5000):
        with pytest.raises(ValueError, match="pixels="):
            TableTennis(pixels=pixels)
    with pytest.raises(ValueError, match="render_mode='human'"):
        TableTennis(render_mode="human")
    env.reset(seed=0)
    for action in (np.zeros(6), 0.5, [np.nan] * 7, [np.inf] * 7):
        with pytest.raises(ValueError, match="seven finite joint velocities"):
            env.step(action)
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        TableTennis().step(np.zeros(7))
    for arguments in ((1.2, 0.3), (-0.1, 0.3), (0.9, -1), (0.9, np.nan)):
        with pytest.raises(ValueError, match="expected"):
            Surface(*arguments)
