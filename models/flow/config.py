"""The configuration of a flow policy: what it reads, how large it is, and how its training draws times."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from ..normalization import Kind
from .schedules import HorizonAwareSchedule


@dataclass(frozen=True)
class FlowConfig:
    """Shapes and hyperparameters of a flow policy.

    ``action_size`` D and ``horizon`` H give the chunk [H, D]. ``state`` maps a key to the shape of its floats
    (flattened), ``pictures`` to [height, width, 3]; at least one key in all. ``quaternions`` says where in a flattened
    state key orientations stand, as (start, ``"xyzw"`` or ``"wxyz"``); the network sees them as matrices.
    ``max_delay`` < H is the longest prefix.
    ``normalization`` states the kind for each key of ``state`` and for ``"action"``.
    ``backbone`` is ``"transformer"`` (``width``, ``depth``, ``heads``, ``expansion``) or ``"mlp"`` (``width``,
    ``depth``); ``hidden`` is the encoder's width. The rest says how training draws times and prefixes, see
    :mod:`.objective`: ``prefix_rate``, ``mix``, ``times``, ``alpha``, ``first_hit`` and ``mask_finished``.
    """

    action_size: int
    horizon: int = 16
    state: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pictures: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    quaternions: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    normalization: Mapping[str, Kind] = field(default_factory=dict)
    max_delay: int = 8
    width: int = 96
    depth: int = 3
    heads: int = 4
    expansion: int = 4
    hidden: int = 128
    backbone: Literal["transformer", "mlp"] = "transformer"
    prefix_rate: float = 0.5
    mix: float = 0.0
    times: Literal["has", "independent"] = "has"
    alpha: float = 0.6
    first_hit: float = 0.9
    mask_finished: bool = True

    def __post_init__(self) -> None:
        for argument in ("action_size", "horizon", "width", "depth", "heads", "expansion", "hidden"):
            value = getattr(self, argument)
            most = 256 if argument == "depth" else 16_384
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise ValueError(f"{argument}={value!r}, expected an integer of 1 to {most}")
        if not isinstance(self.max_delay, int) or not 0 <= self.max_delay < self.horizon:
            raise ValueError(
                f"max_delay={self.max_delay!r}, expected an integer with 0 <= max_delay < horizon={self.horizon}"
            )
        for argument in ("prefix_rate", "mix"):
            if not 0 <= getattr(self, argument) <= 1:
                raise ValueError(f"{argument}={getattr(self, argument)}, expected a share in [0, 1]")
        for argument, known in (("backbone", ("transformer", "mlp")), ("times", ("has", "independent"))):
            if getattr(self, argument) not in known:
                raise ValueError(
                    f"{argument}={getattr(self, argument)!r} is not known; choose one of {', '.join(known)}"
                )
        HorizonAwareSchedule(self.horizon, 1, self.alpha, self.first_hit)  # which checks its own numbers
        if not self.state and not self.pictures:
            raise ValueError("state and pictures are both empty; a policy needs at least one observation key")
        for key, shape in self.pictures.items():
            if len(shape) != 3:
                raise ValueError(f"pictures[{key!r}]={shape}, expected (height, width, channels)")
        for key, places in self.quaternions.items():
            for start, order in places:
                if (
                    key not in self.state
                    or not 0 <= start <= prod(self.state[key]) - 4
                    or order not in ("xyzw", "wxyz")
                ):
                    raise ValueError(
                        f"quaternions[{key!r}] names ({start}, {order!r}), expected four numbers inside "
                        f"state[{key!r}] in the order xyzw or wxyz"
                    )
        bad = [key for key in (*self.state, *self.pictures) if "." in key or not key]
        if bad:
            raise ValueError(f"observation keys {bad} hold a dot or are empty, which a module name cannot; rename them")
        missing = [key for key in (*self.state, "action") if key not in self.normalization]
        if missing:
            raise ValueError(f"normalization states no kind for {missing}; give one of mean_std, min_max, quantile")

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Every observation key that is read, with the shape of its array."""
        return {**self.state, **self.pictures}

    @property
    def features(self) -> dict[str, int]:
        """Key of ``state`` to how many numbers the network sees of it."""
        return {key: prod(shape) + 2 * len(self.quaternions.get(key, ())) for key, shape in self.state.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data that :meth:`from_json` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FlowConfig:
        """Read what :meth:`to_json` wrote. Raises ``ValueError`` naming what is unknown, missing or out of range."""
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(data) - known):
            raise ValueError(f"not a flow configuration: unknown entries {unknown}, known are {sorted(known)}")
        try:
            shapes = {
                key: {name: tuple(int(n) for n in shape) for name, shape in data.get(key, {}).items()}
                for key in ("state", "pictures")
            }
            quaternions = {
                name: tuple((int(start), str(order)) for start, order in places)
                for name, places in data.get("quaternions", {}).items()
            }
            return cls(**{**data, **shapes, "quaternions": quaternions})
        except (TypeError, AttributeError) as error:  # a value of another kind than its field
            raise ValueError(f"not a flow configuration: {error}") from None
