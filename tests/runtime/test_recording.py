"""What is recorded is what happened: read back by Minari and by ffmpeg."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium import spaces

from palaestra.agents.agent import Transition
from palaestra.runtime import video
from palaestra.runtime.recording import EpisodeRecord, Recorder
from palaestra.runtime.video import VideoWriter, concatenate


class World(gym.Env):
    """Shows everything that a recording may have to hold, and reuses its buffers."""

    observation_space = spaces.Dict(
        {
            "agent_pos": spaces.Box(-1, 1, (3,), np.float32),
            "pixels": spaces.Dict({"top": spaces.Box(0, 255, (32, 40, 3), np.uint8)}),
            "thumbnail": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "wrench": spaces.Box(-np.inf, np.inf, (4, 6), np.float64),
            "instruction": spaces.Text(20),
            "count": spaces.Discrete(100),
        }
    )
    action_space: spaces.Space = spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)))

    def __init__(self) -> None:
        self._buffer = np.zeros(3, np.float32)

    def _look(self) -> dict[str, Any]:
        rng = self.np_random
        self._buffer[:] = rng.uniform(-1, 1, 3)
        return {
            "agent_pos": self._buffer,
            "pixels": {"top": rng.integers(0, 256, (32, 40, 3), np.uint8)},
            "thumbnail": rng.integers(0, 256, (8, 8, 3), np.uint8),
            "wrench": rng.normal(size=(4, 6)),
            "instruction": "lift the cube ü",
            "count": int(rng.integers(100)),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._tick = 0
        return self._look(), {}

    def step(self, action):
        self._tick += 1
        return self._look(), float(self._tick), self._tick == 4, False, {"success": self._tick == 4}


def episode(env: gym.Env, seed: int) -> EpisodeRecord:
    observation, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    record = EpisodeRecord.begin(observation, seed)
    over = False
    while not over:
        action = env.action_space.sample()
        after, reward, terminated, truncated, info = env.step(action)
        record.add(Transition(observation, action, float(reward), after, terminated, truncated), info)
        observation, over = after, terminated or truncated
    return record


def load(directory: Path, dataset_id: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(directory))
    assert dataset_id in minari.list_local_datasets()
    return minari.load_dataset(dataset_id)


def check(dataset: Any, env: gym.Env, seeds: list[int]) -> None:
    """The data set holds exactly the episodes that these seeds give."""
    assert dataset.total_episodes == len(seeds)
    assert dataset.total_steps == 4 * len(seeds)
    for got, seed in zip(dataset.iterate_episodes(), seeds, strict=True):
        want = episode(env, seed)
        for key in ("agent_pos", "thumbnail", "wrench", "count"):
            np.testing.assert_array_equal(got.observations[key], np.stack([o[key] for o in want.observations]))
        top = np.stack([o["pixels"]["top"] for o in want.observations])
        np.testing.assert_array_equal(got.observations["pixels"]["top"], top)  # to the bit: no JPEG
        assert list(got.observations["instruction"]) == ["lift the cube ü"] * 5
        np.testing.assert_array_equal(got.actions[0], np.stack([a[0] for a in want.actions]))
        np.testing.assert_array_equal(got.actions[1], [a[1] for a in want.actions])
        np.testing.assert_array_equal(got.rewards, [1, 2, 3, 4])
        np.testing.assert_array_equal(got.terminations, [False] * 3 + [True])
        assert not got.truncations.any()
        np.testing.assert_array_equal(got.infos["success"], [False] * 4 + [True])
    stored = list(dataset.storage.get_episode_metadata(range(len(seeds))))
    assert [m["seed"] for m in stored] == seeds


def test_minari_reads_what_was_recorded(tmp_path, monkeypatch):
    env = World()
    recorder = Recorder(tmp_path, env, "palaestra/World-v0+sensor_noise:std=0.02", "flow:steps=4")
    assert recorder.dataset_id == "palaestra/World-v0-sensor_noise-std-0-02/flow-steps-4-v0"
    assert list(tmp_path.iterdir()) == []  # nothing before the first episode
    seeds = [5, 3, 8]
    for count, seed in enumerate(seeds, start=1):
        assert recorder.add(episode(env, seed))
        check(load(tmp_path, recorder.dataset_id, monkeypatch), env, seeds[:count])  # whole at any time
    assert not recorder.add(episode(env, 3))
    recorder.close()
    dataset = load(tmp_path, recorder.dataset_id, monkeypatch)
    check(dataset, env, seeds)
    assert dataset.storage.metadata["algorithm_name"] == "flow:steps=4"
    data = tmp_path / recorder.dataset_id / "data"
    assert sorted(path.name for path in data.iterdir()) == ["main_data.hdf5", "metadata.json"]


def test_a_registered_world_can_be_made_again(tmp_path, monkeypatch):
    env = gym.make("CartPole-v1")
    with Recorder(tmp_path, env, "CartPole-v1", "random") as recorder:
        recorder.add(episode(env, 0))
    dataset = load(tmp_path, recorder.dataset_id, monkeypatch)
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    (got,) = dataset.iterate_episodes()
    assert got.infos is None or "success" not in got.infos
    assert len(got.observations) == len(got.actions) + 1


def test_a_run_is_continued_and_another_gets_the_next_version(tmp_path, monkeypatch):
    env = World()
    first = Recorder(tmp_path, env, "World", "a", run="one")
    first.add(episode(env, 0))  # and the process ends without closing
    again = Recorder(tmp_path, env, "World", "a", run="one")
    assert again.dataset_id == first.dataset_id == "World/a-v0"
    assert not again.add(episode(env, 0))
    again.add(episode(env, 1))
    again.close()
    longer = Recorder(tmp_path, env, "World", "a", run="one")  # from the gathered file
    longer.add(episode(env, 2))
    check(load(tmp_path, "World/a-v0", monkeypatch), env, [0, 1, 2])
    longer.close()
    check(load(tmp_path, "World/a-v0", monkeypatch), env, [0, 1, 2])

    others = [Recorder(tmp_path, env, "World", "a", run=run) for run in ("two", None)]
    for recorder in others:  # both meant to take v1
        recorder.add(episode(env, 9))
        recorder.close()
    assert [recorder.dataset_id for recorder in others] == ["World/a-v1", "World/a-v2"]
    check(load(tmp_path, "World/a-v2", monkeypatch), env, [9])


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from test_recording import Recorder, World, episode
env = World()
recorder = Recorder(sys.argv[1], env, "World", "a", run="one")
for seed in range(int(sys.argv[3]), 10_000):
    recorder.add(episode(env, seed))
    print(seed, flush=True)
"""


