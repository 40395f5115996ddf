"""The admittance controller against the differential equation that it stands for, and in the world it is meant for."""

import numpy as np
import pytest
from gymnasium import spaces

from palaestra.agents.admittance import Admittance, asked_force
from palaestra.agents.agent import Episode
from palaestra.runtime.executor import Executor
from palaestra.runtime.registry import make_agent, make_env

SEEN = spaces.Dict(
    agent_pos=spaces.Box(-1, 1, (4,)), wrench=spaces.Box(-1000, 1000, (10, 6)), instruction=spaces.Text(64)
)


def episode(hz=30.0, seen=SEEN, action=None):
    return Episode(0, "small", seen, action or spaces.Box(-1, 1, (2,)), control_hz=hz)


def look(force_n, x=0.0):
    wrench = np.zeros((10, 6), np.float32)
    wrench[:, 2] = -force_n
    return {"agent_pos": np.array([x, 0, 0, 0], np.float32), "wrench": wrench, "instruction": "press with 5 N"}


def press(agent, stiffness, hz, ticks, force_n):
    """The force on a spring that stands under the tool, tick by tick, the first included."""
    memory, forces = agent.reset(episode(hz)), [force_n]
    for _ in range(ticks):
        forces.append(forces[-1] - stiffness * float(agent.act(memory, look(forces[-1]))[1]))
    return np.array(forces)


@pytest.mark.parametrize("damping", [40.0, 50.0, 200.0])
def test_on_a_spring_the_error_shrinks_by_the_same_factor_every_tick(damping):
    stiffness, hz = 811.0, 30.0
    errors = press(Admittance(damping=damping), stiffness, hz, 40, 7.0) - 5.0
    expected = 2.0 * (1 - stiffness / hz / damping) ** np.arange(41)
    np.testing.assert_allclose(errors, expected, atol=2e-6)


def test_with_mass_the_poles_are_those_of_the_equation():
    mass, damping, stiffness, hz = 2.0, 30.0, 400.0, 20_000.0
    agent = Admittance(damping=damping, mass=mass, approach=1.0)
    time_s = np.arange(12_001) / hz
    decay, swing = damping / (2 * mass), np.sqrt(stiffness / mass - (damping / (2 * mass)) ** 2)
    # M e'' + D e' + k e = 0 with e = F - F*; the body comes down at the speed of the approach when it is stopped.
    memory, force, errors = agent.reset(episode(hz)), 7.0, []
    memory.found, memory.speed = True, 0.0
    for _ in time_s:
        errors.append(force - 5.0)
        force -= stiffness * float(agent.act(memory, look(force))[1])
    closed = 2.0 * np.exp(-decay * time_s) * (np.cos(swing * time_s) + decay / swing * np.sin(swing * time_s))
    assert swing > 0 and np.abs(closed[-1]) < 0.05
    np.testing.assert_allclose(errors, closed, atol=0.01)


def test_it_comes_down_until_it_feels_something_wipes_while_it_does_and_lifts_off_at_the_end():
    agent = Admittance(approach=0.03, stroke=0.06, end=0.05)
    memory = agent.reset(episode())
    np.testing.assert_allclose(agent.act(memory, look(0.1)), [0, -0.001], atol=1e-9)
    np.testing.assert_allclose(agent.act(memory, look(5.0)), [0.002, 0], atol=1e-9)
    assert agent.act(memory, look(8.0))[1] > 0
    down = agent.act(memory, look(0.0))
    np.testing.assert_allclose(down, [0, -0.001], atol=1e-9)  # no faster than at first, and not along
    np.testing.assert_allclose(agent.act(memory, look(5.0, x=0.06)), [0, 0.001], atol=1e-9)
    limited = Admittance(approach=1.0)
    action = limited.act(limited.reset(episode(action=spaces.Box(-0.004, 0.004, (2,)))), look(0.0))
    np.testing.assert_allclose(action, [0, -0.004], atol=1e-9)


def test_it_wipes_tables_that_it_does_not_see():
    env = make_env("palaestra/GuardedWipe-v0")
    agent = make_agent("admittance", "palaestra/GuardedWipe-v0")
    spaces_ = env.observation_space, env.action_space
    outcomes = [
        Executor(agent).run([(env, Episode(seed, "wipe", *spaces_, env.unwrapped.interface, 30.0))])[0]
        for seed in range(500, 515)
    ]
    assert not any(outcome.failed for outcome in outcomes), outcomes[0].reason
    assert sum(bool(outcome.success) for outcome in outcomes) >= 14
    assert all(5.0 < outcome.metrics["peak_force_n"] < 12.0 for outcome in outcomes)
    env.close()


def test_bad_input_gets_a_sentence():
    for options in ({"approach": 0.0}, {"damping": float("nan")}, {"mass": -1.0}, {"stroke": 2.0}, {"end": 99.0}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}=.*expected"):
            Admittance(**options)
    for world in (episode(action=spaces.Box(-1, 1, (3,))), episode(seen=spaces.Dict(agent_pos=SEEN["agent_pos"]))):
        with pytest.raises(ValueError, match="admittance needs two deltas"):
            Admittance().reset(world)
    with pytest.raises(ValueError, match="no control rate"):
        Admittance().reset(episode(hz=None))
    assert asked_force("wipe the table and press with 7.5 N") == 7.5
    with pytest.raises(ValueError, match="asks for no force"):
        asked_force("wipe the table")
