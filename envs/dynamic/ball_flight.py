"""How a table tennis ball flies and bounces: gravity, drag, the Magnus force, and impact with friction.

A ball of 2.7 g moves nothing that it hits here, so its motion is an ordinary differential equation between impacts and
a closed-form law at each. Both stand in this file and not in MuJoCo contacts: those are springs whose restitution
depends on the step, and they do not turn friction into spin the way rubber does. Whoever simulates the ball, plans a
serve or predicts a crossing uses the same functions.

Flight:  v' = -g z - k C_D |v| v + k C_L |v|² (w x v) / (|w| |v|),  k = air density * cross-section / (2 mass);  w' = 0.
C_D = 0.47 is that of a smooth sphere at Reynolds numbers of 1e4 to 1e5 (White, "Fluid Mechanics", chapter 7); a ball
at 4 m/s has 1.1e4. C_L = 1 / (2 + |v| / (radius |w|)) is the common fit for spinning balls (Brody, Cross and Lindsey,
"The Physics and Technology of Tennis", 2002). Spin decays over many seconds and is held constant in a flight.

Impact: an impulse at the point of contact (Garwin, "Kinematics of an ultraelastic rough ball", 1969), here on a thin
hollow shell and with Coulomb friction, no tangential recoil: the normal velocity is returned with the surface's
restitution; the slip of the point of contact ends, or is slowed by what friction allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite, sqrt

import numpy as np

RADIUS = 0.02  # m; diameter 40 mm and mass 2.7 g by the Laws of Table Tennis (ITTF), 2.03
MASS = 0.0027  # kg
GRAVITY = 9.81  # m/s²
AIR_DENSITY = 1.204  # kg/m³, at 20 °C
DRAG = 0.47  # C_D
STEP_S = 0.02  # of the fourth-order Runge-Kutta integration; it is off by less than 1 µm after a second

_AIR = AIR_DENSITY * np.pi * RADIUS**2 / (2 * MASS)  # 1/m
_SHELL = 2 / 3  # moment of inertia of a hollow sphere over mass * radius²
_GRIP = 1 / (1 + 1 / _SHELL)  # 0.4: the tangential impulse that ends a slip of 1 m/s, over the mass


@dataclass(frozen=True)
class Surface:
    """What a ball bounces from: ``restitution`` of the normal velocity in [0, 1] and the ``friction`` coefficient."""

    restitution: float
    friction: float

    def __post_init__(self) -> None:
        if not 0 <= self.restitution <= 1:
            raise ValueError(f"restitution={self.restitution}, expected 0 to 1")
        if not (self.friction >= 0 and isfinite(self.friction)):
            raise ValueError(f"friction={self.friction}, expected 0 or more")


@dataclass(frozen=True)
class Ball:
    """A ball's state, float64 [3] each: ``position`` in m, ``velocity`` in m/s, ``spin`` in rad/s; z points up."""

    position: np.ndarray
    velocity: np.ndarray
    spin: np.ndarray

    def fly(self, time_s: float) -> Ball:
        """The ball after ``time_s`` seconds in the air (0 or more), wherever that leads: nothing is in its way."""
        state = (*self.position.tolist(), *self.velocity.tolist())
        spin = self.spin.tolist()
        steps = ceil(time_s / STEP_S - 1e-9)
        for _ in range(steps):
            state = _step(state, spin, time_s / steps)
        return Ball(np.array(state[:3]), np.array(state[3:]), self.spin)

    def time_to(self, axis: int, level: float, within_s: float) -> float | None:
        """Seconds until coordinate ``axis`` (0 to 2) passes ``level`` m, or ``None`` if not ``within_s``.

        A ball that starts exactly there is on the side to which it moves.
        """
        state = (*self.position.tolist(), *self.velocity.tolist())
        spin = self.spin.tolist()
        side = state[axis] - level or state[axis + 3]
        passed_s = 0.0
        while passed_s < within_s:
            step_s = min(STEP_S, within_s - passed_s)
            after = _step(state, spin, step_s)
            if (after[axis] - level) * side <= 0:
                # Newton's method from the far side; within one step the speed is nearly constant.
                for _ in range(3):
                    speed = after[axis + 3]
                    step_s -= (after[axis] - level) / speed if speed else 0.0
                    after = _step(state, spin, step_s)
                return passed_s + step_s
            state, passed_s = after, passed_s + step_s
        return None

    def at(self, axis: int, level: float) -> Ball:
        """The ball with coordinate ``axis`` set to ``level`` m: exactly there, as ``fly(time_to(...))`` is nearly."""
        position = self.position.copy()
        position[axis] = level
        return Ball(position, self.velocity, self.spin)

    def bounce(self, normal: np.ndarray, surface: Surface, surface_velocity: np.ndarray | None = None) -> Ball:
        """The ball after an impact on a surface that does not yield.

        ``normal`` is the unit vector from the surface to the ball, ``surface_velocity`` [3] that of the surface at the
        point of contact (``None``: at rest). A ball that moves away from the surface is returned as it is.
        """
        relative = self.velocity if surface_velocity is None else self.velocity - surface_velocity
        approach = -float(relative @ normal)
        if approach <= 0:
            return self
        arm = -RADIUS * normal  # from the centre to the point of contact
        slip = relative + approach * normal + _cross(self.spin, arm)
        speed = sqrt(slip @ slip)
        impulse = (1 + surface.restitution) * approach  # per mass, in m/s, like the next
        along = -slip * min(_GRIP, surface.friction * impulse / speed) if speed else np.zeros(3)
        return Ball(
            self.position,
            self.velocity + impulse * normal + along,
            self.spin + _cross(arm, along) / (_SHELL * RADIUS**2),
        )


