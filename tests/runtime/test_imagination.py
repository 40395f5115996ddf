"""The film shows what was foreseen beside what came: the right pictures at the right ticks, also of late plans."""

import math
import re
from pathlib import Path

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium import spaces

from palaestra.agents.agent import ActionPart, Agent, Call, Episode
from palaestra.runtime import client, watch
from palaestra.runtime.client import RemoteAgent
from palaestra.runtime.clock import Lockstep, Virtual
from palaestra.runtime.executor import Execution, Executor
from palaestra.runtime.frame_codec import WireError
from palaestra.runtime.imagination import Imagination
from palaestra.runtime.latency import LatencyModel
from palaestra.runtime.rollout import run
from palaestra.runtime.server import PolicyServer
from palaestra.runtime.store import Store
from palaestra.runtime.watch import Watch

SIDE, TICKS, AHEAD = 4, 14, (2, 6)


def seen(tick):
    return np.full((SIDE, SIDE, 6), (0, 10 * tick, 60, 1, 2, 3), np.uint8)  # the past half is not to be shown


def foreseen(made, due):
    return np.full((SIDE, SIDE, 6), (10 * made + 5, 10 * due, 120, 1, 2, 3), np.uint8)


def colour(picture):
    """As it is shown."""
    return tuple(picture[0, 0, :3].tolist())


