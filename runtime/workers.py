"""Episodes in several processes. What an episode gives depends on its seed alone, never on who ran it.

A group is a list of seeds that are run in step with each other (``lanes``); groups are handed out one at a time.
A worker that dies takes its group with it: the group is tried once more, alone, then reported as failed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Generic, TypeVar

Group = TypeVar("Group")
Result = TypeVar("Result")

_ATTEMPTS = 2
_run_group: Any = None  # in a worker process: what runs a group there


class WorkerDied(RuntimeError):
    """A worker process ended without an answer, twice, on the same group."""


class Workers(Generic[Group, Result]):
    """A pool of processes, each of which calls ``make()`` once and then the result of it for every group.

    ``make`` must be picklable (a function or a partial of one). An exception that it raises reaches the caller of
    :meth:`results`.
    """

    def __init__(self, count: int, make: Callable[[], Callable[[Group], Result]]):
        self._count, self._make = count, make
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._count,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin_worker,
            initargs=(os.getpid(),),
        )

    def results(self, groups: Sequence[Group]) -> Iterator[tuple[Group, Result | WorkerDied]]:
        """Run every group; yields each with its result, in the order in which they finish."""
        waiting = [(group, 1) for group in reversed(groups)]
        flying: dict[Future[Result], tuple[Group, int]] = {}
        while waiting or flying:
            while waiting and len(flying) < self._count:
                suspect = waiting[-1][1] > 1 or any(attempt > 1 for _, attempt in flying.values())
                if suspect and flying:
                    break  # a second attempt is made alone, so that no other group pays for it
                group, attempt = waiting.pop()
                try:
                    flying[self._pool.submit(_work, self._make, group)] = (group, attempt)
                except BrokenProcessPool:  # died while idle; nothing was lost
                    self._pool = self._start()
                    waiting.append((group, attempt))
            done, _ = wait(flying, return_when=FIRST_COMPLETED)
            if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
                # one death breaks the pool and every future in it; who was at work cannot be told apart
                self.close()
                self._pool = self._start()
                done = set(flying)
            for future in done:
                group, attempt = flying.pop(future)
                if future.done() and not isinstance(future.exception(), BrokenProcessPool):
                    yield group, future.result()
                elif attempt < _ATTEMPTS:
                    waiting.append((group, attempt + 1))
                else:
                    yield group, WorkerDied(f"the worker process died on this group {_ATTEMPTS} times")

    def close(self) -> None:
        """End the processes, at once."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _begin_worker(parent: int) -> None:
    """Leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def leave_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


def _work(make: Callable[[], Callable[[Any], Any]], group: Any) -> Any:
    global _run_group
    if _run_group is None:
        _run_group = make()
    return _run_group(group)
