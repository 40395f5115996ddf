"""Perturbations change what is seen, by the stated amount, and leave what happens alone."""

import importlib
import warnings
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import palaestra  # noqa: F401 - registers the ids
from palaestra.envs.offscreen import available
from palaestra.envs.wrappers import PERTURBATIONS
from palaestra.envs.wrappers.distractor import Distractor
from palaestra.envs.wrappers.sensor_noise import SensorNoise
from palaestra.envs.wrappers.viewpoint import Viewpoint

needs_gl = pytest.mark.skipif(available() is None, reason="no OpenGL on this machine")
INTERCEPT = "palaestra/BallIntercept-v0"


def make(name, pixels=None, env_id=INTERCEPT, **options):
    module, _, cls = PERTURBATIONS[name].partition(":")
    kwargs = {"pixels": pixels} if pixels else {}
    return getattr(importlib.import_module(module), cls)(gymnasium.make(env_id, **kwargs), **options)


def states(env, seed, ticks=25):
    """The true states of the simulator and the observations of an episode under fixed actions."""
    observation, _ = env.reset(seed=seed)
    data = env.unwrapped.data
    true, seen = [np.concatenate([data.qpos, data.qvel])], [observation]
    for tick in range(ticks):
        observation, *_ = env.step(np.array([np.sin(tick), 0.3], np.float32))
        true.append(np.concatenate([data.qpos, data.qvel]))
        seen.append(observation)
    return np.array(true), seen


@pytest.mark.parametrize("name", sorted(PERTURBATIONS))
@needs_gl
def test_same_seed_makes_the_matched_pair(name):
    plain, perturbed = gymnasium.make(INTERCEPT, pixels=32), make(name, pixels=32)
    for seed in (0, 1, None):  # without a seed both worlds go on with their own streams
        true, seen = states(plain, seed)
        true_too, seen_too = states(perturbed, seed)
        np.testing.assert_array_equal(true, true_too)
        changed = "agent_pos" if name == "sensor_noise" else "pixels"
        for key in seen[0]:
            same = all(np.array_equal(a[key], b[key]) for a, b in zip(seen, seen_too, strict=True))
            assert same == (key not in ((changed, "environment_state") if name == "sensor_noise" else (changed,)))


@pytest.mark.parametrize("name", sorted(PERTURBATIONS))
@needs_gl
def test_perturbation_repeats_with_the_seed_and_changes_with_it(name):
    env = make(name, pixels=32)
    key = "agent_pos" if name == "sensor_noise" else "pixels"

    def first(seed):
        return env.reset(seed=seed)[0][key]

    np.testing.assert_array_equal(first(3), first(3))
    assert not np.array_equal(first(3), first(4))


