"""Units as interface cards write them, and the factors between them."""

from __future__ import annotations

import math

import numpy as np

from .interface import Component
from .rotations import ANGLED

_LENGTH, _ANGLE, _TIME, _MASS = np.eye(4, dtype=int)
_UNITS: dict[str, tuple[float, np.ndarray]] = {
    "m": (1.0, _LENGTH),
    "cm": (1e-2, _LENGTH),
    "mm": (1e-3, _LENGTH),
    "rad": (1.0, _ANGLE),
    "deg": (math.pi / 180, _ANGLE),
    "s": (1.0, _TIME),
    "ms": (1e-3, _TIME),
    "Hz": (1.0, -_TIME),
    "kg": (1.0, _MASS),
    "g": (1e-3, _MASS),
    "N": (1.0, _MASS + _LENGTH - 2 * _TIME),
    "mN": (1e-3, _MASS + _LENGTH - 2 * _TIME),
    "kN": (1e3, _MASS + _LENGTH - 2 * _TIME),
}


def parse_unit(unit: str) -> tuple[float, tuple[int, ...]] | None:
    """Factor to SI and exponents of length, angle, time and mass; ``None`` for what is no such unit."""
    text = unit.replace("²", "^2").replace("Nm", "N·m").replace("⋅", "·").replace("*", "·")
    factor, dimension = 1.0, np.zeros(4, int)
    for position, group in enumerate(text.split("/")):
        sign = -1 if position else 1
        for term in group.split("·"):
            base, _, power = term.strip().partition("^")
            if base not in _UNITS or not (power or "1").isdecimal():
                return None
            exponent = sign * int(power or 1)
            factor *= _UNITS[base][0] ** exponent
            dimension = dimension + exponent * _UNITS[base][1]
    return factor, tuple(int(x) for x in dimension)


def to_radians(component: Component) -> float | None:
    """Factor from a rotation's unit to rad; 1 where the convention has no unit, ``None`` where it is no angle."""
    if component.rotation not in ANGLED or not component.unit:
        return 1.0
    parsed = parse_unit(component.unit)
    return parsed[0] if parsed is not None and parsed[1] == tuple(_ANGLE) else None
