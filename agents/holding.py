"""What a robot does when nobody tells it what to do: the hold policies.

Used by the executor when its action buffer runs dry and by the agent ``hold``.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from gymnasium import Space, spaces

from ..envs.interface import Component, Interface

HoldPolicy = Literal["zero", "hold_last", "decelerate"]
_DECELERATION = 0.5  # share of the motion that is left after each held tick


class Holding:
    """Makes the action of a tick for which there is none.

    ``zero`` stops: velocities, deltas, torques and forces become 0, while absolute targets and the gripper keep
    their last value (an absolute target of zero would throw the arm across the room). ``hold_last`` repeats
    the last action as it was. ``decelerate`` halves what ``zero`` would stop, tick by tick. Without an interface
    card every number of a Box counts as motion. In spaces without a zero (Discrete and the like) all three
    repeat the last action, and before there is one take the first member.

    Raises ``ValueError`` for an unknown policy.
    """

    def __init__(self, policy: HoldPolicy, space: Space, interface: Interface | None = None):
        if policy not in get_args(HoldPolicy):
            raise ValueError(f"hold={policy!r} is not a hold policy; choose one of {', '.join(get_args(HoldPolicy))}")
        self._policy = policy
        self._space = space
        if isinstance(space, spaces.Box):
            size = int(np.prod(space.shape))
            components = interface.action if interface else ()
            moving = [_moves(c) for c in components for _ in range(c.size)] or [True] * size
            self._moving = np.reshape(moving, space.shape) if len(moving) == size else np.ones(space.shape, bool)

    def action(self, last: Any | None) -> Any:
        """The action to apply now; ``last`` is the one applied before it, or ``None`` at the start."""
        if not isinstance(self._space, spaces.Box):
            return _first_member(self._space) if last is None else last
        if last is None:
            return zero_action(self._space)
        if self._policy == "hold_last":
            return last
        share = _DECELERATION if self._policy == "decelerate" else 0.0
        held = np.where(self._moving, np.asarray(last) * share, last)
        return np.clip(held, self._space.low, self._space.high).astype(self._space.dtype)


def zero_action(space: Space) -> Any:
    """The member of a space nearest to zero: zeros clipped into a Box, else the first member."""
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype)
    return _first_member(space)


def _moves(component: Component) -> bool:
    """Whether a component goes on moving the robot when it is repeated."""
    if component.quantity == "gripper":
        return False
    return component.mode == "delta" or component.quantity in ("velocity", "torque", "force")


def _first_member(space: Space) -> Any:
    match space:
        case spaces.Discrete():
            return space.dtype.type(space.start)
        case spaces.MultiDiscrete():
            return np.array(space.start, space.dtype)
        case spaces.MultiBinary():
            return np.zeros(space.shape, space.dtype)
        case spaces.Text():
            return "".join(sorted(space.character_set)[:1]) * space.min_length
        case spaces.Dict():
            return {key: zero_action(part) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(zero_action(part) for part in space.spaces)
        case _:
            raise ValueError(f"no neutral action is known for the space {space}; use the agent 'random' instead")
