"""The adapter against robosuite itself, against closed forms, and against itself in another process."""

import os
import subprocess
import sys

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scipy.spatial.transform import Rotation

import palaestra  # noqa: F401 - makes the ids known
from palaestra.envs import offscreen, operational_space
from palaestra.envs.robosuite_arm import RobosuiteArm, _controller_config, _Draws, _robosuite, _silence
from palaestra.envs.robosuite_experts import EXPERTS

ALL_TASKS = [
    *("Lift", "Stack", "Door", "Wipe", "NutAssembly", "NutAssemblySquare", "NutAssemblyRound", "NutAssemblySingle"),
    *("PickPlace", "PickPlaceCan", "ToolHang", "TwoArmLift", "TwoArmPegInHole", "TwoArmHandover", "TwoArmTransport"),
]
needs_gl = pytest.mark.skipif(offscreen.available() is None, reason="no OpenGL backend on this machine")


@pytest.fixture(scope="module")
def lift():
    env = RobosuiteArm("Lift")
    yield env
    env.close()


def plain_robosuite(task: str, robots: int, horizon: int, controller: str | None = None, control_hz: int = 20):
    """robosuite as its users make it."""
    suite = _robosuite()
    with _silence():
        return suite.make(
            task,
            robots="Panda" if robots == 1 else ["Panda"] * robots,
            controller_configs=_controller_config("Panda", controller),
            control_freq=control_hz,
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            renderer="mujoco",
            horizon=horizon,
            ignore_done=True,
        )


def start_alike(env: RobosuiteArm, plain, seed: int) -> None:
    env.reset(seed=seed)
    plain.rng = _Draws(np.random.default_rng(seed).bit_generator)
    plain.placement_initializer = None
    with _silence():
        plain.reset()


def assert_equal_to_the_last_bit(env: RobosuiteArm, plain, seeds: tuple[int, ...], ticks: int) -> None:
    for seed in seeds:
        start_alike(env, plain, seed)
        generator = np.random.default_rng(seed)
        for _ in range(ticks):
            np.testing.assert_array_equal(env.data.qpos, plain.sim.data.qpos)
            np.testing.assert_array_equal(env.data.qvel, plain.sim.data.qvel)
            action = generator.uniform(-1, 1, env.action_space.shape).astype(np.float32)
            _, reward, terminated, _, _ = env.step(action)
            assert reward == plain.step(action.astype(float))[1]
            if terminated:
                break
    env.close()
    plain.close()


@pytest.mark.parametrize(
    "task", [t if t in ("Lift", "Wipe") else pytest.param(t, marks=pytest.mark.slow) for t in ALL_TASKS]
)
def test_the_simulation_is_robosuites_to_the_last_bit(task):
    env = RobosuiteArm(task, terminate_on_success=False)
    plain = plain_robosuite(task, len(env.robosuite.robots), env.horizon)
    assert env._torques is not None  # the fast path is what is tested
    assert_equal_to_the_last_bit(env, plain, seeds=(3, 4), ticks=50)


@pytest.mark.parametrize("controller", ["OSC_POSITION", "JOINT_POSITION"])
def test_so_it_is_with_other_controllers_and_rates(controller):
    env = RobosuiteArm("Lift", controller=controller, control_hz=50)
    assert (env._torques is None) == (controller == "JOINT_POSITION")  # which is left to robosuite
    plain = plain_robosuite("Lift", 1, env.horizon, controller, control_hz=50)
    assert_equal_to_the_last_bit(env, plain, seeds=(1,), ticks=20)


def test_pseudo_inverse_is_numpys():
    generator = np.random.default_rng(0)
    for shape in ((6, 6), (2, 3, 3)):
        for _ in range(200):
            a = generator.standard_normal(shape)
            a = a @ a.swapaxes(-1, -2)
            np.testing.assert_array_equal(operational_space._pseudo_inverse(a), np.linalg.pinv(a))
        a[..., -1] = a[..., 0]  # singular
        np.testing.assert_array_equal(operational_space._pseudo_inverse(a), np.linalg.pinv(a))


