"""Robosuite's manipulation tasks as Gymnasium environments: ``gymnasium.make("palaestra/robosuite.Lift-v0")``.

The simulation is robosuite's own (https://robosuite.ai, 1.5), driven from here: the same states to the last
bit, seeded per episode, observed fresh at the end of each control period, and faster to step and to reset.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any
from xml.etree import ElementTree

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

from .interface import Component, Interface
from .offscreen import Offscreen, SceneEdit, backend
from .operational_space import torques_of

_SUBSTEP_HZ = 500
_HORIZON_S = {
    "Lift": 7.5,
    "Stack": 10.0,
    "Door": 10.0,
    "Wipe": 25.0,
    "NutAssembly": 40.0,
    "PickPlace": 80.0,
    "ToolHang": 35.0,
    "TwoArmLift": 15.0,
    "TwoArmTransport": 35.0,
}
_INSTRUCTIONS = {
    "Lift": "lift the red cube",
    "Stack": "put the red cube on the green cube",
    "Door": "turn the handle and open the door",
    "Wipe": "wipe the dirt off the table",
    "NutAssembly": "put each nut on the peg of its shape",
    "NutAssemblySingle": "put the nut on the peg of its shape",
    "NutAssemblySquare": "put the square nut on the square peg",
    "NutAssemblyRound": "put the round nut on the round peg",
    "PickPlace": "put each object into its bin",
    "PickPlaceSingle": "put the object into its bin",
    "PickPlaceCan": "put the can into its bin",
    "PickPlaceMilk": "put the milk into its bin",
    "PickPlaceBread": "put the bread into its bin",
    "PickPlaceCereal": "put the cereal into its bin",
    "ToolHang": "put the frame on the stand and hang the tool on it",
    "TwoArmLift": "lift the pot with both arms and keep it level",
    "TwoArmPegInHole": "put the peg through the hole",
    "TwoArmHandover": "hand the hammer over to the other arm",
    "TwoArmTransport": "hand the hammer over and put it into the target bin, and the trash into the trash bin",
}
_OURS = (
    "robots controller_configs control_freq horizon seed use_camera_obs use_object_obs has_renderer ignore_done "
    "has_offscreen_renderer hard_reset camera_names camera_heights camera_widths camera_depths lite_physics "
    "camera_segmentations render_camera render_gpu_device_id renderer renderer_config placement_initializer "
    "render_collision_mesh render_visual_mesh robot_configs"
).split()
"""Arguments of a robosuite environment that this class decides."""


class RobosuiteArm(gymnasium.Env):
    """One robosuite task.

    **Arguments.** ``task``: a name such as ``"Lift"``. ``robots``: a name or one per arm (default ``"Panda"``).
    ``controller``: ``None`` for the robot's default (operational space: position and rotation deltas), a part
    controller (``"OSC_POSE"``, ``"OSC_POSITION"``, ``"JOINT_POSITION"``, ``"JOINT_TORQUE"``, ``"IK_POSE"``; also
    ``"JOINT_VELOCITY"``, which robosuite 1.5.2 fails to build), a robosuite configuration as a dict, or the path
    of one (``.json``).
    ``control_hz``: actions per second; divides 500. ``horizon``: ticks until the episode is cut off; default
    by task, 7.5 to 80 s. ``pixels``: ``None``, the side of a square picture, or ``(height, width)``;
    ``cameras``: which views (``"agentview"``, ``"frontview"``, ``"robot0_eye_in_hand"``, ...).
    ``render_mode``: ``None`` or ``"rgb_array"``; ``render_size``: (height, width) of :meth:`render`.
    ``terminate_on_success``: end at the first tick at which the task is done, as evaluations of imitation
    learning do (robosuite itself never ends). Further ``options`` go to the robosuite environment
    (``reward_shaping=True``, ``gripper_types=...``, ``use_latch=...``).

    **Action.** A float32 Box of the controller's limits, [-1, 1] unless it has its own; larger values are
    clipped by the controller. Default for one arm: 3 position deltas (1 = 5 cm) and 3 axis-angle deltas (1 =
    0.5 rad) from the present pose in the robot's base frame, then the gripper (+1 closes, -1 opens).
    :attr:`interface` says it in full.

    **Observation.** A Dict, all float32 unless said otherwise, of the state *now* (robosuite's own are taken
    at the first of the substeps, 48 ms ago at 20 Hz):

    - ``agent_pos``: per arm the gripper site's position (m) and orientation (xyzw) in the world, without sign
      flips along a motion, the finger joints (m or rad); then the arm's joints (rad) under a joint controller;
    - ``environment_state``: robosuite's object state of the task, in its order;
    - ``wrench`` [2n, 6 per arm]: force (N) and torque (N·m) that the arm exerts on the hand, in the frame of
      the wrist sensor, at each of the n substeps of the last two control periods (500 Hz), newest last; at
      rest it is the weight of the hand, upwards; only if the hand has the sensor;
    - ``pixels``: uint8 [height, width, 3], or a dict of them by camera if there are several; on request.

    **Feeling.** The wrench is *not tared*, as that of the contact worlds is: it holds the weight of the hand (5.1 N
    for a Panda's, 0.3 N for the one that wipes) and the inertia of it and of what it holds. The first observation
    is that of an arm at rest: take it off, once turned into the world's frame where the wrist turns. There the
    force is weight minus contact: pressing on a table with 10 N reads 10 N less along z. It has no noise. Contacts
    are stiff (the default controller, sent 5 cm into the table, presses with 200 N), so a policy reads the window
    and not its last sample. ``peak_force_n`` among the metrics is the largest norm at any substep, weight included.

    **Reward** is robosuite's: 1 on success, or dense with ``reward_shaping=True``.
    **Start** is drawn by robosuite from the episode's seed alone: joint noise, objects and their sizes.
    **End**: ``terminated`` on success, or when robosuite says so (Wipe: arm on the table, joint limit);
    ``truncated`` at the horizon. ``info["success"]`` is there at every step, ``info["score"]`` (the part done:
    0 to 1) and ``info["metrics"]`` at the end.

    **Raises** ``ValueError`` with a sentence for an unknown name, an impossible rate, or a bad action, and
    ``palaestra.envs.offscreen.RenderingUnavailable`` when pixels are asked of a machine without OpenGL.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self,
        task: str = "Lift",
        *,
        robots: str | Sequence[str] = "Panda",
        controller: str | dict | None = None,
        control_hz: float = 20,
        horizon: int | None = None,
        pixels: int | tuple[int, int] | None = None,
        cameras: Sequence[str] = ("agentview",),
        render_mode: str | None = None,
        render_size: tuple[int, int] = (256, 256),
        terminate_on_success: bool = True,
        **options: Any,
    ) -> None:
        suite = _robosuite()
        _check_task(suite, task, options)
        self.task = task
        self.instruction = _INSTRUCTIONS.get(task, task)
        self.terminate_on_success = terminate_on_success
        self.render_mode = _one_of("render_mode", render_mode, (None, "rgb_array"))
        self.metadata = {**self.metadata, "render_fps": control_hz}
        self._substeps = _substeps(control_hz)
        self.horizon = _horizon(task, control_hz) if horizon is None else int(horizon)
        if self.horizon < 1:
            raise ValueError(f"horizon={horizon}, expected at least 1 tick")
        names = _robot_names(suite, task, robots)
        self._env = _make(suite, task, names, controller, control_hz, self.horizon, options)
        self._xml = ""
        self._env.set_xml_processor(self._keep_appearance)
        self._picture_size = _size("pixels", pixels) if pixels is not None else None
        if self._picture_size is not None:
            backend()  # says now, not at the first picture, if there can be none
        self._render_size = _size("render_size", render_size)
        self._cameras = tuple([cameras] if isinstance(cameras, str) else cameras)
        self._appearance: _Appearance | None = None
        self.scene_edits: list[SceneEdit] = []  # how perturbations around this world change what is drawn
        self._running = False
        self._bind()
        for camera in self._cameras:
            _one_of("cameras", camera, [self.model.camera(i).name for i in range(self.model.ncam)])
        self.action_space = _action_space(self._env)
        self.observation_space = self._observation_space()
        self.interface = Interface(
            control_hz=control_hz,
            action=_action_components(self._env),
            observation=self._observation_components(),
            episode_ticks=self.horizon,
        )

    # ------------------------------------------------------------------ Gymnasium

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Begin an episode. The same ``seed`` gives the same episode, in any process, after any other."""
        if options:
            raise ValueError(f"options={options}, expected none: this environment has no reset options")
        super().reset(seed=seed)
        # Every object that draws is made anew from this generator; robosuite would keep its first sampler.
        self._env.rng = _Draws(self.np_random.bit_generator)
        self._env.placement_initializer = None
        self._env.sim = None  # else robosuite runs a full garbage collection, longer than the rest of the reset
        with _silence(), _one_compilation():
            self._env.reset()
        self._bind()
        self._wrenches[:] = self._wrench_at_rest()
        self._running = True
        self._peaks = np.zeros(2)
        self._path_m, self._last_position = 0.0, self._arms[0].position(self.data).copy()
        return self._observe(), {"success": bool(self._env._check_success())}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Apply one action for a control period. Raises ``ValueError`` for a wrong shape or a NaN."""
        if not self._running:
            raise gymnasium.error.ResetNeeded("the episode has not begun or is over; call reset() before step()")
        action = np.asarray(action, dtype=np.float64)
        if action.shape != self.action_space.shape:
            raise ValueError(f"action has shape {action.shape}, expected {self.action_space.shape}")
        if not np.isfinite(action).all():
            raise ValueError(f"action={action} is not finite, expected numbers in [-1, 1]")
        self._simulate(action)
        reward, done, _ = self._env._post_action(action)
        success = bool(self._env._check_success())
        # robosuite leaves positions one substep old; this brings them up to date and changes no state.
        mujoco.mj_kinematics(self.model, self.data)
        self._measure()
        terminated = bool(done) or (success and self.terminate_on_success)
        truncated = not terminated and self._env.timestep >= self.horizon
        info: dict[str, Any] = {"success": success}
        if terminated or truncated:
            self._running = False
            info["score"] = self._score(success)
            info["metrics"] = self._metrics()
        return self._observe(), float(reward), terminated, truncated, info

    def render(self) -> np.ndarray | None:
        """The present view of the first camera as uint8 [height, width, 3], with ``render_mode="rgb_array"``."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() needs gymnasium.make(..., render_mode='rgb_array')")
            return None
        return self._picture(self._cameras[0], self._render_size)

    def close(self) -> None:
        """Free the simulation and, if there is one, the OpenGL context."""
        if self._appearance is not None:
            self._appearance.close()
            self._appearance = None
        if self._env.sim is not None:
            self._env.close()
        self._running = False

    # ------------------------------------------------------------------ Beyond Gymnasium

    @property
    def robosuite(self) -> Any:
        """The robosuite environment inside; its meshes for display are stand-ins. New objects at each reset."""
        return self._env

    @property
    def model(self) -> mujoco.MjModel:
        """The physical model of this episode. Pictures follow what is changed here (cameras, colours, lights)."""
        return self._env.sim.model._model

    @property
    def data(self) -> mujoco.MjData:
        """The simulator's state."""
        return self._env.sim.data._data

    def expert(self) -> Callable[[], np.ndarray]:
        """A scripted expert: call it for its action in the present state. ``ValueError`` if the task has none."""
        from .robosuite_experts import expert_for

        return expert_for(self)

    # ------------------------------------------------------------------ Simulation

    def _bind(self) -> None:
        """Look up what this episode's model holds where; robosuite builds new objects at every reset."""
        self._arms = [_Arm(robot, arm) for robot in self._env.robots for arm in robot.arms]
        self._torques = torques_of(self._env.robots)
        self._mass = np.empty((self.model.nv, self.model.nv))
        addresses = [arm.wrench_addresses for arm in self._arms]
        self._wrench_at = np.concatenate([a for a in addresses if a is not None] or [np.empty(0, int)]).astype(int)
        self._wrenches = np.zeros((2 * self._substeps, len(self._wrench_at)))
        enabled = {name: o for name, o in self._env._observables.items() if o.is_enabled()}
        # Sensors read what others put into a cache. Relations come last: robosuite asks some of them first, and
        # they answer from the tick before, or with zeros.
        self._sensors = sorted(enabled.items(), key=lambda item: "_to_" in item[0])
        self._state_names = [name for name, o in enabled.items() if o.modality == "object" and o.is_active()]

    def _simulate(self, action: np.ndarray) -> None:
        """One control period, as in ``robosuite``'s own ``step``, less what nobody reads."""
        env, model, data, n = self._env, self.model, self.data, self._substeps
        wrenches = self._wrenches
        wrenches[:n] = wrenches[n:]
        env.timestep += 1
        for substep in range(n):
            mujoco.mj_step1(model, data)
            if substep == 0 or self._torques is None:
                env._pre_action(action, policy_step=substep == 0)
                for arm in self._torques or ():
                    arm.take_goal()
            else:
                mujoco.mj_fullM(model, self._mass, data.qM)
                for arm in self._torques:
                    arm.apply(self._mass)
            mujoco.mj_step2(model, data)
            if wrenches.shape[1]:
                wrenches[n + substep] = data.sensordata[self._wrench_at]
        env.cur_time += env.control_timestep

    def _wrench_at_rest(self) -> np.ndarray:
        """What the sensors read while the arm holds its pose. Those of a fresh reset feel an arm without torques, which
        falls: to tare by that would be 1.5 N and 1 N·m wrong with a Panda's hand."""
        if not len(self._wrench_at):
            return np.empty(0)
        rest = mujoco.MjData(self.model)
        rest.qpos[:] = self.data.qpos
        mujoco.mj_inverse(self.model, rest)  # for a velocity and an acceleration of zero
        return rest.sensordata[self._wrench_at]

    def _observe(self) -> dict[str, Any]:
        observation: dict[str, Any] = {
            "agent_pos": np.concatenate([arm.proprioception(self.data) for arm in self._arms], dtype=np.float32),
        }
        if self._state_names:
            observation["environment_state"] = np.concatenate(self._object_state(), dtype=np.float32)
        if self._wrenches.shape[1]:
            observation["wrench"] = self._wrenches.astype(np.float32)
        if self._picture_size is not None:
            pictures = {camera: self._picture(camera, self._picture_size) for camera in self._cameras}
            observation["pixels"] = pictures if len(pictures) > 1 else pictures[self._cameras[0]]
        return observation

    def _object_state(self) -> list[np.ndarray]:
        cache: dict[str, Any] = {}
        for name, observable in self._sensors:
            cache[name] = np.array(observable._sensor(cache))
        return [np.atleast_1d(cache[name]) for name in self._state_names]

    def _measure(self) -> None:
        position = self._arms[0].position(self.data).copy()
        self._path_m += float(np.linalg.norm(position - self._last_position))
        self._last_position = position
        if self._wrenches.shape[1]:
            new = self._wrenches[self._substeps :].reshape(-1, 2, 3)
            self._peaks = np.maximum(self._peaks, np.linalg.norm(new, axis=-1).max(axis=0))

    def _metrics(self) -> dict[str, float]:
        metrics = {"path_length_m": self._path_m, "duration_s": self._env.timestep * self._substeps / _SUBSTEP_HZ}
        if self._wrenches.shape[1]:
            metrics["peak_force_n"], metrics["peak_torque_nm"] = self._peaks.tolist()
        return metrics

    def _score(self, success: bool) -> float:
        """How much of the task is done, 0 to 1: the share of things in place, where there are several."""
        env = self._env
        if self.task == "Wipe":
            return len(env.wiped_markers) / env.num_markers
        if getattr(env, "single_object_mode", None) == 0:
            return float(np.mean(env.objects_on_pegs if hasattr(env, "objects_on_pegs") else env.objects_in_bins))
        return float(success)

    # ------------------------------------------------------------------ Spaces and their meaning

    def _observation_space(self) -> spaces.Dict:
        def unbounded(*shape: int) -> spaces.Box:
            return spaces.Box(-np.inf, np.inf, shape, np.float32)

        found: dict[str, spaces.Space] = {
            "agent_pos": unbounded(sum(len(arm.proprioception(self.data)) for arm in self._arms))
        }
        if self._state_names:
            found["environment_state"] = unbounded(sum(map(len, self._object_state())))
        if self._wrenches.shape[1]:
            found["wrench"] = unbounded(*self._wrenches.shape)
        if self._picture_size is not None:
            picture = spaces.Box(0, 255, (*self._picture_size, 3), np.uint8)
            several = len(self._cameras) > 1
            found["pixels"] = spaces.Dict({camera: picture for camera in self._cameras}) if several else picture
        return spaces.Dict(found)

    def _observation_components(self) -> dict[str, tuple[Component, ...]]:
        prefixes = [f"{arm.label}_" if len(self._arms) > 1 else "" for arm in self._arms]
        found = {
            "agent_pos": tuple(
                part for arm, prefix in zip(self._arms, prefixes, strict=True) for part in arm.components(prefix)
            )
        }
        if self._state_names:
            sizes = map(len, self._object_state())
            found["environment_state"] = tuple(map(_object_component, self._state_names, sizes))
        if self._wrenches.shape[1]:
            found["wrench"] = tuple(
                part
                for arm, prefix in zip(self._arms, prefixes, strict=True)
                if arm.wrench_addresses is not None
                for part in (
                    Component(f"{prefix}force", 3, "force", frame=f"{prefix}wrist_sensor", unit="N"),
                    Component(f"{prefix}torque", 3, "torque", frame=f"{prefix}wrist_sensor", unit="N·m"),
                )
            )
        if self._picture_size is not None:
            found["pixels"] = tuple(Component(camera, 1, "image", frame=camera) for camera in self._cameras)
        return found

    # ------------------------------------------------------------------ Pictures

    def _keep_appearance(self, xml: str) -> str:
        """Called by robosuite with each episode's model: simulate the bare one, keep the full one for pictures."""
        self._xml = xml
        return _without_appearance(xml)

    def _picture(self, camera: str, size: tuple[int, int]) -> np.ndarray:
        if self._appearance is not None and not self._appearance.suits(self.model):
            self._appearance.close()
            self._appearance = None
        if self._appearance is None:
            xml = self._xml or self._env.edit_model_xml(self._env.model.get_xml())
            self._appearance = _Appearance(xml, self.model, self.scene_edits)
        return self._appearance.picture(self.model, self.data, camera, size)


