"""The scripted agents act in every kind of space, from the episode's seed alone."""

import numpy as np
import pytest
from gymnasium import spaces

from palaestra.agents.agent import Agent, Call, Episode
from palaestra.agents.scripted import Expert, Hold, Random, Zero
from palaestra.envs.interface import Component, Interface

SPACES = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(np.array([0.5, -np.inf], np.float32), np.array([2.0, np.inf], np.float32)),
    spaces.Box(0, 255, (2, 2), np.uint8),
    spaces.Discrete(4, start=2),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary(5),
    spaces.Text(8, min_length=2),
    spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32), "say": spaces.Discrete(3)}),
    spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float32))),
]


def actions(agent: Agent, space: spaces.Space, seed: int = 0, n: int = 3) -> list:
    memory = agent.reset(Episode(seed, "x", spaces.Box(-1, 1, (1,)), space))
    calls = [Call(np.zeros(1, np.float32), tick=t) for t in range(n)]
    return [part.actions[0] for call in calls for part in agent.plan(memory, call)]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("agent", [Random(), Zero(), Hold()])
def test_actions_are_members_of_the_space(agent, space):
    assert all(space.contains(action) for action in actions(agent, space))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_random_actions_come_from_the_seed(space):
    again, other = actions(Random(), space, 7), actions(Random(), space, 8, n=20)
    assert str(actions(Random(), space, 7)) == str(again)
    assert str(actions(Random(), space, 7, n=20)) != str(other)


def test_hold_keeps_absolute_targets_and_stops_deltas():
    card = Interface(
        20.0,
        (
            Component("joint", 2, "position", "absolute", unit="rad"),
            Component("slide", 1, "position", "delta", unit="m"),
            Component("gripper", 1, "gripper", closed=1.0, open=-1.0),
        ),
        {"agent_pos": (Component("eef", 1, "position"), Component("joint", 2, "position", unit="rad"))},
    )
    space = spaces.Box(-2, 2, (4,), np.float32)
    agent = Hold()
    memory = agent.reset(Episode(0, "x", spaces.Dict(), space, interface=card))
    first = {"agent_pos": np.array([9.0, 0.25, -0.5], np.float32)}
    later = {"agent_pos": np.array([9.0, 1.0, 1.0], np.float32)}
    assert agent.act(memory, first).tolist() == agent.act(memory, later).tolist() == [0.25, -0.5, 0.0, -1.0]


def test_an_expert_is_privileged_and_needs_an_environment_that_has_one():
    assert Expert.privileged
    with pytest.raises(ValueError, match="has no scripted expert"):
        Expert().reset(Episode(0, "CartPole-v1", spaces.Box(-1, 1, (1,)), spaces.Discrete(2)))


def test_an_agent_that_promises_a_slow_pass_must_have_one():
    class Forgetful(Zero):
        encode_every = 4

    with pytest.raises(TypeError, match="sets encode_every=4 but does not define encode"):
        Forgetful().encode(None, None)
