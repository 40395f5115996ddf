"""The one loop that runs agents in environments.

One timeline for every mode. An observation is taken at tick ``k``; the plan made from it takes effect when its
actions arrive on the :mod:`clock <.clock>`; the next plan is triggered at tick ``k + horizon``, or earlier where
the buffer would run dry before it arrives, or where the slow pass of a multi-rate agent has brought a newer context.
A tick at which the robot had to hold uses up no action: the plan goes on after it where it stood. Of a plan that is
over when it arrives, the last action is run where the robot would hold otherwise, so that an agent of single actions
acts under latency too.

=========  ===================================================================================
mode       what runs while the agent thinks
=========  ===================================================================================
sync       nothing: the robot holds, then runs the plan from its first action on
async      the rest of the old plan; of the new one, actions for ticks that are over are dropped
prefix     as async, and the agent is told the actions that will run anyway (``Call.committed``)
=========  ===================================================================================

On the lockstep clock no time passes while the agent thinks, so the three are the same. On the wall clock the agent
works on threads of its own, so that the loop keeps its ticks; what has arrived by a tick is used at that tick.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import gymnasium
import numpy as np
from gymnasium import spaces

from ..agents.agent import Action, ActionPart, Agent, Call, Context, Episode, Observation, Transition
from ..agents.holding import Holding, HoldPolicy
from .action_buffer import ActionBuffer, DelayEstimator
from .clock import Clock, Errand, Lockstep, Pending, Wall
from .reaction import ReactionProbe

Mode = Literal["sync", "async", "prefix"]

# What ends an episode and not the run; an agent or a world that calls sys.exit() must not end the run either.
_FAILURES = (Exception, SystemExit)


@dataclass(frozen=True)
class Execution:
    """How plans are executed.

    ``horizon`` is the number of ticks between two plans (0: the agent decides, by ``replan_in`` or by the length
    of its chunk). ``delay`` is the number of committed ticks in mode ``prefix`` (``None``: estimated from the
    latencies seen). ``hold`` is what happens at a tick without an action. ``ensemble`` averages overlapping plans, see
    :class:`~.action_buffer.ActionBuffer`. An episode that is not over after ``max_ticks`` counts as failed.

    Raises ``ValueError`` when the numbers contradict each other.
    """

    mode: Mode = "sync"
    horizon: int = 0
    delay: int | None = None
    hold: HoldPolicy = "zero"
    max_ticks: int = 10_000
    ensemble: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode={self.mode!r} is not known; choose one of {', '.join(get_args(Mode))}")
        if self.hold not in get_args(HoldPolicy):
            raise ValueError(f"hold={self.hold!r} is not known; choose one of {', '.join(get_args(HoldPolicy))}")
        for name, value, least in (("horizon", self.horizon, 0), ("max_ticks", self.max_ticks, 1)):
            if value < least:
                raise ValueError(f"{name}={value}, expected at least {least}")
        if self.ensemble is not None:
            if not math.isfinite(self.ensemble):
                raise ValueError(f"ensemble={self.ensemble}, expected a finite weight such as 0.01")
            if self.mode == "sync":
                raise ValueError(f"ensemble={self.ensemble} averages plans that overlap, and in mode='sync' none do")
        if self.delay is not None:
            if self.delay < 0:
                raise ValueError(f"delay={self.delay} ticks, expected 0 or more, or none to estimate it")
            if self.mode != "prefix":
                raise ValueError(f"delay={self.delay} is for mode='prefix'; mode={self.mode!r} commits no actions")
            if self.horizon and self.horizon < self.delay:
                raise ValueError(
                    f"horizon={self.horizon} is below delay={self.delay}: the next plan would be due before this one "
                    f"takes effect; raise the horizon to {self.delay} or more"
                )


@dataclass(frozen=True)
class Outcome:
    """One finished episode. ``costs`` are what it took, ``metrics`` what the environment reported."""

    seed: int
    success: bool | None = None
    score: float | None = None
    episode_return: float = 0.0
    ticks: int = 0
    seconds: float = 0.0
    failed: bool = False
    reason: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    reactions_s: tuple[float, ...] = ()


class Watcher(Protocol):
    """Looks on while an episode runs: a video, a recorded data set."""

    def reset(self, env: gymnasium.Env, observation: Observation) -> None:
        """The episode begins."""

    def step(self, step: Transition, info: dict[str, Any]) -> None:
        """One tick is over."""

    def close(self, outcome: Outcome) -> None:
        """The episode is over."""


@runtime_checkable
class PlanWatcher(Watcher, Protocol):
    """A watcher that is also told what is planned."""

    def planned(self, tick: int, part: ActionPart) -> None:
        """A part of the plan that was asked for at ``tick`` has arrived; it has actions, extras, or both."""


class Executor:
    """Runs episodes of one agent under one clock; several at once when given several environments."""

    def __init__(self, agent: Agent, clock: Clock | None = None, execution: Execution | None = None):
        self.agent = agent
        self.clock = clock or Lockstep()
        self.execution = execution or Execution()
        self.lanes: list[_Lane] = []  # the episodes under way, for whoever looks on from another thread
        delay, longest = self.execution.delay, agent.max_delay
        if delay is not None and longest is not None and delay > longest:
            raise ValueError(
                f"delay={delay} committed ticks, but {type(agent).__name__} continues at most max_delay={longest}"
            )
        self._learns = agent.learns
        if self._learns and not self.clock.waits_for_agent:
            raise ValueError(
                f"{type(agent).__name__} learns within the episode, which needs a world that waits: "
                f"clock={self.clock.name!r}, use clock='lockstep'"
            )

    def run(
        self, lanes: Sequence[tuple[gymnasium.Env, Episode]], watchers: Sequence[Watcher | None] = ()
    ) -> list[Outcome]:
        """Run one episode per lane, in step with each other, and return their outcomes in order.

        ``lanes`` pairs an environment with its episode; plans that are due at the same tick are made together by
        ``plan_many``. Whatever an environment or agent raises ends its episode as failed, with the reason. Raises
        ``ValueError`` for several lanes under a clock that can run only one.
        """
        if len(lanes) > 1 and self.clock.one_lane:
            raise ValueError(f"{len(lanes)} lanes, but clock={self.clock.name!r} runs one episode at a time")
        watchers = watchers or [None] * len(lanes)
        running = [_Lane(self, env, episode, watcher) for (env, episode), watcher in zip(lanes, watchers, strict=True)]
        self.lanes = every = list(running)
        running = [lane for lane in running if lane.begin()]
        self.clock.start()
        try:
            while running:
                due = [lane for lane in running if lane.wake() and lane.wants_plan()]
                if due:
                    self._think(due)
                running = [lane for lane in running if not lane.over and lane.step()]
        finally:
            self.lanes = []
            for lane in every:
                lane.pending.cancel()
            self.clock.stop()
        return [lane.outcome() for lane in every]

    def _think(self, lanes: list[_Lane]) -> None:
        """Have a plan made for every lane that is due, and take delivery of what is there at once."""
        calls = [lane.ask() for lane in lanes]
        self.clock.run("plan", partial(self._plan, lanes, calls, [lane.pending for lane in lanes]))
        for lane in lanes:
            lane.receive()

    def _plan(self, lanes: list[_Lane], calls: list[Call], pending: list[Pending]) -> None:
        """The agent's work: make the plans, and stamp each part with its arrival."""
        try:
            if len(lanes) == 1:
                for part in self.agent.plan(lanes[0].memory, calls[0]):
                    lanes[0].push(pending[0], part)
                    if pending[0].cancelled:
                        break
            else:
                jobs = [(lane.memory, call) for lane, call in zip(lanes, calls, strict=True)]
                for index, part in self.agent.plan_many(jobs):
                    lanes[index].push(pending[index], part)
        except _FAILURES as error:
            note = f" (planned together with {len(lanes) - 1} other episodes)" if len(lanes) > 1 else ""
            for plan in pending:
                plan.close(error, note)
            return
        for plan in pending:
            plan.close()