class World(gymnasium.Env):
    """Shows in its picture which tick it is."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = spaces.Dict({"eyes": spaces.Dict({"left": spaces.Box(0, 255, (SIDE, SIDE, 6), np.uint8)})})
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.drawn = np.zeros((240, 320, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tick = 0
        self.drawn[:] = 200
        return {"eyes": {"left": seen(0)}}, {}

    def step(self, action):
        self.tick += 1
        self.drawn[:] = 200 + self.tick  # into the same array, as some worlds do
        return {"eyes": {"left": seen(self.tick)}}, 0.0, False, self.tick == TICKS, {}

    def render(self):
        return self.drawn


gymnasium.register("test/Seen-v0", World)


class Prophet(Agent):
    """Says what it foresees before its first action is final."""

    imagines = "eyes/left", AHEAD

    def __init__(self, chunk=4):
        self.chunk, self.asked = chunk, []

    def plan(self, memory, call: Call):
        self.asked.append(call.tick)
        frames = np.stack([foreseen(call.tick, call.tick + n) for n in AHEAD])
        yield ActionPart(evaluations=1, extras={"imagined": frames, "imagined_in": np.array(AHEAD)})
        yield ActionPart(actions=np.zeros((self.chunk, 1), np.float32), evaluations=1)


class Reel:
    """Stands in for the encoder, which changes colours, and keeps the film as it is."""

    films: list = []

    def __init__(self, path, fps):
        self.frames = []
        self.films.append(self.frames)

    def add(self, frame, caption):
        self.frames.append((frame.copy(), caption))

    def close(self):
        pass

    discard = close


def filmed(monkeypatch, agent, clock=None, lanes=1, imagines=Prophet.imagines, **execution):
    monkeypatch.setattr(watch, "VideoWriter", Reel)
    monkeypatch.setattr(Reel, "films", [])
    worlds = [World() for _ in range(lanes)]
    episodes = [Episode(0, "test/World-v0", w.observation_space, w.action_space, control_hz=10.0) for w in worlds]
    watchers = [Watch("film", Path("film.mp4"), False, imagines) for _ in worlds]
    outcomes = Executor(agent, clock, Execution(**execution)).run(list(zip(worlds, episodes, strict=True)), watchers)
    assert not any(outcome.failed for outcome in outcomes), outcomes
    return Reel.films


def expected(asked, tick, late):
    """By hand: what is foreseen for now or last was, and what the newest plan foresees, of the plans that are there."""
    there = [made for made in asked if made + late <= tick]
    past = [(made + n, made) for made in there for n in AHEAD if made + n <= tick]
    due, made = max(past, default=(None, None))
    future = [foreseen(there[-1], there[-1] + n) for n in AHEAD] if there else []
    return [seen(tick), *([] if due is None else [foreseen(made, due)]), *future]


@pytest.mark.parametrize(
    ("clock", "mode", "late"),
    [
        (Lockstep(), "sync", 0),
        (Virtual(LatencyModel("slow", evaluation_ms=250)), "async", 3),  # later than the nearer forecast is due
        (Virtual(LatencyModel("slow", evaluation_ms=250)), "sync", 3),
    ],
)
def test_each_picture_shows_what_was_foreseen_by_its_tick(monkeypatch, clock, mode, late):
    agent = Prophet()
    (frames,) = filmed(monkeypatch, agent, clock, mode=mode)
    assert len(agent.asked) > 1 and len(frames) == TICKS + 1 + 10
    assert len({frame.shape for frame, _ in frames}) == 1
    for tick, (frame, caption) in enumerate(frames[: TICKS + 1]):
        assert f"tick {tick} " in caption and (frame[:240, :320] == 200 + tick).all()
        wanted = {colour(picture) for picture in expected(agent.asked, tick, late)}
        codes, counts = np.unique(frame[:, 320:] @ np.array([1, 256, 65536]), return_counts=True)
        areas = {(c % 256, c // 256 % 256, c // 65536): n for c, n in zip(codes, counts, strict=True)}
        areas = {found: area for found, area in areas.items() if found[2] in (60, 120)}
        square = areas[colour(seen(tick))]
        assert square >= SIDE**2 and math.isqrt(square) % SIDE == 0, "enlarged by a whole factor"
        assert {found for found, area in areas.items() if area >= square} == wanted
        assert all(areas[found] % square == 0 for found in wanted)


def test_the_foreseen_stands_beside_the_seen_and_the_future_below(monkeypatch):
    (frames,) = filmed(monkeypatch, Prophet())
    frame, _ = frames[12]  # the plans of ticks 8 and 12 are there

    def corner(picture):
        rows, columns = np.where((frame == colour(picture)).all(-1))
        return int(rows.min()), int(columns.min())

    (top, left), (beside, right) = corner(seen(12)), corner(foreseen(8, 10))
    below = corner(foreseen(12, 14)), corner(foreseen(12, 18))
    assert beside == top and 320 < left < right
    assert below[0][0] == below[1][0] > top and (below[0][1], below[1][1]) == (left, right)


def test_episodes_in_step_are_not_mixed_up(monkeypatch):
    alone = filmed(monkeypatch, Prophet())[0]
    for frames in filmed(monkeypatch, Prophet(), lanes=2):
        for (ours, _), (theirs, _) in zip(alone, frames, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_the_film_of_an_agent_behind_a_socket_is_the_same(monkeypatch):
    (here,) = filmed(monkeypatch, Prophet())
    world = World()
    episode = Episode(0, "test/World-v0", world.observation_space, world.action_space, control_hz=10.0)
    with PolicyServer(Prophet(), episode, "tcp://127.0.0.1:*") as server:
        agent = RemoteAgent(server.bind)
        assert agent.imagines == Prophet.imagines
        (there,) = filmed(monkeypatch, agent)
        agent.close()
    for (ours, _), (theirs, _) in zip(here, there, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("said", ["pixels", ["pixels"], [1, [2]], ["pixels", [-1]], ["p", [1] * 65], ["p", ["2"]]])
def test_what_a_server_says_of_its_imagination_is_checked(said):
    assert client._imagines(None) is None and client._imagines(["pixels", [6, 12]]) == ("pixels", (6, 12))
    with pytest.raises(WireError, match="imagines="):
        client._imagines(said)


def test_who_does_not_imagine_gets_the_film_without_a_panel(monkeypatch):
    (frames,) = filmed(monkeypatch, Prophet(), imagines=None)
    for tick, (frame, _) in enumerate(frames):
        np.testing.assert_array_equal(frame, np.full((240, 320, 3), 200 + min(tick, TICKS), np.uint8))


@pytest.mark.parametrize("clock", ["lockstep", "wall"])
def test_the_films_of_a_run_have_one_size_and_are_joined(tmp_path, clock):
    film = tmp_path / "film.mp4"
    store = Store(tmp_path / "store.sqlite")
    result = run("test/Seen-v0", Prophet(), episodes=2, clock=clock, video=film, store=store)
    assert result.video == film and not result.failed and result.trouble is None
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(film))
    assert frames == 2 * (TICKS + 1 + 10)
    reader = imageio_ffmpeg.read_frames(str(film))
    width, height = next(reader)["size"]
    reader.close()
    assert width > 320 and height > 240


def test_a_forecast_is_measured_against_one_that_nothing_moves():
    panel = Imagination("pixels", (2,))
    rng = np.random.default_rng(0)
    first, last = rng.integers(0, 200, (2, 8, 8, 3), np.uint8)
    panel.see(0, {"pixels": first})
    panel.foresee(0, {"imagined": (last + 10)[None], "imagined_in": np.array([2])})
    panel.see(1, {"pixels": first})
    assert panel.checked is None
    panel.see(2, {"pixels": last})
    assert panel.checked.psnr_db == pytest.approx(20 * math.log10(255 / 10))
    moved = np.mean((first.astype(float) - last) ** 2)
    assert panel.checked.still_db == pytest.approx(20 * math.log10(255) - 10 * math.log10(moved))


@pytest.mark.parametrize(("height", "width"), [(84, 84), (480, 640), (33, 51)])
@pytest.mark.parametrize(("side", "channels", "ahead"), [(20, 3, (6,)), (64, 1, (1, 2, 3, 4)), (224, 6, (6, 12))])
def test_the_panel_has_one_size_from_the_first_picture_on(height, width, side, channels, ahead):
    panel = Imagination("pixels", ahead)
    observation = {"pixels": np.zeros((side, side, channels), np.uint8)}
    picture = np.full((height, width, 3), 90, np.uint8)
    panel.see(0, observation)
    shapes = {panel.beside(picture).shape}
    extras = {"imagined": np.zeros((len(ahead), side, side, channels), np.uint8), "imagined_in": np.array(ahead)}
    panel.foresee(0, extras)
    for tick in range(1, 5):
        panel.see(tick, observation)
        shapes.add(panel.beside(picture).shape)
    ((tall, wide, colours),) = shapes
    factor = math.isqrt((panel.beside(picture) == 90).all(-1).sum() // (height * width))
    assert tall >= factor * height and wide > factor * width >= 320 and colours == 3


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        (
            {"imagined": np.zeros((1, 4, 4, 3), np.uint8), "imagined_in": np.array([2])},
            r"expected uint8 \[T, 4, 4, 6\]",
        ),
        ({"imagined": np.zeros((1, 4, 4, 6)), "imagined_in": np.array([2])}, "is float64"),
        ({"imagined": np.zeros((1, 4, 4, 6), np.uint8)}, "imagined_in'] is None"),
        ({"imagined": np.zeros((1, 4, 4, 6), np.uint8), "imagined_in": np.array([2, 6])}, "each of the 1 imagined"),
        ({"imagined": np.zeros((1, 4, 4, 6), np.uint8), "imagined_in": np.array([-1])}, "0 or more"),
    ],
)
def test_a_forecast_that_cannot_be_shown_fails_the_recording_in_words(tmp_path, extras, words):
    class Confused(Prophet):
        def plan(self, memory, call):
            yield ActionPart(actions=np.zeros((4, 1), np.float32), evaluations=1, extras=extras)

    world = World()
    episode = Episode(0, "test/World-v0", world.observation_space, world.action_space)
    watcher = Watch("film", tmp_path / "film.mp4", False, Prophet.imagines)
    (outcome,) = Executor(Confused()).run([(world, episode)], [watcher])
    assert outcome.failed and outcome.reason.startswith("the recording: ValueError")
    assert re.search(words, outcome.reason)
    assert (tmp_path / "film.mp4").exists(), "the film says why"


def test_a_picture_that_is_not_observed_is_refused():
    with pytest.raises(ValueError, match=r"imagines 'wrist', expected a picture of the observation: \['eyes/left'\]"):
        Imagination("wrist", (6,)).see(0, {"eyes": {"left": seen(0)}})
