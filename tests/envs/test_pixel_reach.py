"""PixelReach and its raster: pictures against geometry, the expert against arithmetic, the words against the discs."""

from math import ceil, dist, pi

import gymnasium
import numpy as np
import pytest
from playing import assert_gymnasium_accepts, assert_same_in_another_process, play

import palaestra  # noqa: F401 - registers the ids
from palaestra.envs.raster import Raster, finish
from palaestra.envs.reach.pixel_reach import AGENT, COLOURS, GROUND, PixelReach

GREY, WHITE = (100, 100, 100), (200, 200, 200)


@pytest.fixture(scope="module")
def env():
    return PixelReach()


def middles(size):
    """World x and y of the middle of each pixel, for a picture of the unit square."""
    x = (np.arange(size) + 0.5) / size
    return np.meshgrid(x, x[::-1])


def area_and_centre(share):
    x, y = middles(len(share))
    return share.sum() / share.size, ((share * x).sum() / share.sum(), (share * y).sum() / share.sum())


def unmix(picture, *colours):
    """How much of each pixel every colour covers over the ground, by least squares over the three channels."""
    over = np.array(colours, float) - GROUND
    return np.moveaxis((picture - np.array(GROUND, float)) @ np.linalg.pinv(over), -1, 0)


@pytest.mark.parametrize("size", [20, 33, 64])
def test_a_disc_has_its_area_and_stands_at_its_place(size):
    raster, draw = Raster(size, (0.0, 0.0), 1.0), np.random.default_rng(size)
    for _ in range(50):
        x, y = draw.uniform(0.2, 0.8, 2)
        picture = raster.blank(GREY)
        raster.disc(picture, x, y, 0.1, WHITE)
        area, centre = area_and_centre((picture[..., 0] - 100) / 100)
        # The integral of an edge that is one pixel wide; the sum over the middles of pixels is not quite that.
        assert area == pytest.approx(pi * 0.1**2 + pi / 12 / size**2, rel=0.025)
        assert dist(centre, (x, y)) < 0.05 / size


@pytest.mark.parametrize("size", [20, 33])
def test_a_bar_covers_of_each_pixel_what_it_overlaps(size):
    raster, draw = Raster(size, (0.0, 0.0), 1.0), np.random.default_rng(size)
    edges = np.arange(size + 1) / size
    for _ in range(50):
        middle, half = draw.uniform(0, 1, 2), draw.uniform(0.005, 0.15, 2)  # from a tenth of a pixel
        picture = raster.blank(GREY)
        raster.bar(picture, middle[0], middle[1], half[0], half[1], WHITE)
        overlap = [
            size * (np.minimum(edges[1:], m + h) - np.maximum(edges[:-1], m - h)).clip(0)
            for m, h in zip(middle, half, strict=True)
        ]
        expected = np.outer(overlap[1][::-1], overlap[0])
        np.testing.assert_allclose((picture[..., 0] - 100) / 100, expected, atol=1e-4)


def test_what_lies_outside_the_picture_is_left_out():
    raster, wide = Raster(20, (0.0, 0.0), 1.0), Raster(60, (-1.0, -1.0), 3.0)
    for x, y in ((0.0, 0.3), (1.0, 1.0), (-0.05, 1.02), (1.3, 0.5), (-0.9, -0.9), (0.5, 1.9)):
        for shape, reach in (("disc", (0.1,)), ("bar", (0.1, 0.04))):
            part, whole = raster.blank(GREY), wide.blank(GREY)
            getattr(raster, shape)(part, x, y, *reach, WHITE)
            getattr(wide, shape)(whole, x, y, *reach, WHITE)
            np.testing.assert_array_equal(finish(part), finish(whole)[20:40, 20:40])


def test_the_picture_shows_agent_and_disc_where_they_are():
    for size in (20, 64):
        env, draw = PixelReach(discs=1, size=size), np.random.default_rng(3)
        for seed in range(10):
            seen, _ = env.reset(seed=seed)
            for _ in range(6):
                (_, its), (colour, target) = env.places.items()
                agent, disc = unmix(seen["pixels"], AGENT, COLOURS[colour])
                hidden = dist(its, target) < 0.17 + 2 / size
                for share, radius, centre in ((agent, 0.07, its), (disc, 0.10, target)):
                    if hidden and share is disc:
                        continue
                    area, found = area_and_centre(share)
                    assert area == pytest.approx(pi * radius**2 + pi / 12 / size**2, rel=0.04)
                    assert dist(found, centre) < 0.1 / size
                seen, _, terminated, _, _ = env.step(draw.uniform(-1, 1, 2))
                if terminated:
                    break


def test_every_disc_has_its_colour_and_the_film_marks_the_right_one():
    env = PixelReach(discs=4, render_mode="rgb_array")
    for seed in range(20):
        seen, _ = env.reset(seed=seed)
        film = env.render()
        assert film.shape == (480, 480, 3)
        for colour, (x, y) in env._discs.items():
            for picture in (seen["pixels"], film):
                size = len(picture)
                np.testing.assert_array_equal(picture[size - 1 - int(y * size), int(x * size)], COLOURS[colour])
            ring = film[479 - int(y * 480), min(int((x - 0.106) * 480), 479)] if x > 0.11 else None
            if ring is not None and dist((x - 0.106, y), env._agent) > 0.08:
                assert (ring.min() > 200) == (seen["instruction"] == f"go to the {colour} disc")