@pytest.mark.parametrize("deaths", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_leaves_every_episode_that_was_added(tmp_path, monkeypatch, deaths):
    rng, done = np.random.default_rng(), 0
    for _ in range(deaths):
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent), str(done)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        reported = [int(process.stdout.readline())]
        try:
            process.wait(rng.uniform(0, 0.1))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        reported += [int(line) for line in process.stdout.read().splitlines()]
        dataset = load(tmp_path, "World/a-v0", monkeypatch)
        assert reported[-1] + 1 <= dataset.total_episodes <= reported[-1] + 2
        done = dataset.total_episodes
    check(dataset, World(), list(range(done)))
    with Recorder(tmp_path, World(), "World", "a", run="one") as recorder:
        recorder.add(episode(World(), done))
    check(load(tmp_path, "World/a-v0", monkeypatch), World(), list(range(done + 1)))


def test_what_cannot_be_recorded(tmp_path, monkeypatch):
    env = World()
    recorder = Recorder(tmp_path, env, "World", "a")
    with pytest.raises(ValueError, match="has no steps"):
        recorder.add(EpisodeRecord.begin(env.reset(seed=0)[0]))
    record = episode(env, 0)
    record.observations[2]["wrench"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"observations|wrench"):
        recorder.add(record)
    del record.observations[1]["wrench"]
    with pytest.raises(ValueError, match="'wrench' is in the space"):
        recorder.add(record)
    assert recorder.add(episode(env, 1))  # an episode that failed to be written leaves nothing of itself
    check(load(tmp_path, recorder.dataset_id, monkeypatch), env, [1])
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ValueError, match=r"palaestra\[record\]"):
        Recorder(tmp_path, env, "World", "a")


# Video --------------------------------------------------------------------------------------------------------------


def frames_of(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return meta, np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])


