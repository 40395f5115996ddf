"""Looking on: a world in which much happens in a tick is filmed with what happened in between."""

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest

from palaestra.agents.agent import Episode
from palaestra.agents.scripted import Random
from palaestra.runtime.executor import Executor
from palaestra.runtime.watch import Watch


class Plain(gymnasium.Env):
    """Three steps, each with the picture of ``render`` alone."""

    metadata = {"render_fps": 10}
    observation_space = action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return 0, {}

    def step(self, action):
        self.count += 1
        return self.count, 0.0, self.count == 3, False, {}

    def render(self):
        return np.full((64, 320, 3), 200, np.uint8)


class Eventful(Plain):
    """Step n has n pictures before that one."""

    def footage(self):
        for n in range(self.count):
            yield np.full((64, 320, 3), 60 * n, np.uint8)


@pytest.mark.parametrize(("world", "pictures"), [(Plain, 0), (Eventful, 1 + 2 + 3)])
def test_footage_stands_in_the_film_before_the_picture_of_its_tick(tmp_path, world, pictures):
    world = world()
    watch = Watch("film", tmp_path / "film.mp4", False)
    episode = Episode(0, "test/World-v0", world.observation_space, world.action_space)
    (outcome,) = Executor(Random()).run([(world, episode)], [watch])
    assert not outcome.failed and outcome.ticks == 3
    frames = imageio_ffmpeg.read_frames(str(tmp_path / "film.mp4"))
    width, height = next(frames)["size"]
    seen = [np.frombuffer(frame, np.uint8).reshape(height, width, 3)[:64].mean() for frame in frames]
    held = 10  # with the result
    assert len(seen) == 4 + pictures + held
    if pictures:
        np.testing.assert_allclose(seen[:10], [200, 0, 200, 0, 60, 200, 0, 60, 120, 200], atol=6)
