"""Palaestra runs any agent in any Gymnasium environment and ranks the results with a stated reliability."""

from importlib import import_module
from typing import Any

if __name__ != "palaestra":
    raise ImportError(f"this folder is the package 'palaestra', imported as {__name__!r}; install it and import that")

__version__ = "0.1.0"

_EXPORTS = {
    "Agent": "agents.agent",
    "StepAgent": "agents.agent",
    "ActionPart": "agents.agent",
    "Call": "agents.agent",
    "Episode": "agents.agent",
    "Transition": "agents.agent",
    "NetworkAgent": "agents.network",
    "Interface": "envs.interface",
    "Component": "envs.interface",
    "Backend": "models.backend",
    "Store": "runtime.store",
    "run": "runtime.rollout",
}
__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    """The names that users import, loaded when first asked for: ``import palaestra`` stays light."""
    if name in _EXPORTS:
        return getattr(import_module(f".{_EXPORTS[name]}", __name__), name)
    raise AttributeError(f"module 'palaestra' has no attribute {name!r}")


from .envs import register as _register  # noqa: E402 - after the names, and light

_register()
