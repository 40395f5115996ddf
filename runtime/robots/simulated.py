"""A simulated robot: a world that runs in a process of its own, in real time, and does not wait for anybody.

Deployment can be exercised end to end on one machine with it: the process answers like a robot's controller, can be
killed, and goes on moving while its host thinks.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ...agents.agent import Action
from ...agents.holding import Holding
from ...envs.conversion import interface_of
from ..frame_codec import flatten, read_msgpack, unflatten, write_msgpack
from ..registry import make_env
from .as_env import RobotEnv, as_env
from .robot import Reading, Robot, RobotLost
from .watchdog import Watchdog

_CATCH_UP_S = 0.2  # how long a world that is late may go on without answering
_TOO_LATE_S = 2.0  # further behind, it does not run in real time at all
_DEADLINE_MS = 500.0  # a process on a busy machine is late more often than the controller of an arm
_INFO = ("success", "is_success", "score", "metrics", "event")  # what the runtime reads, and what travels


class SimulatedRobot(Robot):
    """The world that ``env`` names, as :mod:`~..registry` reads it, run as a robot at the control rate of its card.

    The world begins to move with the first command after ``home``, half a control period later: out of step with its
    host, so that jitter does not decide at which of its ticks a command takes effect. A command holds from the next
    tick on; the state after a tick is seen when the tick is over. A world that has ended stays as it is.

    ``timeout_s`` is how long the process may take to answer (its start and ``home`` apart). Nothing queues: every
    message is answered before the next is sent, and of several commands in one tick the newest counts. The process
    ends with its host. ``render`` makes a world that can be filmed. Raises ``ValueError`` for a world that has no card
    or does not exist, and ``RobotLost`` when the process is gone or silent, or cannot keep up with real time.
    """

    simulated = True

    def __init__(self, env: str, timeout_s: float = 1.0, start_timeout_s: float = 60.0, render: bool = False):
        world = make_env(env)
        try:
            card = interface_of(world)
            if card is None or card.control_hz is None:
                raise ValueError(f"env={env!r} has no interface card with a control rate, which a robot needs")
            self.interface = card
            self.observation_space, self.action_space = world.observation_space, world.action_space
        finally:
            world.close()
        self._timeout_s, self._start_timeout_s = timeout_s, start_timeout_s
        self._lock = threading.Lock()
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        self._process = context.Process(target=_live, args=(far_end, env, render), name=f"simulated {env}", daemon=True)
        self._process.start()
        far_end.close()  # so that the death of the process closes the pipe
        try:
            self._ask("ready", timeout_s=start_timeout_s)
        except RobotLost:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def observe(self) -> Reading:
        """The state after the newest tick."""
        answer = self._ask("observe")
        return Reading(
            answer["observation"],
            time.perf_counter() - answer["age_s"],
            answer["episode_return"],
            answer["over"],
            answer["info"],
        )

    def command(self, action: Action) -> None:
        """Do ``action`` from the world's next tick on; the first one after ``home`` starts the world."""
        self._ask("command", action=action)

    def hold(self) -> None:
        """Slow down tick by tick, then stand."""
        self._ask("hold")

    def emergency_stop(self) -> None:
        """Command no motion, from the next tick on."""
        self._ask("emergency_stop")

    def home(self, seed: int | None = None) -> None:
        """Reset the world with ``seed``."""
        self._ask("home", seed=seed, timeout_s=self._start_timeout_s)

    def picture(self) -> np.ndarray | None:
        """The world as it is drawn, if it was made to be filmed. Drawing takes time, which the world makes up for."""
        return self._ask("picture", timeout_s=self._start_timeout_s)["picture"]

    def close(self) -> None:
        """End the process."""
        self._pipe.close()  # which the process takes for the end of its host
        self._process.join(self._timeout_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _ask(self, what: str, timeout_s: float | None = None, **arguments: Any) -> Any:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        with self._lock:
            try:
                _send(self._pipe, {"what": what, **arguments})
                if not self._pipe.poll(timeout_s):
                    # A late answer would be taken for that to the next question: this line is dead from here on.
                    self._pipe.close()
                    raise RobotLost(f"the simulator (process {self.pid}) did not answer {what!r} within {timeout_s} s")
                answer = _receive(self._pipe)
            except (OSError, EOFError) as error:
                self._process.join(0.1)
                code = self._process.exitcode
                how = "given up after an answer that did not come" if code is None else f"ended with exit code {code}"
                raise RobotLost(f"the simulator (process {self.pid}) is lost: {how}") from error
        if "error" in answer:
            raise RobotLost(f"the simulator failed: {answer['error']}")
        return answer


def simulated_robot(env: str, render: bool = False) -> RobotEnv:
    """The world of this name as a simulated robot under a watchdog, as an environment: ``simulated:ENV``."""
    if env.startswith(("robot:", "simulated:")):
        raise ValueError(f"env={env!r} is a robot already, expected the name of a world after simulated:")
    robot = SimulatedRobot(env, render=render)
    return as_env(Watchdog(robot, deadline_ms=max(_DEADLINE_MS, 3000.0 / (robot.interface.control_hz or 1.0))))


def _live(pipe: Connection, env_name: str, render: bool) -> None:
    """The process: run the world in real time and answer, until the host is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's business; it holds the robot, then closes
    try:
        world = _World(env_name, render)
        while True:
            world.run_until_now()
            if pipe.poll(world.due_s()):
                question = _receive(pipe)
                try:
                    answer = world.answer(**question)
                except Exception as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                _send(pipe, answer)
    except (EOFError, OSError):
        pass  # the host closed the pipe, or died


class _World:
    """A world between the ticks of its own clock."""

    def __init__(self, env_name: str, render: bool):
        self.env = make_env(env_name, render=render)
        card = interface_of(self.env)
        assert card is not None
        assert card.control_hz is not None
        self.tick_s = 1.0 / card.control_hz
        self.slowing = Holding("decelerate", self.env.action_space, card)
        self.standing = Holding("zero", self.env.action_space, card)
        self.home(None)

    def home(self, seed: int | None) -> None:
        self.observation, _ = self.env.reset(seed=seed)
        self.episode_return, self.over = 0.0, False
        self.info: dict[str, Any] = {}
        self.event: dict[str, Any] = {}  # the newest one
        self.tick = 0
        self.origin_s: float | None = None  # when the first tick begins; None until a first command
        self.action: Action = self.standing.action(None)  # of the tick under way
        self.next: Action = self.action  # of those that follow
        self.held = True
        self.failure = ""

    def due_s(self) -> float | None:
        """Seconds to the next edge of a tick; ``None`` while the world stands still."""
        if self.origin_s is None or self.over or self.failure:
            return None
        return max(self.tick_s - self.age_s(), 0.0)

    def age_s(self) -> float:
        """Seconds since the newest edge of a tick that was dealt with; 0 while the world stands still."""
        if self.origin_s is None or self.over:
            return 0.0
        return time.perf_counter() - self.origin_s - (self.tick - 1) * self.tick_s

    def run_until_now(self) -> None:
        """Complete every tick that is over by now, each with the action that was in force as it began."""
        began_s = time.perf_counter()
        while self.due_s() == 0.0 and time.perf_counter() - began_s < _CATCH_UP_S:
            if self.tick > 0:
                self.step()
            self.tick += 1
            if self.held:
                self.next = self.slowing.action(self.next)
            self.action = self.next
        if self.age_s() > _TOO_LATE_S:
            self.failure = f"the world is {self.age_s():.1f} s behind: its ticks take longer than {self.tick_s:.3g} s"

    def step(self) -> None:
        try:
            self.observation, reward, terminated, truncated, info = self.env.step(self.action)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            return
        self.episode_return += float(reward)
        self.over = bool(terminated or truncated)
        if "event" in info:
            # half a period: the world began so much later than its host's first tick
            self.event = {"event": {**info["event"], "time_s": float(info["event"]["time_s"]) + self.tick_s / 2}}
        self.info = {key: info[key] for key in _INFO if key in info} | self.event

    def answer(self, what: str, action: Action = None, seed: int | None = None) -> dict[str, Any]:
        if self.failure and what != "home":
            raise RuntimeError(self.failure)
        match what:
            case "observe":
                return {
                    "observation": self.observation,
                    "age_s": self.age_s(),
                    "episode_return": self.episode_return,
                    "over": self.over,
                    "info": self.info,
                }
            case "command":
                self.next, self.held = action, False
                if self.origin_s is None:
                    self.origin_s = time.perf_counter() + self.tick_s / 2
            case "hold":
                self.held = True
            case "emergency_stop":
                self.next, self.held = self.standing.action(self.next), True
            case "home":
                self.home(seed)
            case "picture":
                return {"picture": self.env.render()}
        return {}


def _send(pipe: Connection, tree: Any) -> None:
    plain, buffers = flatten(tree)
    pipe.send_bytes(write_msgpack([plain, [bytes(buffer) for buffer in buffers]]))


def _receive(pipe: Connection) -> Any:
    plain, buffers = read_msgpack(pipe.recv_bytes())
    return unflatten(plain, buffers)