def test_episodes_are_laid_out_as_the_page_says():
    asked = []
    for discs in (1, 3, 4):
        env = PixelReach(discs=discs)
        for seed in range(200):
            seen, _ = env.reset(seed=seed)
            centres = np.array(list(env._discs.values()))
            assert len(centres) == discs and (centres >= 0.1).all() and (centres <= 0.9).all()
            gaps = np.hypot(*(centres[:, None] - centres).T)[~np.eye(discs, dtype=bool)]
            assert (gaps > 0.28).all()
            assert np.hypot(*(centres - env._agent).T).min() > 0.17
            asked.append(seen["instruction"])
    counts = [asked.count(f"go to the {colour} disc") for colour in COLOURS]
    assert sum(counts) == len(asked) == 600
    assert max(abs(np.array(counts) - 150)) < 40  # a fair die leaves 150 by 40 once in 6000 times


def test_expert_goes_straight_and_always_arrives():
    for options in ({}, {"discs": 4, "radius": 0.03}, {"discs": 1, "radius": 0.14}):
        env = PixelReach(**options)
        radius = options.get("radius", 0.06)
        for seed in range(100):
            env.reset(seed=seed)
            start = dist(env._agent, env._target)
            _, infos, total = play(env, seed)
            last = infos[-1]
            assert total == last["score"] == 1.0 and last["success"]
            assert [info["success"] for info in infos[:-1]] == [False] * (len(infos) - 1)
            # 0.06 m a tick until strictly nearer than the radius
            assert len(infos) == max(1, ceil((start - radius) / 0.06 + 1e-9))
            assert last["metrics"]["path_ratio"] == pytest.approx(1.0, abs=1e-6)
            assert last["metrics"]["distance_m"] < radius


def test_a_wrong_disc_ends_nothing_and_is_counted(env):
    missed = 0
    for seed in range(20):
        env.reset(seed=seed)
        start, wrong = env._agent, list(env._discs.values())[1]

        def astray(wrong=wrong):
            ahead = np.subtract(wrong, env._agent)
            return ahead / max(np.hypot(*ahead), 0.06)

        _, infos, total = until_over(env, astray)
        if infos[-1]["success"]:
            continue  # the right one lies on the way
        missed += 1
        assert len(infos) == 36 and total == infos[-1]["score"] == 0.0
        back = dist(wrong, env._target)
        assert infos[-1]["metrics"] == pytest.approx(
            {
                "distance_m": back,
                "path_ratio": (dist(start, wrong) + back) / dist(start, env._target),
                "wrong_disc": 1.0,
            },
            abs=1e-5,
        )
    assert missed > 10


def test_velocities_move_the_agent_and_the_edge_stops_it(env):
    env.reset(seed=2)
    x, y = env._agent
    env.step(np.array([0.5, -1.0]))
    np.testing.assert_allclose(env._agent, (x + 0.03, max(y - 0.06, 0.07)), atol=1e-12)
    for seed in range(10):
        env.reset(seed=seed)
        _, infos, _ = until_over(env, lambda: np.array([5.0, 1.0]))  # clipped to 1
        if not infos[-1]["success"]:
            np.testing.assert_allclose(env._agent, (0.93, 0.93))
            assert len(infos) == 36


def test_gymnasium_accepts_it():
    made = gymnasium.make("palaestra/PixelReach-v0", render_mode="rgb_array")
    assert_gymnasium_accepts(made, skip_render_check=False)
    assert made.unwrapped.interface.control_hz == 10
    assert set(made.observation_space) == {"pixels", "instruction"}


def test_same_seed_same_episode_in_another_process(env):
    assert_same_in_another_process(env, ticks=3)


def test_bad_input_gets_a_sentence(env):
    for options, sentence in (
        ({"discs": 0}, "discs=0, expected 1 to 4"),
        ({"discs": 5}, "discs=5"),
        ({"discs": True}, "discs=True"),
        ({"size": 7}, "size=7, expected the side of the picture"),
        ({"size": 20.0}, "size=20.0"),
        ({"radius": 0.2}, "radius=0.2"),
        ({"radius": float("nan")}, "radius=nan"),
        ({"render_mode": "human"}, "render_mode='human'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            PixelReach(**options)
    env.reset(seed=0)
    for action in (np.zeros(3), 0.5, [np.nan, 0], [np.inf, 0]):
        with pytest.raises(ValueError, match="two finite velocities"):
            env.step(action)
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        PixelReach().step(np.zeros(2))


def until_over(env, act):
    """Step an episode that has been reset to its end, whichever; the observations, infos and return."""
    observations, infos, total, over = [], [], 0.0, False
    while not over:
        observation, reward, terminated, truncated, info = env.step(act())
        observations.append(observation)
        infos.append(info)
        total += reward
        over = terminated or truncated
    return observations, infos, total
