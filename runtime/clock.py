"""The clocks under the one executor: who waits for whom, and where the agent's work is done.

===========  ===========================  ====================================  ==========================
clock        while the agent thinks       thinking time                         the agent's work is done
===========  ===========================  ====================================  ==========================
lockstep     the world waits              none                                  in the loop
virtual      the world goes on            a :class:`~.latency.LatencyModel`     in the loop
wall         the world goes on            as long as it really takes            on threads beside the loop
===========  ===========================  ====================================  ==========================
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from ..agents.agent import ActionPart
from .latency import LatencyModel

Item = TypeVar("Item")

# How long a thread in pure Python may keep the others waiting while an agent works beside the loop. With Python's
# own 5 ms the loop wakes up so much late that at 100 Hz most ticks miss their place.
_SWITCH_S = 0.0005


class Clock(ABC):
    """Says when work is done, and runs it. Times are seconds since the first tick of the episode."""

    name: str
    profile: str | None = None
    waits_for_agent: bool = False
    one_lane: bool = False  # whether it can run only one episode at a time

    @abstractmethod
    def done_s(self, begun_s: float, encodes: int, evaluations: int, sends: bool) -> float:
        """When this much work, begun at ``begun_s`` and just finished, is done on this clock."""

    def start(self) -> None:  # noqa: B027 - simulated time has no origin to set
        """The first tick begins now."""

    def stop(self) -> None:  # noqa: B027 - simulated clocks leave no work running
        """The episode is over."""

    def wait_until(self, time_s: float) -> float:
        """Return once the clock shows ``time_s``, and how many seconds too late; simulated clocks return at once."""
        return 0.0

    def run(self, worker: str, work: Callable[[], None]) -> None:
        """Do a piece of the agent's work; simulated clocks do it here and now. ``worker`` names who does it."""
        work()


class Lockstep(Clock):
    """The world waits for the agent: what most benchmarks measure."""

    name = "lockstep"
    waits_for_agent = True

    def done_s(self, begun_s: float, encodes: int, evaluations: int, sends: bool) -> float:
        """At once: no simulated time passes."""
        return begun_s


class Virtual(Clock):
    """The world goes on while the agent thinks; deterministic, machine independent, faster than real time."""

    name = "virtual"

    def __init__(self, latency: LatencyModel):
        self.latency = latency
        self.profile = latency.name

    def done_s(self, begun_s: float, encodes: int, evaluations: int, sends: bool) -> float:
        """When the latency model says."""
        return begun_s + self.latency.seconds(encodes, evaluations, sends)


class Wall(Clock):
    """Real time. Ticks are absolute deadlines, so that a late one shifts no other; work runs on threads.

    There is one thread per named worker (``plan``, ``encode``), kept for the whole episode because libraries keep
    state per thread. ``stop`` gives them ``grace_s`` seconds to finish what they are at; a thread cannot be ended
    from outside, so one that hangs is left behind and does not keep the process from exiting.
    """

    name = "wall"
    one_lane = True

    def __init__(self, grace_s: float = 1.0):
        if not grace_s >= 0:
            raise ValueError(f"grace_s={grace_s}, expected seconds of 0 or more")
        self._grace_s = grace_s
        self._origin_s = time.perf_counter()
        self._workers: dict[str, _Worker] = {}
        self._switch_s = sys.getswitchinterval()

    def start(self) -> None:
        """Time zero is now."""
        self._origin_s = time.perf_counter()

    def stop(self) -> None:
        """Dismiss the threads."""
        if not self._workers:
            return
        sys.setswitchinterval(self._switch_s)
        workers, self._workers = list(self._workers.values()), {}
        until_s = time.perf_counter() + self._grace_s
        for worker in workers:
            worker.dismiss()
        for worker in workers:
            worker.join(max(until_s - time.perf_counter(), 0.0))

    def now_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._origin_s

    def wait_until(self, time_s: float) -> float:
        """Sleep until ``time_s``; returns how many seconds after it this thread runs again."""
        while (left_s := time_s - self.now_s()) > 0:
            time.sleep(left_s)
        return -left_s

    def done_s(self, begun_s: float, encodes: int, evaluations: int, sends: bool) -> float:
        """Now."""
        return self.now_s()

    def run(self, worker: str, work: Callable[[], None]) -> None:
        """Hand the work to the thread of this name and return at once; a busy thread does it afterwards."""
        if not self._workers:
            self._switch_s = sys.getswitchinterval()
            sys.setswitchinterval(min(self._switch_s, _SWITCH_S))
        if worker not in self._workers:
            self._workers[worker] = _Worker(worker)
        self._workers[worker].do(work)


