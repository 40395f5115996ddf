"""What the numbers of an environment, or those an agent expects, mean.

An :class:`Interface` is a card. An environment offers one as ``env.unwrapped.interface``, a trained agent
carries the one it was trained on, and ``envs.conversion.reconcile`` compares them before the first step:
most closed-loop scores of zero come from two sides that agree on a shape and not on its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Rotation = Literal["quat_xyzw", "quat_wxyz", "axis_angle", "euler_xyz", "rot6d_columns", "rot6d_rows", "matrix"]
Quantity = Literal["position", "velocity", "torque", "force", "orientation", "gripper", "image", "text", "other"]
Mode = Literal["absolute", "delta"]

ROTATION_SIZE: dict[str, int] = {
    "quat_xyzw": 4,
    "quat_wxyz": 4,
    "axis_angle": 3,
    "euler_xyz": 3,
    "rot6d_columns": 6,
    "rot6d_rows": 6,
    "matrix": 9,
}


@dataclass(frozen=True)
class Component:
    """Consecutive numbers with one meaning, in an action or in an observation vector.

    ``name`` is unique within its vector (``"position"``, ``"rotation"``, ``"gripper"``). ``mode`` matters for
    actions: a *delta* is added to the present value, an *absolute* replaces it. ``unit`` is an SI symbol
    (``"m"``, ``"rad"``, ``"m/s"``, ``"N"``) or ``"normalized"`` where the controller scales it.
    ``rotation`` names the convention of an orientation: quaternions say where the scalar stands;
    ``axis_angle`` has an angle in [0, pi]; ``euler_xyz`` is intrinsic; ``rot6d_columns`` lists the first
    column of the rotation matrix, then the second; ``rot6d_rows`` lists its first two columns row by row.
    ``closed`` and ``open`` are the gripper values of a closed and of an open hand: both polarity and range.

    Raises ``ValueError`` when size and rotation convention disagree or a convention is unknown.
    """

    name: str
    size: int
    quantity: Quantity = "other"
    mode: Mode = "absolute"
    frame: str = "world"
    unit: str = ""
    rotation: Rotation | None = None
    closed: float | None = None
    open: float | None = None

    def __post_init__(self) -> None:
        for value, allowed, argument in (
            (self.quantity, get_args(Quantity), "quantity"),
            (self.mode, get_args(Mode), "mode"),
            (self.rotation, (None, *get_args(Rotation)), "rotation"),
        ):
            if value not in allowed:
                raise ValueError(f"component {self.name!r}: {argument}={value!r} is not one of {allowed}")
        if self.size < 1:
            raise ValueError(f"component {self.name!r}: size={self.size}, expected at least 1")
        if self.rotation and self.size != ROTATION_SIZE[self.rotation]:
            raise ValueError(
                f"component {self.name!r}: rotation={self.rotation!r} has {ROTATION_SIZE[self.rotation]} numbers, "
                f"but size={self.size}"
            )
        if self.quantity == "gripper" and (self.closed is None or self.open is None or self.closed == self.open):
            raise ValueError(
                f"component {self.name!r}: a gripper states two different values for closed and open, "
                f"got closed={self.closed}, open={self.open}"
            )


@dataclass(frozen=True)
class Interface:
    """The card: control rate in Hz, the components of the action, and those of each observation key.

    ``control_hz`` is how often an action is applied; ``None`` where the world has no clock (a card game).
    ``observation`` maps a key of the Dict observation to its components (an image or a text is one component).
    ``episode_ticks`` is, for an environment, its time limit and, for an agent, how long the demonstrations
    were that it was trained on. ``chunk`` is the longest action chunk that an agent was trained to plan.
    """

    control_hz: float | None
    action: tuple[Component, ...] = ()
    observation: Mapping[str, tuple[Component, ...]] = field(default_factory=dict)
    episode_ticks: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.control_hz is not None and not self.control_hz > 0:
            raise ValueError(f"control_hz={self.control_hz}, expected a rate above zero in Hz, or None")

    def to_json(self) -> dict[str, Any]:
        """The card as plain JSON data; ``from_json`` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Interface:
        """Read a card that ``to_json`` wrote. Raises ``ValueError`` naming what is missing or unknown."""
        try:
            return cls(
                control_hz=data["control_hz"],
                action=tuple(Component(**c) for c in data["action"]),
                observation={k: tuple(Component(**c) for c in v) for k, v in data["observation"].items()},
                episode_ticks=data.get("episode_ticks"),
                chunk=data.get("chunk"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an interface card: {error}") from error


class InterfaceMismatch(ValueError):
    """Agent and environment disagree on what a number means; the message names both sides of each case."""
