"""The executor keeps its timeline: reaction times against closed forms, modes, failures, lanes, the slow lane."""

import math
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from scipy.stats import kstest

from palaestra.agents.agent import ActionPart, Agent, Call, Episode, StepAgent
from palaestra.envs.interface import Component, Interface
from palaestra.runtime.clock import Lockstep, Virtual, Wall
from palaestra.runtime.executor import Execution, Executor
from palaestra.runtime.latency import LatencyModel, profile
from palaestra.runtime.reaction import ReactionTime, arrivals_s, min_execution_horizon, reaction_time

BOX = spaces.Box(-1e6, 1e6, (1,), np.float64)


class World(gymnasium.Env):
    """Counts ticks, remembers what it was told, and makes events at random moments."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)
    action_space = BOX

    def __init__(self, ticks=200, hz=10.0, event_every_s=0.0):
        self.ticks, self.hz, self.event_every_s = ticks, hz, event_every_s

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tick, self.actions = 0, []
        self._event_s = self._gap()
        return np.zeros(1), {}

    def _gap(self):
        return self.event_every_s * self.np_random.uniform(0.5, 1.5) if self.event_every_s else math.inf

    def step(self, action):
        self.actions.append(float(np.ravel(action)[0]))
        self.tick += 1
        info = {}
        if self._event_s <= self.tick / self.hz:
            info["event"] = {"name": "ring", "time_s": self._event_s}
            self._event_s += self._gap()
        return np.array([float(self.tick)]), 1.0, False, self.tick >= self.ticks, info


class Planner(Agent):
    """Says in each action which tick it is for and which observation it was planned on: ``observed + tick/1000``."""

    def __init__(self, evaluations=10, chunk=8, streams=False):
        self.evaluations, self.chunk, self.streams = evaluations, chunk, streams
        self.calls = []

    def plan(self, memory, call: Call):
        self.calls.append(call)
        first, count = len(call.committed), call.need or self.chunk
        ticks = first + np.arange(count)
        actions = (call.observation[0] + (call.tick + ticks) / 1000)[:, None]
        for n in range(self.evaluations):
            done = [count * (n + k + self.evaluations) // (2 * self.evaluations) for k in (0, 1)]
            ready = slice(done[0] if n else 0, done[1])  # the first half at once, then bit by bit
            if not self.streams:
                ready = slice(0, count if n == self.evaluations - 1 else 0)
            yield ActionPart(first + ready.start, actions[ready], encodes=n == 0, evaluations=1)


def episode(world, seed=0):
    return Episode(seed, "test/World-v0", world.observation_space, world.action_space, control_hz=world.hz)


def run(agent, world, clock=None, seed=0, **execution):
    return Executor(agent, clock, Execution(**execution)).run([(world, episode(world, seed))])[0]


def reactions_s(agent, clock, hz, events=1500, **execution):
    """Reaction times of many events, gathered over one long episode."""
    every_s = 0.37 * execution["horizon"] / hz
    world = World(ticks=int(events * every_s * hz), hz=hz, event_every_s=every_s)
    outcome = run(agent, world, clock, max_ticks=10**9, **execution)
    assert not outcome.failed, outcome.reason
    assert outcome.costs["reaction_ms"] == pytest.approx(1000 * np.mean(outcome.reactions_s))
    return np.array(outcome.reactions_s)


# arXiv 2603.19199, Table 2: profile, streams, mode, first action ms, horizon in 1/30 s, published mean in ms
PUBLISHED = [
    ("pi05-4090", False, "sync", 80.0, 3, 170.0),
    ("pi05-4090", False, "async", 80.0, 3, 130.0),
    ("pi05-4090", True, "prefix", 62.1, 3, 112.1),
    ("pi05-4060", False, "sync", 303.3, 10, 621.6),
    ("pi05-4060", True, "prefix", 238.6, 8, 371.9),
    ("xvla-4090", False, "async", 113.7, 4, 180.4),
    ("xvla-4090", True, "prefix", 44.8, 2, 78.1),
    ("xvla-4060", False, "sync", 399.5, 12, 799.2),
    ("xvla-4060", False, "async", 399.5, 12, 599.5),
    ("xvla-4060", True, "prefix", 129.2, 6, 229.2),
]


@pytest.mark.parametrize(("name", "streams", "mode", "first_ms", "horizon", "published_ms"), PUBLISHED)
def test_reaction_times_are_the_published_closed_forms(name, streams, mode, first_ms, horizon, published_ms):
    """At a 1 kHz control rate, where rounding to ticks is small, the table is met to 2 %, and the shape by KS."""
    hz, horizon_ticks = 1000.0, round(horizon * 1000 / 30)
    closed = reaction_time(mode, first_ms / 1000, horizon_ticks, 1 / hz)
    assert closed.mean_s * 1000 == pytest.approx(published_ms, rel=0.02)
    agent = Planner(3 if streams else 10, streams=streams)  # who streams stops early, or it would be busy past s
    measured = reactions_s(agent, Virtual(profile(name)), hz, mode=mode, horizon=horizon_ticks)
    assert measured.mean() * 1000 == pytest.approx(published_ms, rel=0.02)
    assert kstest(measured, "uniform", (closed.low_s, closed.high_s - closed.low_s)).pvalue > 0.001


@pytest.mark.parametrize(
    ("mode", "streams"), [("sync", False), ("sync", True), ("async", False), ("prefix", False), ("prefix", True)]
)
def test_reaction_times_at_30_hz_are_the_closed_forms_in_whole_ticks(mode, streams):
    latency = profile("xvla-4060")
    first_s = latency.seconds(1, 1 if streams else 10, False)
    delay = math.ceil(first_s * 30) if mode == "prefix" else 0
    measured = reactions_s(Planner(streams=streams), Virtual(latency), 30.0, 4000, mode=mode, horizon=15)
    closed = reaction_time(mode, first_s, 15, 1 / 30, delay)
    assert measured.mean() == pytest.approx(closed.mean_s, rel=0.02)
    assert kstest(measured, "uniform", (closed.low_s, closed.high_s - closed.low_s)).pvalue > 0.001


def test_probability_of_being_faster_is_the_published_one():
    for faster, slower, published in (((62.1, 100), (80.0, 100), 0.66), ((238.6, 266.7), (303.3, 333.3), 0.77)):
        a = ReactionTime(faster[0], sum(faster))
        b = ReactionTime(slower[0], sum(slower))
        assert a.probability_faster(b) == pytest.approx(published, abs=0.006)


def test_the_shortest_horizon_follows_from_when_actions_arrive():
    # arXiv 2603.19199, Table 2: all actions at once, and those that pi0.5 streams on an RTX 4090
    for name, published in (("pi05-4090", 3), ("pi05-4060", 10), ("xvla-4090", 4), ("xvla-4060", 12)):
        arrivals = arrivals_s(profile(name), [[]] * 9 + [range(50)])
        assert len(arrivals) == 50
        assert arrivals[0] == pytest.approx(profile(name).seconds(1, 10, 0))
        assert min_execution_horizon(arrivals, 1 / 30) == published
    assert min_execution_horizon([0.0621, 0.0702, 0.0771], 1 / 30) == 3
    assert min_execution_horizon([0.5, 0.5, 0.5], 1 / 30) is None
    latency = LatencyModel("sends", encode_ms=10, evaluation_ms=5, part_ms=1)
    assert arrivals_s(latency, [range(1), range(1, 1), range(1, 3)]) == pytest.approx([0.016, 0.027, 0.027])


def test_lockstep_executes_every_action_on_its_tick():
    agent, world = Planner(chunk=8), World(ticks=40)
    outcome = run(agent, world)
    assert world.actions == pytest.approx([8 * (t // 8) + t / 1000 for t in range(40)])
    assert outcome.costs["evaluations"] == 50 and outcome.costs["encodes"] == 5 and outcome.costs["stalls"] == 0
    assert outcome.episode_return == outcome.score == 40.0


def test_virtual_without_latency_is_lockstep():
    worlds = World(), World()
    run(Planner(), worlds[0])
    run(Planner(), worlds[1], Virtual(LatencyModel("free")))
    assert worlds[0].actions == worlds[1].actions


def test_naive_async_drops_what_is_over_and_goes_on_with_the_old_plan():
    agent, world = Planner(evaluations=1), World(ticks=40)
    outcome = run(agent, world, Virtual(LatencyModel("x", evaluation_ms=250.0)), mode="async", horizon=6)
    # 250 ms at 10 Hz: the robot holds for 3 ticks, then runs the first plan from its start
    assert world.actions[:5] == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.001])
    assert outcome.costs["stalls"] == 3
    for k, call in enumerate(agent.calls[1:-1], 1):
        takes_effect, replaced = call.tick + 3, agent.calls[k + 1].tick + 3
        assert replaced - takes_effect == 6
        expected = [call.tick + t / 1000 for t in range(takes_effect, replaced)]
        assert world.actions[takes_effect:replaced] == pytest.approx(expected[: 40 - takes_effect])


def test_prefix_mode_tells_the_agent_what_will_run_anyway():
    agent, world = Planner(evaluations=1), World(ticks=60)
    run(agent, world, Virtual(LatencyModel("x", evaluation_ms=250.0)), mode="prefix", horizon=6, delay=4)
    assert [len(call.committed) for call in agent.calls] == [0] + [4] * (len(agent.calls) - 1)
    for call in agent.calls[1:]:
        ran = world.actions[call.tick : call.tick + len(call.committed)]
        assert np.ravel(call.committed)[: len(ran)].tolist() == ran
    assert (
        run(agent, world, Virtual(LatencyModel("x", evaluation_ms=250.0)), mode="prefix", horizon=6).costs["stalls"]
        == 3
    )


def test_an_agent_is_told_no_more_committed_actions_than_it_can_continue():
    told = []

    class Short(Planner):
        max_delay = 2

        def plan(self, memory, call):
            told.append(len(call.committed))
            return super().plan(memory, call)

    agent, world = Short(evaluations=10), World(ticks=60)
    slow = LatencyModel("slow", encode_ms=1000 * 6 / world.hz)
    assert not run(agent, world, Virtual(slow), mode="prefix", horizon=10).failed
    assert max(told) == 2
    with pytest.raises(ValueError, match="delay=3 committed ticks, but Short continues at most max_delay=2"):
        run(agent, world, Virtual(slow), mode="prefix", horizon=10, delay=3)


def test_sync_mode_holds_and_then_runs_the_plan_from_its_start():
    world = World(ticks=20)
    outcome = run(Planner(evaluations=1), world, Virtual(LatencyModel("x", evaluation_ms=200.0)), horizon=3)
    observed = [0, 0, 0.0, 0.001, 0.002, 0, 0, 5.005, 5.006, 5.007]
    assert world.actions[:10] == pytest.approx(observed)
    assert outcome.costs["stalls"] == 8


def test_an_agent_of_single_actions_acts_under_latency_too():
    world = World(ticks=20)
    latency = Virtual(LatencyModel("x", evaluation_ms=300.0))
    run(Planner(1, chunk=1), world, latency, mode="async", hold="hold_last")
    assert world.actions == pytest.approx(
        [0.0] * 6 + [3.003] * 3 + [6.006] * 3 + [9.009] * 3 + [12.012] * 3 + [15.015] * 2
    )


def test_replan_in_is_obeyed():
    class Eager(Planner):
        def plan(self, memory, call):
            for part in super().plan(memory, call):
                yield ActionPart(part.start, part.actions, evaluations=1, replan_in=3)

    agent = Eager(1)
    run(agent, World(ticks=12))
    assert [call.tick for call in agent.calls] == [0, 3, 6, 9]


class Slow(Planner):
    """A multi-rate agent: the context is the tick at which it looked."""

    encode_every = 4

    def encode(self, memory, observation):
        return observation[0]

    def plan(self, memory, call):
        self.calls.append(call)
        yield ActionPart(len(call.committed), np.full((2, 1), call.context), evaluations=1)


def test_encode_runs_on_its_own_lane_and_plans_use_the_newest_finished_context():
    agent, world = Slow(), World(ticks=24)
    outcome = run(agent, world, Virtual(LatencyModel("x", encode_ms=300.0)), horizon=2)
    assert world.actions[:3] == [0.0] * 3  # nothing to plan with before the first context
    for call in agent.calls:
        assert call.context == 4 * ((call.tick - 3) // 4)
    assert outcome.costs["encodes"] == 6
    assert outcome.costs["context_age_ms"] > 300.0
    run(agent := Slow(), world)
    assert [call.context for call in agent.calls] == [4 * (call.tick // 4) for call in agent.calls]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_new_context_is_followed_by_a_plan_and_an_empty_plan_leaves_the_running_one(mode):
    class Polled(Slow):
        """Looks every tick, and plans eight ticks only where the context is new or a tick asks for it."""

        encode_every = 6

        def reset(self, episode):
            self.seen = None
            return None

        def plan(self, memory, call):
            if call.context == self.seen and call.tick != 9:
                yield ActionPart(replan_in=1)
                return
            self.seen = call.context
            self.calls.append(call)
            yield ActionPart(0, np.arange(8.0)[:, None], evaluations=1, replan_in=1)

    agent, world = Polled(), World(ticks=18)
    outcome = run(agent, world, mode=mode)
    assert [call.tick for call in agent.calls] == [0, 6, 9, 12]
    assert world.actions == [0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert (outcome.costs["plans"], outcome.costs["evaluations"]) == (4, 4)

    class Long(Slow):
        def plan(self, memory, call):
            self.calls.append(call)
            yield ActionPart(0, np.zeros((5, 1)), evaluations=1)

    seldom = Long()
    run(seldom, World(ticks=12), mode=mode)
    assert [call.tick for call in seldom.calls] == [0, 4, 8]


def test_lanes_give_what_single_episodes_give():
    worlds = [World(ticks=20 + 7 * k) for k in range(5)]
    outcomes = Executor(Planner()).run([(world, episode(world, k)) for k, world in enumerate(worlds)])
    for k, (world, outcome) in enumerate(zip(worlds, outcomes, strict=True)):
        alone = World(ticks=20 + 7 * k)
        assert run(Planner(), alone, seed=k).episode_return == outcome.episode_return
        assert alone.actions == world.actions


def test_learning_sees_every_transition_and_needs_lockstep():
    class Learner(StepAgent):
        def reset(self, episode):
            return []

        def act(self, memory, observation):
            return np.array([float(len(memory))])

        def learn(self, memory, transition):
            memory.append(transition)

    world = World(ticks=5)
    run(Learner(), world)
    assert world.actions == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="learns within the episode"):
        Executor(Learner(), Virtual(LatencyModel("x")))


class Raises(World):
    def step(self, action):
        if self.tick == 3:
            raise RuntimeError("the gripper fell off")
        return super().step(action)


class Nan(World):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return (observation * np.nan, reward, *rest) if self.tick == 3 else (observation, reward, *rest)


class NanReward(World):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return (observation, float("nan"), *rest)


class WildPlanner(Planner):
    def plan(self, memory, call):
        yield ActionPart(0, np.full((1, 1), self.chunk), evaluations=1)


@pytest.mark.parametrize(
    ("agent", "world", "reason"),
    [
        (Planner(), Raises(), "env.step: RuntimeError: the gripper fell off"),
        (Planner(), Nan(), "returned nan in the observation"),
        (Planner(), NanReward(), "returned the reward nan"),
        (WildPlanner(chunk=2e6), World(), "outside the action space"),
        (WildPlanner(chunk=np.nan), World(), "outside the action space"),
        (WildPlanner(chunk=1), World(ticks=10**9), "was not over after max_ticks=50"),
    ],
)
def test_what_goes_wrong_ends_the_episode_with_a_reason(agent, world, reason):
    outcome = run(agent, world, max_ticks=50)
    assert outcome.failed and reason in outcome.reason and outcome.score is None


def test_one_failing_world_does_not_stop_the_others():
    worlds = [World(ticks=20), Raises(), World(ticks=20)]
    outcomes = Executor(Planner()).run([(world, episode(world)) for world in worlds])
    assert [outcome.failed for outcome in outcomes] == [False, True, False]


def test_hold_policies_stop_what_moves_and_keep_what_stands():
    from palaestra.agents.holding import Holding

    space = spaces.Box(-1, 1, (3,), np.float32)
    card = Interface(
        20.0,
        (
            Component("joint", 1, "position", "absolute", unit="rad"),
            Component("speed", 1, "velocity", unit="m/s"),
            Component("gripper", 1, "gripper", closed=1.0, open=-1.0),
        ),
    )
    last = np.array([0.5, 0.8, 1.0], np.float32)
    assert Holding("zero", space, card).action(last).tolist() == [0.5, 0.0, 1.0]
    assert Holding("hold_last", space, card).action(last).tolist() == last.tolist()
    assert Holding("decelerate", space, card).action(last).tolist() == pytest.approx([0.5, 0.4, 1.0])
    assert Holding("zero", spaces.Discrete(3)).action(np.int64(2)) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "fast"}, "mode='fast'"),
        ({"hold": "panic"}, "hold='panic'"),
        ({"horizon": -1}, "horizon=-1"),
        ({"mode": "prefix", "delay": 5, "horizon": 3}, "horizon=3 is below delay=5"),
        ({"mode": "async", "delay": 5}, "delay=5 is for mode='prefix'"),
    ],
)
def test_contradictory_execution_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Execution(**arguments)


class Herald(Planner):
    """Says something with its first evaluation, before any action is final."""

    def plan(self, memory, call):
        for n, part in enumerate(super().plan(memory, call)):
            yield part if n else replace(part, extras={"said": np.array(call.tick)})


class Listener:
    """Keeps what it is told, and breaks when it hears of the plan of a tick."""

    def __init__(self, breaks_at=None):
        self.tick, self.breaks_at, self.heard = 0, breaks_at, []

    def reset(self, env, observation):
        pass

    def planned(self, tick, part):
        if tick == self.breaks_at:
            raise OSError("the disk is full")
        self.heard.append((self.tick, tick, len(part.actions), dict(part.extras)))

    def step(self, step, info):
        self.tick += 1

    def close(self, outcome):
        pass


@pytest.mark.parametrize(("clock", "late"), [(Lockstep(), (0, 0)), (Virtual(LatencyModel("x", 100, 100)), (2, 4))])
def test_a_watcher_is_told_of_each_part_when_it_arrives(clock, late):
    """Encode and first evaluation take two ticks here, the two others one each."""
    world, listener = World(ticks=20), Listener()
    executor = Executor(Herald(evaluations=3), clock, Execution(mode="async" if late[1] else "sync"))
    (outcome,) = executor.run([(world, episode(world))], [listener])
    assert not outcome.failed
    asked = sorted({tick for _, tick, *_ in listener.heard})
    assert len(asked) > 1
    assert listener.heard == [
        told
        for tick in asked
        for told in ((tick + late[0], tick, 0, {"said": tick}), (tick + late[1], tick, 8, {}))
        if told[0] < 20
    ]
    bare = World(ticks=20)
    assert run(Herald(evaluations=3), bare, clock, mode=executor.execution.mode).costs.keys() == outcome.costs.keys()
    assert bare.actions == world.actions, "who looks on changes nothing"


def test_on_the_wall_clock_a_watcher_hears_the_same_parts():
    world, listener = World(ticks=20, hz=200.0), Listener()
    (outcome,) = Executor(Herald(evaluations=3), Wall()).run([(world, episode(world))], [listener])
    assert not outcome.failed and len(listener.heard) > 2
    for first, second in zip(listener.heard[::2], listener.heard[1::2], strict=False):
        assert first[1:] == (first[1], 0, {"said": first[1]}) and second[1:] == (first[1], 8, {})


def test_a_watcher_that_fails_at_a_plan_ends_its_own_episode():
    worlds, listeners = [World(ticks=20) for _ in range(2)], [Listener(breaks_at=8), Listener()]
    pairs = [(world, episode(world)) for world in worlds]
    broken, whole = Executor(Herald(evaluations=3)).run(pairs, listeners)
    assert broken.failed and broken.reason == "the recording: OSError: the disk is full" and broken.ticks == 8
    assert not whole.failed and whole.ticks == 20


def test_the_clocks_say_who_waits():
    assert Lockstep().waits_for_agent and not Virtual(LatencyModel("x")).waits_for_agent


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"score": float("nan")}, "expected a finite number"),
        ({"score": "good"}, "could not convert"),
        ({"metrics": {"force": "high"}}, "could not convert"),
        ({"success": np.array([True, False])}, "ambiguous"),
        ({"event": 3}, "expected a dict with 'time_s'"),
        ([1], "has no attribute"),
    ],
)
def test_an_info_that_cannot_be_read_fails_its_episode_and_no_other(info, reason):
    class Chatty(World):
        def step(self, action):
            return (*super().step(action)[:4], info)

    worlds = [Chatty(ticks=3), World(ticks=3)]
    bad, good = Executor(Planner()).run([(world, episode(world)) for world in worlds])
    assert bad.failed and reason in bad.reason and not good.failed


def test_an_agent_that_exits_ends_its_episode_and_not_the_run():
    class Quitter(Planner):
        def plan(self, memory, call):
            raise SystemExit(0)

    outcome = run(Quitter(), World())
    assert outcome.failed and "SystemExit" in outcome.reason