class _Worker(threading.Thread):
    """A thread that does one piece of work after the other."""

    def __init__(self, name: str):
        super().__init__(name=f"palaestra-{name}", daemon=True)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.start()

    def do(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def dismiss(self) -> None:
        self._work.put(None)

    def run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class Errand(Generic[Item]):
    """Work under way: a result becomes visible when the clock reaches its arrival.

    One thread delivers and closes while another looks on. No lock is needed, because each field is written by one
    of them only and what a result brings with it is written before the result, and every result before ``closed``.
    """

    def __init__(self, clock: Clock, start_s: float):
        self._clock = clock
        self.finish_s = self.start_s = start_s
        self.closed = False
        self.cancelled = False  # whoever works asks this between two results
        self.error: BaseException | None = None
        self.note = ""
        self._items: list[tuple[float, Item]] = []
        self._next = 0

    def spend(self, encodes: int, evaluations: int, sends: bool) -> None:
        """This much work has just been done."""
        self.finish_s = self._clock.done_s(self.finish_s, encodes, evaluations, sends)

    def deliver(self, item: Item) -> None:
        """A result of the work done so far."""
        self._items.append((self.finish_s, item))

    def close(self, error: BaseException | None = None, note: str = "") -> None:
        """The work is done, or ended in ``error``; ``note`` is what else there is to say about that."""
        self.note = note
        self.error = error
        self.closed = True

    def cancel(self) -> None:
        """Nobody waits for this any more: stop at the next result."""
        self.cancelled = True

    @property
    def open(self) -> bool:
        """Whether results are still on their way."""
        return self._next < len(self._items)

    def arrived(self, now_s: float) -> list[Item]:
        """The results that arrived by ``now_s`` and were not handed out before. Raises what the work raised."""
        if self.error is not None:
            raise self.error
        first = self._next
        while self._next < len(self._items) and self._items[self._next][0] <= now_s:
            self._next += 1
        return [item for _, item in self._items[first : self._next]]

    def finished(self, now_s: float) -> bool:
        """Whether all is done and delivered, so that the next errand may begin."""
        return self.closed and not self.open and self.finish_s <= now_s


class Pending(Errand[ActionPart]):
    """A plan under way, asked for at ``tick``.

    ``ttfa_s`` is the time to the first action on the clock, ``compute_s`` the real time that the work took.
    """

    def __init__(self, clock: Clock, tick: int, start_s: float):
        super().__init__(clock, start_s)
        self.tick = tick
        self.ttfa_s: float | None = None
        self.first_actions_s: float | None = None
        self.compute_s = 0.0
        self.evaluations = 0
        self.encodes = 0
        self.replan_in: int | None = None
        self._began = time.perf_counter()

    def push(self, part: ActionPart) -> None:
        """Take in the next part of the plan and stamp its arrival."""
        sends = len(part.actions) > 0
        self.spend(part.encodes, part.evaluations, sends)
        self.encodes += part.encodes
        self.evaluations += part.evaluations
        self.compute_s = time.perf_counter() - self._began
        if part.replan_in is not None:
            self.replan_in = part.replan_in
        if sends:
            if self.ttfa_s is None:
                self.ttfa_s = self.finish_s - self.start_s
                self.first_actions_s = self.compute_s
            self.deliver(part)
