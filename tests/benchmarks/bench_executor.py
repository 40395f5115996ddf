"""What the executor costs: per tick over a bare loop, and what workers, lanes and one served agent bring. Ratios
within one run.

python tests/benchmarks/bench_executor.py [--ticks 20000] [--episodes 64] [--part overhead|workers|lanes|serve]
"""

import argparse
import statistics
import time

import gymnasium
import numpy as np
from gymnasium import spaces

from palaestra.agents.agent import ActionPart, Agent, Episode
from palaestra.runtime.executor import Execution, Executor
from palaestra.runtime.rollout import EpisodeRunner, Group, RunConfig, run
from palaestra.runtime.store import Store


class Still(gymnasium.Env):
    """A world that costs next to nothing, with observations of the usual size."""

    observation_space = spaces.Dict(
        {"agent_pos": spaces.Box(-1, 1, (9,), np.float32), "environment_state": spaces.Box(-1, 1, (10,), np.float32)}
    )
    action_space = spaces.Box(-1, 1, (7,), np.float32)

    def __init__(self, ticks):
        self.ticks = ticks
        self.seen = {key: np.zeros(space.shape, np.float32) for key, space in self.observation_space.items()}

    def reset(self, *, seed=None, options=None):
        self.tick = 0
        return self.seen, {}

    def step(self, action):
        self.tick += 1
        return self.seen, 0.0, False, self.tick >= self.ticks, {"success": False}


class Chunks(Agent):
    """Plans 8 actions in 10 evaluations, all of them free."""

    actions = np.zeros((8, 7), np.float32)

    def plan(self, memory, call):
        for n in range(9):
            yield ActionPart(encodes=n == 0, evaluations=1)
        yield ActionPart(0, self.actions, evaluations=1)


def overhead(ticks):
    """Microseconds per tick of the executor over ``env.step`` in a bare loop, the median of paired runs."""
    env, agent, extra, bare_us = Still(ticks), Chunks(), [], []
    episode = Episode(0, "bench", env.observation_space, env.action_space, control_hz=20.0)
    for _ in range(9):
        began = time.perf_counter()
        env.reset()
        while not env.step(Chunks.actions[0])[3]:
            pass
        bare = time.perf_counter() - began
        began = time.perf_counter()
        (outcome,) = Executor(agent, execution=Execution(max_ticks=ticks + 1)).run([(env, episode)])
        extra.append((time.perf_counter() - began - bare) / ticks * 1e6)
        bare_us.append(bare / ticks * 1e6)
        assert outcome.ticks == ticks
    print(
        f"executor: {statistics.median(extra):.1f} us per tick over a bare loop ({statistics.median(bare_us):.2f} us)"
    )


def lanes(episodes):
    """Episodes per second of the flow agent in BallIntercept, one at a time and 32 at once, in turn."""
    runners = {n: EpisodeRunner(RunConfig("palaestra/BallIntercept-v0", "flow", lanes=n)) for n in (1, 32)}
    seconds = dict.fromkeys(runners, 0.0)
    for n, runner in runners.items():
        runner(Group(tuple(range(n)), (None,) * n))  # warm up
    for first in range(0, episodes, 32):
        for n, runner in runners.items():
            began = time.perf_counter()
            for start in range(first, first + 32, n):
                runner(Group(tuple(range(start, start + n)), (None,) * n))
            seconds[n] += time.perf_counter() - began
    rates = {n: episodes / s for n, s in seconds.items()}
    print(f"lanes: 1 -> {rates[1]:.2f} episodes/s, 32 -> {rates[32]:.2f} episodes/s, {rates[32] / rates[1]:.1f} times")


def workers(episodes):
    """Seconds for the expert in Panda Lift with one worker and with two, start-up included and apart."""
    seconds = {}
    for n in (1, 2):
        for count in (2, episodes):
            began = time.perf_counter()
            store = Store("sqlite:///:memory:")
            run("palaestra/robosuite.Lift-v0", "expert", episodes=count, workers=n, store=store)
            seconds[n, count] = time.perf_counter() - began
    marginal = {n: (seconds[n, episodes] - seconds[n, 2]) / (episodes - 2) for n in (1, 2)}
    print(
        f"workers: {episodes} episodes 1 -> {seconds[1, episodes]:.1f} s, 2 -> {seconds[2, episodes]:.1f} s; "
        f"per further episode {marginal[1]:.3f} s and {marginal[2]:.3f} s, {marginal[1] / marginal[2]:.2f} times"
    )


def serve(episodes):
    """Episodes per second of the flow agent in BallIntercept: workers with an agent each, and with one for all."""
    rates = {}
    for n in (1, 2):
        for served in (False, True):
            times = [time.perf_counter()]
            run(
                "palaestra/BallIntercept-v0",
                "flow",
                episodes=episodes,
                workers=n,
                serve=served,
                store=Store("sqlite:///:memory:"),
                progress=lambda row, done: times.append(time.perf_counter()),  # noqa: B023 - of this very run
            )
            skip = 2 * n  # until every worker has started and warmed up
            rates[n, served] = (episodes - skip) / (times[-1] - times[skip])
            who = f"serve: {n} workers, {'one served agent' if served else 'an agent each'}"
            print(f"{who}: {rates[n, served]:.2f} episodes/s, the first after {times[1] - times[0]:.1f} s")
    for n in (1, 2):
        print(f"serve: {n} workers, one served agent over an agent each: {rates[n, True] / rates[n, False]:.2f} times")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", type=int, default=20_000)
    parser.add_argument("--episodes", type=int, default=64, help="rounded up to a multiple of 32 for lanes")
    parser.add_argument("--part", choices=("overhead", "workers", "lanes", "serve"), action="append")
    arguments = parser.parse_args()
    parts = arguments.part or ["overhead", "workers", "lanes", "serve"]
    if "overhead" in parts:
        overhead(arguments.ticks)
    if "lanes" in parts:
        lanes(-(-arguments.episodes // 32) * 32)
    if "workers" in parts:
        workers(arguments.episodes)
    if "serve" in parts:
        serve(arguments.episodes)