class _Lane:
    """One episode on its way through the executor."""

    def __init__(self, executor: Executor, env: gymnasium.Env, episode: Episode, watcher: Watcher | None):
        self.env, self.episode, self.watcher = env, episode, watcher
        self.plan_watcher = watcher if isinstance(watcher, PlanWatcher) else None
        self.agent, self.clock, self.execution = executor.agent, executor.clock, executor.execution
        self.learns = executor._learns
        self.tick_s = 1.0 / (episode.control_hz or 1.0)
        self.space = episode.action_space
        self._floats = _float_parts(episode.observation_space)
        self.holding = Holding(self.execution.hold, self.space, episode.interface)
        if self.execution.ensemble is not None and not isinstance(self.space, spaces.Box):
            raise ValueError(f"ensemble={self.execution.ensemble} averages numbers, the actions are {self.space}")
        self.buffer = ActionBuffer(self.execution.ensemble)
        self.delay = DelayEstimator(self.tick_s)
        self.probe = ReactionProbe(self.tick_s)
        self.tick = 0
        self.over = False
        self.memory: Any = None
        self.observation: Observation = None
        self.context: Context = None
        self.pending = Pending(self.clock, 0, 0.0)
        self.pending.close()
        self._encoding: Errand[Context] = Errand(self.clock, 0.0)
        self._encoding.close()
        self._next_encode = self._encoded_tick = self._context_tick = 0
        self._fresh_context = False  # newer than what the last plan was made with
        self._asked = False
        self._arrived = False
        self._shift = 0
        self._stalls_before = 0
        self._last: Action | None = None
        self._executed: list[Action] = []
        self._success: bool | None = None
        self._return = 0.0
        self._score: float | None = None
        self._metrics: dict[str, float] = {}
        self._reason: str | None = None
        self._began = time.perf_counter()
        self._seconds = 0.0
        self._plan_ticks: list[int] = []
        self._sums = {"encodes": 0, "evaluations": 0, "stalls": 0}
        self._ttfa_s: list[float] = []
        self._compute_s: list[float] = []
        self._late_s: list[float] = []
        self._ages: list[int] = []  # ticks from an action's observation to its execution
        self._context_ages: list[int] = []  # ticks from a context's observation to a plan made with it

    # --- the four moments of a tick, in order: wake, wants_plan + ask, receive, step ---

    def begin(self) -> bool:
        """Reset the world, then the agent; false when either failed."""
        world = self.env.unwrapped
        if isinstance(self.clock, Wall) and isinstance(getattr(world, "clock", None), Wall):
            world.clock = self.clock  # type: ignore[attr-defined]  # a world in real time counts from the same origin
        try:
            self.observation, _ = self.env.reset(seed=self.episode.seed)
            _refuse_nan(self._floats, self.observation, 0.0)
        except _FAILURES as error:
            return self.fail("env.reset", error)
        try:
            self.memory = self.agent.reset(self.episode)
        except _FAILURES as error:
            return self.fail("the agent", error)
        try:
            if self.watcher:
                self.watcher.reset(self.env, self.observation)
        except _FAILURES as error:
            return self.fail("the recording", error)
        return True

    def wake(self) -> bool:
        """Wait for the tick, then :meth:`receive`."""
        late_s = self.clock.wait_until(self.tick * self.tick_s)
        if late_s:
            self._late_s.append(late_s)
        return self.receive()

    def receive(self) -> bool:
        """Take delivery of what has arrived by this tick; false when the episode is over because of it."""
        if not (self.pending.open or self.pending.error or self.agent.encode_every):
            return True
        now, who = self.tick * self.tick_s, "the agent"
        try:
            if self.agent.encode_every:
                self._look(now)
            for part in self.pending.arrived(now + 1e-9):
                if len(part.actions):
                    self._take_actions(part)
                if self.plan_watcher:
                    who = "the recording"
                    self.plan_watcher.planned(self.pending.tick, part)
                    who = "the agent"
        except _FAILURES as error:
            return self.fail(who, error, self.pending.note)
        return True

    def wants_plan(self) -> bool:
        """Whether the next plan is due at this tick and the agent is free to make it."""
        if not self._asked:
            return self.context is not None or not self.agent.encode_every
        pending = self.pending
        if not pending.finished(self.tick * self.tick_s + 1e-9):
            return False
        if self._fresh_context:
            return True
        interval = self.execution.horizon or pending.replan_in
        if interval and self.tick >= pending.tick + self._shift + interval:
            return True
        return self.tick >= self.buffer.end() - self._reserve()

    def _reserve(self) -> int:
        """How many ticks before the buffer runs dry a plan must be asked for."""
        if self.execution.mode == "sync":
            return 0
        return self.delay.ticks if self.execution.delay is None else self.execution.delay

    def ask(self) -> Call:
        """Close the books on the last plan and put the next question."""
        if self._asked:
            self._settle()
        execution, need = self.execution, self.execution.horizon
        committed: list[Action] = []
        if execution.mode == "sync":
            if not self.clock.waits_for_agent:  # else the world waits, so nothing can run in the meantime
                self.buffer.clear()
        else:
            if execution.mode == "prefix":
                # Under a latency beyond what the agent can continue, its plan takes effect later than it knows of.
                longest = self._reserve() if self.agent.max_delay is None else self.agent.max_delay
                committed = self.buffer.commit(self.tick, min(self._reserve(), longest))
            if need:  # until the plan after this one takes effect, the reserve must be covered as well
                need += self._reserve() - len(committed)
        prefix: Any = np.stack(committed) if committed and isinstance(self.space, spaces.Box) else committed
        self.pending = Pending(self.clock, self.tick, self.tick * self.tick_s)
        self._asked, self._arrived, self._shift = True, False, 0
        self._stalls_before = self._sums["stalls"]
        self._plan_ticks.append(self.tick)
        self._fresh_context = False
        if self.agent.encode_every:
            self._context_ages.append(self.tick - self._context_tick)
        return Call(self.observation, self.context, self.tick, prefix, need)

    def step(self) -> bool:
        """Apply this tick's action to the world; false when the episode is over."""
        tick = self.tick
        planned = self.buffer.pop(tick)
        if planned is None:
            if self.clock.waits_for_agent:
                return self.fail("the agent", ValueError(f"planned no action for tick {tick}"))
            self._sums["stalls"] += 1
            action = self.holding.action(self._last)
        else:
            action = planned.action
            self.probe.executed(tick, planned)
            self._ages.append(tick - planned.observed_tick)
        before = self.observation
        try:
            after, reward, terminated, truncated, info = self.env.step(action)
            reward = float(reward)
            _refuse_nan(self._floats, after, reward)
            if info:
                self._read(info)
        except _FAILURES as error:
            return self.fail("env.step", error)
        self.tick = tick + 1
        self._last = action
        self._executed.append(action)
        self.observation = after
        self._return += reward
        if self.learns or self.watcher:
            transition = Transition(before, action, reward, after, bool(terminated), bool(truncated))
            who = "the recording"
            try:
                if self.watcher:
                    self.watcher.step(transition, info)
                who = "the agent"
                if self.learns:
                    self.agent.learn(self.memory, transition)
            except _FAILURES as error:
                return self.fail(who, error)
        if terminated or truncated:
            return self._end()
        if self.tick >= self.execution.max_ticks:
            over = ValueError(f"was not over after max_ticks={self.tick}")
            return self.fail("the environment", over, self._unanswered())
        return True

    # --- what the moments are made of ---

    def push(self, pending: Pending, part: ActionPart) -> None:
        """Send the next part of the plan on its way; one of extras alone is for whoever looks on, if anyone does."""
        pending.push(part)
        if self.plan_watcher and part.extras and not len(part.actions):
            pending.deliver(part)

    def _take_actions(self, part: ActionPart) -> None:
        """Put actions that have arrived into the buffer. Raises ``ValueError`` for those that are none of the space."""
        actions = self._members(part.actions)
        if not self._arrived:
            self._arrived = True
            if self.execution.mode == "sync":
                self.buffer.clear()
            self._shift = self._sums["stalls"] - self._stalls_before
            if not self.clock.waits_for_agent:
                self.delay.observe(self.pending.ttfa_s or 0.0)
        first = self.pending.tick + self._shift + part.start
        self.buffer.put(first, actions, self.pending.tick)
        if first + len(actions) <= self.tick and self.tick not in self.buffer:
            self.buffer.put(self.tick, actions[-1:], self.pending.tick)

    def _look(self, now: float) -> None:
        """The slow lane: start an encode when one is due and the lane is free, and take the newest finished."""
        self._take_context(now)
        if self.tick >= self._next_encode and self._encoding.finished(now + 1e-9):
            self._encoding, self._encoded_tick = Errand(self.clock, now), self.tick
            self.clock.run("encode", partial(self._encode, self._encoding, self.observation))
            self._sums["encodes"] += 1
            self._next_encode = self.tick + self.agent.encode_every
            self._take_context(now)

    def _take_context(self, now: float) -> None:
        for context in self._encoding.arrived(now + 1e-9):
            self.context, self._context_tick, self._fresh_context = context, self._encoded_tick, True

    def _encode(self, errand: Errand[Context], observation: Observation) -> None:
        """The agent's slow work."""
        try:
            context = self.agent.encode(self.memory, observation)
        except _FAILURES as error:
            errand.close(error)
            return
        errand.spend(1, 0, False)
        errand.deliver(context)
        errand.close()

    def _unanswered(self) -> str:
        """A word about work that the agent has begun and not ended."""
        words = [
            f"; the agent's {what} begun at {errand.start_s:.3g} s has not ended"
            for what, errand in (("plan", self.pending), ("encode", self._encoding))
            if not errand.closed
        ]
        return "".join(words)

    def _members(self, actions: Any) -> Any:
        """The actions as members of the space. Raises ``ValueError`` for the first that is not one."""
        space = self.space
        if isinstance(space, spaces.Box):
            array = np.asarray(actions)
            if array.shape[1:] != space.shape or array.dtype.kind not in "fiu":
                raise ValueError(
                    f"planned actions of shape {array.shape[1:]} and dtype {array.dtype}, "
                    f"the action space is {space.shape} {space.dtype}"
                )
            array = array.astype(space.dtype, copy=False)
            if not ((array >= space.low).all() and (array <= space.high).all()):
                bad = array[~((array >= space.low) & (array <= space.high)).reshape(len(array), -1).all(1)][0]
                raise ValueError(f"planned the action {bad.tolist()}, which is outside the action space {space}")
            return array
        for action in actions:
            if not space.contains(action):
                raise ValueError(f"planned the action {action!r}, which is outside the action space {space}")
        return actions

    def _read(self, info: dict[str, Any]) -> None:
        """What the runtime keeps of ``info``, which never reaches the agent. Raises for what it cannot read."""
        success = info.get("success", info.get("is_success"))
        if success is not None:
            self._success = bool(self._success) or bool(success)
        event = info.get("event")
        if event is not None:
            if not isinstance(event, dict) or "time_s" not in event:
                raise ValueError(f"info['event'] is {event!r}, expected a dict with 'time_s'")
            self.probe.event(float(event["time_s"]))
        if info.get("score") is not None:
            self._score = float(info["score"])
            if not math.isfinite(self._score):
                raise ValueError(f"info['score'] is {self._score}, expected a finite number")
        if info.get("metrics"):
            self._metrics = {name: float(value) for name, value in info["metrics"].items()}

    def _settle(self) -> None:
        """Add the plan that was made last to the costs."""
        pending = self.pending
        if not pending.evaluations and pending.first_actions_s is None:
            self._plan_ticks.pop()  # the agent looked, and left the running plan as it is
            if self.agent.encode_every:
                self._context_ages.pop()
            return
        self._sums["encodes"] += pending.encodes
        self._sums["evaluations"] += pending.evaluations
        self._compute_s.append(pending.compute_s)
        if pending.ttfa_s is not None and pending.first_actions_s is not None:
            self._ttfa_s.append(pending.first_actions_s if self.clock.waits_for_agent else pending.ttfa_s)

    def _end(self) -> bool:
        self.over = True
        self._seconds = time.perf_counter() - self._began
        return False

    def fail(self, who: str, error: BaseException, note: str = "") -> bool:
        """End the episode as failed; always false."""
        said = f"{who}: {type(error).__name__}: {error}"[:500]
        self._reason = "".join(c if c.isprintable() or c == "\n" else " " for c in said) + note  # no terminal codes
        return self._end()

    def costs(self) -> dict[str, float]:
        """What the episode has taken so far; safe to ask for from another thread."""
        costs = {name: float(value) for name, value in self._sums.items()}
        costs["plans"] = float(len(self._plan_ticks))
        reactions = self.probe.reactions_s
        for name, values in (
            ("ttfa_ms", self._ttfa_s),
            ("compute_ms", self._compute_s),
            ("reaction_ms", reactions),
            ("interval_ms", np.diff(self._plan_ticks) * self.tick_s),
        ):
            if len(values):
                costs[name] = 1000.0 * float(np.mean(values))
        if self._late_s:
            # later than half a tick, the nearest tick is another one: the loop has lost its place
            costs["late_ticks"] = float(sum(late > self.tick_s / 2 for late in self._late_s))
            costs["late_p99_ms"] = 1000.0 * float(np.quantile(self._late_s, 0.99))
        if self._context_ages:
            costs["context_age_ms"] = 1000.0 * self.tick_s * float(np.mean(self._context_ages))
        if self._ages:
            for name, quantile in (("age_p50_ms", 0.5), ("age_p95_ms", 0.95), ("age_max_ms", 1.0)):
                costs[name] = 1000.0 * self.tick_s * float(np.quantile(self._ages, quantile))
        if reactions:
            costs["reaction_p95_ms"] = 1000.0 * float(np.quantile(reactions, 0.95))
        return costs

    def outcome(self) -> Outcome:
        """The result of the finished episode, also told to the watcher."""
        if self._asked:
            self._settle()
        costs = self.costs()
        if isinstance(self.space, spaces.Box) and len(self._executed) > 2:
            second = np.diff(np.stack(self._executed).reshape(len(self._executed), -1), n=2, axis=0)
            costs["jerk"] = float(np.abs(second).mean())
        failed = self._reason is not None
        result = Outcome(
            seed=self.episode.seed,
            success=False if failed and self._success is not None else self._success,
            score=None if failed else self._return if self._score is None else self._score,
            episode_return=self._return,
            ticks=self.tick,
            seconds=self._seconds,
            failed=failed,
            reason=self._reason,
            metrics=self._metrics,
            costs=costs,
            reactions_s=tuple(self.probe.reactions_s),
        )
        if self.watcher:
            try:
                self.watcher.close(result)
            except _FAILURES as error:
                reason = f"the recording: {type(error).__name__}: {error}"[:500]
                return replace(result, failed=True, score=None, reason=result.reason or reason)
        return result


def _float_parts(space: gymnasium.Space) -> list[tuple[str | None, bool]]:
    """The keys of an observation that hold floats (``None``: the observation itself), and whether each is flat."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {None: space}
    boxes = {key: part for key, part in parts.items() if isinstance(part, spaces.Box)}
    return [(key, len(box.shape) == 1) for key, box in boxes.items() if np.dtype(box.dtype).kind == "f"]


def _refuse_nan(parts: list[tuple[str | None, bool]], observation: Observation, reward: float) -> None:
    """Raise ``ValueError`` when the world returns a number that is not one."""
    if not math.isfinite(reward):
        raise ValueError(f"returned the reward {reward}")
    for key, flat in parts:
        value = np.asarray(observation if key is None else observation[key])
        total = value.dot(value) if flat else np.sum(value)  # only a strange sum is worth a second look
        if not total - total == 0 and np.isnan(value).any():
            raise ValueError(f"returned nan in the observation {key or ''}".rstrip())
