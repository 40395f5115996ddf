"""Agents for the tests of serving: small, fast, and each with a habit."""

import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
from gymnasium import spaces

from palaestra.agents.agent import ActionPart, Agent, Call, Episode, StepAgent


class Chunks(Agent):
    """Streams chunks of 8 actions that depend on everything an agent may know, its own noise included."""

    horizon = 8

    def __init__(self, step_s: float = 0.0):
        self.step_s = step_s
        self.planned = 0

    def reset(self, episode: Episode):
        return {"noise": np.random.default_rng(episode.seed), "space": episode.action_space}

    def plan(self, memory, call: Call) -> Iterator[ActionPart]:
        self.planned += 1
        noise, space = memory["noise"], memory["space"]
        seen = np.concatenate([np.ravel(call.observation[key]) for key in sorted(call.observation)])
        base = np.resize(np.sin(7 * seen), (self.horizon, *space.shape)) + noise.normal(0, 0.1, (1, *space.shape))
        if len(call.committed):
            base[: len(call.committed)] = call.committed
        actions = np.clip(base, space.low, space.high).astype(space.dtype)
        sent = len(call.committed)
        for step in range(6):
            if self.step_s:
                time.sleep(self.step_s)
            count = (0, 1, 0, 2, 3, 10)[step]
            part = actions[sent : sent + count]
            extras = {"log_prob": np.float32(noise.normal())} if count else {}
            yield ActionPart(sent, part, encodes=step == 0, evaluations=1, replan_in=4, extras=extras)
            sent += len(part)
        yield ActionPart(evaluations=1)


class Together(Chunks):
    """The same, for several episodes at once; remembers how many met."""

    def __init__(self, step_s: float = 0.0):
        super().__init__(step_s)
        self.met: list[int] = []

    def plan_many(self, jobs):
        self.met.append(len(jobs))
        streams = {n: self.plan(*job) for n, job in enumerate(jobs)}
        while streams:
            for n, stream in list(streams.items()):
                part = next(stream, None)
                if part is None:
                    del streams[n]
                else:
                    yield n, part


class Learner(StepAgent):
    """Its actions are a running sum of everything it has lived through, so that a lost step shows."""

    def reset(self, episode):
        return {"sum": 0.0, "space": episode.action_space}

    def learn(self, memory, transition):
        seen = [
            np.sum(transition.observation[k]) + 2 * np.sum(transition.next_observation[k])
            for k in sorted(transition.observation)
        ]
        memory["sum"] += float(np.sum(seen) + np.sum(transition.action) + transition.reward + transition.terminated)

    def act(self, memory, observation):
        space = memory["space"]
        return np.clip(np.full(space.shape, np.sin(memory["sum"])), space.low, space.high).astype(space.dtype)


class TwoRates(Agent):
    """A slow pass every three ticks, whose result shows in the fast one."""

    encode_every = 3

    def reset(self, episode):
        return episode.action_space

    def encode(self, memory, observation):
        return float(np.sum(observation["environment_state"]))

    def plan(self, memory, call):
        value = np.sin(call.context + np.sum(call.observation["agent_pos"]))
        yield ActionPart(len(call.committed), np.full((1, *memory.shape), value, memory.dtype), evaluations=1)


class Cycles(Agent):
    """Draws its noise once a slow cycle, which it knows by the identity of the context alone."""

    encode_every = 4

    def __init__(self, step_s: float = 0.0):
        self.step_s = step_s

    def reset(self, episode):
        return {"noise": np.random.default_rng(episode.seed), "space": episode.action_space, "context": None}

    def encode(self, memory, observation):
        time.sleep(10 * self.step_s)
        return np.array(observation["environment_state"])

    def plan(self, memory, call):
        if call.context is not memory["context"]:
            memory.update(context=call.context, draw=memory["noise"].normal())
        value = np.sin(np.sum(call.context) + memory["draw"] + np.sum(call.observation["agent_pos"]))
        yield ActionPart(evaluations=1)
        space = memory["space"]
        actions = np.full((2, *space.shape), value, space.dtype)
        yield ActionPart(len(call.committed), actions, evaluations=1, extras={"draw": np.asarray(memory["draw"])})


class Faulty(Chunks):
    """Does what its episode's instruction says: raise, return nan, or hang."""

    def reset(self, episode):
        if episode.instruction == "refuse":
            raise ValueError("this world is not mine")
        return {**super().reset(episode), "habit": episode.instruction}

    def plan(self, memory, call):
        if memory["habit"] == "raise":
            raise RuntimeError("the network is on fire")
        if memory["habit"] == "hang":
            time.sleep(1.5)
        for part in super().plan(memory, call):
            if memory["habit"] == "nan" and len(part.actions):
                part = ActionPart(part.start, np.full_like(part.actions, np.nan), evaluations=1)
            yield part


AGENTS: dict[str, Callable[..., Agent]] = {
    cls.__name__: cls for cls in (Chunks, Together, Learner, TwoRates, Cycles, Faulty)
}


def world() -> tuple[spaces.Dict, spaces.Box]:
    """The spaces of a small world."""
    seen = spaces.Dict(agent_pos=spaces.Box(-1, 1, (4,)), environment_state=spaces.Box(-9, 9, (7,)))
    return seen, spaces.Box(-1.5, 1.5, (2,))


def episode(seed: int = 0, instruction: str | None = None) -> Episode:
    return Episode(seed, "small", *world(), control_hz=30.0, instruction=instruction)


if __name__ == "__main__":  # serving_agents.py AGENT URL STEP_S: serves until it is killed
    from palaestra.runtime.server import PolicyServer

    name, url, step_s = sys.argv[1:]
    with PolicyServer(AGENTS[name](float(step_s)), episode(), url, warmup=False) as server:
        print(server.bind, flush=True)
        time.sleep(3600)
