"""Robots hold when nobody leads them, stay inside their limits, and do a task end to end in real time."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import gymnasium
import numpy as np
import pytest

from palaestra.agents.agent import Episode, StepAgent
from palaestra.envs.dynamic.ball_intercept import GAIN, GRAVITY, HOME, MAX_SPEED
from palaestra.envs.offscreen import available
from palaestra.runtime.clock import Wall
from palaestra.runtime.executor import Execution, Executor
from palaestra.runtime.registry import make_agent, make_env
from palaestra.runtime.robots.as_env import as_env
from palaestra.runtime.robots.example_arm import ExampleArm
from palaestra.runtime.robots.robot import Reading, RobotLost, RobotStopped
from palaestra.runtime.robots.simulated import SimulatedRobot
from palaestra.runtime.robots.watchdog import Limits, Watchdog
from palaestra.runtime.rollout import run

BALL = "palaestra/BallIntercept-v0"


def joints(*values):
    return np.array(values, np.float32)


def limits(**changes):
    return Limits("joint_velocity", "joint_position", **changes)


def drive(env, action, ticks):
    for _ in range(ticks):
        env.step(action)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def guard():
    """Makes watchdogs over the example arm, and closes them."""
    made = []

    def make(*limits, **options):
        made.append(Watchdog(ExampleArm(), limits, **{"tell": lambda said: None, **options}))
        return made[-1]

    yield make
    for watchdog in made:
        watchdog.close()


class Log(ExampleArm):
    """The example arm, remembering when it was told what."""

    def __init__(self):
        super().__init__()
        self.told = []

    def command(self, action):
        self.told.append((time.perf_counter(), float(action[0])))
        super().command(action)

    def hold(self):
        self.told.append((time.perf_counter(), "hold"))
        super().hold()


def test_a_robot_without_commands_slows_down_and_holds():
    robot = Log()
    said: list[str] = []
    watchdog = Watchdog(robot, deadline_ms=100, tell=said.append)
    fed_s = time.perf_counter()
    watchdog.command(joints(1.6, 0, 0))
    time.sleep(0.6)
    assert [what for _, what in robot.told] == pytest.approx([1.6, 0.8, 0.4, 0.2, 0.1, 0.05, "hold"], abs=1e-6)
    began_s, held_s = robot.told[1][0] - fed_s, robot.told[-1][0] - fed_s
    assert began_s >= 0.1 and held_s - began_s >= 4 * 0.02, "not before its time"
    assert held_s < 0.6, "and soon enough"
    assert np.abs(watchdog.observe().observation["agent_pos"][3:]).max() < 1e-3
    assert watchdog.interventions == {"deadline": 1} and len(said) == 1 and "no command for" in said[0]
    watchdog.command(joints(1, 0, 0))  # whoever comes back may go on
    time.sleep(0.05)
    assert watchdog.observe().observation["agent_pos"][3] > 0.5
    watchdog.close()
    assert robot.told[-1][1] == "hold"


def test_commands_in_time_are_left_alone(guard):
    watchdog = guard(deadline_ms=400)
    for _ in range(10):
        watchdog.command(joints(1, 0, 0))
        time.sleep(0.02)
    assert not watchdog.interventions


def test_limits_clip_speed_and_position(guard):
    watchdog = guard(limits(low=-0.3, high=[0.2, 0.3, 0.3], speed=1.0))
    for _ in range(60):
        watchdog.command(joints(3, -3, 0.1))
        position = watchdog.observe().observation["agent_pos"]
        assert np.abs(position[3:]).max() <= 1.0 + 1e-6
        time.sleep(0.01)
    assert 0.15 < position[0] < 0.21 and -0.31 < position[1] < -0.25, "up to the bounds and not beyond"
    assert 0 < position[2] < 0.3
    assert watchdog.interventions["position"] and watchdog.interventions["velocity"]


def test_the_position_limit_holds_when_commands_run_dry_at_full_speed(guard):
    """Whatever the last command was, the axis comes to rest inside; what a busy machine adds to the deadline apart."""
    watchdog = guard(limits(high=0.3))
    while watchdog.observe().observation["agent_pos"][0] < 0.2:
        watchdog.command(joints(3, 0, 0))
    time.sleep(0.5)
    unguarded = 0.2 + 3 * (watchdog.deadline_s + 2 / 50)  # 0.5
    assert 0.2 < watchdog.observe().observation["agent_pos"][0] < unguarded - 0.1


@pytest.mark.parametrize("mode", ["absolute", "delta"])
def test_limits_on_positions(mode):
    """Targets and steps: at most speed / rate per tick, and never beyond the bounds. An independent little robot."""
    from dataclasses import replace

    class Steps(ExampleArm):
        interface = replace(
            ExampleArm.interface,
            action=(replace(ExampleArm.interface.action[0], name="joint", quantity="position", mode=mode),),
        )
        at = np.zeros(3)

        def command(self, action):
            self.at = action + (self.at if mode == "delta" else 0)

        def observe(self):
            return Reading({"agent_pos": np.concatenate([self.at, np.zeros(3)]), "wrench": np.zeros((1, 6))})

    robot = Steps()
    watchdog = Watchdog(robot, [Limits("joint", "joint_position", low=-1, high=0.1, speed=2.0)], tell=lambda said: None)
    track = []
    for _ in range(5):
        watchdog.observe()
        watchdog.command(joints(0.5, -3, 0.01))
        track.append(robot.at.copy())
    steps = np.arange(1, 6) * 2.0 / 50
    third = 0.01 * np.arange(1, 6) if mode == "delta" else np.full(5, 0.01)
    assert np.array(track) == pytest.approx(np.stack([steps.clip(max=0.1), -steps, third], 1), abs=1e-6)
    watchdog.close()


def test_a_force_holds_the_robot(guard):
    watchdog = guard(limits(force="contact", force_n=20.0))
    for _ in range(150):
        watchdog.command(joints(3, 0, 0))
        force = watchdog.observe().observation["wrench"][0, 0]
        time.sleep(0.01)
    assert watchdog.interventions["force"]
    assert force < 60, "3 rad/s for one tick and the lag of the servo, against 100 N/rad"


def test_a_breach_stops_where_it_is_told_to(guard):
    watchdog = guard(limits(speed=1.0, breach="stop"))
    watchdog.command(joints(1, 0, 0))
    with pytest.raises(RobotStopped, match=r"axis 1 of joint_velocity at .* was asked for 2"):
        watchdog.command(joints(0, 2, 0))
    assert watchdog.interventions == {"velocity": 1, "stop": 1}
    assert np.abs(watchdog.observe().observation["agent_pos"][3:]).max() == 0


def test_a_step_lasts_a_tick_even_for_a_caller_that_thinks_in_between(guard):
    env = as_env(guard())
    env.reset(seed=0)
    began_s = time.perf_counter()
    drive(env, joints(1, 0, 0), ticks=10)
    assert time.perf_counter() - began_s >= 10 / 50
    time.sleep(0.2)
    began_s = time.perf_counter()
    drive(env, joints(1, 0, 0), ticks=3)
    assert time.perf_counter() - began_s >= 3 / 50


def test_a_step_that_is_interrupted_holds_the_robot_at_once():
    robot = Log()
    env = as_env(Watchdog(robot, deadline_ms=60_000))
    env.reset(seed=0)
    env.step(joints(1, 1, 1))

    def interrupt(time_s):
        raise KeyboardInterrupt

    env.clock.wait_until = interrupt
    with pytest.raises(KeyboardInterrupt):
        env.step(joints(1, 1, 1))
    assert robot.told[-1][1] == "hold"
    env.close()


def test_the_emergency_stop_latches(guard):
    watchdog = guard()
    env = as_env(watchdog)
    env.reset(seed=0)
    env.step(joints(1, 1, 1))
    stopper = threading.Timer(0.1, watchdog.emergency_stop)
    stopper.start()
    with pytest.raises(RobotStopped, match="emergency_stop\\(\\) was called"):
        drive(env, joints(1, 1, 1), ticks=500)
    for call in (lambda: env.step(joints(0, 0, 0)), env.reset):
        with pytest.raises(RobotStopped, match="latched"):
            call()
    assert np.abs(watchdog.observe().observation["agent_pos"][3:]).max() == 0
    watchdog.release()
    env.reset(seed=0)
    env.step(joints(1, 1, 1))


def test_a_robot_that_no_longer_sees_is_lost(guard):
    class Blind(ExampleArm):
        def observe(self):
            return Reading(super().observe().observation, time_s=time.perf_counter() - 1)

    class Nan(ExampleArm):
        def observe(self):
            return Reading({"agent_pos": np.full(6, np.nan), "wrench": np.zeros((1, 6))})

    blind, nan = Watchdog(Blind()), Watchdog(Nan(), [limits(high=1.0)])
    with pytest.raises(RobotLost, match=r"reading is 1\d\d\d ms old"):
        blind.observe()
    with pytest.raises(RobotLost, match="no motion without knowing"):
        nan.command(joints(1, 0, 0))
    blind.close()
    nan.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Limits("a", "b", low=1.0, high=0.0), "low=1.0 and high=0.0"),
        (lambda: Limits("a", "b", speed=-1.0), "speed=-1.0"),
        (lambda: Limits("a", "b", force="f"), "one thing together"),
        (lambda: Limits("a", "b", breach="pray"), "breach='pray'"),
        (lambda: Watchdog(ExampleArm(), deadline_ms=10), "deadline_ms=10"),
        (lambda: Watchdog(ExampleArm(), [Limits("joint", "joint_position")]), "'joint' is not a component of the act"),
        (lambda: Watchdog(ExampleArm(), [Limits("joint_velocity", "pose")]), "'pose' is not a component of the obs"),
        (lambda: Watchdog(ExampleArm(), [Limits("joint_velocity", "contact")]), "is a force of size 3"),
        (lambda: Watchdog(ExampleArm(), [limits(high=[1.0, 2.0])]), "one for each of 3 axes"),
        (lambda: SimulatedRobot("CartPole-v1"), "no interface card"),
        (lambda: SimulatedRobot("palaestra/BallIntercep-v0"), "not known"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_example_arm_runs_as_an_environment():
    """What the file promises: an id, `run`, and the interventions as columns of the result."""
    gymnasium.register("test/Arm-v0", "palaestra.runtime.robots.example_arm:make")
    try:
        execution = Execution(mode="async", hold="decelerate", max_ticks=50)
        (row,) = run("test/Arm-v0", "random", episodes=1, clock="wall", execution=execution).rows
    finally:
        del gymnasium.registry["test/Arm-v0"]
    assert row.failed and "max_ticks=50" in str(row.reason) and row.ticks == 50
    assert row.metrics["robot_velocity"] > 0 and row.metrics["robot_stop"] == 0
    assert row.seconds > 0.9


def test_a_stopped_robot_stays_stopped_for_the_rest_of_a_run():
    """`run` makes a world anew after a failure; that must not be a way around the latch."""

    def make():
        return as_env(Watchdog(ExampleArm(), [limits(speed=0.01, breach="stop")], tell=lambda said: None))

    gymnasium.register("test/Arm-v0", make)
    try:
        rows = run("test/Arm-v0", "random", episodes=2, clock="wall", execution=Execution(mode="async")).rows
    finally:
        del gymnasium.registry["test/Arm-v0"]
    first, second = (str(row.reason) for row in rows)
    assert "env.step: RobotStopped" in first and "was asked for" in first
    assert "env.reset: RobotStopped: the emergency stop is latched" in second


# --- the simulated robot ---


@pytest.fixture
def ball():
    robot = SimulatedRobot(BALL)
    yield robot
    robot.close()


def test_the_simulated_robot_lives_in_real_time(ball):
    ball.home(seed=3)
    start = ball.observe().observation
    time.sleep(0.1)
    np.testing.assert_array_equal(ball.observe().observation["agent_pos"], start["agent_pos"])  # nobody has begun
    ball.command(np.array([1.0, 0.0], np.float32))
    time.sleep(0.5)
    moving = ball.observe()
    assert moving.observation["agent_pos"][2] == pytest.approx(1.0, abs=0.05)
    assert 0 <= time.perf_counter() - moving.time_s < 1
    ball.hold()
    time.sleep(0.5)
    assert np.abs(ball.observe().observation["agent_pos"][2:]).max() < 0.01
    until_s = time.perf_counter() + 20
    while not (reading := ball.observe()).over and time.perf_counter() < until_s:
        time.sleep(0.01)
    assert reading.over and {"success", "score", "metrics"} <= reading.info.keys()
    ball.home(seed=3)
    again = ball.observe()
    assert not again.over
    np.testing.assert_array_equal(again.observation["environment_state"], start["environment_state"])


def test_names_of_robots_and_who_can_be_filmed():
    env = make_env("robot:palaestra.runtime.robots.example_arm:make")
    assert not env.robot.simulated and env.render() is None and env.metadata["render_fps"] == 50
    env.close()
    noisy = make_env("robot:palaestra.runtime.robots.example_arm:ExampleArm+sensor_noise:std=0.1")
    assert np.abs(noisy.reset(seed=0)[0]["agent_pos"]).max() > 0, "a perturbed robot is one too"
    noisy.close()
    flow = make_agent("flow", f"simulated:{BALL}")
    assert flow.interface == make_agent("flow", BALL).interface, "the checkpoint of the world that is simulated"
    with pytest.raises(ValueError, match="no checkpoint flow"):
        make_agent("flow", "robot:palaestra.runtime.robots.example_arm:make")
    with pytest.raises(ValueError, match="no picture"):
        make_env("robot:palaestra.runtime.robots.example_arm:make", render=True)
    if not available():
        pytest.skip("no OpenGL here")
    env = make_env(f"simulated:{BALL}", render=True)
    env.reset(seed=0)
    picture = env.render()
    assert env.robot.simulated and picture.dtype == np.uint8 and picture.ndim == 3 and picture.std() > 1
    env.close()


def test_the_death_of_the_simulator_has_a_name(ball):
    env = as_env(Watchdog(ball, tell=lambda said: None))
    env.reset(seed=0)
    env.step(np.zeros(2, np.float32))
    os.kill(ball.pid, signal.SIGKILL)
    with pytest.raises(RobotLost, match=f"process {ball.pid}\\) is lost: ended with exit code -9"):
        drive(env, np.zeros(2, np.float32), ticks=100)
    env.close()


def test_a_silent_simulator_is_lost_in_time():
    robot = SimulatedRobot(BALL, timeout_s=0.2)
    os.kill(robot.pid, signal.SIGSTOP)
    with pytest.raises(RobotLost, match=r"did not answer 'observe' within 0\.2 s"):
        robot.observe()
    with pytest.raises(RobotLost, match="given up"):
        robot.observe()
    robot.close()
    assert not robot._process.is_alive()


def test_a_world_that_cannot_keep_up_is_named(tmp_path, monkeypatch):
    (tmp_path / "sluggish.py").write_text(
        textwrap.dedent("""
        import time
        import gymnasium
        from palaestra.envs.dynamic.ball_intercept import BallIntercept

        class Sluggish(BallIntercept):
            def step(self, action):
                time.sleep(0.3)
                return super().step(action)

        gymnasium.register("sluggish/Ball-v0", Sluggish)
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    robot = SimulatedRobot("sluggish:sluggish/Ball-v0")
    robot.command(np.zeros(2, np.float32))
    time.sleep(3.0)
    with pytest.raises(RobotLost, match=r"the world is \d\.\d s behind: its ticks take longer than 0\.0333 s"):
        robot.observe()
    robot.close()
    gymnasium.registry.pop("sluggish/Ball-v0")