def film(path: Path, levels: list[int], size: tuple[int, int] = (240, 320), caption: str | None = None) -> Path:
    with VideoWriter(path, fps=10) as writer:
        for level in levels:
            frame = np.full((*size, 3), level, np.uint8)
            frame[: size[0] // 2] = (255, 0, 0)
            writer.add(frame, caption)
    return path


def test_the_frames_come_back(tmp_path):
    path = film(tmp_path / "new" / "film.mp4", [40, 120, 200])
    meta, frames = frames_of(path)
    assert frames.shape == (3, 240, 320, 3)
    assert (meta["fps"], meta["codec"], meta["pix_fmt"].partition("(")[0]) == (10, "h264", "yuv420p")
    for frame, level in zip(frames, [40, 120, 200], strict=True):
        assert abs(frame[180:].astype(float) - level).mean() < 4
        red = frame[60, 160].astype(int)
        assert red[0] > 230
        assert red[1:].max() < 30
    assert [p.name for p in path.parent.iterdir()] == ["film.mp4"]


@pytest.mark.parametrize(("size", "shown"), [((241, 321), (242, 322)), ((64, 64), (320, 320)), ((33, 51), (232, 358))])
def test_odd_and_small_pictures(tmp_path, size, shown):
    _, frames = frames_of(film(tmp_path / "film.mp4", [100], size))
    assert frames.shape[1:3] == shown
    assert abs(frames[0, shown[0] * 3 // 4 :].astype(float) - 100).mean() < 4


def test_a_caption_stands_below_the_picture(tmp_path):
    _, frames = frames_of(film(tmp_path / "film.mp4", [128], caption="flow · seed 3 · tick 41 · success"))
    assert frames.shape[1:] == (258, 320, 3)
    strip = frames[0, 240:].astype(int).mean(axis=-1)
    assert strip[:, 4:200].max() > 150, "ink"
    assert strip[:, 310:].max() < 60, "and room to spare"
    long = video.line_of_text("a very long caption " * 20, 320, 18)
    assert long[:, -3:].max() < 60, "what is too long is cut, not run over"


def test_parts_are_joined_and_removed(tmp_path):
    parts = [film(tmp_path / f"it's part {i}.mp4", [i * 80 + 20] * 2, caption="c") for i in range(3)]
    assert concatenate(parts, tmp_path / "whole.mp4") == tmp_path / "whole.mp4"
    _, frames = frames_of(tmp_path / "whole.mp4")
    assert [round(float(f[150:230].mean()) / 20) * 20 for f in frames] == [20, 20, 100, 100, 180, 180]
    assert [p.name for p in tmp_path.iterdir()] == ["whole.mp4"]

    assert concatenate([tmp_path / "whole.mp4"], tmp_path / "moved.mp4") == tmp_path / "moved.mp4"
    assert concatenate([], tmp_path / "none.mp4") is None
    assert [p.name for p in tmp_path.iterdir()] == ["moved.mp4"]


def test_parts_that_do_not_fit(tmp_path):
    parts = [film(tmp_path / "a.mp4", [1]), film(tmp_path / "b.mp4", [1], (200, 320))]
    with pytest.raises(ValueError, match=r"different sizes: 320x240 \(a.mp4\), 320x200 \(b.mp4\)"):
        concatenate(parts, tmp_path / "whole.mp4")
    with pytest.raises(ValueError, match="does not exist"):
        concatenate([tmp_path / "c.mp4"], tmp_path / "whole.mp4")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.mp4", "b.mp4"]


def test_an_interrupted_video_leaves_nothing_half_written(tmp_path):
    path = tmp_path / "film.mp4"
    path.write_text("the old one")

    def interrupted() -> None:
        with VideoWriter(path) as writer:
            writer.add(np.zeros((240, 320, 3), np.uint8))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [p.name for p in tmp_path.iterdir()] == ["film.mp4"]
    assert path.read_text() == "the old one"
    VideoWriter(tmp_path / "empty.mp4").close()
    assert not (tmp_path / "empty.mp4").exists()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (None, "render_mode='rgb_array'"),
        (np.zeros((240, 320, 3)), "float64 of shape"),
        (np.zeros((240, 320), np.uint8), "expected uint8"),
        (np.zeros((240, 322, 3), np.uint8), "the first had"),
    ],
)
def test_a_frame_that_is_no_picture(tmp_path, frame, message):
    with VideoWriter(tmp_path / "film.mp4") as writer:
        writer.add(np.zeros((240, 320, 3), np.uint8))
        with pytest.raises(ValueError, match=message):
            writer.add(frame)


def test_a_bad_call(tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.mp4"):
        VideoWriter(tmp_path / "film.gif")
    with pytest.raises(ValueError, match="fps=0"):
        VideoWriter(tmp_path / "film.mp4", fps=0)
