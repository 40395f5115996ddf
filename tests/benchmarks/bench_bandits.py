"""What a round costs a matching bandit: decision and update, all agents side by side, and how it grows with the sizes.

All agents play the same worlds in turn, a slice of rounds each, so that they meet the same load; times are those of
the processor, the median over slices. The last column says what HybridRRD's round is made of at least: bare NumPy on
the same shapes, without any bookkeeping. Matrices here are too small for more than one thread.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_bandits.py
"""

import argparse
import time

import numpy as np

from palaestra.agents.agent import Episode, Transition
from palaestra.agents.bandits.c2ucb import C2UCB
from palaestra.agents.bandits.comblin_ts import CombLinTS
from palaestra.agents.bandits.greedy import Greedy
from palaestra.agents.bandits.hybrid_rrd import HybridRRD
from palaestra.envs.decision.matching_bandit import MatchingBandit

AGENTS = {"HybridRRD": HybridRRD, "C2UCB": C2UCB, "CombLinTS": CombLinTS, "greedy": Greedy}
BASE = {"users": 8, "items": 64, "d1": 4, "d2": 3}
SWEEPS = {"d1": (2, 8, 16), "d2": (2, 6), "users": (4, 16, 32), "items": (16, 256)}
SLICE = 25


class Player:
    """An agent in a world of its own, playing on."""

    def __init__(self, agent, rounds, options):
        self.agent, self.env = agent, MatchingBandit(rounds=rounds, **options)
        self.observation, _ = self.env.reset(seed=0)
        spaces = self.env.observation_space, self.env.action_space
        self.memory = agent.reset(Episode(0, "bandit", *spaces, self.env.interface))
        self.seconds = []

    def play(self, rounds):
        """Play on; the median over slices is what a round costs."""
        spent = 0.0
        for _ in range(rounds):
            began = time.process_time()
            action = self.agent.act(self.memory, self.observation)
            spent += time.process_time() - began
            after, reward, _, over, _ = self.env.step(action)
            step = Transition(self.observation, action, reward, after, False, over)
            began = time.process_time()
            self.agent.learn(self.memory, step)
            spent += time.process_time() - began
            self.observation = after
        self.seconds.append(spent / rounds)


def bare(options, repeats=300):
    """Seconds of the least arithmetic of a round with one step of Frank-Wolfe, without a line of bookkeeping."""
    users, items, d1, d2 = (options[name] for name in ("users", "items", "d1", "d2"))
    draw = np.random.default_rng(0)
    d = d1 * d2
    inverse, pairs = np.eye(d), draw.normal(size=(users, d))
    squares, user_squares = draw.normal(size=(items, d2 * d2)), draw.normal(size=(users, d1 * d1))
    designs = np.eye(d2) + np.zeros((users, d2, d2))
    began = time.process_time()
    for _ in range(repeats):
        gain = pairs @ inverse
        gain.T @ np.linalg.solve(np.eye(users) + gain @ pairs.T, gain)
        kernel = inverse.reshape(d1, d2, d1, d2).transpose(0, 2, 1, 3).reshape(d1 * d1, d2 * d2)
        user_squares @ kernel @ squares.T
        for _ in range(2):
            (np.linalg.inv(designs).reshape(users, -1) @ squares.T).argmax(axis=1)
    return (time.process_time() - began) / repeats


def measure(rounds, instance="gaussian", **changes):
    """Print one row: microseconds a round of each agent, and their ratio to C2UCB's."""
    options = {**BASE, **changes}
    given = {**options, "instance": instance}
    if instance == "hard":
        given.pop("items")
    players = {name: Player(agent(), rounds, given) for name, agent in AGENTS.items()}
    for _ in range(rounds // SLICE):
        for player in players.values():
            player.play(SLICE)
    cost = {name: 1e6 * float(np.median(player.seconds)) for name, player in players.items()}
    least = 1e6 * bare(options)
    sizes = " ".join(f"{options[name]:>4}" for name in BASE)
    print(
        f"{instance:>9} {sizes}  {'  '.join(f'{c:9.0f}' for c in cost.values())}  "
        f"{cost['HybridRRD'] / cost['C2UCB']:8.1f}  {least:9.0f}"
    )


def main():
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500, help="rounds that each agent plays in each world")
    rounds = parser.parse_args().rounds
    print(f"{'us a round':>9}    M    N   d1   d2  {'  '.join(f'{name:>9}' for name in AGENTS)}   / C2UCB  bare NumPy")
    measure(rounds, "hard")
    measure(rounds)
    for name, values in SWEEPS.items():
        for value in values:
            measure(rounds, **{name: value})


if __name__ == "__main__":
    main()
