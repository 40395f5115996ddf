"""One agent at work for many clients: mailboxes, turns, batches, and an answer to everything.

A :class:`Job` asks the agent for something in one :class:`Session` (an episode of a client) and is answered exactly
once::

    waiting --taken--> running --+--> Final
       |                  |      +--> WireError     the agent raised, hung, or planned nonsense
       +------------------+---------> Dropped       superseded by a newer one, cancelled, late

Two lanes, a thread each: plans and resets run on one, the slow encodes of a multi-rate agent on the other. In a lane
every session has one place: a newer request takes the place of an older one that still waits, and whoever was served
goes to the end. Between two parts of a plan the lane looks whether anybody still wants it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium import spaces

from ..agents.agent import ActionPart, Agent, Call, Context, Episode, Memory, Observation, Transition
from .frame_codec import WireError

log = logging.getLogger(__name__)

MAX_BATCH = 64  # plans that are made together at most
MOST_PARTS = 10_000  # of a plan; one that does not end would keep everybody else waiting
_NOTHING = ActionPart()
_NO_CALL = Call(None)
CONTEXTS_KEPT = 4  # of a session; an agent looks at the newest


@dataclass(frozen=True)
class Final:
    """A job is done: ``actions`` of it were planned, in steps of so many ms each; ``encodes`` and ``evaluations``
    are the work since the last part."""

    actions: int = 0
    encodes: int = 0
    evaluations: int = 0
    replan_in: int | None = None
    queue_ms: float = 0.0
    infer_ms: float = 0.0
    step_ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Dropped:
    """A job that nobody wants any more: ``superseded``, ``cancelled`` or ``late``."""

    reason: str


class Answers(Protocol):
    """Who takes the answers to a job; called from the lane's thread or from the server's."""

    def part(self, job: Job, part: ActionPart) -> None:
        """Actions are final."""

    def end(self, job: Job, ending: Final | Dropped | WireError) -> None:
        """The one last answer."""


@dataclass(eq=False)
class Session:
    """One episode of one client, and what the agent remembers of it."""

    client: bytes
    number: int
    episode: Episode
    memory: Memory = None
    ready: bool = False  # the agent was reset for it
    observed: Observation = None  # the newest observation, where the next transition begins
    contexts: dict[int, tuple[Context, float]] = field(default_factory=dict)  # by id, with the time each expires

    def require_ready(self) -> None:
        """Raise ``WireError`` (NO_EPISODE) where the agent was not reset for this episode, or refused it."""
        if not self.ready:
            raise WireError("NO_EPISODE", f"episode {self.number} has not begun")

    def context(self, number: int | None) -> Context:
        """A context that was encoded before. Raises ``WireError`` (NO_CONTEXT) for one that is gone."""
        if number is None:
            return None
        context, expires = self.contexts.get(number, (None, 0.0))
        if time.monotonic() > expires:
            raise WireError("NO_CONTEXT", f"context {number} is unknown or has expired")
        return context

    def keep(self, number: int, context: Context, ttl_s: float) -> None:
        """Keep a context for so long, and of those that have not expired only the few that were made last."""
        now = time.monotonic()
        others = [(n, known) for n, known in self.contexts.items() if n != number and known[1] >= now]
        self.contexts = dict([*others, (number, (context, now + ttl_s))][-CONTEXTS_KEPT:])


@dataclass(eq=False)
class Job:
    """One request to the agent. ``seq`` is the client's number for it.

    ``call`` is what to plan, or holds the observation to encode. ``context`` is the number of the context to make or
    to use. A plan that is to ``encode_first`` makes its own context, and keeps it where it has a number. ``steps`` are
    what happened since the last observation, for an agent that learns.
    """

    kind: Literal["reset", "plan", "encode"]
    session: Session
    seq: int
    answers: Answers
    call: Call = _NO_CALL
    context: int | None = None
    ttl_s: float = 60.0
    deadline_s: float | None = None
    encode_first: bool = False
    steps: list[Transition] = field(default_factory=list)
    received_ns: int = field(default_factory=time.monotonic_ns)
    started_ns: int = 0
    step_ns: list[int] = field(default_factory=list)
    actions: int = 0
    evaluations: int = 0
    unsent: ActionPart = _NOTHING  # work that no part has told of yet
    over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def place(self) -> tuple[str, bytes, int]:
        """Where it waits; a newer job of the same place replaces an older one."""
        return self.kind, self.session.client, self.session.number

    def end(self, ending: Final | Dropped | WireError) -> bool:
        """Answer for the last time; false when that was done before."""
        with self._lock:
            if self.over:
                return False
            self.over = True
        self.answers.end(self, ending)
        return True

    def begin(self) -> bool:
        """The agent turns to this job; false when it is too late for that."""
        self.started_ns = time.monotonic_ns()
        if self.deadline_s is not None and (self.started_ns - self.received_ns) / 1e9 > self.deadline_s:
            self.end(Dropped("late"))
        return not self.over

    def take(self, part: ActionPart) -> None:
        """The next part of the plan. Raises ``ValueError`` for actions that are not finite numbers."""
        self.step_ns.append(time.monotonic_ns())
        self.evaluations += part.evaluations
        if (waiting := self.unsent) is not _NOTHING:
            part = replace(
                part,
                encodes=part.encodes + waiting.encodes,
                evaluations=part.evaluations + waiting.evaluations,
                replan_in=waiting.replan_in if part.replan_in is None else part.replan_in,
            )
        if not (len(part.actions) or part.extras):
            self.unsent = part
            return
        self.unsent = _NOTHING
        if isinstance(self.session.episode.action_space, spaces.Box):
            numbers = np.asarray(part.actions)
            if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
                raise ValueError(f"planned actions that are not finite, from tick {part.start} of the plan on")
        self.actions += len(part.actions)
        if not self.over:
            self.answers.part(self, part)

    def finish(self) -> None:
        """Everything is done."""
        times = [self.started_ns, *self.step_ns]
        self.end(
            Final(
                actions=self.actions,
                encodes=self.unsent.encodes,
                evaluations=self.unsent.evaluations,
                replan_in=self.unsent.replan_in,
                queue_ms=(self.started_ns - self.received_ns) / 1e6,
                infer_ms=(time.monotonic_ns() - self.started_ns) / 1e6,
                step_ms=tuple((b - a) / 1e6 for a, b in itertools.pairwise(times)),
            )
        )

    def fail(self, error: BaseException) -> None:
        """Something went wrong; the client is told what, without a traceback."""
        if not isinstance(error, WireError):
            log.warning("the agent failed", exc_info=error)
            error = WireError("POLICY_FAILED", f"{type(error).__name__}: {str(error)[:2000]}")
        self.end(error)


class Inference:
    """Runs an agent for many sessions. All methods return at once and may be called from any thread.

    ``batch_window_s`` is how long a plan waits for others to be made together with it, for an agent that overrides
    ``plan_many``; whoever waits already is taken along in any case. With ``preempt`` a newer observation stops the
    running plan of its session at the next part; without, that plan is finished first.
    """

    def __init__(self, agent: Agent, *, batch_window_s: float = 0.0, preempt: bool = False):
        if not 0 <= batch_window_s <= 0.1:
            raise ValueError(f"batch_window_s={batch_window_s}, expected 0 to 0.1 s (a few ms are useful)")
        self.agent = agent
        self._window_s = batch_window_s
        self._batches = type(agent).plan_many is not Agent.plan_many
        self._preempt = preempt
        self._lanes = {"plan": _Lane(self, "plan")}
        self._lanes["reset"] = self._lanes["plan"]  # in one lane they keep their order
        self._lanes["encode"] = _Lane(self, "encode") if agent.encode_every else self._lanes["plan"]
        self._encoding = threading.Lock()  # an agent is made for one slow pass beside its plans, not for two

    def submit(self, job: Job) -> None:
        """Let a job wait for its turn, in the place of an older one of its session that waits as well."""
        self._lanes[job.kind].put(job, self._preempt)

    def cancel(self, session: Session, seq: int | None = None) -> None:
        """Drop the job with this number, or all of the session's, waiting or running."""
        for lane in self._each():
            for job in lane.jobs():
                if job.session is session and seq in (None, job.seq):
                    job.end(Dropped("cancelled"))

    @property
    def busy_s(self) -> float:
        """For how long the agent has been at the same step of a plan (or encode); 0 when it is idle."""
        return max(lane.busy_s for lane in self._each())

    def give_up_after(self, limit_s: float) -> None:
        """Answer for an agent that hangs: the running jobs fail, and so do those that wait for it."""
        for lane in self._each():
            if (busy_s := lane.busy_s) > limit_s:
                for job in lane.jobs():
                    job.end(WireError("POLICY_HUNG", f"the agent has been at one step for {busy_s:.1f} s"))

    def close(self, patience_s: float = 1.0) -> None:
        """Answer everything that is open, and end the lanes. A lane that hangs is left to end with the process."""
        for lane in self._each():
            lane.close()
            for job in lane.jobs():
                job.end(WireError("SHUTTING_DOWN", "the server ends"))
        for lane in self._each():
            lane.join(patience_s)

    def _each(self) -> set[_Lane]:
        return set(self._lanes.values())

    # --- what the lanes do ---

    def _work(self, jobs: Sequence[Job], moved: Any) -> None:
        """Do one job, or several plans together. ``moved`` is called whenever the agent has moved on."""
        jobs = [job for job in jobs if job.begin()]
        try:
            for job in jobs:
                if job.kind == "reset":
                    job.session.memory = self.agent.reset(job.session.episode)
                    job.session.ready = True
                    job.finish()
                elif job.kind == "encode":
                    self._encode(job)
                    job.finish()
        except BaseException as error:
            jobs[0].fail(error)
        plans = [job for job in jobs if job.kind == "plan" and self._learn(job)]
        try:
            self._plan(plans, moved)
        except BaseException as error:
            if len(plans) == 1:
                plans[0].fail(error)
            else:
                self._plan_apart(plans, error, moved)

    def _learn(self, job: Job) -> bool:
        """What goes before the plan; false when that failed."""
        try:
            job.session.require_ready()
            for step in job.steps:
                self.agent.learn(job.session.memory, step)
            if job.encode_first and self.agent.encode_every:
                context = self._encode(job)
                job.unsent = ActionPart(encodes=1)
            else:
                context = job.session.context(job.context)
            if context is not None:
                job.call = replace(job.call, context=context)
        except BaseException as error:
            job.fail(error)
        return not job.over

    def _encode(self, job: Job) -> Context:
        """The slow pass on the observation of a job, kept under the number that it gives."""
        session = job.session
        session.require_ready()
        with self._encoding:
            context = self.agent.encode(session.memory, job.call.observation)
            if job.context is not None:
                session.keep(job.context, context, job.ttl_s)
        return context

    def _plan(self, jobs: Sequence[Job], moved: Any) -> None:
        """Read the plan part by part for as long as somebody wants it."""
        if not jobs:
            return
        for count, (index, part) in enumerate(self._stream(jobs), 1):
            moved()
            if count > MOST_PARTS * len(jobs):
                raise RuntimeError(f"the plan has not ended after {MOST_PARTS} evaluations")
            if not jobs[index].over:
                jobs[index].take(part)
            if all(job.over for job in jobs):
                return
        for job in jobs:
            job.finish()

    def _stream(self, jobs: Sequence[Job]) -> Iterator[tuple[int, ActionPart]]:
        if len(jobs) > 1:
            return self.agent.plan_many([(job.session.memory, job.call) for job in jobs])
        return ((0, part) for part in self.agent.plan(jobs[0].session.memory, jobs[0].call))

    def _plan_apart(self, jobs: Sequence[Job], error: BaseException, moved: Any) -> None:
        """A batch failed: one bad request must not fail the others, so each that has heard nothing yet goes alone."""
        for job in jobs:
            if job.over:
                continue
            if job.step_ns:
                job.fail(error)
                continue
            try:
                self._plan([job], moved)
            except BaseException as own:
                job.fail(own)


