"""Intercept a ball behind a post that can be passed over or under: a small world in which averaging fails.

The control beside :mod:`.ball_intercept` for the study of "FASTER: Rethinking Real-Time Flow VLAs" (arXiv
2603.19199). The first step of a flow sampler gives the mean of the actions that the demonstrator might take. In
BallIntercept there is one right action, and its mean is right too, so sampling with a single step looks free. Here
half of the demonstrations go over the post and half go under it, and their mean goes into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any, Literal, get_args

import mujoco
import numpy as np

from .ball_intercept import CONTROL_HZ, FULL, LAUNCH_TICKS, MAX_SPEED, STEP_S, BallIntercept, Throw

Route = Literal["over", "under"]

POST = (0.02, 0.06)  # m, half of its width and height; its middle is at y = 0 and the height of HOME
# Coefficient of friction between paddle and post. On a smooth post a policy of averages slides off the middle by its
# own small errors, takes that for a route once taken, and follows it.
GRIP = 0.8
HOME = (0.3, 1.0)  # m, the paddle's y and z at the start, left of the post
FLIGHT_S = (1.3, 1.4)  # from launch to the plane
KICK_AT = (0.08, 0.25)  # share of the flight that has passed when the kick comes
# m, y and z of two corners of a field of the plane: the ball is aimed at a point of the first, and the kick moves that
# to one of the second. Whoever stays at the height of the first cannot miss the post.
AIMED = ((0.26, 0.94), (0.34, 1.06))
KICKED = ((-0.28, 0.85), (-0.16, 1.15))

# Of the expert, which runs up to the post and there turns up or down:
GAIN = 5.0  # 1/s, of its pursuit
APPROACH = 15.0  # 1/s, of the way left to the post
TURN = 0.03  # m before the post
PRESS = 0.3  # m/s, against the post while it turns
LANE = 0.18  # m from the post's middle, where it wants to pass
CLIMB = 8.0  # 1/s, of the way left to there
PASS = 0.13  # m from the post's middle, where pushing on leads around its corner


class DetourIntercept(BallIntercept):
    """Bring a paddle to where a ball will cross its plane, around a post, although the ball is kicked on its way.

    ## Description
    The world of `BallIntercept`, whose paddle (x = 0, radius 0.08 m) starts left of a post that sticks into its plane
    at (y, z) = (0, 1) m, 0.04 m wide and 0.12 m high. A hand holds a ball 2 m in front of the plane. After a random
    wait the ball flies in a high arc toward the paddle's half of the plane, and early on its way a sudden kick sends
    it to the other half.

    The paddle has to go over the post or under it. Both lead to the ball equally well; the demonstrator runs up to
    the post and there takes one or the other, with equal probability. Halfway between the two is the post, and its
    rubber holds what presses on it: the coefficient of friction is 0.8, so a paddle that presses with a command of
    v m/s stays where it is until its command along the post exceeds 2 v.

    ## Action
    `Box(-1.5, 1.5, (2,), float32)`, held for one control tick of 1/30 s. The servos clip what lies outside.

    | # | action | min | max | unit |
    |---|---|---|---|---|
    | 0 | absolute velocity of the paddle along world y | -1.5 | 1.5 | m/s |
    | 1 | absolute velocity of the paddle along world z | -1.5 | 1.5 | m/s |

    ## Observation
    `Dict` of `agent_pos` float32 [4], `environment_state` float32 [7] and, with `pixels=S`, `pixels` uint8
    [S, S, 3] (RGB, top row first) from a camera behind the paddle. World frame; the bounds are never reached.

    | key | # | observation | min | max | unit |
    |---|---|---|---|---|---|
    | agent_pos | 0 | paddle y | -1.2 | 1.2 | m |
    | | 1 | paddle z | -0.2 | 2.2 | m |
    | | 2-3 | velocity of the paddle along y, z | -3 | 3 | m/s |
    | environment_state | 0 | ball x | -0.2 | 2.2 | m |
    | | 1 | ball y | -1.2 | 1.2 | m |
    | | 2 | ball z | 0 | 4 | m |
    | | 3-5 | velocity of the ball along x, y, z | -10 | 10 | m/s |
    | | 6 | launched: 1 from the moment of launch, else 0 | 0 | 1 | |

    Nothing here tells the demonstrator's route before it turns up or down; from then on the paddle's velocity does.

    ## Reward
    0 until the ball crosses the plane, then the score: 1 if it passes within 0.08 m of the paddle's centre (its
    rim), 0.5 within 0.16 m, else 0. So the return is the score. `info["success"]` is true at the end of an
    episode with score 1; the last `info` also holds `score` and `metrics = {"miss_m": ..., "route": ...}`, where
    `route` is 1 if the paddle passed over the post, -1 if under it, and 0 if it never got past.

    ## Start
    The paddle rests at (y, z) = (0.3, 1) m, the ball in the hand at (2, 0, 1) m. Launch after 6 to 23 ticks; flight
    1.3 to 1.4 s; aim at y from 0.26 to 0.34 m and z from 0.94 to 1.06 m; kick after 0.08 to 0.25 of the flight, to y
    from -0.28 to -0.16 m and z from 0.85 to 1.15 m; all uniform from the seed. So is the demonstrator's route, which
    is drawn apart from the rest.

    ## End
    `terminated` when the ball reaches the plane, after 45 to 65 ticks. The last tick ends at that moment and
    may be shorter than the others. Never `truncated`.

    ## Difficulty
    The expert scores 1.00 in lockstep, on either route. The first row is its score with every action applied d ticks
    late, the second with what it knows of the ball d ticks old and its actions in time (200 episodes each):

    | d | 0-2 | 3 | 4 | 6 | 8 | 10 | 12 | 16 | 20 |
    |---|---|---|---|---|---|---|---|---|---|
    | late actions | 1.00 | 0.99 | 0.44 | 0.02 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |
    | late news | 1.00 | 1.00 | 1.00 | 1.00 | 0.99 | 0.93 | 0.83 | 0.39 | 0.06 |

    The mean of its actions on the two routes, taken anew at every tick, scores 0.00: it comes to rest before the post.

    The kick always leads to the other half, and whoever knows that can cross before it comes. The demonstrator does
    not, and neither does a policy that has learned from it.

    ## Event
    The kick: in the step during which it happens `info["event"]` is `{"name": "kick", "time_s": t}`, t being
    the simulation time since reset. It falls on a physics step (1/240 s), not on a tick.

    Args:
        pixels: Side S of the square camera image in the observation, 8 to 960; `None` for no image. Only
            images (and `render`) need OpenGL.
        render_mode: `"rgb_array"` or `None`. `render` returns uint8 [480, 640, 3] at 30 frames per second.

    Raises:
        ValueError: for another `pixels` or `render_mode`; from `step`, for an action that is not two finite
            numbers; from `expert`, for another route than "over" or "under".
        RuntimeError: from `step`, when no episode is running.
    """

    interface = replace(BallIntercept.interface, episode_ticks=LAUNCH_TICKS[1] + ceil(FLIGHT_S[1] * CONTROL_HZ))

    _home = HOME
    _route: Route = "over"  # the demonstrator's, in this episode
    _passed = 0.0  # 1 once the paddle has passed over the post, -1 once it has passed under it

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Put ball and paddle back and draw launch, flight, kick and route from ``seed``; ``options`` are not used."""
        self._passed = 0.0
        return super().reset(seed=seed, options=options)

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Hold the velocity command ``action`` for one tick, or until the ball crosses the plane."""
        observation, reward, terminated, truncated, info = super().step(action)
        y, z = self.data.qpos[:2]
        if not self._passed and y < 0:
            self._passed = 1.0 if z > HOME[1] else -1.0
        if terminated:
            info["metrics"]["route"] = self._passed
        return observation, reward, terminated, truncated, info

    def expert(self, route: Route | None = None) -> Callable[[], np.ndarray]:
        """The demonstrator: pursues the point where the ball will cross the plane, around the post where it must.

        ``route`` is which way around, ``None`` for the one that the seed has drawn. Returns a function without
        arguments that reads the simulator's present state, so it is right after any action, and gives an action,
        float32 [2].
        """
        if route is not None and route not in get_args(Route):
            raise ValueError(f"route={route!r}, expected 'over' or 'under', or None for the one drawn from the seed")
        up = 1.0 if (route or self._route) == "over" else -1.0

        def pursue() -> np.ndarray:
            goal, position = self._goal(), self.data.qpos[:2]
            command = GAIN * (goal - position)
            across = np.sign(goal[0])
            ahead = -across * position[0]  # m to the middle of the post, if it lies between paddle and goal
            if ahead > 0:
                height = up * (position[1] - HOME[1])  # m, on the route's side
                near = ahead - POST[0] - FULL
                command[0] = across * (MAX_SPEED if height > PASS else max(PRESS, APPROACH * near))
                command[1] = up * CLIMB * ((LANE if near < TURN else 0.0) - height)
            return command.clip(-MAX_SPEED, MAX_SPEED).astype(np.float32)

        return pursue

    def _scene(self) -> mujoco.MjSpec:
        scene = super()._scene()
        scene.modelname = "detour_intercept"
        # Paddle and post touch, and nothing else does.
        scene.option.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
        for geom in scene.geoms:
            geom.contype = geom.conaffinity = 0
        box, capsule = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_CAPSULE
        rubber = {"rgba": [0.50, 0.20, 0.16, 1], "contype": 0, "conaffinity": 0}
        # The post comes from the front as far as the plane, so that the paddle's own mast passes behind it.
        scene.worldbody.add_geom(name="post", type=box, pos=[0.08, 0, HOME[1]], size=[0.08, *POST], **rubber)
        scene.worldbody.add_geom(type=capsule, fromto=[0.12, 0, 0, 0.12, 0, HOME[1]], size=[0.015, 0, 0], **rubber)
        # What touches it is an invisible roller, long enough that the shortest way out is never the one off the plane.
        rim = {"type": capsule, "fromto": [-0.1, 0, 0, 0.1, 0, 0], "size": [FULL, 0, 0], "mass": 0, "group": 3}
        scene.body("paddle").add_geom(name="rim", contype=0, conaffinity=0, **rim)
        touch = {"condim": 3, "friction": [GRIP, GRIP, 0, 0, 0], "solref": [2.1 * STEP_S, 1]}  # as stiff as is stable
        scene.add_pair(geomname1="rim", geomname2="post", **touch)

        # The ball flies higher here, up to z = 3.5 m, and the post must not hide it in the hand.
        for camera, place, axes, fovy in (
            ("view", [-2.9, -4.4, 1.9], [0.748, -0.663, 0, 0.023, 0.026, 0.999], 46),
            ("eye", [-2.2, 0, 1.35], [0, -1, 0, -0.242, 0, 0.970], 64),
        ):
            lens = scene.camera(camera)
            lens.pos, lens.alt.xyaxes, lens.fovy = place, axes, fovy
        return scene

    def _throw(self, draw: np.random.Generator) -> Throw:
        hold_ticks = int(draw.integers(*LAUNCH_TICKS, endpoint=True))
        flight_s, kick_at = draw.uniform(*FLIGHT_S), draw.uniform(*KICK_AT)
        aim, kicked = draw.uniform(*AIMED), draw.uniform(*KICKED)
        self._route = get_args(Route)[draw.integers(2)]
        return Throw(hold_ticks, flight_s, kick_at, aim, kicked - aim)
