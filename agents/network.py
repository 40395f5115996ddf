"""Agents with networks: loaded from a checkpoint, changed by a backend, checked against the environment's spaces."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space, spaces
from torch import nn

from ..envs.interface import Interface, InterfaceMismatch
from ..models.backend import Backend
from ..models.checkpoint import Checkpoint, CheckpointError
from ..models.checkpoint import load as load_checkpoint
from ..models.data.demonstrations import TEXT_BYTES
from ..models.normalization import NormalizationError
from ..models.spec import nearest
from .agent import Agent


class NetworkAgent(Agent):
    """An agent that acts with networks. Derive, and write ``from_checkpoint``, ``calibration`` and ``plan``.

    ``networks`` names them; methods of a backend change each of them. ``card`` is the checkpoint's card, and
    ``interface`` is the one on it. ``name`` is the agent's name on checkpoints: another agent's are refused.
    """

    name: ClassVar[str]
    networks: dict[str, nn.Module]
    card: Mapping[str, Any] = MappingProxyType({})

    @property
    def checkpoint(self) -> str | None:
        """The hash of the weights it was loaded from; ``None`` for one that was made otherwise."""
        return self.card.get("weights", {}).get("sha256")

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **options: Any) -> NetworkAgent:
        """Build the agent from what a checkpoint holds; write the options as keyword arguments with defaults.

        Raises ``ValueError`` for what does not fit.
        """

    @abstractmethod
    def calibration(self, n: int) -> Mapping[str, Any] | None:
        """At most ``n`` recorded samples as a batch for the networks' ``loss``, or None when none were kept."""

    @classmethod
    def load(cls, checkpoint: Path | str, backend: Backend | None = None, **options: Any) -> NetworkAgent:
        """Read a checkpoint, build the agent with ``options``, and apply the running methods of ``backend``.

        Raises ``CheckpointError`` naming the file and what is wrong with it, ``BackendError`` for a backend that only
        trains, and ``ValueError`` for a bad option.
        """
        backend = (backend or Backend()).require_running()
        known = [name for name, p in signature(cls.from_checkpoint).parameters.items() if p.kind is p.KEYWORD_ONLY]
        for option in options:
            if option not in known:
                raise ValueError(f"the agent {cls.name!r} has no option {option!r}; {nearest(option, known)}")
        path = Path(checkpoint)
        loaded = load_checkpoint(path)
        card = loaded.card
        if card.get("agent") != cls.name:
            raise CheckpointError(
                path, f"is of the agent {card.get('agent')!r}, not {cls.name!r}; load it with that agent"
            )
        try:
            interface = Interface.from_json(card["interface"]) if card.get("interface") else None
        except ValueError as error:
            raise CheckpointError(path, f"has a broken interface: {error}") from None
        try:
            agent = cls.from_checkpoint(loaded, **options)
        except NormalizationError as error:
            raise CheckpointError(path, str(error)) from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        agent.card, agent.interface = card, interface
        samples = agent.calibration(64) if str(backend) else None
        agent.networks = {name: backend.apply(network, samples) for name, network in agent.networks.items()}
        for network in agent.networks.values():
            network.eval().requires_grad_(False)
        return agent


def check_observation_space(space: Space, wanted: Mapping[str, tuple[int, ...]], agent: str) -> None:
    """Check that an observation space has the arrays that a network was trained on: key -> shape.

    Nested keys are joined by a slash, a bare Box is named "observation". Further keys are allowed. Raises
    ``InterfaceMismatch`` naming each key with the shape expected and got.
    """
    have = _shapes(space)
    problems = []
    for key, shape in wanted.items():
        if key not in have:
            there = ", ".join(f"{k} {list(s)}" for k, s in have.items()) or "no arrays"
            problems.append(f"observation {key!r}: expected {list(shape)}, but the environment sends {there}")
        elif have[key] != tuple(shape):
            problems.append(f"observation {key!r}: expected {list(shape)}, got {list(have[key])}")
    _raise(problems, agent)


def check_action_space(space: Space, size: int, agent: str) -> spaces.Box:
    """Check that actions are a Box of ``size`` numbers; returns it. Raises ``InterfaceMismatch`` otherwise."""
    if not isinstance(space, spaces.Box):
        _raise([f"action: expected a Box of {size} numbers, got {space}"], agent)
    elif space.shape != (size,):
        _raise([f"action: expected {size} numbers, got shape {list(space.shape)}"], agent)
    assert isinstance(space, spaces.Box)
    return space


def _raise(problems: list[str], agent: str) -> None:
    if problems:
        raise InterfaceMismatch(
            f"the checkpoint of {agent} does not fit this environment: {'; '.join(problems)}. Use a checkpoint trained "
            "on this environment and configuration, or configure the environment as on the checkpoint's card"
        )


def _shapes(space: Space, prefix: str = "") -> dict[str, tuple[int, ...]]:
    if isinstance(space, spaces.Dict):
        found: dict[str, tuple[int, ...]] = {}
        for key, inner in space.spaces.items():
            found.update(_shapes(inner, f"{prefix}{key}/"))
        return found
    if isinstance(space, spaces.Text):
        return {prefix.removesuffix("/") or "observation": (TEXT_BYTES,)}
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype or np.float32, np.number):
        return {prefix.removesuffix("/") or "observation": tuple(space.shape)}
    return {}
