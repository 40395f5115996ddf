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
    # M e'' + D e' + k e = 0 with e = F - F*, e(0) = 2 N and e'(0) = 0
    memory, force, errors = agent.reset(episode(hz)), 7.0, []
    for _ in time_s:
        errors.append(force - 5.0)
        force -= stiffness * float(agent.act(memory, look(force))[1])
    closed = 2.0 * np.exp(-decay * time_s) * (np.cos(swing * time_s) + decay / swing * np.sin(swing * time_s))
    assert swing > 0 and np.abs(closed[-1]) < 0.05
    np.testing.assert_allclose(errors, closed, atol=0.01)


def test_it_comes_down_until_it_feels_something_wipes_while_it_does_and_lifts_off_at_the_end():
    agent = Admittance(approach=0.03, slide=0.06)
    memory = agent.reset(episode())
    np.testing.assert_allclose(agent.act(memory, look(0.1)), [0, -0.001], atol=1e-9)
    np.testing.assert_allclose(agent.act(memory, look(5.0)), [0.002, 0], atol=1e-9)
    assert agent.act(memory, look(8.0))[1] > 0
    down = agent.act(memory, look(0.0))
    np.testing.assert_allclose(down, [0, -0.001], atol=1e-9)  # no faster than at first, and not along
    np.testing.assert_allclose(agent.act(memory, look(5.0, x=0.07)), [0, 0.001], atol=1e-9)
    limited = Admittance(approach=1.0)
    action = limited.act(limited.reset(episode(action=spaces.Box(-0.004, 0.004, (2,)))), look(0.0))
    np.testing.assert_allclose(action, [0, -0.004], atol=1e-9)


@pytest.mark.parametrize(("world", "most_n"), [("palaestra/GuardedWipe-v0", 10.0), ("palaestra/PegInsert-v0", 8.0)])
def test_it_does_what_it_is_asked_without_seeing_where_things_are(world, most_n):
    env = make_env(world)
    agent, known = make_agent("admittance", world), (env.observation_space, env.action_space, env.unwrapped.interface)
    jobs = [Episode(seed, world, *known, control_hz=30.0) for seed in range(500, 515)]
    outcomes = [Executor(agent).run([(env, job)])[0] for job in jobs]
    assert not any(outcome.failed for outcome in outcomes), outcomes[0].reason
    assert sum(bool(outcome.success) for outcome in outcomes) >= 14
    assert max(outcome.metrics["peak_force_n"] for outcome in outcomes) < most_n
    env.close()


def test_a_force_with_friction_is_the_force_of_the_whole_contact():
    memory, seen = Admittance().reset(episode()), look(4.0)
    seen["wrench"][:, 0] = 3.0
    np.testing.assert_allclose(Admittance().act(memory, seen), [0.0012, 0], atol=1e-9)


def test_the_search_is_an_archimedean_spiral_and_ends_where_the_peg_drops():
    seen = spaces.Dict(agent_pos=SEEN["agent_pos"], wrench=SEEN["wrench"], environment_state=spaces.Box(-1, 1, (2,)))
    agent = Admittance(slide=0.03)
    memory = agent.reset(episode(seen=seen, action=spaces.Box(-1, 1, (3,))))

    def act(force, z=0.0):
        wrench = np.tile(np.array([*force, 0, 0, 0], np.float32), (10, 1))
        position = np.array([0.01, 0, z, 0, 0, 0], np.float32)
        return agent.act(memory, {"agent_pos": position, "wrench": wrench, "environment_state": np.zeros(2)})

    assert act([0, 0, 0], z=0.02)[0] < 0 and act([0, 0, 0], z=0.02)[2] == pytest.approx(-0.002)
    steps = np.array([act([0, 0, -3]) for _ in range(200)], float)
    assert np.abs(steps[:, 2]).max() < 1e-9, "it presses with what it is to press with"
    path = np.cumsum(steps[:, :2], axis=0)
    radius, turned = np.hypot(*path.T), np.unwrap(np.arctan2(*path.T[::-1]))
    pitch = np.polyfit(turned, radius, 1)[0] * 2 * np.pi
    assert pitch == pytest.approx(0.001, rel=1e-3)
    assert np.hypot(*steps[20:, :2].T) == pytest.approx(0.001, rel=0.1)
    given_way = act([-2, 1, -5], z=-0.001)
    np.testing.assert_allclose(given_way, np.array([2, -1, 0]) / 50 / 30, atol=1e-9)  # to where it is pushed


def test_bad_input_gets_a_sentence():
    for options in ({"approach": 0.0}, {"damping": float("nan")}, {"mass": -1.0}, {"slide": 2.0}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}=.*expected"):
            Admittance(**options)
    for world in (episode(action=spaces.Box(-1, 1, (3,))), episode(seen=spaces.Dict(agent_pos=SEEN["agent_pos"]))):
        with pytest.raises(ValueError, match="admittance needs a wrench"):
            Admittance().reset(world)
    with pytest.raises(ValueError, match="no control rate"):
        Admittance().reset(episode(hz=None))
    assert asked_force("wipe the table and press with 7.5 N") == 7.5
    with pytest.raises(ValueError, match="asks for no force"):
        asked_force("wipe the table")
