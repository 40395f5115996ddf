"""A force sensor in the wrist: runs the physics at 1 kHz and keeps what was felt."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import mujoco
import numpy as np

from ..interface import Component

STEP_S = 0.001  # a physics step
SAMPLE_HZ = 200
WINDOW = 10  # samples in an observation: the last 50 ms
_EVERY = round(1 / (SAMPLE_HZ * STEP_S))
_TARE = 20  # physics steps whose mean is the weight of what hangs on the sensor

WRENCH = (
    Component("force", 3, "force", frame="wrist_sensor", unit="N"),
    Component("torque", 3, "torque", frame="wrist_sensor", unit="N·m"),
)
"""What the numbers of the observation ``wrench`` mean, for the interface card."""


class Wrist:
    """Steps a world and measures its forces; one for each pair of ``model`` and ``data``.

    The model's timestep is 1 ms, and its first three sensors are ``force`` and ``torque`` at the site of the wrist and
    ``force`` at a site of the body that the tool may touch, which stands still: the net force of all contacts there.
    ``window`` [10, 6] are the newest samples of the wrist at 200 Hz, newest last: force (N) and torque (N·m) that the
    arm exerts on the tool, in the sensor's frame, less what it is at rest. A tool that presses downwards with 5 N reads
    -5 N along an upward z axis. ``contact_n`` is the norm of the net contact force at each physics step of the last
    :meth:`advance`, and ``peak_n`` the largest since the last :meth:`begin`.

    Raises ``ValueError`` for a model with other sensors or another timestep.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        if model.nsensor < 3 or list(model.sensor_dim[:3]) != [3, 3, 3] or abs(model.opt.timestep - STEP_S) > 1e-12:
            raise ValueError(
                f"sensors of dimensions {list(model.sensor_dim)} and a timestep of {model.opt.timestep} s, expected "
                f"force and torque of the wrist, the force of the touched body, and {STEP_S} s"
            )
        self._model, self._data = model, data
        self._log = np.zeros((64, 9))
        self._tare = np.zeros(9)
        self._steps = 0
        self.window = np.zeros((WINDOW, 6))
        self.contact_n = np.zeros(0)
        self.peak_n = 0.0

    def begin(self) -> None:
        """Take the present load for zero. The tool must hang free and at rest; a few steps of physics pass."""
        self._tare[:] = 0.0
        self._run(_TARE)
        self._tare[:] = self._log[:_TARE].mean(axis=0)
        self._steps = 0
        self.window[:] = 0.0
        self.contact_n = np.zeros(0)
        self.peak_n = 0.0

    def advance(self, steps: int, limit_n: float = np.inf) -> bool:
        """Run the physics for so many steps, at most 64; true when a contact force beyond ``limit_n`` ended it.

        What is felt after the step that exceeded the limit is not kept, because a guarded robot would have stopped
        there; the simulation itself goes on to the end of the tick.
        """
        self._run(steps)
        felt = self._log[:steps] - self._tare
        contact_n = np.sqrt((felt[:, 6:] ** 2).sum(axis=1))
        over = np.flatnonzero(contact_n > limit_n)
        kept = int(over[0]) + 1 if len(over) else steps
        self.contact_n = contact_n[:kept]
        self.peak_n = max(self.peak_n, float(self.contact_n.max()))
        fresh = felt[(-self._steps - 1) % _EVERY : kept : _EVERY, :6][-WINDOW:]
        self._steps += steps
        if len(fresh):
            self.window[: WINDOW - len(fresh)] = self.window[len(fresh) :]
            self.window[WINDOW - len(fresh) :] = fresh
        return len(over) > 0

    def foresee(self, commands: np.ndarray, steps: Sequence[int] | np.ndarray) -> np.ndarray:
        """What the wrist would feel, mean per tick [n, 6], under ``commands`` [n, nu] held for so many ``steps`` each.

        Worked out on a copy; nothing changes here.
        """
        twin = Wrist(self._model, copy(self._data))
        twin._tare = self._tare
        felt = np.empty((len(commands), 6))
        for tick, (command, count) in enumerate(zip(commands, steps, strict=True)):
            twin._data.ctrl[:] = command
            twin._run(count)
            felt[tick] = (twin._log[:count, :6] - twin._tare[:6]).mean(axis=0)
        return felt

    def _run(self, steps: int) -> None:
        log, sensed, model, data = self._log, self._data.sensordata, self._model, self._data
        for step in range(steps):
            mujoco.mj_step(model, data)
            log[step] = sensed[:9]


def ramps(actions: np.ndarray, size: int, limit: float, tick: int, control_hz: float) -> tuple[np.ndarray, np.ndarray]:
    """Deltas [n, size] in m, one a tick from ``tick`` on and clipped to +-``limit``, as speeds [n, size] in m/s, and
    for how many physics steps [n] each is held. Raises ``ValueError`` for what is not that.
    """
    deltas = np.asarray(actions, np.float64)
    if deltas.ndim != 2 or deltas.shape[1] != size or not np.isfinite(deltas).all():
        raise ValueError(f"actions={actions!r}, expected an array [n, {size}] of finite distances in m")
    steps = np.array([substeps(tick + k, control_hz) for k in range(len(deltas))], int)
    return deltas.clip(-limit, limit) / (steps[:, None] * STEP_S), steps


def substeps(tick: int, control_hz: float) -> int:
    """How many physics steps the control tick ``tick`` lasts: 33, 34, 33, ... at 30 Hz, so both rates are exact."""
    per_tick = 1 / (control_hz * STEP_S)
    return round((tick + 1) * per_tick) - round(tick * per_tick)