class _Arm:
    """Where one arm's numbers stand in the simulator's arrays."""

    def __init__(self, robot: Any, arm: str) -> None:
        model: mujoco.MjModel = robot.sim.model._model
        self.label = f"robot{robot.idn}" if len(robot.arms) == 1 else arm
        self.site: int = robot.eef_site_id[arm]
        self._body: int = model.site_bodyid[self.site]
        self._site_quat = model.site_quat[self.site].copy()
        self._fingers = list(robot._ref_gripper_joint_pos_indexes[arm] or [])
        joints = robot.part_controllers[arm]
        self._joints = list(joints.qpos_index) if joints.name.startswith("JOINT") else []
        slides = model.jnt_type[np.isin(model.jnt_qposadr, self._fingers)] == mujoco.mjtJoint.mjJNT_SLIDE
        self._finger_unit = "m" if slides.all() else "rad"
        self.wrench_addresses = self._sensors(model, robot.gripper[arm])

    @staticmethod
    def _sensors(model: mujoco.MjModel, gripper: Any) -> np.ndarray | None:
        names = [gripper.important_sensors.get(key) for key in ("force_ee", "torque_ee")]
        ids = [mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SENSOR, name) for name in names if name]
        if len(ids) < 2 or -1 in ids:
            return None
        return np.concatenate([np.arange(3) + model.sensor_adr[i] for i in ids])

    def position(self, data: mujoco.MjData) -> np.ndarray:
        return data.site_xpos[self.site]

    def proprioception(self, data: mujoco.MjData) -> np.ndarray:
        wxyz = np.empty(4)
        # From joint to joint, not from the rotation matrix, whose quaternion flips its sign as w crosses zero.
        mujoco.mju_mulQuat(wxyz, data.xquat[self._body], self._site_quat)
        return np.concatenate([data.site_xpos[self.site], wxyz[1:], wxyz[:1], data.qpos[self._fingers + self._joints]])

    def components(self, prefix: str) -> Iterator[Component]:
        yield Component(f"{prefix}eef_pos", 3, "position", frame="world", unit="m")
        yield Component(f"{prefix}eef_quat", 4, "orientation", frame="world", rotation="quat_xyzw")
        if self._fingers:
            yield Component(
                f"{prefix}gripper_qpos", len(self._fingers), "position", frame="joint", unit=self._finger_unit
            )
        if self._joints:
            yield Component(f"{prefix}joint_pos", len(self._joints), "position", frame="joint", unit="rad")