def test_the_simulator_dies_with_its_host():
    host = textwrap.dedent(f"""
        import os, signal
        from palaestra.runtime.robots.simulated import SimulatedRobot
        if __name__ == "__main__":
            robot = SimulatedRobot({BALL!r})
            print(robot.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", host], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    until_s = time.perf_counter() + 10
    while alive(int(done.stdout)) and time.perf_counter() < until_s:
        time.sleep(0.05)
    assert not alive(int(done.stdout))


class Pursuer(StepAgent):
    """Sees only observations: flies the ball ahead to its plane, and steers the paddle there."""

    def act(self, memory, observation):
        paddle, ball = observation["agent_pos"].astype(float), observation["environment_state"].astype(float)
        goal = np.array(HOME)
        if ball[6] and ball[3] < 0:
            left_s = -ball[0] / ball[3]
            goal = ball[1:3] + ball[4:6] * left_s - [0, GRAVITY * left_s**2 / 2]
        return (GAIN * (goal - paddle[:2])).clip(-MAX_SPEED, MAX_SPEED).astype(np.float32)


def test_an_agent_intercepts_with_the_simulated_robot(ball):
    """Deployment end to end: agent, executor on the wall clock, watchdog, another process. Nobody waits for anybody."""
    table = Limits("paddle_velocity", "paddle_position", low=[-0.9, 0.1], high=[0.9, 1.9], speed=MAX_SPEED)
    env = as_env(Watchdog(ball, [table], deadline_ms=500.0, tell=lambda said: None))  # a busy machine may be late
    executor = Executor(Pursuer(), Wall(), Execution(mode="async", hold="hold_last", max_ticks=90))
    outcomes = [
        executor.run([(env, Episode(seed, BALL, env.observation_space, env.action_space, env.interface, 30.0))])[0]
        for seed in range(5)
    ]
    env.close()
    assert env.clock is executor.clock, "one origin of time"
    assert not any(outcome.failed for outcome in outcomes), outcomes
    assert sum(bool(outcome.success) for outcome in outcomes) >= 3, [outcome.metrics for outcome in outcomes]
    assert all(outcome.reactions_s for outcome in outcomes), "the kick was answered, in time that was measured"
