"""From names to things: environments, agents and their perturbations.

An environment is named ``ID[:key=value,...][+perturbation[:key=value,...]]...`` and an agent
``NAME[:key=value,...]`` or ``module:Class``. In place of the ID, ``robot:module:Class`` is a robot; ``simulated:`` in
front of an environment's name makes that world one, in real time and in a process of its own. Other packages add
agents through the entry-point group ``palaestra.agents``; their environments are ordinary Gymnasium ids.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import warnings
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import gymnasium

from ..agents.agent import Agent
from ..agents.network import NetworkAgent
from ..envs.wrappers import PERTURBATIONS
from ..models.backend import Backend
from ..models.checkpoint import shipped
from ..models.spec import Spec, nearest, parse_spec, split_outside_quotes
from ..models.training import Trainer

AGENTS: dict[str, str] = {
    "random": "palaestra.agents.scripted:Random",
    "zero": "palaestra.agents.scripted:Zero",
    "hold": "palaestra.agents.scripted:Hold",
    "expert": "palaestra.agents.scripted:Expert",
    "admittance": "palaestra.agents.admittance:Admittance",
    "flow": "palaestra.agents.flow:Flow",
    "favla": "palaestra.agents.favla:Favla",
    "wam": "palaestra.agents.wam:Wam",
    "hybrid_rrd": "palaestra.agents.bandits.hybrid_rrd:HybridRRD",
    "c2ucb": "palaestra.agents.bandits.c2ucb:C2UCB",
    "comblin_ts": "palaestra.agents.bandits.comblin_ts:CombLinTS",
    "greedy": "palaestra.agents.bandits.greedy:Greedy",
    "epsilon_greedy": "palaestra.agents.bandits.greedy:EpsilonGreedy",
    "explore_then_commit": "palaestra.agents.bandits.greedy:ExploreThenCommit",
    "random_matching": "palaestra.agents.bandits.greedy:RandomMatching",
    "hypothesis": "palaestra.agents.rules.hypothesis:Hypothesis",
    "confirmation_biased": "palaestra.agents.rules.hypothesis:ConfirmationBiased",
    "information_gain": "palaestra.agents.rules.information_gain:InformationGain",
    "random_test": "palaestra.agents.rules.information_gain:RandomTest",
    "selector": "palaestra.agents.rules.selector:Selector",
    "remote": "palaestra.runtime.client:RemoteAgent",
}
_ROBOTS = {
    "robot": "palaestra.runtime.robots.as_env:named_robot",
    "simulated": "palaestra.runtime.robots.simulated:simulated_robot",
}
# Options that a world takes as data or as a callable, and that are named by text: what reads that text. It is called
# with the option (None where it is not given) and all options, and returns None where there is nothing to bind.
_BOUND = {
    "palaestra/MatchingBandit-v0": {"rewards": "palaestra.runtime.reward_table:bind_rewards"},
}
_PLUGINS = ("gymnasium_robotics", "metaworld", "gym_pusht", "gym_aloha", "gym_xarm", "ale_py")


def load(path: str) -> Any:
    """The object at ``module:name``. Raises ``ValueError`` saying which half is missing."""
    module_name, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{path!r}: no module named {error.name!r}; is the package installed?") from error
    except AttributeError as error:
        raise ValueError(f"{path!r}: the module {module_name} has no {name!r}") from error
    except Exception as error:
        raise ValueError(f"{path!r}: importing it failed, {type(error).__name__}: {error}") from error


def agent_names() -> dict[str, str]:
    """Every known agent: name to ``module:Class``."""
    return AGENTS | {point.name: point.value for point in entry_points(group="palaestra.agents")}


def agent_class(name: str) -> type[Agent]:
    """The class of an agent by name or ``module:Class``. Raises ``ValueError`` with the nearest names."""
    known = agent_names()
    if name not in known and ":" not in name:
        raise ValueError(f"agent {name!r} is not known; {nearest(name, known)}")
    found = load(known.get(name, name))
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise ValueError(f"agent {name!r} is {found!r}, which does not derive from palaestra.Agent")
    return found


def trainer_of(name: str) -> Trainer:
    """How an agent is trained. Raises ``ValueError`` naming those that can be for one that cannot."""
    trainer = getattr(agent_class(name), "trainer", None)
    if trainer is None:
        can = [known for known in agent_names() if getattr(agent_class(known), "trainer", None)]
        raise ValueError(f"agent {name!r} cannot be trained; these can: {', '.join(can)}")
    return trainer


def make_agent(text: str, env_id: str, backend: Backend | None = None) -> Agent:
    """The agent that ``text`` names, ready to act in ``env_id``.

    An agent with networks loads ``checkpoint=PATH``, or else the checkpoint that ships for this environment (or its
    ``variant=NAME``, such as ``constant``), and applies the backend to it. Raises ``ValueError`` for unknown names and
    options, and for a backend on an agent that has no network.
    """
    spec = parse_spec(text)
    name, options = spec.name, dict(spec.options)
    cls = agent_class(name)
    backend = backend or Backend()
    if issubclass(cls, NetworkAgent):
        path, variant = options.pop("checkpoint", None), options.pop("variant", None)
        if path is not None and variant is not None:
            raise ValueError(f"agent {text!r}: checkpoint names a file and variant a shipped one; give one of them")
        world = env_id.removeprefix("simulated:")
        if not world.startswith("robot:"):
            _know(split_env(world)[0].name)  # a misspelt environment is the likelier mistake than a missing checkpoint
        try:
            kept = f"{name}-{variant}" if variant else name
            checkpoint = Path(str(path)) if path is not None else shipped(kept, world)
        except FileNotFoundError as error:
            raise ValueError(str(error)) from error
        return _construct(text, cls.load, checkpoint, backend, **options)
    if str(backend):
        raise ValueError(f"backend={str(backend)!r}: the agent {name!r} has no network to apply it to")
    return _construct(text, cls, **options)


def _construct(text: str, make: Any, *args: Any, **options: Any) -> Agent:
    try:
        inspect.signature(make).bind(*args, **options)
    except TypeError as error:
        raise ValueError(f"agent {text!r}: {error}") from error
    try:
        return make(*args, **options)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"agent {text!r} cannot be made, {type(error).__name__}: {error}") from error


def split_env(text: str) -> tuple[Spec, list[Spec]]:
    """``ID[:options][+perturbation[:options]]...`` as the world and its perturbations in order."""
    world, *perturbations = map(parse_spec, split_outside_quotes(text, "+"))
    return world, perturbations


def make_env(text: str, render: bool = False) -> gymnasium.Env:
    """The environment that ``text`` names, wrapped in its perturbations.

    ``robot:MODULE:NAME`` is a robot, and ``simulated:`` before another name runs that world as one, in real time.
    ``render`` asks for ``render_mode="rgb_array"``. Raises ``ValueError`` with the nearest names for an unknown id
    or perturbation, and with the environment's own words for a wrong option.
    """
    if text.startswith("simulated:"):
        return load(_ROBOTS["simulated"])(text.removeprefix("simulated:"), render)
    world, perturbations = split_env(text)
    env = _make_world(text, world, render)
    try:
        for perturbation in perturbations:
            env = _perturb(env, perturbation)
    except Exception:
        env.close()
        raise
    return env


def require_env(text: str) -> None:
    """Raise ``ValueError`` as :func:`make_env` would for a name that means nothing, without making anything."""
    kind, colon, rest = text.partition(":")
    if kind == "simulated" and colon:
        return require_env(rest)
    world, perturbations = split_env(text)
    if world.name.startswith("robot:"):
        load(world.name.partition(":")[2])
        return None
    _know(world.name)
    for perturbation in perturbations:
        _know_perturbation(perturbation.name)
    return None


def _make_world(text: str, world: Spec, render: bool) -> gymnasium.Env:
    if world.name.startswith("robot:"):
        return load(_ROBOTS["robot"])(world, render)
    _know(world.name)
    options: dict[str, Any] = dict(world.options)
    for option, reader in _BOUND.get(world.name.rpartition(":")[2], {}).items():
        bound = load(reader)(world.options.get(option), world.options)
        if bound is not None:
            options[option] = bound
    if render:
        options["render_mode"] = "rgb_array"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium advises newer versions of ids, which is not ours to change
        try:
            return gymnasium.make(world.name, disable_env_checker=True, **options)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"environment {text!r} cannot be made, {type(error).__name__}: {error}") from error


def _perturb(env: gymnasium.Env, perturbation: Spec) -> gymnasium.Env:
    _know_perturbation(perturbation.name)
    try:
        return load(PERTURBATIONS[perturbation.name])(env, **perturbation.options)
    except TypeError as error:
        raise ValueError(f"perturbation {str(perturbation)!r}: {error}") from error


def _know_perturbation(name: str) -> None:
    if name not in PERTURBATIONS:
        raise ValueError(f"perturbation {name!r} is not known; {nearest(name, PERTURBATIONS)}")


def _know(env_id: str) -> None:
    """Make sure Gymnasium knows the id: import the package that registers it, or raise with the nearest names."""
    module, colon, bare = env_id.partition(":")
    if colon:  # Gymnasium's own spelling: import this module, then look the id up
        load(f"{module}:__name__")
        env_id = bare
    if env_id in gymnasium.registry:
        return
    namespace = env_id.partition("/")[0].lower().replace("-", "_")
    for plugin in (namespace, *_PLUGINS):
        if plugin.isidentifier() and importlib.util.find_spec(plugin):
            module_ = importlib.import_module(plugin)
            if env_id in gymnasium.registry:
                return
            if plugin == "gymnasium_robotics":
                gymnasium.register_envs(module_)
            if env_id in gymnasium.registry:
                return
    raise ValueError(f"environment {env_id!r} is not known; {nearest(env_id, list(gymnasium.registry))}")
