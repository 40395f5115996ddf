import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from palaestra.models.data.demonstrations import DemonstrationError, Demonstrations, collect, flatten


class Reach(gymnasium.Env):
    """A point steps towards a goal; done within 0.05. The expert closes half the distance a tick."""

    action_space = spaces.Box(-0.5, 0.5, (2,), np.float32)
    observation_space = spaces.Dict(
        {k: spaces.Box(-9, 9, (2,), np.float32) for k in ("agent_pos", "environment_state")}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal, self.ticks = np.zeros(2), self.np_random.uniform(-1, 1, 2), 0
        self.executed = []
        return self._see(), {}

    def step(self, action):
        self.executed.append(np.array(action))
        self.at, self.ticks = self.at + action, self.ticks + 1
        near = bool(np.linalg.norm(self.at - self.goal) < 0.05)
        return self._see(), float(near), near, self.ticks >= 40, {"success": near}

    def expert(self):
        return lambda: np.clip((self.goal - self.at) / 2, -0.5, 0.5).astype(np.float32)

    def _see(self):
        return {"agent_pos": self.at.astype(np.float32), "environment_state": self.goal.astype(np.float32)}


def test_labels_are_the_experts_and_execution_is_disturbed():
    data = collect(Reach(), range(60), noise=0.2)
    assert list(data.seeds) == list(range(60))
    assert data.undisturbed_success == 1.0
    assert 0.1 < (~data.disturbed).mean() < 0.35
    clean = np.clip((data.observations["environment_state"] - data.observations["agent_pos"]) / 2, -0.5, 0.5)
    np.testing.assert_allclose(data.actions, clean, atol=1e-6)
    starts = np.cumsum(data.lengths) - data.lengths
    moved = np.diff(data.observations["agent_pos"], axis=0)
    off = moved - data.actions[:-1]
    inside = np.ones(len(moved), bool)
    inside[starts[1:] - 1] = False
    quiet = inside & ~np.repeat(data.disturbed, data.lengths)[:-1]
    np.testing.assert_allclose(off[quiet], 0, atol=1e-6)
    noisy = off[inside & np.repeat(data.disturbed, data.lengths)[:-1]]
    assert noisy.std() == pytest.approx(0.2 * 0.5, rel=0.2)  # a share of half the range; a little is clipped


def test_an_episode_is_the_same_whichever_others_are_collected():
    all_of_them, one = collect(Reach(), range(8)), collect(Reach(), [5])
    alone = all_of_them.select(all_of_them.seeds == 5)
    np.testing.assert_array_equal(alone.actions, one.actions)
    np.testing.assert_array_equal(alone.observations["agent_pos"], one.observations["agent_pos"])


def test_an_interrupted_collection_goes_on_and_equals_an_uninterrupted_one(tmp_path):
    path, seen = tmp_path / "demonstrations", []

    def interrupt(done, total):
        if done == 70:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(Reach(), range(80), path=path, progress=interrupt)
    resumed = collect(Reach(), range(80), path=path, progress=lambda done, total: seen.append(done))
    assert seen == list(range(51, 81))  # kept every 50 episodes
    whole = collect(Reach(), range(80))
    for name in ("actions", "executed", "lagging", "lengths", "seeds", "success", "disturbed"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name))
    with pytest.raises(DemonstrationError, match=r"collected with .*delete it"):
        collect(Reach(), range(80), noise=0.3, path=path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DemonstrationError, match="not a demonstration file"):
        Demonstrations.load(path)


def test_in_a_lag_the_world_executes_what_the_expert_said_before():
    data = collect(Reach(), range(200), noise=0.0, lag=4)
    assert 0.02 < data.lagging.mean() < 0.4
    lengths, starts = set(), np.cumsum(data.lengths) - data.lengths
    tick = 0
    while tick < len(data.actions):
        if not data.lagging[tick]:
            np.testing.assert_array_equal(data.executed[tick], data.actions[tick])
            tick += 1
            continue
        start = starts[np.searchsorted(starts, tick, side="right") - 1]
        end = tick + int(np.argmin(np.append(data.lagging[tick : start + 40], False)))
        end = min(end, start + data.lengths[np.searchsorted(starts, tick, side="right") - 1])
        candidates = [
            n
            for n in range(end - tick, 5)  # a lag that the episode's end cut short was meant to be longer
            if all(np.array_equal(data.executed[t], data.actions[max(start, t - n)]) for t in range(tick, end))
        ]
        assert candidates, (tick, end)
        lengths.add(end - tick)
        tick = end
    assert lengths == {1, 2, 3, 4}


