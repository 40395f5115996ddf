import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from palaestra.agents.agent import Call, Episode
from palaestra.agents.flow import Flow
from palaestra.envs.interface import Component, Interface, InterfaceMismatch
from palaestra.models.backend import Backend, BackendError
from palaestra.models.checkpoint import CheckpointError, load, load_card, save
from palaestra.models.data.demonstrations import DemonstrationError
from palaestra.models.flow.config import FlowConfig
from palaestra.models.flow.policy import FlowPolicy
from palaestra.models.flow.schedules import make_schedule
from palaestra.models.flow.train import TRAINER, FlowRecipe

H, D = 8, 2
CONFIG = FlowConfig(
    D, H, state={"agent_pos": (3,)}, normalization={"agent_pos": "mean_std", "action": "mean_std"}, max_delay=4,
    width=16, depth=2, heads=2, hidden=16,
)  # fmt: skip
OBSERVATIONS = spaces.Dict({"agent_pos": spaces.Box(-9, 9, (3,), np.float32), "more": spaces.Box(0, 1, (5,))})
ACTIONS = spaces.Box(-0.7, 0.7, (D,), np.float32)


def policy():
    made = FlowPolicy(CONFIG)
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=g))
    return made


def flow(schedule="constant", steps=4, **options):
    return Flow(policy(), schedule=make_schedule(schedule, H, steps), **{"execute": 3, **options})


def begin(agent, seed=0, observations=OBSERVATIONS, actions=ACTIONS):
    return agent.reset(Episode(seed, "palaestra/Toy-v0", observations, actions))


def see(seed):
    return OBSERVATIONS.sample() | {"agent_pos": np.random.default_rng(seed).normal(size=3).astype(np.float32)}


def chunk(parts):
    return np.concatenate([part.actions for part in parts if len(part.actions)])


@pytest.fixture
def saved(tmp_path):
    tensors = {f"policy.{n}": t for n, t in policy().state_dict().items()}
    tensors |= {"samples.observation.agent_pos": torch.randn(9, 3), "samples.actions": torch.randn(9, H, D)}
    tensors |= {"samples.valid": torch.ones(9, H, dtype=torch.bool)}
    interface = Interface(20.0, (Component("velocity", 2, "velocity", unit="m/s"),), chunk=H)
    card = {"agent": "flow", "sampling": {"steps": 4, "execute": 3}, "interface": interface.to_json()}
    return save(tmp_path / "flow.Toy-v0", CONFIG.to_json(), tensors, card)


def test_a_part_comes_with_every_evaluation_and_actions_once_they_are_final():
    agent = flow()
    committed = [np.full(D, 0.1 * k, np.float32) for k in range(2)]
    parts = list(agent.plan(begin(agent), Call(see(0), committed=committed)))
    assert [part.encodes for part in parts] == [1, 0, 0, 0]
    assert [part.evaluations for part in parts] == [1, 1, 1, 1]
    assert [len(part.actions) for part in parts] == [0, 0, 0, H - 2]
    assert parts[-1].start == 2
    assert all(part.replan_in == 3 for part in parts)
    actions = parts[-1].actions
    assert actions.dtype == np.float32
    assert all(ACTIONS.contains(action) for action in actions)
    assert (np.abs(actions) == 0.7).any()  # the raw samples leave the space


def test_planning_for_many_is_planning_for_each():
    agent = flow()
    calls = [
        Call(see(k), committed=[np.full(D, 0.1, np.float32)] * delay, need=need)
        for k, (delay, need) in enumerate([(0, 0), (3, 2), (0, 8), (4, 4), (1, 1)])
    ]
    alone = [[list(agent.plan(m, c)) for _ in range(2)] for k, c in enumerate(calls) for m in [begin(agent, k)]]
    memories = [begin(agent, k) for k in range(5)]
    for turn in range(2):  # the second plan draws on with each episode's noise
        parts = [[] for _ in calls]
        for job, part in agent.plan_many(list(zip(memories, calls, strict=True))):
            parts[job].append(part)
        for job in range(5):
            expected = alone[job][turn]
            np.testing.assert_allclose(chunk(parts[job]), chunk(expected), atol=1e-5)
            for ours, theirs in zip(parts[job], expected, strict=True):
                assert (ours.start, ours.replan_in, ours.encodes) == (theirs.start, theirs.replan_in, theirs.encodes)


