"""What stands between an agent and a robot: limits, a deadline for commands, and an emergency stop that latches.

The watchdog lives in this process. It guards against an agent, a network and a loop that fail, not against the
death of the process itself: for that a robot's own controller must stop when commands stay away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from gymnasium import spaces

from ...agents.agent import Action
from ...agents.holding import Holding
from ...envs.interface import Component
from .robot import Reading, Robot, RobotLost, RobotStopped

Breach = Literal["clip", "stop"]
INTERVENTIONS = ("position", "velocity", "force", "deadline", "stop")
_SLOWING_TICKS = 5  # halved in each, a motion is down to 3 % and `hold` has little left to do


@dataclass(frozen=True)
class Limits:
    """Bounds on the axes that one component of the action moves.

    ``action`` names that component (a velocity, or an absolute or delta position); ``position`` the component of
    the observation that says where its axes are, in the same order. ``low`` and ``high`` bound the positions, and
    ``speed`` (per second) their change: each a number for all axes or one per axis. A velocity is bounded so that
    its axis comes to rest inside even if no command follows, provided that the servo lags by less than a tick.
    ``force`` names a component of the observation in N, such as a wrench (its first three numbers count; of a
    series the newest), which may reach ``force_n`` in magnitude.

    A ``breach`` is clipped (of a force: the robot is held at this tick) or stops the robot until it is released.
    Raises ``ValueError`` for bounds that contradict each other.
    """

    action: str
    position: str
    low: float | Sequence[float] = -np.inf
    high: float | Sequence[float] = np.inf
    speed: float | Sequence[float] = np.inf
    force: str | None = None
    force_n: float = np.inf
    breach: Breach = "clip"

    def __post_init__(self) -> None:
        if self.breach not in get_args(Breach):
            raise ValueError(f"breach={self.breach!r} is not known; choose one of {', '.join(get_args(Breach))}")
        if not np.all(np.less(self.low, self.high)):
            raise ValueError(f"low={self.low} and high={self.high}, expected each low below its high")
        if not np.all(np.greater(self.speed, 0)):
            raise ValueError(f"speed={self.speed}, expected speeds above 0")
        if not self.force_n > 0:
            raise ValueError(f"force_n={self.force_n}, expected newtons above 0")
        if (self.force is None) != (self.force_n == np.inf):
            raise ValueError(
                f"force={self.force!r} and force_n={self.force_n} say one thing together: give both or none"
            )


class Watchdog(Robot):
    """A robot under guard; itself a robot, so that whatever drives the one can drive the other.

    Commands pass through ``limits``. When none has come for ``deadline_ms`` (default: three control periods), a
    thread takes over: it slows down what moves over five more periods and holds; the next command ends that. A reading
    older than the deadline raises ``RobotLost``. After ``emergency_stop`` every command raises ``RobotStopped`` until
    ``release``.

    ``interventions`` counts by kind (:data:`INTERVENTIONS`); ``tell`` hears a sentence when one begins (default: the
    log). Raises ``ValueError`` for limits that do not fit the robot's card.
    """

    def __init__(
        self,
        robot: Robot,
        limits: Sequence[Limits] = (),
        deadline_ms: float | None = None,
        tell: Callable[[str], None] | None = None,
    ):
        hz = robot.interface.control_hz
        if hz is None:
            raise ValueError("the robot's card says control_hz=None, expected its control rate in Hz")
        deadline_ms = 3000.0 / hz if deadline_ms is None else deadline_ms
        if not deadline_ms > 1000.0 / hz:
            raise ValueError(
                f"deadline_ms={deadline_ms}, expected more than one control period of {1000.0 / hz:.4g} ms"
            )
        self.robot, self.simulated, self.limits = robot, robot.simulated, tuple(limits)
        self.interface = robot.interface
        self.observation_space, self.action_space = robot.observation_space, robot.action_space
        self.deadline_s = deadline_ms / 1000.0
        self.interventions: Counter[str] = Counter()
        self.stopped: str | None = None  # why the emergency stop is latched
        self._tick_s = 1.0 / hz
        self._guards = [_Guard(one, robot, self._tick_s, self.deadline_s) for one in limits]
        self._tell = tell or logging.getLogger(__name__).warning
        self._slowing = Holding("decelerate", robot.action_space, robot.interface)
        self._halting = Holding("zero", robot.action_space, robot.interface)
        self._reading: Reading | None = None
        self._last: Action | None = None  # the command in force; None while the robot is held
        self._under_way: set[str] = set()  # kinds of intervention that the last command met
        self._fed_s = 0.0
        self._lock = threading.RLock()  # over everything but the emergency stop, which waits for nobody
        self._slowed = 0  # periods that the thread has had control; beyond _SLOWING_TICKS: it holds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="palaestra-watchdog", daemon=True)
        self._thread.start()

    def observe(self) -> Reading:
        """The newest reading. Raises ``RobotLost`` when it is older than the deadline."""
        with self._lock:
            return self._look()

    def command(self, action: Action) -> None:
        """Do ``action`` as far as the limits let it. Raises ``RobotStopped``, and ``ValueError`` for no action."""
        if not self.action_space.contains(action):
            raise ValueError(f"action={action!r} is not a member of {self.action_space}")
        with self._lock:
            self._refuse_stopped()
            met: set[str] = set()
            if self._guards:
                reading = self._reading
                if reading is None or time.perf_counter() - reading.time_s > self.deadline_s:
                    reading = self._look()
                for guard in self._guards:
                    kind = "force" if guard.pressed(reading) else None
                    if kind:
                        action = self._halting.action(self._last)
                        said = f"{guard.limits.force} is above {guard.limits.force_n} N"
                    else:
                        action, kind, said = guard.bound(action, self._last, reading)
                    if kind:
                        met.add(kind)
                        self._intervene(kind, said)
                        if guard.limits.breach == "stop":
                            self._stop(said)
                            self._refuse_stopped()
            self._under_way = met
            self._fed_s = time.perf_counter()
            self._slowed = 0
            self._last = action
            self._send(lambda: self.robot.command(action))
            self._refuse_stopped()

    def hold(self) -> None:
        """Hold; the deadline does not run until the next command."""
        with self._lock:
            self._last = None
            if not self.stopped:
                self._send(self.robot.hold)

    def home(self, seed: int | None = None) -> None:
        """Send the robot home. Raises ``RobotStopped``."""
        with self._lock:
            self._refuse_stopped()
            self._last = self._reading = None
            self._send(lambda: self.robot.home(seed))

    def emergency_stop(self) -> None:
        """Stop now, and stay so until ``release``."""
        self._stop("emergency_stop() was called")

    def picture(self) -> np.ndarray | None:
        """The robot's own."""
        with self._lock:
            return self.robot.picture()

    def release(self) -> None:
        """A person has looked and lets the robot move again."""
        with self._lock:
            self.stopped = None
            self._last = None

    def close(self) -> None:
        """Hold, end the thread, and let go of the robot."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        try:
            self.hold()
        except RobotLost as error:
            self._tell(f"the robot could not be held while closing: {error}")
        finally:
            self.robot.close()

    def _look(self) -> Reading:
        reading = self._reading = self.robot.observe()
        age_s = time.perf_counter() - reading.time_s
        if age_s > self.deadline_s:
            raise RobotLost(f"the robot's newest reading is {1000 * age_s:.0f} ms old: is its sensor stream alive?")
        return reading

    def _send(self, order: Callable[[], None]) -> None:
        order()
        if self.stopped:  # by another thread, while this was on its way: it must not be the last word
            self.robot.emergency_stop()

    def _stop(self, why: str) -> None:
        self.stopped = self.stopped or why
        self.robot.emergency_stop()
        self._intervene("stop", why)

    def _refuse_stopped(self) -> None:
        if self.stopped:
            raise RobotStopped(f"the emergency stop is latched ({self.stopped}); look, then call release()")

    def _intervene(self, kind: str, said: str) -> None:
        self.interventions[kind] += 1
        if kind not in self._under_way:
            self._tell(f"{kind}: {said}")

    def _watch(self) -> None:
        """Take over when commands stay away."""
        due_s = self._tick_s
        while not self._closing.wait(due_s):
            due_s = self._tick_s
            with self._lock:
                if self._last is None or self.stopped:
                    continue
                waited_s = time.perf_counter() - self._fed_s
                if waited_s < self.deadline_s:
                    due_s = min(due_s, self.deadline_s - waited_s)
                    continue
                if not self._slowed:
                    self._intervene("deadline", f"no command for {1000 * waited_s:.0f} ms, slowing down")
                self._slowed += 1
                try:
                    self._slow_down()
                except Exception as error:  # of whatever kind: this thread is the last that may give up
                    if self._slowed <= _SLOWING_TICKS + 1:
                        self._tell(f"the robot does not obey, telling it to hold until it does: {error}")
                    self._slowed = _SLOWING_TICKS + 1

    def _slow_down(self) -> None:
        slower = self._slowing.action(self._last)
        if self._slowed > _SLOWING_TICKS or _same(slower, self._last):
            self._send(self.robot.hold)
            self._last = None
        else:
            self._last = slower
            self._send(lambda: self.robot.command(slower))


class _Guard:
    """One :class:`Limits`, bound to the places of its numbers in action and observation."""

    def __init__(self, limits: Limits, robot: Robot, tick_s: float, deadline_s: float):
        card = robot.interface
        if not isinstance(robot.action_space, spaces.Box):
            raise ValueError(f"limits need an action space of numbers (Box), got {robot.action_space}")
        self.limits, self._tick_s = limits, tick_s
        self._component, self._axes = _find(limits.action, card.action, "the action")
        if self._component.quantity not in ("velocity", "position"):
            raise ValueError(
                f"limits on {limits.action!r}: its quantity is {self._component.quantity!r}, expected velocity or "
                f"position; bounds on anything else belong into the robot's own controller"
            )
        self._key, position, self._where = _look_up(limits.position, robot)
        if position.size != self._component.size or position.quantity != "position":
            raise ValueError(
                f"limits on {limits.action!r} with {self._component.size} axes: position={limits.position!r} is a "
                f"{position.quantity} of size {position.size}, expected a position of the same size"
            )
        size = self._component.size
        self._low, self._high, self._speed = (np.empty(size) for _ in range(3))
        for name, into in (("low", self._low), ("high", self._high), ("speed", self._speed)):
            given = np.asarray(getattr(limits, name), float)
            if given.shape not in ((), (size,)):
                raise ValueError(f"{name}={getattr(limits, name)}, expected one number or one for each of {size} axes")
            into[:] = given
        self._force = _look_up(limits.force, robot) if limits.force else None
        # How long a velocity may go on unasked: until the deadline, and three ticks: one for the age of the reading,
        # one for the lag of the servo, and what all the halves after the deadline sum up to.
        self._coasting_s = deadline_s + 3 * tick_s

    def pressed(self, reading: Reading) -> bool:
        """Whether the measured force is too large (one that is not a number is)."""
        if self._force is None:
            return False
        key, _, where = self._force
        force = np.linalg.norm(_newest(reading, key)[where][:3])
        return not force <= self.limits.force_n

    def bound(self, action: Action, last: Action | None, reading: Reading) -> tuple[Action, str | None, str]:
        """The action within the limits, the kind of limit that it met, and a sentence about it."""
        asked = np.asarray(action, float).ravel()[self._axes]
        at = _newest(reading, self._key)[self._where].astype(float)
        if not np.isfinite(at).all():
            raise RobotLost(f"{self.limits.position} reads {at.tolist()}: no motion without knowing where the robot is")
        reach = self._speed * self._tick_s
        if self._component.quantity == "velocity":
            slow = np.clip(asked, -self._speed, self._speed)
            # outside its bounds an axis may stand still or come back, but is not driven back by the guard
            room_low = np.minimum((self._low - at) / self._coasting_s, 0)
            room_high = np.maximum((self._high - at) / self._coasting_s, 0)
            allowed = np.clip(slow, room_low, room_high)
        elif self._component.mode == "delta":
            slow = np.clip(asked, -reach, reach)
            allowed = np.clip(slow, np.minimum(self._low - at, 0), np.maximum(self._high - at, 0))
        else:
            start = at if last is None else np.asarray(last, float).ravel()[self._axes]
            slow = np.clip(asked, start - reach, start + reach)
            allowed = np.clip(slow, np.minimum(self._low, at), np.maximum(self._high, at))
        if _same(allowed, asked):
            return action, None, ""
        kind = "velocity" if _same(allowed, slow) else "position"
        axis = int(np.argmax(np.abs(allowed - asked)))
        said = f"axis {axis} of {self.limits.action} at {at[axis]:.4g} was asked for {asked[axis]:.4g}"
        if self.limits.breach == "clip":
            said += f", gets {allowed[axis]:.4g}"
        bounded = np.array(action)
        bounded.reshape(-1)[self._axes] = allowed
        return bounded, kind, said


def _find(name: str, components: Sequence[Component], where: str) -> tuple[Component, slice]:
    """A component by name, and the place of its numbers."""
    start = 0
    for component in components:
        if component.name == name:
            return component, slice(start, start + component.size)
        start += component.size
    raise ValueError(f"{name!r} is not a component of {where}; there are {', '.join(c.name for c in components)}")


def _look_up(name: str, robot: Robot) -> tuple[str, Component, slice]:
    """A component of the observation by name: its key, itself, and the place of its numbers."""
    cards = robot.interface.observation
    for key, components in cards.items():
        if any(component.name == name for component in components):
            return key, *_find(name, components, f"the observation {key!r}")
    names = ", ".join(component.name for components in cards.values() for component in components)
    raise ValueError(f"{name!r} is not a component of the observation; there are {names}")


def _newest(reading: Reading, key: str) -> np.ndarray:
    """The numbers under a key; of a series (newest last) the newest."""
    values = np.asarray(reading.observation[key])
    return values[-1] if values.ndim > 1 else values


def _same(a: Action, b: Action) -> bool:
    return bool(np.array_equal(a, b))
