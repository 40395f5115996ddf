"""Real time: the same executor, the same actions as on the virtual clock, and nothing that a slow agent can stop."""

import os
import signal
import sys
import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from palaestra.agents.agent import ActionPart, Agent, Episode
from palaestra.runtime.clock import Virtual, Wall
from palaestra.runtime.executor import Execution, Executor
from palaestra.runtime.latency import LatencyModel
from palaestra.runtime.rollout import run


class World(gymnasium.Env):
    """Remembers what it was told and when; costs no time."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)
    action_space = spaces.Box(-1e6, 1e6, (1,), np.float64)

    def __init__(self, ticks=12, hz=5.0):
        self.ticks, self.hz = ticks, hz

    def reset(self, *, seed=None, options=None):
        self.actions, self.times = [], []
        return np.zeros(1), {}

    def step(self, action):
        self.actions.append(float(action[0]))
        self.times.append(time.perf_counter())
        return np.array([float(len(self.actions))]), 1.0, False, len(self.actions) >= self.ticks, {}


class Sleeper(Agent):
    """Plans 8 actions in two evaluations of ``work_s`` each, streams half after each, and says when it looked."""

    def __init__(self, work_s=0.0):
        self.work_s = work_s
        self.threads = set()

    def plan(self, memory, call):
        self.threads.add(threading.current_thread())
        first = len(call.committed)
        actions = (call.observation[0] + (call.tick + first + np.arange(8)) / 1000)[:, None]
        for half in (slice(0, 4), slice(4, 8)):
            time.sleep(self.work_s)
            yield ActionPart(first + half.start, actions[half], evaluations=1)


class Looker(Sleeper):
    """A multi-rate agent: its plan says at which tick its context was made."""

    encode_every = 3

    def encode(self, memory, observation):
        self.threads.add(threading.current_thread())
        time.sleep(self.work_s)
        return observation

    def plan(self, memory, call):
        self.threads.add(threading.current_thread())
        yield ActionPart(len(call.committed), np.full((3, 1), call.context), evaluations=1)


def play(agent, world, clock, **execution):
    episode = Episode(0, "test/World-v0", world.observation_space, world.action_space, control_hz=world.hz)
    return Executor(agent, clock, Execution(**execution)).run([(world, episode)])[0]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind():
    before, switch_s = set(threading.enumerate()), sys.getswitchinterval()
    yield
    assert set(threading.enumerate()) <= before
    assert sys.getswitchinterval() == switch_s


@pytest.mark.parametrize(
    ("agent", "latency", "execution"),
    [
        (Sleeper(0.13), LatencyModel("x", evaluation_ms=130), {"mode": "sync", "horizon": 4}),
        (Sleeper(0.13), LatencyModel("x", evaluation_ms=130), {"mode": "async", "horizon": 4}),
        (Sleeper(0.13), LatencyModel("x", evaluation_ms=130), {"mode": "prefix", "horizon": 4}),
        (Looker(0.3), LatencyModel("x", encode_ms=300, evaluation_ms=100), {"mode": "async", "horizon": 2}),
    ],
    ids=["sync", "async", "prefix", "encode"],
)
def test_the_same_actions_as_on_the_virtual_clock(agent, latency, execution):
    """Work that ends in the middle of a 200 ms tick: what the wall clock measures is what the model says."""
    virtual, wall = World(), World()
    foreseen = play(agent, virtual, Virtual(latency), hold="hold_last", **execution)
    measured = play(agent, wall, Wall(), hold="hold_last", **execution)
    assert wall.actions == virtual.actions
    assert measured.costs["stalls"] == foreseen.costs["stalls"]
    assert measured.costs["evaluations"] == foreseen.costs["evaluations"]
    assert measured.costs["ttfa_ms"] == pytest.approx(foreseen.costs["ttfa_ms"], abs=100)
    assert threading.main_thread() in agent.threads and len(agent.threads) > 1  # the virtual run's, and its own


def test_ticks_are_absolute_deadlines():
    """One tick that takes too long makes a few late and shifts none that follow."""

    class Stutters(World):
        def step(self, action):
            if len(self.actions) == 5:
                time.sleep(0.13)  # 2.6 ticks
            return super().step(action)

    world = Stutters(ticks=40, hz=20.0)
    outcome = play(Sleeper(), world, Wall(), mode="async", horizon=4)
    assert 2 <= outcome.costs["late_ticks"] < 40
    offsets = np.array(world.times) - world.times[0] - np.arange(40) / 20
    assert np.median(offsets[10:]) < 0.5 / 20, "the time lost was made up for"
    assert outcome.costs["late_p99_ms"] > 1000 * 0.5 / 20


@pytest.mark.parametrize("what", ["plan", "encode"])
def test_a_hanging_agent_does_not_stop_the_robot(what):
    release = threading.Event()

    class Hangs(Sleeper):
        encode_every = 1 if what == "encode" else 0

        def plan(self, memory, call):
            release.wait(60)
            yield ActionPart()

        def encode(self, memory, observation):
            release.wait(60)

    world = World(ticks=10**6, hz=100.0)
    began = time.perf_counter()
    outcome = play(Hangs(), world, Wall(grace_s=0.1), max_ticks=20)
    assert time.perf_counter() - began < 5
    assert outcome.failed and "max_ticks=20" in outcome.reason
    assert f"the agent's {what} begun at 0 s has not ended" in outcome.reason
    assert world.actions == [0.0] * 20 and outcome.costs["stalls"] == 20
    release.set()  # lets the thread that was left behind go
    time.sleep(0.1)


def test_what_the_agent_raises_ends_the_episode():
    class Raises(Sleeper):
        def plan(self, memory, call):
            yield ActionPart(0, np.zeros((2, 1)), evaluations=1)
            raise RuntimeError("out of ideas")

    outcome = play(Raises(), World(ticks=10**6, hz=50.0), Wall(), max_ticks=500)
    assert outcome.failed and outcome.reason == "the agent: RuntimeError: out of ideas" and outcome.ticks < 500


def test_ctrl_c_ends_it_cleanly():
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        play(Sleeper(0.02), World(ticks=10**6, hz=50.0), Wall(), mode="async", horizon=4)
    assert time.perf_counter() - began < 5
    timer.join()


def test_run_takes_the_wall_clock():
    result = run("palaestra/BallIntercept-v0", "random", episodes=1, clock="wall")
    (row,) = result.rows
    assert row.clock == "wall" and row.profile is None and not row.failed
    assert row.seconds > row.ticks / 30 - 0.1 and row.costs["late_ticks"] < row.ticks


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lanes": 2}, "lanes=2 needs a simulated clock"),
        ({"workers": 2}, "workers=2 needs a simulated clock"),
        ({"profile": "xvla-4090"}, "on the wall clock time is measured"),
    ],
)
def test_what_real_time_cannot_do_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        run("palaestra/BallIntercept-v0", "zero", clock="wall", **arguments)
    with pytest.raises(ValueError, match="one episode at a time"):
        Executor(Sleeper(), Wall()).run([(World(), Episode(0, "", World.observation_space, World.action_space))] * 2)