def test_noise_comes_from_the_seed_and_moves_on_with_each_plan():
    agent = flow()
    first, again, other = (begin(agent, seed) for seed in (5, 5, 6))
    one = chunk(agent.plan(first, Call(see(0))))
    np.testing.assert_array_equal(one, chunk(agent.plan(again, Call(see(0)))))
    assert not np.array_equal(one, chunk(agent.plan(other, Call(see(0)))))
    assert not np.array_equal(one, chunk(agent.plan(first, Call(see(0)))))


def test_a_horizon_aware_plan_streams_near_actions_first_and_ends_once_it_has_what_is_needed():
    agent, committed = flow("has", steps=10), [np.full(D, 0.1, np.float32)] * 2
    whole = list(agent.plan(begin(agent), Call(see(0), committed=committed, need=H - 2)))
    short = list(agent.plan(begin(agent), Call(see(0), committed=committed, need=2)))
    starts = [part.start for part in whole if len(part.actions)]
    assert starts[0] == 2
    assert starts == sorted(starts)
    assert len(whole) == 10
    assert len(whole[0].actions) == 1  # after one evaluation the first action leaves
    assert chunk(whole).shape == (H - 2, D)
    assert len(short) < 10
    np.testing.assert_array_equal(chunk(short), chunk(whole)[: len(chunk(short))])
    assert 2 <= len(chunk(short)) < H - 2


def test_guidance_continues_the_running_plan_where_the_robot_stands_in_it():
    # A new network's field is that of independent actions, so only guidance ties one plan to the next.
    plain, guided = (
        Flow(FlowPolicy(CONFIG), schedule=make_schedule("constant", H, 10), execute=3, guidance=name, clip=10.0)
        for name in ("none", "rtc")
    )
    first = chunk(plain.plan(begin(plain), Call(see(0))))
    jumps = {}
    for name, agent in (("plain", plain), ("guided", guided)):
        memory = begin(agent)
        np.testing.assert_array_equal(chunk(agent.plan(memory, Call(see(0)))), first)  # nothing runs yet
        *_, part = agent.plan(memory, Call(see(1), tick=3, committed=first[3:5] if name == "guided" else ()))
        following = part.actions[0 if name == "guided" else 2 :]
        assert part.start == (2 if name == "guided" else 0)
        jumps[name] = float(np.abs(following[:2] - first[5:7]).mean())
    assert jumps["guided"] < 0.7 * jumps["plain"]


def test_a_stopped_plan_does_no_further_work():
    agent, counted = flow(), []
    agent.policy.velocity.register_forward_hook(lambda *_: counted.append(1))
    plan = agent.plan(begin(agent), Call(see(0)))
    assert not counted
    next(plan)
    plan.close()
    assert len(counted) == 1


def test_nothing_is_left_in_inference_mode_between_parts():
    agent = flow()
    for _ in agent.plan(begin(agent), Call(see(0))):
        assert not torch.is_inference_mode_enabled()


def test_impossible_calls_are_refused():
    agent = flow()
    committed = [np.zeros(D, np.float32)] * 5
    with pytest.raises(ValueError, match=r"5 actions are committed, .*max_delay=4"):
        list(agent.plan(begin(agent), Call(see(0), committed=committed)))
    with pytest.warns(UserWarning, match=r"need=6 actions after 3 committed ones, .*chunks of 8; where they run out"):
        parts = list(agent.plan(begin(agent), Call(see(0), committed=committed[:3], need=6)))
    assert parts[-1].start + len(parts[-1].actions) == H
    with pytest.raises(ValueError, match=r"execute=9, expected 1 <= execute <= horizon=8"):
        flow(execute=9)
    with pytest.raises(ValueError, match="steps=0"):
        flow(steps=0)
    with pytest.raises(ValueError, match="guidance='rtx' is not known; choose one of none, rtc, identity"):
        flow(guidance="rtx")
    with pytest.raises(ValueError, match="guidance='rtc' needs whole chunks"):
        flow("has", guidance="rtc")
    with pytest.raises(ValueError, match="clip=0"):
        flow(clip=0)


