"""How well the wall clock keeps its ticks: lateness beside a bare sleeping loop, with an idle and with a busy agent.

python tests/benchmarks/bench_wall_clock.py [--hz 30 100 200] [--seconds 5]
"""

import argparse
import threading
import time

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from palaestra.agents.agent import ActionPart, Agent, Episode
from palaestra.runtime.clock import Wall
from palaestra.runtime.executor import Execution, Executor


class Still(gymnasium.Env):
    """A world that costs nothing and notes when it was stepped."""

    observation_space = spaces.Box(-1, 1, (9,), np.float32)
    action_space = spaces.Box(-1, 1, (7,), np.float32)

    def __init__(self, ticks):
        self.ticks = ticks

    def reset(self, *, seed=None, options=None):
        self.times = []
        return np.zeros(9, np.float32), {}

    def step(self, action):
        self.times.append(time.perf_counter())
        return np.zeros(9, np.float32), 0.0, False, len(self.times) >= self.ticks, {}


class Busy(Agent):
    """Plans 50 actions in 10 evaluations; each is a matrix product (frees the GIL), Python (does not), or nothing."""

    actions = np.zeros((50, 7), np.float32)
    weights = torch.randn(1024, 1024)

    def __init__(self, work):
        self.work = work

    def plan(self, memory, call):
        for n in range(10):
            if self.work == "torch":
                _ = self.weights @ self.weights
            elif self.work == "python":
                until = time.perf_counter() + 0.02
                while time.perf_counter() < until:
                    pass
            yield ActionPart(len(call.committed), self.actions[: 50 * (n == 9)], evaluations=1)


def late_ms(times, hz):
    """Lateness of each tick against the grid that the earliest tick hits."""
    offsets = np.array(times) - np.arange(len(times)) / hz
    return 1000 * (offsets - offsets.min())


def bare(ticks, hz):
    """The same deadlines without an executor: what this machine and its load allow."""
    times, began = [], time.perf_counter()
    for tick in range(ticks):
        while (left := began + tick / hz - time.perf_counter()) > 0:
            time.sleep(left)
        times.append(time.perf_counter())
    return times


def executed(ticks, hz, work):
    """The executor on the wall clock, planning all the time."""
    world = Still(ticks)
    episode = Episode(0, "bench", world.observation_space, world.action_space, control_hz=hz)
    execution = Execution(mode="async", horizon=1, hold="hold_last")
    (outcome,) = Executor(Busy(work), Wall(), execution).run([(world, episode)])
    assert not outcome.failed, outcome.reason
    return world.times, outcome


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hz", type=float, nargs="+", default=[30.0, 100.0, 200.0])
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for hz in arguments.hz:
        ticks = int(hz * arguments.seconds)
        rows = {"bare loop": (bare(ticks, hz), None)}
        rows |= {f"executor, {work} agent": executed(ticks, hz, work) for work in ("idle", "torch", "python")}
        for name, (times, outcome) in rows.items():
            late = late_ms(times, hz)
            p50, p99 = np.quantile(late, [0.5, 0.99])
            costs = f", {outcome.costs['plans']:.0f} plans, {outcome.costs['late_ticks']:.0f} late" if outcome else ""
            print(f"{hz:5.0f} Hz  {name:24s} late p50 {p50:6.3f} ms  p99 {p99:6.3f} ms{costs}")
    print(f"threads left: {threading.active_count() - 1}")