EPISODE = """
import sys
import numpy as np
from palaestra.envs.robosuite_arm import RobosuiteArm
env = RobosuiteArm(sys.argv[1])
for seed in map(int, sys.argv[2:]):
    observation, _ = env.reset(seed=seed)
    for k in range(5):
        observation = env.step(np.full(env.action_space.shape, 0.1 * k, np.float32))[0]
print(b"".join(observation[key].tobytes() for key in sorted(observation)).hex())
"""


@pytest.mark.parametrize("task", ["NutAssemblySingle", pytest.param("Lift", marks=pytest.mark.slow)])
def test_a_seed_is_an_episode_in_every_process(task):
    def episode(*seeds: int, hash_seed: int) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        command = [sys.executable, "-c", EPISODE, task, *map(str, seeds)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=True)
        return done.stdout

    alone = episode(7, hash_seed=1)
    assert alone == episode(1, 2, 7, hash_seed=2)  # whatever came before
    assert alone != episode(8, hash_seed=1)


def test_unseeded_resets_go_on_and_leave_numpys_own_state_alone(lift):
    before = np.random.get_state()[1].copy()
    lift.reset(seed=5)
    drawn = [lift.reset()[0]["environment_state"] for _ in range(2)]
    sizes = {float(lift.model.geom("cube_g0").size[0])}
    lift.reset(seed=5)
    again = [lift.reset()[0]["environment_state"] for _ in range(2)]
    np.testing.assert_array_equal(drawn, again)
    assert not np.array_equal(drawn[0], drawn[1])
    lift.reset(seed=6)
    assert float(lift.model.geom("cube_g0").size[0]) not in sizes  # cubes still differ in size
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_gymnasiums_checker_is_content(lift):
    with pytest.warns(UserWarning, match="infinity"):  # positions have no natural bound
        check_env(lift, skip_render_check=True, skip_close_check=True)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["Stack", "Door", "Wipe", "NutAssemblyRound", "PickPlaceCan", "TwoArmLift"])
@pytest.mark.filterwarnings("ignore:.*infinity:UserWarning")
def test_gymnasiums_checker_is_content_with_every_task(task):
    env = gymnasium.make(f"palaestra/robosuite.{task}-v0", render_mode="rgb_array", horizon=20)
    check_env(env.unwrapped, skip_render_check=offscreen.available() is None)