def aim(position: np.ndarray, spin: np.ndarray, target: np.ndarray, time_s: float) -> Ball:
    """The ball that starts at ``position`` with ``spin`` and is at ``target`` after ``time_s`` seconds.

    Shooting: whatever it misses by is added to the velocity as if there were no air, until it misses by less than
    0.01 mm. That converges for flights of up to a second at the speeds of the game.
    """
    velocity = (target - position) / time_s + np.array([0, 0, GRAVITY * time_s / 2])
    for _ in range(30):
        miss = target - Ball(position, velocity, spin).fly(time_s).position
        velocity = velocity + miss / time_s
        if miss @ miss < 1e-10:
            break
    return Ball(position, velocity, spin)


_State = tuple[float, ...]  # position and velocity: plain floats are several times faster here than arrays


def _step(state: _State, spin: list[float], h: float) -> _State:
    """One step of the classical Runge-Kutta method."""
    x, y, z, u, v, w = state
    u1, v1, w1 = _acceleration(u, v, w, spin)
    u2, v2, w2 = u + h / 2 * u1, v + h / 2 * v1, w + h / 2 * w1
    a2, b2, c2 = _acceleration(u2, v2, w2, spin)
    u3, v3, w3 = u + h / 2 * a2, v + h / 2 * b2, w + h / 2 * c2
    a3, b3, c3 = _acceleration(u3, v3, w3, spin)
    u4, v4, w4 = u + h * a3, v + h * b3, w + h * c3
    a4, b4, c4 = _acceleration(u4, v4, w4, spin)
    return (
        x + h / 6 * (u + 2 * u2 + 2 * u3 + u4),
        y + h / 6 * (v + 2 * v2 + 2 * v3 + v4),
        z + h / 6 * (w + 2 * w2 + 2 * w3 + w4),
        u + h / 6 * (u1 + 2 * a2 + 2 * a3 + a4),
        v + h / 6 * (v1 + 2 * b2 + 2 * b3 + b4),
        w + h / 6 * (w1 + 2 * c2 + 2 * c3 + c4),
    )


def _acceleration(u: float, v: float, w: float, spin: list[float]) -> tuple[float, float, float]:
    p, q, r = spin
    speed = sqrt(u * u + v * v + w * w)
    drag = _AIR * DRAG * speed
    rim = RADIUS * sqrt(p * p + q * q + r * r)
    lift = _AIR * RADIUS * speed / (2 * rim + speed) if speed else 0.0
    return (
        lift * (q * w - r * v) - drag * u,
        lift * (r * u - p * w) - drag * v,
        lift * (p * v - q * u) - drag * w - GRAVITY,
    )


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``np.cross`` of two vectors, without its overhead."""
    return np.array([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])
