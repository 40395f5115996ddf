"""Names find things, and wrong names get the nearest right ones."""

import gymnasium
import pytest

from palaestra.agents.scripted import Zero
from palaestra.runtime.registry import agent_class, make_agent, make_env, require_env, split_env


def test_environments_take_options_and_perturbations():
    world, perturbations = split_env("palaestra/X-v0:pixels=64+sensor_noise:std=1e-2+viewpoint")
    assert (world.name, world.options) == ("palaestra/X-v0", {"pixels": 64})
    assert [(p.name, p.options) for p in perturbations] == [("sensor_noise", {"std": 0.01}), ("viewpoint", {})]


def test_third_party_ids_run_untouched():
    env = make_env("CartPole-v1")
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"
    assert isinstance(env.unwrapped, gymnasium.envs.classic_control.CartPoleEnv)


def test_agents_are_found_by_name_or_class():
    assert agent_class("zero") is agent_class("palaestra.agents.scripted:Zero") is Zero
    assert isinstance(make_agent("zero", "CartPole-v1"), Zero)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: make_env("palaestra/BalIntercept-v0"), "nearest: palaestra/BallIntercept-v0"),
        (lambda: make_env("BallIntercept-v0"), "nearest:.*palaestra/BallIntercept-v0"),
        (lambda: make_env("no_such_package:X-v0"), "no module named 'no_such_package'"),
        (lambda: make_env("CartPole-v1:colour=3"), "colour"),
        (lambda: make_env("CartPole-v1+sensor_nois"), "nearest: sensor_noise"),
        (lambda: make_env("CartPole-v1+sensor_noise:loudness=3"), "loudness"),
        (lambda: make_agent("zeroo", "CartPole-v1"), "nearest: zero"),
        (lambda: make_agent("zero:speed=3", "CartPole-v1"), "speed"),
        (lambda: make_agent("palaestra.agents.scripted:Zebra", "CartPole-v1"), "has no 'Zebra'"),
        (lambda: make_agent("no.such:Agent", "CartPole-v1"), "no module named 'no'"),
        (lambda: make_agent("gymnasium:Env", "CartPole-v1"), "does not derive from palaestra.Agent"),
        (lambda: make_agent("flow", "CartPole-v1"), "no checkpoint flow.CartPole-v1"),
        (lambda: make_agent("flow:checkpoint=nowhere.safetensors", "CartPole-v1"), "nowhere"),
    ],
)
def test_wrong_names_are_refused_with_help(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_backend_needs_a_network():
    from palaestra.models.backend import Backend

    with pytest.raises(ValueError, match="has no network"):
        make_agent("zero", "CartPole-v1", Backend.parse("adapter=lora"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("simulated:palaestra/BalIntercept-v0", "nearest: palaestra/BallIntercept-v0"),
        ("robot:no_such_module:Arm", "no module named 'no_such_module'"),
        ("palaestra/BallIntercept-v0+sensor_nose", "perturbation 'sensor_nose' is not known"),
    ],
)
def test_a_name_that_means_nothing_is_refused_before_anything_is_made(name, says):
    with pytest.raises(ValueError, match=says):
        require_env(name)
    require_env("simulated:palaestra/BallIntercept-v0:pixels=32+sensor_noise:std=0.1")