@pytest.mark.parametrize("name", sorted(PERTURBATIONS))
@needs_gl
def test_gymnasium_accepts_the_wrapped_world_and_can_rebuild_it(name):
    env = make(name, pixels=32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(symmetric and normalized space|different from the unwrapped).*")
        check_env(env, skip_render_check=True)
    assert env.unwrapped.interface.control_hz == 30
    again = gymnasium.make(env.spec)
    assert type(again) is type(env)
    np.testing.assert_array_equal(again.reset(seed=1)[0]["pixels"], env.reset(seed=1)[0]["pixels"])


def test_noise_has_the_stated_deviation_and_spares_the_flag():
    env = make("sensor_noise", std=0.03)
    collected = []
    for seed in range(40):
        true, seen = states(env, seed, ticks=25)
        for state, observation in zip(true, seen, strict=True):
            collected.append(observation["agent_pos"] - np.concatenate([state[:2], state[5:7]]))
            assert observation["environment_state"][6] in (0, 1)
    errors = np.array(collected)  # 1040 x 4: a relative standard error of 2.2 % for each deviation
    np.testing.assert_allclose(errors.std(axis=0), 0.03, rtol=0.08)
    np.testing.assert_allclose(errors.mean(axis=0), 0, atol=0.004)
    np.testing.assert_allclose(np.corrcoef(errors.T), np.eye(4), atol=0.12)


def test_noise_reaches_one_key_and_adds_up_when_stacked():
    env = make("sensor_noise", std=0.5, key="environment_state")
    observation, _ = env.reset(seed=0)
    np.testing.assert_array_equal(observation["agent_pos"], gymnasium.make(INTERCEPT).reset(seed=0)[0]["agent_pos"])
    twice = SensorNoise(SensorNoise(gymnasium.make(INTERCEPT), std=0.03), std=0.04)
    first = np.concatenate([twice.reset(seed=s)[0]["agent_pos"] - [0, 1, 0, 0] for s in range(500)])
    assert first.std() == pytest.approx(0.05, rel=0.06)  # independent streams: 3, 4, 5


def test_noise_reaches_a_world_of_others():
    env = SensorNoise(gymnasium.make("CartPole-v1"), std=0.1)
    plain, _ = gymnasium.make("CartPole-v1").reset(seed=2)
    noisy, _ = env.reset(seed=2)
    assert noisy.dtype == plain.dtype
    assert 0 < np.abs(noisy - plain).max() < 0.6


def scene_of(env):
    """The scene that the next picture would show, built without OpenGL, before and after the perturbation."""
    world = env.unwrapped
    scene, camera = mujoco.MjvScene(world.model, 500), mujoco.MjvCamera()
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, world.model.camera("eye").id
    option, everything = mujoco.MjvOption(), mujoco.mjtCatBit.mjCAT_ALL
    mujoco.mjv_updateScene(world.model, world.data, option, None, camera, everything, scene)
    yield scene
    world.scene_edits[-1](world.model, world.data, camera, scene)
    yield scene


def pose_of(scene):
    """Position [3] and axes [3, 3] of a scene's camera: of both eyes, which one picture averages."""
    eyes = np.array([[eye.pos, eye.forward, eye.up] for eye in scene.camera], np.float64)
    np.testing.assert_allclose(eyes[0, 1:], eyes[1, 1:], atol=1e-6)
    place, forward, up = eyes.mean(axis=0)
    return place, np.stack([np.cross(forward, up), up, forward])


@needs_gl
def test_viewpoint_moves_and_turns_by_the_stated_amounts():
    env = make("viewpoint", pixels=16, metres=0.2, degrees=12)
    shifts = []
    for seed in range(30):
        env.reset(seed=seed)
        before_and_after = scene_of(env)
        scene = next(before_and_after)
        (old, pose), (new, turned) = pose_of(scene), pose_of(next(before_and_after))
        shifts.append(new - old)
        assert np.linalg.norm(new - old) == pytest.approx(0.2, abs=1e-4)
        angle = np.arccos((np.trace(pose.T @ turned) - 1) / 2)
        assert np.rad2deg(angle) == pytest.approx(12, abs=0.05)
    assert np.linalg.norm(np.mean(shifts, axis=0)) < 0.2 * 0.45  # in all directions


@needs_gl
def test_distractors_are_in_view_lie_on_something_and_stay():
    env = make("distractor", pixels=16, count=5, size=0.1)
    for seed in range(10):
        env.reset(seed=seed)
        places = []
        for _ in range(2):
            before_and_after = scene_of(env)
            known = next(before_and_after).ngeom
            scene = next(before_and_after)
            assert scene.ngeom == known + 5
            places.append(np.array([scene.geoms[known + i].pos for i in range(5)]))
            env.step(np.ones(2, np.float32))
        np.testing.assert_array_equal(places[0], places[1])
        eye = scene.camera[0]
        offsets = places[0] - eye.pos
        depth = offsets @ eye.forward
        half_height = depth * eye.frustum_top / eye.frustum_near
        assert np.all(depth > 0)
        assert np.all(np.abs(offsets @ eye.up) < half_height)
        assert np.all(np.abs(offsets @ np.cross(eye.forward, eye.up)) < half_height)
        on_the_pane, on_the_floor = places[0][:, 0] < 0, places[0][:, 2] < 0.3
        assert np.all(on_the_pane | on_the_floor)


def joints(env):
    return env.unwrapped.data.qpos


@needs_gl
def test_robot_scenes_are_perturbed_alike_and_a_camera_in_the_hand_stays():
    cameras = ("agentview", "robot0_eye_in_hand")
    plain = gymnasium.make("palaestra/robosuite.Lift-v0", pixels=32, cameras=cameras)
    view = Viewpoint(gymnasium.make("palaestra/robosuite.Lift-v0", pixels=32, cameras=cameras), degrees=10)
    for seed in (1, 2):  # the second reset builds a new model
        true, seen = plain.reset(seed=seed)[0], view.reset(seed=seed)[0]
        for _ in range(3):
            assert np.array_equal(joints(plain), joints(view))
            assert np.array_equal(true["pixels"]["robot0_eye_in_hand"], seen["pixels"]["robot0_eye_in_hand"])
            assert not np.array_equal(true["pixels"]["agentview"], seen["pixels"]["agentview"])
            true, *_ = plain.step(np.full(7, 0.3))
            seen, *_ = view.step(np.full(7, 0.3))
    noisy = SensorNoise(Distractor(view), std=0.02)
    seen = noisy.reset(seed=2)[0]
    true = plain.reset(seed=2)[0]
    assert np.array_equal(joints(plain), joints(view))
    assert 0 < np.abs(seen["environment_state"] - true["environment_state"]).max() < 0.12
    np.testing.assert_array_equal(seen["wrench"], true["wrench"])
    with pytest.raises(ValueError, match="carried by the robot"):
        Viewpoint(gymnasium.make("palaestra/robosuite.Lift-v0", pixels=32, cameras=cameras[1:]))
    for env in (plain, noisy):
        env.close()


def test_bad_input_gets_a_sentence():
    for name in ("viewpoint", "distractor"):
        with pytest.raises(ValueError, match="the observation of palaestra/BallIntercept-v0 has none"):
            make(name)
    with pytest.raises(ValueError, match="camera images"):
        make("viewpoint", env_id="CartPole-v1")
    with pytest.raises(ValueError, match=r"key='force' .* \['agent_pos', 'environment_state'\]"):
        make("sensor_noise", key="force")
    with pytest.raises(ValueError, match="key 'pixels' holds no float"):
        make("sensor_noise", pixels=16, key="pixels")
    with pytest.raises(ValueError, match="holds no float numbers"):
        SensorNoise(gymnasium.make("FrozenLake-v1"))
    env: Any = gymnasium.make(INTERCEPT, pixels=16)
    for cls, options in (
        (SensorNoise, {"std": -0.1}),
        (SensorNoise, {"std": float("nan")}),
        (SensorNoise, {"std": "much"}),
        (Viewpoint, {"metres": -1}),
        (Viewpoint, {"degrees": 400}),
        (Viewpoint, {"camera": "view"}),
        (Distractor, {"count": 0}),
        (Distractor, {"count": 2.5}),
        (Distractor, {"size": 2}),
    ):
        (argument,) = options
        with pytest.raises(ValueError, match=f"{argument}="):
            cls(env, **options)
    assert env.unwrapped.scene_edits == []  # what was refused leaves nothing behind