class _Draws(np.random.Generator):
    """A generator whose choice among names does not depend on the order that a ``set`` gave them."""

    def choice(self, a: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(a, list) and a and all(isinstance(name, str) for name in a):
            a = sorted(a)
        return super().choice(a, *args, **kwargs)


# ---------------------------------------------------------------------- robosuite, quietly


@lru_cache(maxsize=1)
def _robosuite() -> types.ModuleType:
    """Import robosuite: silently, uncompiled, leaving the environment variables as they were.

    robosuite prints about its installation, switches ``MUJOCO_GL`` to EGL whether or not there is one, imports
    a window toolkit (OpenCV) that needs an OpenGL library, and has numba compile, for ten seconds, what
    :mod:`.operational_space` evaluates anyway.
    """
    if "robosuite" in sys.modules:
        return sys.modules["robosuite"]
    graphics = os.environ.get("MUJOCO_GL")
    with _silence(), _stand_in_for("cv2"), _without_numba():
        suite = importlib.import_module("robosuite")
    if graphics is None:
        os.environ.pop("MUJOCO_GL", None)
    else:
        os.environ["MUJOCO_GL"] = graphics
    return suite


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep robosuite's remarks off both streams; errors still arrive as exceptions."""
    talk = logging.getLogger("robosuite_logs")
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        talk.setLevel(logging.ERROR)


@contextlib.contextmanager
def _stand_in_for(name: str) -> Iterator[None]:
    """Let ``import name`` succeed with an empty module where the real one cannot load; nothing here uses it."""
    try:
        importlib.import_module(name)
    except ImportError:
        sys.modules[name] = types.ModuleType(name)
        try:
            yield
        finally:
            del sys.modules[name]
    else:
        yield


@contextlib.contextmanager
def _without_numba() -> Iterator[None]:
    """Have numba's decorator return plain functions for what is imported meanwhile."""
    import numba

    settings: Any = numba.config
    kept = settings.DISABLE_JIT
    settings.DISABLE_JIT = True
    try:
        yield
    finally:
        settings.DISABLE_JIT = kept


@contextlib.contextmanager
def _one_compilation() -> Iterator[None]:
    """Skip the second model, of the robot alone, that robosuite compiles at each reset and never reads."""
    from robosuite.models.robots.robot_model import RobotModel

    kept = RobotModel.set_mujoco_model
    RobotModel.set_mujoco_model = lambda self, mujoco_model=None: None
    try:
        yield
    finally:
        RobotModel.set_mujoco_model = kept


def _make(
    suite: Any,
    task: str,
    robots: list[str],
    controller: str | dict | None,
    control_hz: float,
    horizon: int,
    options: dict[str, Any],
) -> Any:
    with _silence():
        configs = [_controller_config(robot, controller) for robot in robots]
    try:
        with _silence(), _one_compilation():
            return suite.make(
                task,
                robots=robots if len(robots) > 1 else robots[0],
                controller_configs=configs,
                control_freq=control_hz,
                horizon=horizon,
                ignore_done=True,
                has_renderer=False,
                has_offscreen_renderer=False,
                use_camera_obs=False,
                renderer="mujoco",
                seed=0,
                **options,
            )
    except Exception as error:  # robosuite asserts, and has parts of its own that do not build
        raise ValueError(
            f"robosuite {suite.__version__} cannot build {task} with robots={robots}, controller={controller!r}, "
            f"{options or 'no further options'}: {type(error).__name__}: {error}"
        ) from error


def _controller_config(robot: str, controller: str | dict | None) -> dict:
    """robosuite's configuration for a controller given by name, by file or in full."""
    from robosuite.controllers import load_composite_controller_config, load_part_controller_config
    from robosuite.controllers.composite.composite_controller_factory import refactor_composite_controller_config
    from robosuite.models.robots.robot_model import REGISTERED_ROBOTS

    if controller is None:
        return load_composite_controller_config(robot=robot)
    if isinstance(controller, str):
        if controller.endswith(".json"):
            if not os.path.exists(controller):
                raise ValueError(f"controller={controller!r}: there is no such file")
            part = load_part_controller_config(custom_fpath=controller)
            controller = load_composite_controller_config(controller=controller) if "body_parts" in part else part
        else:
            from robosuite.controllers import ALL_COMPOSITE_CONTROLLERS, ALL_PART_CONTROLLERS

            parts, whole = sorted(ALL_PART_CONTROLLERS), sorted(ALL_COMPOSITE_CONTROLLERS)
            _one_of("controller", controller, [*parts, *whole])
            if controller in whole:
                return load_composite_controller_config(controller=controller, robot=robot)
            controller = load_part_controller_config(default_controller=controller)
    return refactor_composite_controller_config(controller, robot, REGISTERED_ROBOTS[robot].arms)


# ---------------------------------------------------------------------- What the numbers mean


def _action_space(env: Any) -> spaces.Box:
    low, high = env.action_spec
    return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


def _action_components(env: Any) -> tuple[Component, ...]:
    several = len(env.robots) > 1
    found: list[Component] = []
    for robot in env.robots:
        composite = robot.composite_controller
        parts: list[Component] = []
        prefix = f"robot{robot.idn}_" if several else ""
        for part, (start, stop) in composite._action_split_indexes.items():
            arm = part.removesuffix("_gripper")
            limb = f"{arm}_" if len(robot.arms) > 1 or arm not in robot.arms else ""
            if stop > start:
                parts += _part_components(composite, part, stop - start, prefix, limb)
        if (left := robot.action_dim - sum(part.size for part in parts)) > 0:  # base or arm, for mobile robots
            parts.append(Component(f"{prefix}mode", left, unit="normalized"))
        elif left < 0:  # a whole-body controller takes poses, which it turns into what its parts take
            parts = [Component(f"{prefix}whole_body", robot.action_dim)]
        found += parts
    return tuple(found)


def _part_components(composite: Any, part: str, size: int, prefix: str, limb: str) -> list[Component]:
    controller = composite.part_controllers[part]
    base, prefix = f"{prefix}base", f"{prefix}{limb}"
    if part in composite.grippers:
        return [Component(f"{prefix}gripper", size, "gripper", unit="normalized", frame="joint", closed=1.0, open=-1.0)]
    kind = controller.name
    absolute = getattr(controller, "input_type", "delta") == "absolute"
    mode: Any = "absolute" if absolute else "delta"
    if kind.startswith(("OSC", "IK_POSE")):
        frame = "world" if getattr(controller, "input_ref_frame", "base") == "world" else base
        gains = {"variable": (("damping_ratio", 6), ("stiffness", 6)), "variable_kp": (("stiffness", 6),)}
        found = [Component(prefix + n, k) for n, k in gains.get(getattr(controller, "impedance_mode", ""), ())]
        unit = "m" if absolute else "normalized"
        found.append(Component(f"{prefix}position", 3, "position", mode, frame, unit))
        if size - sum(c.size for c in found) == 3:
            unit = "rad" if absolute else "normalized"
            found.append(Component(f"{prefix}rotation", 3, "orientation", mode, frame, unit, rotation="axis_angle"))
        return found
    if kind == "JOINT_POSITION":
        unit = "rad" if absolute else "normalized"
        return [Component(f"{prefix}joints", size, "position", mode, "joint", unit)]
    quantity: Any = {"JOINT_VELOCITY": "velocity", "JOINT_TORQUE": "torque"}.get(kind, "other")
    return [Component(f"{prefix}joints", size, quantity, "absolute", "joint", "normalized")]


def _object_component(name: str, size: int) -> Component:
    """The meaning of one of robosuite's object sensors, by its name and size."""
    frame = "gripper" if "_to_robot" in name else "world"  # of the others only the difference is taken
    if size == 4 and name.endswith("quat"):
        return Component(name, 4, "orientation", frame=frame, rotation="quat_xyzw")
    if size == 3:
        return Component(name, 3, "position", frame=frame, unit="m")
    if name.endswith("qpos"):
        return Component(name, size, "position", frame="joint", unit="rad")
    return Component(name, size)


# ---------------------------------------------------------------------- Checks at the door


def _one_of(argument: str, value: Any, allowed: Sequence[Any]) -> Any:
    if value not in allowed:
        near = get_close_matches(str(value), [str(a) for a in allowed], n=3, cutoff=0.3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"{argument}={value!r}, expected one of {list(allowed)}{hint}")
    return value


def _check_task(suite: Any, task: str, options: dict[str, Any]) -> None:
    _one_of("task", task, sorted(suite.ALL_ENVIRONMENTS))
    known: set[str] = set()
    for base in suite.environments.base.REGISTERED_ENVS[task].__mro__:
        if "__init__" in vars(base):
            known |= set(inspect.signature(vars(base)["__init__"]).parameters)
    for option in options:
        if option in _OURS:
            raise ValueError(f"{option}=... is decided by RobosuiteArm; see its own arguments for what can be chosen")
        _one_of("option", option, sorted(known - set(_OURS) - {"self", "args", "kwargs"}))


def _robot_names(suite: Any, task: str, robots: str | Sequence[str]) -> list[str]:
    from robosuite.environments.manipulation.two_arm_env import TwoArmEnv
    from robosuite.models.robots.robot_model import REGISTERED_ROBOTS
    from robosuite.robots import ROBOT_CLASS_MAPPING

    names = [robots] if isinstance(robots, str) else list(robots)
    for name in names:
        _one_of("robots", name, sorted(ROBOT_CLASS_MAPPING))
    two_handed = issubclass(suite.environments.base.REGISTERED_ENVS[task], TwoArmEnv)
    hands = sum(len(REGISTERED_ROBOTS[name].arms) for name in names)
    if two_handed and len(names) == 1 and hands == 1:
        return names * 2
    if hands != 2 if two_handed else len(names) != 1:
        expected = "one robot with two arms or two with one" if two_handed else "one robot"
        raise ValueError(f"robots={robots!r}, but {task} takes {expected}")
    return names


def _substeps(control_hz: float) -> int:
    if not control_hz > 0:
        raise ValueError(f"control_hz={control_hz}, expected a rate above zero that divides {_SUBSTEP_HZ} Hz")
    substeps = round(_SUBSTEP_HZ / control_hz)
    if substeps < 1 or abs(substeps * control_hz - _SUBSTEP_HZ) > 1e-6:
        near = sorted((n for n in range(1, _SUBSTEP_HZ + 1)), key=lambda n: abs(_SUBSTEP_HZ / n - control_hz))[:3]
        raise ValueError(
            f"control_hz={control_hz} does not divide robosuite's simulation rate of {_SUBSTEP_HZ} Hz; "
            f"near it are {', '.join(f'{_SUBSTEP_HZ / n:g}' for n in sorted(near))}"
        )
    return substeps


def _horizon(task: str, control_hz: float) -> int:
    return round(_HORIZON_S.get(task, 20.0) * control_hz)


def _size(argument: str, value: int | Sequence[int]) -> tuple[int, int]:
    height, width = (value, value) if isinstance(value, int) else tuple(value)
    if min(height, width) < 1:
        raise ValueError(f"{argument}={value}, expected a side or (height, width) of at least 1 pixel")
    return int(height), int(width)


# ---------------------------------------------------------------------- Physics without looks, looks without physics


def _without_appearance(xml: str) -> str:
    """The same physics without textures and with a tetrahedron for every mesh that nothing can touch.

    Compiling a model is most of a reset, and most of that are pictures and visual meshes. Names and counts
    stay, so robosuite finds everything; inertia comes from the geoms of group 0 only, so no motion changes.
    """
    root = ElementTree.fromstring(xml)
    asset = root.find("asset")
    compiler = root.find("compiler")
    if asset is None:
        return xml
    for texture in asset.findall("texture"):
        asset.remove(texture)
    for material in asset.findall("material"):
        material.attrib.pop("texture", None)
        for layer in material.findall("layer"):
            material.remove(layer)
    if compiler is not None and compiler.get("inertiagrouprange", "").split() == ["0", "0"]:
        touchable = {
            geom.get("mesh")
            for geom in root.iter("geom")
            if not (geom.get("contype") == "0" and geom.get("conaffinity") == "0" and geom.get("group") == "1")
        }
        for mesh in asset.findall("mesh"):
            if mesh.get("name") and mesh.get("name") not in touchable:
                name = mesh.get("name", "")
                mesh.attrib.clear()
                mesh.attrib.update(name=name, vertex="0 0 0  1 0 0  0 1 0  0 0 1")
    return ElementTree.tostring(root, encoding="unicode")


class _Appearance:
    """The full model for drawing, kept over episodes and brought into the state of the physical one."""

    _FOLLOWED = (
        "qpos0 body_pos body_quat jnt_pos jnt_axis geom_rgba geom_matid mat_rgba site_pos site_quat site_size "
        "site_rgba cam_pos cam_quat cam_fovy light_pos light_dir light_active light_diffuse light_ambient"
    ).split()

    def __init__(self, xml: str, physical: mujoco.MjModel, edits: Sequence[SceneEdit]) -> None:
        self._edits = edits
        self._names = physical.names
        self._model = mujoco.MjModel.from_xml_string(xml)
        self._data = mujoco.MjData(self._model)
        self._solid = np.flatnonzero(self._model.geom_type != mujoco.mjtGeom.mjGEOM_MESH)
        self._offscreens: dict[tuple[int, int], Offscreen] = {}

    def suits(self, physical: mujoco.MjModel) -> bool:
        return physical.names == self._names

    def picture(self, physical: mujoco.MjModel, state: mujoco.MjData, camera: str, size: tuple[int, int]) -> np.ndarray:
        model, data = self._model, self._data
        for name in self._FOLLOWED:
            np.copyto(getattr(model, name), getattr(physical, name))
        for name in ("geom_pos", "geom_quat", "geom_size"):
            getattr(model, name)[self._solid] = getattr(physical, name)[self._solid]
        data.qpos[:] = state.qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        if size not in self._offscreens:
            offscreen = self._offscreens[size] = Offscreen(model, width=size[1], height=size[0], edits=self._edits)
            offscreen.option.geomgroup[0] = 0  # robosuite keeps its collision shapes there
        return self._offscreens[size].render(data, camera)

    def close(self) -> None:
        for offscreen in self._offscreens.values():
            offscreen.close()
        self._offscreens.clear()