@pytest.mark.parametrize("lag", [0, 4])
def test_windows_are_given_the_rest_of_a_lag_and_end_with_what_the_expert_still_meant(lag):
    """Against a window built tick by tick, as one would explain it."""
    data = collect(Reach(), range(40), lag=lag)
    # Each tick's observation is unique in its goal and place, which finds the tick that a window came from.
    ticks = {
        (*data.observations["agent_pos"][t], *data.observations["environment_state"][t]): t
        for t in range(len(data.actions))
    }
    bounds = np.cumsum(data.lengths)
    batches = data.batches(6, 64, np.random.default_rng(0))
    found = set()
    for batch in (next(batches) for _ in range(40)):
        assert ("delay" in batch) == (lag > 0)
        for row in range(64):
            seen = batch["observation"]
            at = ticks[(*seen["agent_pos"][row].tolist(), *seen["environment_state"][row].tolist())]
            end, window, delay, over = bounds[np.searchsorted(bounds, at, side="right")], [], 0, False
            for t in range(at, min(at + 6, end)):
                if data.lagging[t] and len(window) == delay:
                    window.append(data.executed[t])
                    delay += 1
                elif not over:
                    window.append(data.actions[t])
                    over = bool(data.lagging[t])  # said in a state that was still the expert's own doing
            assert batch["valid"][row].tolist() == [k < len(window) for k in range(6)]
            np.testing.assert_array_equal(batch["actions"][row].numpy(), window + window[-1:] * (6 - len(window)))
            if lag:
                assert int(batch["delay"][row]) == delay
            found.add(at)
    assert len(found) > 0.9 * len(data.actions)


def test_windows_also_show_what_was_seen_earlier_and_what_will_be_seen():
    lengths = np.array([5, 9])
    count = int(lengths.sum())
    step = np.concatenate([np.arange(5), np.arange(9)])
    pictures = np.broadcast_to(step[:, None, None, None], (count, 2, 2, 3)).astype(np.uint8)
    zeros = np.zeros((count, 1), np.float32)
    data = Demonstrations(
        {"agent_pos": step[:, None].astype(np.float32), "pixels": pictures},
        *(zeros, zeros, np.zeros(count, bool), lengths, np.arange(2), np.ones(2, bool), np.zeros(2, bool)),
    )
    batch = next(data.batches(4, 500, np.random.default_rng(0), stale=3, ahead=(2, 6)))
    now, then = batch["observation"]["agent_pos"][:, 0], batch["slow"]["agent_pos"][:, 0]
    age = (now - then).numpy()
    assert set(age) == {0, 1, 2, 3} and (age <= now.numpy()).all()
    np.testing.assert_array_equal(step[batch["slow_tick"].numpy()], then.numpy())
    first = batch["slow_tick"].numpy() < 5
    length = np.where(first, 5, 9)
    for place, ticks in enumerate((2, 6)):
        valid = now.numpy() + ticks < length
        np.testing.assert_array_equal(batch["future_valid"][:, place].numpy(), valid)
        seen = batch["future"]["pixels"][:, place, 0, 0, 0].numpy()
        np.testing.assert_array_equal(seen, np.minimum(now.numpy() + ticks, length - 1))


def test_observations_flatten_by_key():
    flat = flatten({"pixels": {"front": np.zeros((2, 2, 3), np.uint8)}, "agent_pos": np.ones(2), "instruction": "go"})
    shapes = {"pixels/front": (2, 2, 3), "agent_pos": (2,), "instruction": (64,)}
    assert {key: value.shape for key, value in flat.items()} == shapes
    assert bytes(flat["instruction"]).rstrip(b"\0") == b"go"
    assert list(flatten(np.zeros(3))) == ["observation"]


def test_what_cannot_be_collected_is_named():
    with pytest.raises(DemonstrationError, match=r"CartPole-v1 has no expert\(\)"):
        collect(gymnasium.make("CartPole-v1"), range(2))
    with pytest.raises(ValueError, match="correlation=1"):
        collect(Reach(), range(2), correlation=1)
    with pytest.raises(DemonstrationError, match="seeds is empty"):
        collect(Reach(), [])
    discrete = Reach()
    discrete.action_space = spaces.Discrete(3)
    with pytest.raises(DemonstrationError, match=r"Discrete\(3\), expected a bounded Box"):
        collect(discrete, range(2))


def test_batches_are_tensors_of_the_data():
    batch = next(collect(Reach(), range(3)).batches(4, 7, np.random.default_rng(0)))
    assert batch["actions"].shape == (7, 4, 2)
    assert batch["valid"].dtype == torch.bool
