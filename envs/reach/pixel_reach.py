"""Go to the disc that is named: a world of pictures and words, so small that a model of its future can be learned.

The task behind the study of "Fast-WAM: Do World Action Models Need Test-time Future Imagination?" (arXiv 2603.16666).
Nothing moves but what the agent moves, so whoever can predict the next pictures knows what its actions do.
"""

from __future__ import annotations

from collections.abc import Callable
from math import dist, hypot, isfinite
from string import printable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ..interface import Component, Interface
from ..raster import Colour, Raster, finish

CONTROL_HZ = 10
LIMIT_TICKS = 36
STEP = 0.06  # m per tick along each axis, at an action of 1

AGENT_RADIUS, DISC_RADIUS = 0.07, 0.10  # m
APART = 0.28  # m, between the centres of two discs

GROUND: Colour = (38, 40, 46)
AGENT: Colour = (255, 255, 255)
COLOURS: dict[str, Colour] = {
    "red": (220, 50, 47),
    "green": (60, 170, 70),
    "blue": (50, 90, 220),
    "yellow": (235, 200, 50),
}

FILM = 480  # pixels a side, of what render shows
MARK = 0.012  # m, the ring around the disc to go to, in the film alone

Point = tuple[float, float]


class PixelReach(gymnasium.Env[dict[str, Any], np.ndarray]):
    """Move a white disc onto the one of several coloured discs that the instruction names, seeing a picture.

    ## Description
    On a square of 1 m, seen from above (x to the right, y up in the picture), lie coloured discs of radius 0.10 m
    and the agent, a white disc of radius 0.07 m. It moves at the velocity of the action, stops at the edge and
    slides over the coloured discs, which stay where they are. It is to go to the one disc that is named.

    ## Action
    `Box(-1, 1, (2,), float32)`, held for one control tick of 1/10 s. What lies outside is clipped.

    | # | action | min | max | unit |
    |---|---|---|---|---|
    | 0 | absolute velocity of the agent along x | -1 | 1 | 0.6 m/s (0.06 m per tick) |
    | 1 | the same along y | -1 | 1 | 0.6 m/s |

    ## Observation
    A `Dict` without numbers: where the agent is, only the picture tells.

    | key | observation | min | max |
    |---|---|---|---|
    | pixels uint8 [size, size, 3] | the whole square, RGB, top row first | 0 | 255 |
    | instruction, text | "go to the red disc", or green, blue, yellow | | |

    The picture is painted (it needs no OpenGL) with smooth edges: how much of a pixel a disc covers shows where it is
    to a small part of a pixel.

    ## Reward
    1 when the agent's centre comes within `radius` of the centre of the right disc, else 0. So the return is the
    score. `info["success"]` says the same at every step. The last `info` also holds `score` and `metrics`:
    `distance_m`, from the right disc's centre at the end; `path_ratio`, the length of the path, completed by a
    straight line to that centre, over the straight line from the start to it (1 is straight); `wrong_disc`, 1 if the
    agent was within `radius` of the centre of another disc, which ends nothing, else 0.

    ## Start
    Discs wholly inside the square, of different colours, their centres more than 0.28 m apart; the agent wholly inside,
    touching none of them; the disc to go to is any of them: all uniform from the seed.

    ## End
    `terminated` at success, `truncated` after 36 ticks (3.6 s). The demonstrator, which goes straight, takes 2 to 17
    ticks, 7 on average, and always succeeds.

    Args:
        discs: How many coloured discs there are, 1 to 4.
        size: Side of the picture in pixels, 8 to 480.
        radius: What counts as having arrived, 0.01 to 0.14 m.
        render_mode: `"rgb_array"` or `None`. `render` returns uint8 [480, 480, 3] at 10 frames per second, in which a
            white ring marks the disc to go to.

    Raises:
        ValueError: for another `discs`, `size`, `radius` or `render_mode`; from `step`, for an action that is not two
            finite numbers.
        RuntimeError: from `step`, when no episode is running.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": CONTROL_HZ}
    interface = Interface(
        control_hz=CONTROL_HZ,
        action=(Component("agent_velocity", 2, "velocity", "absolute", frame="world", unit="normalized"),),
        observation={
            "pixels": (Component("top", 1, "image", frame="top"),),
            "instruction": (Component("instruction", 1, "text"),),
        },
        episode_ticks=LIMIT_TICKS,
    )

    def __init__(self, discs: int = 3, size: int = 20, radius: float = 0.06, render_mode: str | None = None) -> None:
        if type(discs) is not int or not 1 <= discs <= len(COLOURS):
            raise ValueError(f"discs={discs!r}, expected 1 to {len(COLOURS)} coloured discs")
        if type(size) is not int or not 8 <= size <= 480:
            raise ValueError(f"size={size!r}, expected the side of the picture from 8 to 480 pixels")
        if isinstance(radius, bool) or not isinstance(radius, int | float) or not 0.01 <= radius <= APART / 2:
            raise ValueError(f"radius={radius!r}, expected the distance that counts as arrived, from 0.01 to 0.14 m")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode={render_mode!r}, expected 'rgb_array' or None")
        self.render_mode = render_mode
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {
                "pixels": spaces.Box(0, 255, (size, size, 3), np.uint8),
                "instruction": spaces.Text(64, charset=printable),
            }
        )
        self._count, self._radius = discs, radius
        self._raster = Raster(size, (0.0, 0.0), 1.0)
        self._backdrop = self._raster.blank(GROUND)
        self._discs: dict[str, Point] = {}  # centres by colour; the first is where to go
        self._target: Point = (0.5, 0.5)
        self._instruction = ""
        self._agent: Point = (0.5, 0.5)
        self._straight = self._path = self._wrong = 0.0
        self._tick, self._over = 0, True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draw discs, agent and instruction from ``seed``; ``options`` are not used."""
        super().reset(seed=seed)
        draw = self.np_random
        colours = [str(colour) for colour in draw.permutation(list(COLOURS))[: self._count]]
        centres: list[Point] = []
        while len(centres) < self._count:
            centres.append(_free(draw, DISC_RADIUS, centres, APART))
        self._discs = dict(zip(colours, centres, strict=True))
        self._agent = _free(draw, AGENT_RADIUS, centres, AGENT_RADIUS + DISC_RADIUS)
        self._target, self._instruction = centres[0], f"go to the {colours[0]} disc"
        self._straight = dist(self._agent, self._target)
        self._path = self._wrong = 0.0
        self._tick, self._over = 0, False
        self._backdrop = self._lay_out(self._raster)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move at the velocity ``action`` for one tick."""
        if self._over:
            raise RuntimeError("no episode is running: call reset() first")
        velocity = np.asarray(action, np.float64)
        if velocity.shape != (2,) or not (isfinite(velocity[0]) and isfinite(velocity[1])):
            raise ValueError(f"action={action!r}, expected two finite velocities: along x and along y")
        before = self._agent
        x, y = (
            min(max(old + STEP * min(max(float(v), -1.0), 1.0), AGENT_RADIUS), 1 - AGENT_RADIUS)
            for old, v in zip(before, velocity, strict=True)
        )
        self._agent = x, y
        self._path += dist(before, self._agent)
        self._tick += 1
        distance = dist(self._agent, self._target)
        success = distance < self._radius
        if not success and any(dist(self._agent, centre) < self._radius for centre in self._discs.values()):
            self._wrong = 1.0
        truncated = not success and self._tick >= LIMIT_TICKS
        info: dict[str, Any] = {"success": success}
        if success or truncated:
            self._over = True
            info["score"] = float(success)
            info["metrics"] = {
                "distance_m": distance,
                "path_ratio": (self._path + distance) / self._straight,
                "wrong_disc": self._wrong,
            }
        return self._observation(), float(success), success, truncated, info

    def render(self) -> np.ndarray | None:
        """The square from above, uint8 [480, 480, 3]; ``None`` with a warning without ``render_mode``."""
        if self.render_mode is None:
            gymnasium.logger.warn('render() draws nothing: make the environment with render_mode="rgb_array"')
            return None
        film = Raster(FILM, (0.0, 0.0), 1.0)
        return self._picture(film, self._lay_out(film, marked=True))

    @property
    def places(self) -> dict[str, Point]:
        """Where the agent and the discs are, in m, by "agent" and colour: for whoever asks what a model has seen."""
        return {"agent": self._agent, **self._discs}

    def expert(self) -> Callable[[], np.ndarray]:
        """The demonstrator: goes straight to the right disc, at 0.6 m/s.

        Returns a function without arguments that reads the present state, so it is right after any action, and gives
        an action, float32 [2], of length 1 until the disc's centre is less than a tick away.
        """

        def approach() -> np.ndarray:
            x, y = self._target[0] - self._agent[0], self._target[1] - self._agent[1]
            scale = max(hypot(x, y), STEP)
            return np.array([x / scale, y / scale], np.float32)

        return approach

    def _observation(self) -> dict[str, Any]:
        return {"pixels": self._picture(self._raster, self._backdrop), "instruction": self._instruction}

    def _lay_out(self, raster: Raster, marked: bool = False) -> np.ndarray:
        """The square without the agent: nothing on it moves in an episode, so it is painted once."""
        picture = raster.blank(GROUND)
        if marked and self._discs:
            raster.disc(picture, *self._target, DISC_RADIUS + MARK, AGENT)
        for colour, centre in self._discs.items():
            raster.disc(picture, *centre, DISC_RADIUS, COLOURS[colour])
        return picture

    def _picture(self, raster: Raster, backdrop: np.ndarray) -> np.ndarray:
        picture = backdrop.copy()
        raster.disc(picture, *self._agent, AGENT_RADIUS, AGENT)
        return finish(picture)


def _free(draw: np.random.Generator, radius: float, taken: list[Point], apart: float) -> Point:
    """A uniform point for a disc inside the square, more than ``apart`` from those that are taken.

    There always is one: four discs are too few to cover the square.
    """
    while True:
        x, y = draw.uniform(radius, 1 - radius, 2)
        if all(dist((x, y), other) > apart for other in taken):
            return float(x), float(y)