def test_the_observation_means_what_the_card_says(lift):
    observation, _ = lift.reset(seed=2)
    quaternions = []
    for k in range(12):
        data = lift.data
        now = mujoco.MjData(lift.model)  # the same joint positions, everything else computed afresh
        now.qpos[:] = data.qpos
        mujoco.mj_forward(lift.model, now)
        hand, cube = now.site("gripper0_right_grip_site"), now.body("cube_main")
        agent_pos, state = observation["agent_pos"], observation["environment_state"]
        np.testing.assert_allclose(agent_pos[:3], hand.xpos, atol=1e-6)
        rotation = Rotation.from_quat(agent_pos[3:7]).as_matrix()  # scipy's order is xyzw
        np.testing.assert_allclose(rotation, hand.xmat.reshape(3, 3), atol=1e-6)
        np.testing.assert_allclose(agent_pos[7:9], now.qpos[7:9], atol=1e-7)
        np.testing.assert_allclose(state[:3], cube.xpos, atol=1e-6)
        np.testing.assert_allclose(Rotation.from_quat(state[3:7]).as_matrix(), cube.xmat.reshape(3, 3), atol=1e-6)
        np.testing.assert_allclose(state[7:10], cube.xpos - hand.xpos, atol=1e-6)
        quaternions.append(agent_pos[3:7])
        turn = np.array([0, 0, 0, 0, 1, 1, -1]) * (-1) ** (k // 6)
        observation = lift.step(turn.astype(np.float32))[0]
    assert (np.sum(np.multiply(quaternions[1:], quaternions[:-1]), axis=1) > 0.9).all()  # no sign flips
    for key, space in lift.observation_space.items():
        assert sum(part.size for part in lift.interface.observation[key]) == space.shape[-1]


def test_actions_mean_what_the_card_says(lift):
    names = [(part.name, part.mode, part.rotation) for part in lift.interface.action]
    assert names == [("position", "delta", None), ("rotation", "delta", "axis_angle"), ("gripper", "absolute", None)]

    def effect(*action: float) -> np.ndarray:
        before = lift.reset(seed=1)[0]["agent_pos"].astype(float)
        for _ in range(8):
            after = lift.step(np.array(action, np.float32))[0]["agent_pos"].astype(float)
        turned = Rotation.from_quat(after[3:7]) * Rotation.from_quat(before[3:7]).inv()
        return np.concatenate([after[:3] - before[:3], turned.as_rotvec(), [np.ptp(after[7:9]) - np.ptp(before[7:9])]])

    hold = effect(0, 0, 0, 0, 0, 0, 0)
    for axis in range(6):
        moved = (effect(*np.eye(7)[axis]) - hold)[:6] / [*[0.05] * 3, *[0.5] * 3]
        moved = np.where(np.arange(6) // 3 == axis // 3, moved, 0)  # turning also shifts the hand somewhat
        assert np.argmax(np.abs(moved)) == axis
        assert moved[axis] > 0.5
    gripper = lift.interface.action[2]
    assert effect(*[0] * 6, gripper.closed)[6] < -0.01
    assert effect(*[0] * 6, gripper.open)[6] > 0.01


def test_the_wrench_at_rest_is_the_weight_of_the_hand(lift):
    lift.reset(seed=0)
    windows = [lift.step(np.zeros(7, np.float32))[0]["wrench"] for _ in range(40)]
    np.testing.assert_array_equal(windows[-1][:25], windows[-2][25:])  # they overlap by a control period
    model, data = lift.model, lift.data
    site = model.site("gripper0_right_ft_frame")
    weight = 9.81 * model.body_subtreemass[model.site_bodyid[site.id]]
    force = data.site_xmat[site.id].reshape(3, 3) @ windows[-1][-1, :3]  # from the sensor's frame to the world's
    np.testing.assert_allclose(force, [0, 0, weight], atol=0.05 * weight)


@pytest.mark.parametrize("task", ["Wipe", "NutAssemblyRound"])
def test_the_wrench_is_the_weight_less_what_the_world_pushes_back(task):
    env = gymnasium.make(f"palaestra/robosuite.{task}-v0", horizon=60).unwrapped
    first, _ = env.reset(seed=1)
    assert first["wrench"].shape == (50, 6), "two control periods at 500 Hz"
    assert [part.unit for part in env.interface.observation["wrench"]] == ["N", "N·m"]
    model, data = env.model, env.data
    site = model.site("gripper0_right_ft_frame")
    hand = [model.site_bodyid[site.id].item()]
    for body in range(hand[0] + 1, model.nbody):  # children come after their parents
        if model.body_parentid[body] in hand:
            hand.append(body)
    weight = np.array([0, 0, 9.81 * model.body_mass[hand].sum()])

    def seen(sample):
        return data.site_xmat[site.id].reshape(3, 3) @ sample[:3]  # in the world's frame

    np.testing.assert_allclose(seen(first["wrench"][0]), weight, atol=1e-5)  # before anything has moved

    def pushed_back():
        total, force = np.zeros(3), np.zeros(6)
        for n, contact in enumerate(data.contact):
            ours = [body in hand for body in (model.geom_bodyid[contact.geom1], model.geom_bodyid[contact.geom2])]
            if ours[0] != ours[1]:
                mujoco.mj_contactForce(model, data, n, force)
                total += (1 if ours[1] else -1) * contact.frame.reshape(3, 3).T @ force[:3]
        return total

    action = np.zeros(env.action_space.shape, np.float32)
    pressed, peak, window, over = 0, 0.0, first["wrench"], False
    while not over:
        action[2] = -0.3 if pressed else -0.8
        observation, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        np.testing.assert_array_equal(observation["wrench"][:25], window[25:])
        window = observation["wrench"]
        peak = max(peak, float(np.linalg.norm(window[25:, :3], axis=1).max()))
        if (reaction := pushed_back())[2] > 2.0:
            pressed += 1
            if pressed > 2:  # what moves no more needs no force of its own
                np.testing.assert_allclose(seen(window[-1]), weight - reaction, atol=0.02 * reaction[2])
    assert pressed > 4 or task != "Wipe", "the table was reached"
    assert info["metrics"]["peak_force_n"] == pytest.approx(peak, rel=1e-5)
    env.close()


def test_the_end_of_an_episode(lift):
    lift.reset(seed=0)
    expert, done, ticks = lift.expert(), False, 0
    while not done:
        _, reward, terminated, truncated, info = lift.step(expert())
        done, ticks = terminated or truncated, ticks + 1
        assert info["success"] == (reward > 0)
    assert terminated
    assert not truncated
    assert info["score"] == 1
    assert info["metrics"]["duration_s"] == pytest.approx(ticks / 20)
    assert info["metrics"]["peak_force_n"] > 1
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"call reset\(\)"):
        lift.step(expert())
    lift.reset(seed=0)
    for _ in range(lift.horizon):
        _, _, terminated, truncated, info = lift.step(np.zeros(7, np.float32))
    assert truncated
    assert not terminated
    assert info["score"] == 0


def test_an_episode_may_go_on_after_success():
    env = RobosuiteArm("Lift", terminate_on_success=False, horizon=40)
    env.reset(seed=0)
    expert, successes = env.expert(), []
    for _ in range(40):
        *_, terminated, truncated, info = env.step(expert())
        successes.append(info["success"])
        assert not terminated
    assert truncated
    assert successes[-1]
    assert sum(successes) > 5
    env.close()


@pytest.mark.parametrize(("task", "ticks"), [("Lift", 60), ("Stack", 100), ("Door", 120)])
def test_experts_do_their_task(task, ticks):
    env = RobosuiteArm(task, horizon=ticks)
    for seed in (100, 101):
        env.reset(seed=seed)
        expert, info = env.expert(), {}
        np.testing.assert_array_equal(expert(), expert())  # a function of the state
        while "score" not in info:
            action = expert()
            assert env.action_space.contains(action)
            *_, info = env.step(action)
        assert info["success"], seed
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(EXPERTS))
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_experts_do_their_task_fifty_times(task, noise):
    env, successes = RobosuiteArm(task), []
    for seed in range(50):
        env.reset(seed=seed)
        generator, expert, push, info = np.random.default_rng(seed), env.expert(), np.zeros(7), {}
        while "score" not in info:
            push = 0.7 * push + noise * np.sqrt(1 - 0.7**2) * generator.standard_normal(7)
            *_, info = env.step(np.clip(expert() + push, -1, 1))
        successes.append(info["success"])
    assert np.mean(successes) >= 0.9
    env.close()