@pytest.mark.parametrize(
    ("observations", "actions", "says"),
    [
        (spaces.Dict({"agent_pos": spaces.Box(-1, 1, (4,))}), ACTIONS, r"'agent_pos': expected \[3\], got \[4\]"),
        (spaces.Dict({"pixels": spaces.Box(0, 1, (2, 2, 3))}), ACTIONS, r"but the environment sends pixels"),
        (spaces.Box(-1, 1, (3,)), ACTIONS, r"but the environment sends observation \[3\]"),
        (OBSERVATIONS, spaces.Box(-1, 1, (7,)), r"action: expected 2 numbers, got shape \[7\]"),
        (OBSERVATIONS, spaces.Discrete(2), r"expected a Box of 2 numbers, got Discrete\(2\)"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_world_is_refused_naming_the_dimension(observations, actions, says):
    with pytest.raises(InterfaceMismatch, match=says):
        begin(flow(), observations=observations, actions=actions)


def test_a_checkpoint_loads_with_its_card_and_options(saved):
    agent = Flow.load(saved, steps=2)
    assert (agent.schedule.steps, agent.execute) == (2, 3)
    assert agent.interface.control_hz == 20.0
    assert agent.interface.chunk == H
    expected = chunk(flow(steps=2).plan(begin(flow()), Call(see(0))))
    np.testing.assert_array_equal(chunk(agent.plan(begin(agent), Call(see(0)))), expected)
    assert agent.calibration(4)["actions"].shape == (4, H, D)
    assert torch.isfinite(agent.policy.loss(agent.calibration(9), torch.Generator())["loss"])


def test_a_backend_changes_the_network_and_an_untrained_adapter_changes_nothing(saved):
    pytest.importorskip("peft")
    adapted = Flow.load(saved, Backend.parse("adapter=lora:rank=2"))
    assert any("lora_A" in name for name, _ in adapted.policy.named_parameters())
    plain = chunk(flow().plan(begin(flow()), Call(see(0))))
    np.testing.assert_array_equal(chunk(adapted.plan(begin(adapted), Call(see(0)))), plain)
    with pytest.raises(BackendError, match="training only"):
        Flow.load(saved, Backend.parse("optim=adamw"))


def test_checkpoints_that_are_not_right_say_so(saved):
    config, tensors, card = load(saved)
    rest = {"agent": "flow", "interface": card["interface"]}
    kinds = {"agent_pos": "mean_std", "action": "quantile"}
    wrong = save(saved.with_name("kinds"), config | {"normalization": kinds}, tensors, rest)
    with pytest.raises(CheckpointError, match=r"kinds.safetensors: .*'quantile'.*q01 and q99.*those of 'mean_std'"):
        Flow.load(wrong)
    wrong = save(saved.with_name("shapes"), config | {"width": 32}, tensors, rest)
    with pytest.raises(ValueError, match=r"shapes.safetensors: the tensors do not fit"):
        Flow.load(wrong)
    wrong = save(saved.with_name("agent"), config, tensors, {"agent": "wam"})
    with pytest.raises(CheckpointError, match="of the agent 'wam', not 'flow'"):
        Flow.load(wrong)
    wrong = save(saved.with_name("interface"), config, tensors, rest | {"interface": {"control_hz": -1}})
    with pytest.raises(CheckpointError, match="broken interface"):
        Flow.load(wrong)
    with pytest.raises(ValueError, match="no option 'stepz'; nearest: steps"):
        Flow.load(saved, stepz=3)


class Reach(gymnasium.Env):
    """A point steps towards a goal; done within 0.1. The expert closes half the distance a tick."""

    action_space = spaces.Box(-0.5, 0.5, (2,), np.float32)
    observation_space = spaces.Dict(
        {k: spaces.Box(-9, 9, (2,), np.float32) for k in ("agent_pos", "environment_state")}
    )
    interface = Interface(
        10.0,
        (Component("step", 2, "position", "delta", unit="m"),),
        {"agent_pos": (Component("place", 2, "position"),), "environment_state": (Component("goal", 2),)},
    )
    skill = 0.5

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal, self.ticks = np.zeros(2), self.np_random.uniform(-1, 1, 2), 0
        return self._see(), {}

    def step(self, action):
        self.at, self.ticks = self.at + action, self.ticks + 1
        near = bool(np.linalg.norm(self.at - self.goal) < 0.1)
        return self._see(), float(near), near, self.ticks >= 20, {"success": near}

    def expert(self):
        return lambda: np.clip((self.goal - self.at) * self.skill, -0.5, 0.5).astype(np.float32)

    def _see(self):
        return {"agent_pos": self.at.astype(np.float32), "environment_state": self.goal.astype(np.float32)}


SMALL = FlowRecipe(
    demonstrations=80, steps=300, batch=64, horizon=8, max_delay=3, execute=2, width=32, depth=2, decay=0.99
)


def success(agent, seeds):
    env, reached = Reach(), []
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        memory = agent.reset(Episode(seed, "Reach", env.observation_space, env.action_space, env.interface))
        ended = False
        while not ended:
            *_, part = agent.plan(memory, Call(observation))
            for action in part.actions[: part.replan_in]:
                observation, _, terminated, truncated, info = env.step(action)
                ended = terminated or truncated
                if ended:
                    break
        reached.append(info["success"])
    return np.mean(reached)


def test_training_learns_from_an_expert_and_repeats_to_the_last_bit(tmp_path):
    seen = []
    weights = TRAINER.train(Reach(), SMALL, tmp_path / "flow.Reach", progress=seen.append, card={"command": "train"})
    agent = Flow.load(weights)
    assert success(agent, range(40)) >= 0.9
    assert agent.interface == replace(Reach.interface, chunk=8, episode_ticks=agent.interface.episode_ticks)
    assert (agent.schedule.steps, agent.execute) == (SMALL.sampling_steps, 2)
    assert {p.phase for p in seen} == {"demonstrations", "training"}
    assert (seen[-1].done, seen[-1].total) == (300, 300)
    card = load_card(weights)
    assert card["demonstrations"]["expert_success"] == 1.0
    assert card["recipe"]["seed"] == 0
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".safetensors"]

    short = replace(SMALL, steps=5)
    one, two, other = (
        load_card(TRAINER.train(Reach(), recipe, tmp_path / name))["weights"]["sha256"]
        for name, recipe in (("one", short), ("two", short), ("other", replace(short, seed=1)))
    )
    assert one == two != other


def test_an_adapter_is_trained_from_a_checkpoint_kept_and_merged(tmp_path):
    pytest.importorskip("peft")
    short = replace(SMALL, steps=5)
    base = TRAINER.train(Reach(), short, tmp_path / "base")
    backend = Backend.parse("adapter=lora:rank=2,optim=adamw:lr=0.01")
    tuned = TRAINER.train(Reach(), replace(short, seed=1), tmp_path / "tuned", backend=backend, start=base)
    merged = Flow.load(tuned)
    kept = Flow.load(base, Backend.parse(f"adapter=lora:path={tmp_path / 'tuned.lora'}"))
    episode = Episode(0, "Reach", Reach.observation_space, Reach.action_space)
    call = Call(Reach().reset(seed=0)[0])
    plans = [chunk(agent.plan(agent.reset(episode), call)) for agent in (merged, kept, Flow.load(base))]
    np.testing.assert_allclose(plans[0], plans[1], atol=1e-5)
    assert not np.allclose(plans[0], plans[2], atol=1e-3)


def test_training_refuses_what_it_cannot_do(tmp_path):
    clumsy = Reach()
    clumsy.skill = 0.01
    with pytest.raises(DemonstrationError, match="succeeds in 0% of its undisturbed episodes, and training needs 90%"):
        TRAINER.train(clumsy, SMALL, tmp_path / "a")
    with pytest.raises(BackendError, match="state the checkpoint to start from"):
        TRAINER.train(Reach(), SMALL, tmp_path / "b", backend=Backend.parse("adapter=lora"))
    with pytest.raises(DemonstrationError, match=r"sends no floats \['velocity'\], it has \['agent_pos'"):
        TRAINER.train(Reach(), replace(SMALL, state=("velocity",)), tmp_path / "c")
    with pytest.raises(ValueError, match="execute=9, expected at most horizon=8"):
        replace(SMALL, execute=9)


def test_recipes_are_found_by_id():
    ball = TRAINER.recipe_for("palaestra/BallIntercept-v0")
    assert TRAINER.recipe_for("palaestra:palaestra/BallIntercept-v0:pixels=32+sensor_noise:std=0.1") == ball
    assert TRAINER.recipe_for("palaestra/BallIntercept-v0", "constant") == replace(ball, schedule="constant", mix=0.0)
    assert TRAINER.recipe_for("CartPole-v1") == FlowRecipe()
    with pytest.raises(ValueError, match=r"variant='constant' is not known for CartPole-v1; it has none"):
        TRAINER.recipe_for("CartPole-v1", "constant")


def test_a_card_is_plain_json(saved):
    json.loads(saved.with_suffix(".json").read_text(), parse_constant=pytest.fail)
