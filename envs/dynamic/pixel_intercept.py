"""Intercept a ball that is kicked aside in mid-flight, seeing it from above: is imagination worth its latency?

The task for the closed-loop half of the study of "Fast-WAM: Do World Action Models Need Test-time Future Imagination?"
(arXiv 2603.16666): a policy that imagines the future before it acts sees the kick as well as one that does not, but
answers it later. The rules are those of :mod:`.ball_intercept` on one axis: height, which no picture from above shows,
plays no part, so that one small picture holds everything, on the one grid on which its future is to be predicted.
Flights last longer and kicks come at more different moments than there, so that of thinking times from 0.1 to 0.8 s
each makes a difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import ceil, isfinite
from string import printable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ..interface import Component
from ..raster import Colour, Raster, finish
from .ball_intercept import CONTROL_HZ, FULL, HOME, LAUNCH_TICKS, MAX_SPEED, REACH, BallIntercept, Throw

AIM = 0.2  # m, the launch aims at a point of the line up to this far from its middle
FLIGHT_S = (1.0, 1.7)  # from launch to the line
KICK_AT = (0.15, 0.65)  # share of the flight that has passed when the kick comes
KICK = (0.25, 0.5)  # m, how far the kick moves the point where the ball will cross the line, to either side

INSTRUCTION = "be where the ball crosses the line"

# What is seen of the ground, and how large: the ball more than twice its size and the paddle thick and behind the line,
# so that neither is lost between a few pixels nor hides the other.
CORNER, SIDE = (-0.15, -1.15), 2.3  # m
BALL_RADIUS = 0.12  # m
PADDLE_X, PADDLE_HALF = -0.075, (0.06, FULL)  # m
GROUND: Colour = (38, 40, 46)
LINE: Colour = (96, 102, 112)
PADDLE_COLOUR: Colour = (70, 140, 235)
BALL_COLOUR: Colour = (245, 130, 40)

FILM = 480  # pixels a side, of what render shows


class PixelIntercept(BallIntercept):
    """Bring a paddle to where a ball will cross its line, seeing two pictures from above, although it is kicked.

    ## Description
    The world of `BallIntercept` from above: x points to the hand, which holds a ball 2 m in front of the line x = 0, y
    along the line, on which a paddle runs (in the picture x is to the right and y upwards). After a random wait the
    ball flies to a random point of the line. Somewhere from 0.15 to 0.65 of the way, a sudden kick moves that point by
    0.25 to 0.5 m to one side. The ball's height, and the paddle's, which stays, play no part. The paddle follows
    velocity commands with a time constant of 0.025 s.

    ## Action
    `Box(-1.5, 1.5, (1,), float32)`, held for one control tick of 1/30 s. The servo clips what lies outside.

    | # | action | min | max | unit |
    |---|---|---|---|---|
    | 0 | absolute velocity of the paddle along world y | -1.5 | 1.5 | m/s |

    ## Observation
    A `Dict`. The world's frame; the bounds of the numbers are never reached.

    | key | # | observation | min | max | unit |
    |---|---|---|---|---|---|
    | pixels uint8 [size, size, 6] | 0-2 | the present: red, green and blue, top row first | 0 | 255 | |
    | | 3-5 | the same, `lag` ticks ago | 0 | 255 | |
    | agent_pos float32 [2] | 0 | paddle y | -1.2 | 1.2 | m |
    | | 1 | its velocity | -3 | 3 | m/s |
    | instruction, text | | "be where the ball crosses the line" | | | |

    One picture does not tell how anything moves; two do. Until `lag` ticks have passed the earlier one is that of the
    start, before which nothing moved. They are painted (they need no OpenGL) and show 2.3 m a side, x from -0.15 m and
    y from -1.15 m; smooth edges show where ball and paddle are to a small part of a pixel.

    ## Reward
    0 until the ball crosses the line, then the score: 1 if it passes within 0.08 m of the paddle's centre (its
    end), 0.5 within 0.16 m, else 0. So the return is the score. `info["success"]` is true at the end of an
    episode with score 1; the last `info` also holds `score` and `metrics = {"miss_m": ...}`.

    ## Start
    The paddle rests at y = 0, the ball in the hand at (x, y) = (2, 0) m. Launch after 6 to 23 ticks; aim at y from
    -0.2 to 0.2 m; flight 1.0 to 1.7 s; all uniform from the seed.

    ## End
    `terminated` when the ball reaches the line, after 36 to 74 ticks. The last tick ends at that moment and
    may be shorter than the others. Never `truncated`.

    ## Difficulty
    The expert scores 1.00 in lockstep. The first row is its score with every action applied d ticks late, the second
    with plans that take d ticks: one is begun every d ticks, and what was seen then counts from d ticks later until
    the next is there (200 episodes each).

    | d | 0 | 2 | 3 | 4 | 6 | 8 | 10 | 12 | 18 | 25 |
    |---|---|---|---|---|---|---|---|---|---|---|
    | late actions | 1.00 | 1.00 | 1.00 | 0.93 | 0.49 | 0.30 | 0.30 | 0.28 | | |
    | slow plans | 1.00 | 0.99 | 0.99 | 0.97 | 0.88 | 0.77 | 0.62 | 0.44 | 0.18 | 0.05 |

    The thinking times published for Fast-WAM, 110 or 190 ms, and for its rivals that imagine, 580 and 810 ms, are 4, 6,
    18 and 25 ticks. A paddle that stays where it is scores 0.04.

    ## Event
    The kick: in the step during which it happens `info["event"]` is `{"name": "kick", "time_s": t}`, t being
    the simulation time since reset. It falls on a physics step (1/240 s), not on a tick.

    Args:
        size: Side of the pictures in pixels, 8 to 480.
        lag: How many ticks lie between the two pictures, 1 to 15.
        render_mode: `"rgb_array"` or `None`. `render` returns uint8 [480, 480, 3] at 30 frames per second.

    Raises:
        ValueError: for another `size`, `lag` or `render_mode`; from `step`, for an action that is not one finite
            number.
        RuntimeError: from `step`, when no episode is running.
    """

    interface = replace(
        BallIntercept.interface,
        action=(Component("paddle_velocity", 1, "velocity", "absolute", frame="world", unit="m/s"),),
        observation={
            "pixels": (Component("top", 1, "image", frame="top"),),
            "agent_pos": (
                Component("paddle_position", 1, "position", frame="world", unit="m"),
                Component("paddle_velocity", 1, "velocity", frame="world", unit="m/s"),
            ),
            "instruction": (Component("instruction", 1, "text"),),
        },
        episode_ticks=LAUNCH_TICKS[1] + ceil(FLIGHT_S[1] * CONTROL_HZ),
    )

    def __init__(self, size: int = 20, lag: int = 3, render_mode: str | None = None) -> None:
        if type(size) is not int or not 8 <= size <= 480:
            raise ValueError(f"size={size!r}, expected the side of the pictures from 8 to 480 pixels")
        if type(lag) is not int or not 1 <= lag <= 15:
            raise ValueError(f"lag={lag!r}, expected 1 to 15 ticks between the two pictures")
        super().__init__(None, render_mode)
        del self.scene_edits  # what perturbs the drawing of a MuJoCo scene is told that there is none
        self.action_space = spaces.Box(-MAX_SPEED, MAX_SPEED, (1,), np.float32)
        self.observation_space = spaces.Dict(
            {
                "pixels": spaces.Box(0, 255, (size, size, 6), np.uint8),
                "agent_pos": spaces.Box(np.array([-1.2, -3], np.float32), np.array([1.2, 3], np.float32)),
                "instruction": spaces.Text(64, charset=printable),
            }
        )
        self._raster = Raster(size, CORNER, SIDE)
        self._backdrop = _ground(self._raster)
        self._pictures: deque[np.ndarray] = deque(maxlen=lag + 1)  # oldest first

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Put ball and paddle back and draw launch, flight and kick from ``seed``; ``options`` are not used."""
        self._pictures.clear()
        return super().reset(seed=seed, options=options)

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Hold the velocity command ``action`` for one tick, or until the ball crosses the line."""
        command = np.asarray(action, np.float64)
        if command.shape != (1,) or not isfinite(command[0]):
            raise ValueError(f"action={action!r}, expected one finite velocity in m/s, as an array of shape (1,)")
        return super().step(np.array([command[0], 0.0]))

    def render(self) -> np.ndarray | None:
        """The present picture, uint8 [480, 480, 3]; ``None`` with a warning without ``render_mode``."""
        if self.render_mode is None:
            gymnasium.logger.warn('render() draws nothing: make the environment with render_mode="rgb_array"')
            return None
        film = Raster(FILM, CORNER, SIDE)
        return self._picture(film, _ground(film))

    def expert(self) -> Callable[[], np.ndarray]:
        """The demonstrator: pursues the point where the ball will cross the line, and the middle until the launch.

        Returns a function without arguments that reads the simulator's present state, so it is right after
        any action, and gives an action, float32 [1]: proportional to the error, clipped to the space.
        """
        pursue = super().expert()
        return lambda: pursue()[:1]

    def _throw(self, draw: np.random.Generator) -> Throw:
        hold_ticks = int(draw.integers(*LAUNCH_TICKS, endpoint=True))
        flight_s, kick_at = draw.uniform(*FLIGHT_S), draw.uniform(*KICK_AT)
        aim = np.array([draw.uniform(-AIM, AIM), HOME[1]])
        aside = np.array([draw.uniform(*KICK) * draw.choice([-1, 1]), 0.0])
        return Throw(hold_ticks, flight_s, kick_at, aim, aside)

    def _observation(self) -> dict[str, Any]:
        self._pictures.append(self._picture(self._raster, self._backdrop))
        return {
            "pixels": np.concatenate([self._pictures[-1], self._pictures[0]], axis=-1),
            "agent_pos": np.array([self.data.qpos[0], self.data.qvel[0]], np.float32),
            "instruction": INSTRUCTION,
        }

    def _picture(self, raster: Raster, backdrop: np.ndarray) -> np.ndarray:
        paddle_y, _, ball_x, ball_y, _ = self.data.qpos
        picture = backdrop.copy()
        raster.bar(picture, PADDLE_X, paddle_y, *PADDLE_HALF, PADDLE_COLOUR)
        raster.disc(picture, ball_x, ball_y, BALL_RADIUS, BALL_COLOUR)
        return finish(picture)


def _ground(raster: Raster) -> np.ndarray:
    """What never moves: the ground, and the line as far as the paddle runs."""
    picture = raster.blank(GROUND)
    raster.bar(picture, 0.0, HOME[0], 0.01, REACH, LINE)
    return picture