def test_bad_input_gets_a_sentence(lift):
    for arguments, message in (
        ({"task": "Lfit"}, r"task='Lfit', expected one of .*did you mean 'Lift'"),
        ({"robots": "panda"}, r"robots='panda', expected one of .*did you mean 'Panda'"),
        ({"robots": ["Panda", "Panda"]}, r"but Lift takes one robot"),
        ({"controller": "OSC"}, r"controller='OSC', expected one of .*did you mean 'OSC_POSE'"),
        ({"controller": "mine.json"}, r"controller='mine.json': there is no such file"),
        ({"controller": "JOINT_VELOCITY"}, r"robosuite .* cannot build Lift"),
        ({"control_hz": 30}, r"control_hz=30 does not divide .* near it are 31.25, "),
        ({"horizon": 0}, r"horizon=0, expected at least 1 tick"),
        ({"pixels": 0}, r"pixels=0, expected a side or \(height, width\)"),
        ({"cameras": ["agent"]}, r"cameras='agent', expected one of .*did you mean 'agentview'"),
        ({"render_mode": "human"}, r"render_mode='human', expected one of"),
        ({"reward_shapin": True}, r"option='reward_shapin', expected one of .*did you mean 'reward_shaping'"),
        ({"use_camera_obs": True}, r"use_camera_obs=... is decided by RobosuiteArm"),
    ):
        with pytest.raises(ValueError, match=message):
            RobosuiteArm(**{"task": "Lift", **arguments})
    lift.reset(seed=0)
    with pytest.raises(ValueError, match=r"action has shape \(3,\), expected \(7,\)"):
        lift.step(np.zeros(3))
    with pytest.raises(ValueError, match="not finite"):
        lift.step(np.full(7, np.nan))
    with pytest.raises(ValueError, match="no reset options"):
        lift.reset(options={"level": 3})


