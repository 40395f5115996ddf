"""The fast-slow agent: when it plans, from which context and noise, what it tells, and that it streams."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from palaestra.agents.agent import Call, Episode
from palaestra.agents.favla import Favla
from palaestra.agents.inference_rate import Fami, Static
from palaestra.models.checkpoint import save
from palaestra.models.favla.config import FavlaConfig
from palaestra.models.favla.policy import FavlaPolicy
from palaestra.models.flow.schedules import make_schedule
from palaestra.runtime.clock import Virtual
from palaestra.runtime.executor import Execution, Executor
from palaestra.runtime.latency import LatencyModel
from palaestra.runtime.registry import make_agent

H, D, C = 12, 2, 8
CONFIG = FavlaConfig(
    D, H, state={"agent_pos": (4,)}, normalization=dict.fromkeys(("agent_pos", "wrench", "action"), "mean_std"),
    max_delay=4, width=16, depth=2, heads=2, hidden=16, text=64, slow_width=16, slow_every=C, force_width=8,
)  # fmt: skip
SPACE = spaces.Dict(
    agent_pos=spaces.Box(-9, 9, (4,), np.float32),
    wrench=spaces.Box(-99, 99, (10, 6), np.float32),
    instruction=spaces.Text(64, charset="abcdefgh "),
)
ACTIONS = spaces.Box(-0.7, 0.7, (D,), np.float32)


def policy():
    made, g = FavlaPolicy(CONFIG), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=g))
    return made.eval()


def favla(rate=None, schedule="constant", **options):
    return Favla(policy(), schedule=make_schedule(schedule, H, 3), rate=rate or Static(2), **options)


def begin(agent, seed=0, **options):
    return agent.reset(Episode(seed, "palaestra/Toy-v0", SPACE, ACTIONS, options=options))


def see(seed, force_n=0.0):
    draw = np.random.default_rng(seed)
    wrench = draw.normal(size=(10, 6)).astype(np.float32) * 0.1
    wrench[:, 2] -= force_n
    return {"agent_pos": draw.normal(size=4).astype(np.float32), "wrench": wrench, "instruction": "a bad edge"}


def chunk(parts):
    return np.concatenate([part.actions for part in parts if len(part.actions)])


def test_a_cycle_has_one_noise_and_the_newest_force_changes_the_plan():
    agent = favla(Static(4))
    memory = begin(agent)
    context = agent.encode(memory, see(0))
    first = chunk(agent.plan(memory, Call(see(1), context, tick=0)))
    noise = memory.noise.copy()
    same = chunk(agent.plan(memory, Call(see(1), context, tick=2)))
    np.testing.assert_array_equal(first[: len(same)], same[: len(first)])  # the same force, the same noise
    pressed = chunk(agent.plan(memory, Call(see(1, force_n=3.0), context, tick=4)))
    assert np.abs(pressed[:6] - first[:6]).max() > 1e-3
    np.testing.assert_array_equal(memory.noise, noise)
    again = agent.encode(memory, see(0))
    other = chunk(agent.plan(memory, Call(see(1), again, tick=8)))
    assert memory.number == 1 and np.abs(other[:6] - first[:6]).max() > 1e-3


def test_plans_are_due_where_the_rate_says_and_the_last_of_a_cycle_leaves_the_next_to_the_context():
    agent = favla(Static(3))
    memory = begin(agent)
    context = agent.encode(memory, see(0))
    said = [next(iter(agent.plan(memory, Call(see(t), context, tick=t)))).replan_in for t in (10, 12, 15)]
    assert memory.due == (0, 2, 5) and said == [2, 3, None]
    (first, *_) = agent.plan(memory, Call(see(1), agent.encode(memory, see(1)), tick=18))
    assert memory.began == 18 and first.encodes == 0 and first.extras["calls"] == 3
    assert first.extras["gate"].shape == (2, 2) and 0 <= first.extras["y_hat"] <= 1


def test_without_a_context_it_looks_itself_and_counts_it():
    agent = favla()
    memory = begin(agent)
    parts = list(agent.plan(memory, Call(see(3))))
    assert [part.encodes for part in parts] == [1, 0, 0] and sum(part.evaluations for part in parts) == 3
    context = agent.encode(memory, see(3))
    fresh = begin(agent)
    np.testing.assert_array_equal(chunk(agent.plan(fresh, Call(see(3), context))), chunk(parts))


def test_several_episodes_at_once_are_planned_as_alone():
    agent = favla(Static(2))
    memories, alone = [begin(agent, seed) for seed in range(3)], [begin(agent, seed) for seed in range(3)]
    calls = [Call(see(seed), agent.encode(memories[seed], see(seed + 9)), tick=4 * seed) for seed in range(3)]
    together = list(agent.plan_many(list(zip(memories, calls, strict=True))))
    for index in range(3):
        expected = chunk(agent.plan(alone[index], calls[index]))
        np.testing.assert_allclose(chunk([p for i, p in together if i == index]), expected, atol=1e-5)


def test_streamed_plans_bring_near_actions_first_and_stop_when_there_are_enough():
    agent = favla(Static(4), schedule="has")
    memory = begin(agent)
    parts = list(agent.plan(memory, Call(see(0), agent.encode(memory, see(0)))))
    assert len(parts[0].actions) and parts[0].start == 0
    assert sum(len(part.actions) for part in parts) >= 2 + CONFIG.max_delay
    committed = chunk(parts)[:3]
    (first, *_) = agent.plan(memory, Call(see(1), memory.context, tick=2, committed=committed))
    assert first.start == 3


class Pressing(gymnasium.Env):
    """A world whose force jumps at tick 5; nothing else happens."""

    observation_space, action_space = SPACE, ACTIONS

    def __init__(self, ticks=16, jump=5):
        self.ticks, self.jump = ticks, jump

    def reset(self, *, seed=None, options=None):
        self.tick = 0
        return see(0), {}

    def step(self, action):
        self.tick += 1
        return see(0, 9.0 * (self.tick >= self.jump)), 0.0, False, self.tick >= self.ticks, {}


def ticks_of_plans(agent, latency=None, **world):
    called = []
    inner = agent.plan_many

    def noted(jobs):
        for index, part in inner(jobs):
            if part.evaluations and part.extras:
                called.append(jobs[index][1].tick)
            yield index, part

    agent.plan_many = noted
    clock = Virtual(latency or LatencyModel("none"))
    executor = Executor(agent, clock, Execution(mode="async"))
    (outcome,) = executor.run([(Pressing(**world), Episode(0, "x", SPACE, ACTIONS, control_hz=30))])
    assert not outcome.failed, outcome.reason
    assert outcome.costs["plans"] == len(called)
    return called, outcome


def test_in_the_executor_cycles_follow_the_contexts():
    called, outcome = ticks_of_plans(favla(Static(2)))
    assert called == [0, 4, 8, 12]
    assert outcome.costs["encodes"] == 2 and outcome.costs["context_age_ms"] == pytest.approx(1000 * 2 / 30)
    slow = LatencyModel("slow", encode_ms=100.0)  # three ticks: the old context is used in the meantime
    called, outcome = ticks_of_plans(favla(Static(2)), slow, ticks=24)
    assert called == [3, 7, 11, 15, 19, 23]
    assert outcome.costs["context_age_ms"] == pytest.approx(1000 * 5 / 30)


def test_an_event_brings_a_plan_at_once_within_the_budget():
    assert ticks_of_plans(favla(Static(1)))[0] == [0, 8]
    assert ticks_of_plans(favla(Static(1), event_n=2.0))[0] == [0, 5, 8]
    assert ticks_of_plans(favla(Static(1), event_n=2.0, budget=1))[0] == [0, 8]


def test_adaptive_with_at_most_one_call_is_static_one():
    adaptive, fixed = ticks_of_plans(favla(Fami(1))), ticks_of_plans(favla(Static(1)))
    assert adaptive[0] == fixed[0] and adaptive[1].costs["evaluations"] == fixed[1].costs["evaluations"]


def test_the_oracle_is_privileged_and_asks_what_would_come_of_going_on():
    label = {"window": 6, "weights": [0, 0, 1, 0, 0, 0], "sigma": 1.0}
    agent = Favla(policy(), schedule=make_schedule("constant", H, 3), rate=None, most=4, label=label)
    assert agent.privileged and not favla().privileged
    asked = []

    def foresee(actions):
        asked.append(actions)
        return np.zeros((6, 6))

    memory = begin(agent, foresee=foresee)
    planned = chunk(agent.plan(memory, Call(see(0), agent.encode(memory, see(0)))))
    list(agent.plan(memory, Call(see(1), agent.encode(memory, see(1)), tick=8)))
    assert memory.due == (0,) and not asked[0].any()
    np.testing.assert_array_equal(asked[1], planned[[8, 9, 10, 11, 11, 11]])
    with pytest.raises(ValueError, match=r"no foresee\(\)"):
        begin(agent)


def test_a_checkpoint_loads_with_its_options_and_bad_ones_are_named(tmp_path):
    tensors = {f"policy.{name}": tensor for name, tensor in policy().state_dict().items()}
    card = {"agent": "favla", "event_n": 1.5, "label": {"window": 6, "weights": [1] * 6, "sigma": 1.0}}
    path = save(tmp_path / "favla.Toy-v0", CONFIG.to_json(), tensors, card)

    def made(options):
        return make_agent(f"favla:checkpoint={path}{options}", "CartPole-v1")

    assert isinstance(made("")._rate, Fami) and made(",event=true").event_n == 1.5
    assert made(",rate=static,calls=2.5")._rate.mean == 2.5 and made(",rate=oracle").privileged
    for options, said in (
        (",rate=often", "rate='often' is not known"),
        (",rate=static", "rate='static' needs calls=NUMBER"),
        (",rate=static,calls=0", "calls=0"),
        (",rate=static,calls=true", "calls=True, expected a number"),
        (",calls=2", "calls=2 is not read by rate='fami'"),
        (",force_n=3", "force_n=3 is not read by rate='fami'"),
        (",rate=static,calls=2,most=3", "most=3 is not read"),
        (",event=no", "event='no', expected true or false"),
        (",budget=3", "budget=3 bounds"),
        (",most=9", "most=9 plans a slow cycle, expected 1 to slow_every=8"),
        (",event=true,budget=0", "budget=0"),
        (",rate=threshold,force_n=-1", "force_n=-1"),
        (",speed=3", "no option 'speed'"),
    ):
        with pytest.raises(ValueError, match=said):
            made(options)
    bare = save(tmp_path / "bare", CONFIG.to_json(), tensors, {"agent": "favla"})
    for option, said in (("event=true", "event_n"), ("rate=oracle", "label's scale")):
        with pytest.raises(ValueError, match=said):
            make_agent(f"favla:checkpoint={bare},{option}", "CartPole-v1")


def test_a_world_without_force_is_refused():
    without = spaces.Dict({key: space for key, space in SPACE.spaces.items() if key != "wrench"})
    with pytest.raises(ValueError, match="observation 'wrench': expected"):
        favla().reset(replace(Episode(0, "x", SPACE, ACTIONS), observation_space=without))