class _Lane(threading.Thread):
    """A thread that takes jobs in turn."""

    def __init__(self, inference: Inference, name: str):
        super().__init__(name=f"palaestra-{name}", daemon=True)
        self._inference = inference
        self._wake = threading.Condition()
        self._waiting: dict[tuple[str, bytes, int], Job] = {}  # in the order of their turns
        self._running: tuple[Job, ...] = ()
        self._since = 0.0
        self._closed = False
        self.start()

    def put(self, job: Job, preempt: bool) -> None:
        with self._wake:
            closed, older = self._closed, None
            if not closed:
                older = self._waiting.get(job.place)
                if older:
                    job.steps = older.steps + job.steps  # what was learnt from is not lost with its observation
                self._waiting[job.place] = job  # in a dict, a new value keeps the old one's place
                self._wake.notify()
            running = [other for other in self._running if preempt and other.place == job.place]
        if closed:
            job.end(WireError("SHUTTING_DOWN", "the server ends"))
        for other in ([older] if older else []) + running:
            other.end(Dropped("superseded"))

    def jobs(self) -> list[Job]:
        """Those that wait or run."""
        with self._wake:
            return [*self._waiting.values(), *self._running]

    @property
    def busy_s(self) -> float:
        return time.monotonic() - self._since if self._running else 0.0

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()

    def run(self) -> None:
        while jobs := self._take():
            self._moved()
            self._inference._work(jobs, self._moved)
            with self._wake:
                self._running = ()

    def _moved(self) -> None:
        self._since = time.monotonic()

    def _take(self) -> tuple[Job, ...]:
        """The job whose turn it is, and with a plan the plans of others; empty when the lane is closed."""
        inference = self._inference
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return ()
            batches = inference._batches and next(iter(self._waiting))[0] == "plan"
            if batches and inference._window_s:  # whoever waits can still be superseded or cancelled
                self._wake.wait_for(lambda: self._closed or len(self._waiting) >= MAX_BATCH, inference._window_s)
            jobs = [self._pop()]
            while batches and self._waiting and next(iter(self._waiting))[0] == "plan" and len(jobs) < MAX_BATCH:
                jobs.append(self._pop())
            self._since = time.monotonic()
            self._running = tuple(jobs)
            return self._running

    def _pop(self) -> Job:
        return self._waiting.pop(next(iter(self._waiting)))