def test_where_there_is_no_expert():
    env = RobosuiteArm("TwoArmLift")
    with pytest.raises(ValueError, match=r"task='TwoArmLift' has no scripted expert; there is one for Lift"):
        env.expert()
    env.close()
    env = RobosuiteArm("Lift", controller="JOINT_POSITION")
    with pytest.raises(ValueError, match=r"takes delta joints, absolute gripper; leave controller=None"):
        env.expert()
    env.close()


BARE = """
import sys

class NoGraphics:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cv2", "OpenGL", "pynput"):
            raise ImportError(f"{name}: libGL.so.1: cannot open shared object file")

sys.meta_path.insert(0, NoGraphics())
import gymnasium
import palaestra
import os
env = gymnasium.make("palaestra/robosuite.Lift-v0")
env.reset(seed=0)
env.step(env.action_space.sample())
env.close()
assert "cv2" not in sys.modules, "the stand-in stays out of sight"
assert "MUJOCO_GL" not in os.environ, "robosuite's choice of a driver is undone"
"""


def test_without_graphics_libraries_and_without_a_word():
    environment = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == ""


@needs_gl
def test_pixels_show_the_present_state():
    env = RobosuiteArm(
        "Lift",
        pixels=(48, 64),
        cameras=["agentview", "robot0_eye_in_hand"],
        render_mode="rgb_array",
        render_size=(60, 80),
    )
    for seed in (0, 1):
        observation, _ = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
    assert set(observation["pixels"]) == {"agentview", "robot0_eye_in_hand"}
    picture = env.render()
    assert picture.shape == (60, 80, 3)

    def cube() -> np.ndarray:
        found = env.render().astype(int)
        return np.argwhere(found[..., 0] - found[..., 1] > 40).mean(axis=0)

    before = cube()
    address = env.model.joint("cube_joint0").qposadr[0]
    env.data.qpos[address + 1] += 0.1  # to the robot's left, which agentview sees from the front: to the right
    assert cube()[1] > before[1] + 3
    env.model.geom("cube_g0_vis").matid, env.model.geom("cube_g0_vis").rgba = -1, [0, 0, 1, 1]
    assert not np.argwhere(env.render()[..., 0].astype(int) - env.render()[..., 1] > 40).size  # colours follow too
    context = next(iter(env._appearance._offscreens.values()))
    env.reset(seed=2)
    env.render()
    assert context in env._appearance._offscreens.values()  # the next episode draws with the same context
    env.close()
    assert not [o for o in offscreen._OPEN if o._context is not None and o.model.nmesh > 20]


@needs_gl
@pytest.mark.slow
def test_pixels_look_like_robosuites():
    code = """
import logging, sys
logging.disable(logging.WARNING)
import numpy as np
from palaestra.envs.offscreen import backend
backend()  # robosuite's own renderer follows MUJOCO_GL
from palaestra.envs.robosuite_arm import RobosuiteArm, _Draws, _silence
import robosuite
env = RobosuiteArm("Stack", pixels=96)
ours = env.reset(seed=1)[0]["pixels"]
plain = robosuite.make("Stack", robots="Panda", has_renderer=False, has_offscreen_renderer=True, renderer="mujoco",
                       camera_heights=96, camera_widths=96)
plain.rng = _Draws(np.random.default_rng(1).bit_generator)
plain.placement_initializer = None
theirs = plain.reset()["agentview_image"][::-1]
print(np.abs(ours.astype(float) - theirs).mean())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 4, "they differ by shadows and smooth edges only"
