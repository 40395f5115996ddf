"""Agent and environment agree on what a number means, or the run does not start."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation as Reference

from palaestra.envs.conversion import Converted, interface_of, reconcile
from palaestra.envs.interface import ROTATION_SIZE, Component, Interface, InterfaceMismatch, Rotation
from palaestra.envs.rotations import convert_rotation

CONVENTIONS = get_args(Rotation)
HALF = np.sqrt(0.5)

# A quarter turn about z, written by hand in every convention.
QUARTER_TURN = {
    "quat_xyzw": [0, 0, HALF, HALF],
    "quat_wxyz": [HALF, 0, 0, HALF],
    "axis_angle": [0, 0, np.pi / 2],
    "euler_xyz": [0, 0, np.pi / 2],
    "rot6d_columns": [0, 1, 0, -1, 0, 0],
    "rot6d_rows": [0, -1, 1, 0, 0, 0],
    "matrix": [0, -1, 0, 1, 0, 0, 0, 0, 1],
}
# A quarter turn about x, then one about the new z: tells intrinsic from extrinsic angles and rows from columns.
TWO_TURNS = {
    "quat_xyzw": [0.5, -0.5, 0.5, 0.5],
    "quat_wxyz": [0.5, 0.5, -0.5, 0.5],
    "axis_angle": [2 * np.pi / 3 / np.sqrt(3), -2 * np.pi / 3 / np.sqrt(3), 2 * np.pi / 3 / np.sqrt(3)],
    "euler_xyz": [np.pi / 2, 0, np.pi / 2],
    "rot6d_columns": [0, 0, 1, -1, 0, 0],
    "rot6d_rows": [0, -1, 0, 0, 1, 0],
    "matrix": [0, -1, 0, 0, 0, -1, 1, 0, 0],
}


@pytest.mark.parametrize(("source", "target"), [*itertools.product(CONVENTIONS, CONVENTIONS)])
@pytest.mark.parametrize("golden", [QUARTER_TURN, TWO_TURNS])
def test_rotation_written_by_hand(golden, source, target):
    np.testing.assert_allclose(convert_rotation(golden[source], source, target), golden[target], atol=1e-12)


def matrix_of(values: np.ndarray, convention: str) -> np.ndarray:
    """The rotation matrix by textbook formulas, to check scipy's and ours against."""
    v = np.asarray(values, float)
    if convention == "quat_wxyz":
        return matrix_of(v[[1, 2, 3, 0]], "quat_xyzw")
    if convention == "quat_xyzw":
        x, y, z, w = v / np.linalg.norm(v)
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        return np.eye(3) + 2 * w * cross + 2 * cross @ cross
    if convention == "axis_angle":
        angle = np.linalg.norm(v)
        x, y, z = v / angle if angle > 0 else v
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    if convention == "euler_xyz":
        (ca, cb, cc), (sa, sb, sc) = np.cos(v), np.sin(v)
        about_x = np.array([[1, 0, 0], [0, ca, -sa], [0, sa, ca]])
        about_y = np.array([[cb, 0, sb], [0, 1, 0], [-sb, 0, cb]])
        about_z = np.array([[cc, -sc, 0], [sc, cc, 0], [0, 0, 1]])
        return about_x @ about_y @ about_z
    if convention == "matrix":
        return v.reshape(3, 3)
    two = v.reshape(2, 3).T if convention == "rot6d_columns" else v.reshape(3, 2)
    return np.column_stack([two, np.cross(two[:, 0], two[:, 1])])


components = st.floats(-1, 1)
quaternions = st.tuples(components, components, components, components).filter(lambda q: np.linalg.norm(q) > 0.1)
half_turns = st.tuples(components, components, components, st.just(0.0)).filter(lambda q: np.linalg.norm(q) > 0.1)


@settings(max_examples=200, deadline=None)
@given(quaternions | half_turns, st.sampled_from(CONVENTIONS), st.sampled_from(CONVENTIONS))
def test_there_and_back_is_the_same_rotation(quaternion, source, target):
    rotation = matrix_of(np.array(quaternion), "quat_xyzw")
    there = convert_rotation(quaternion, "quat_xyzw", source)
    np.testing.assert_allclose(matrix_of(there, source), rotation, atol=5e-6)
    other = convert_rotation(there, source, target)
    np.testing.assert_allclose(matrix_of(other, target), rotation, atol=5e-6)
    back = convert_rotation(other, target, source)
    np.testing.assert_allclose(matrix_of(back, source), rotation, atol=5e-6)


@settings(max_examples=100, deadline=None)
@given(quaternions | half_turns, st.sampled_from([c for c in CONVENTIONS if not c.startswith("quat")]))
def test_antipodal_quaternions_are_one_rotation(quaternion, target):
    quaternion = np.array(quaternion)
    one, other = (convert_rotation(q, "quat_xyzw", target) for q in (quaternion, -quaternion))
    np.testing.assert_allclose(one, other, atol=1e-6)
    if target == "axis_angle":
        assert np.linalg.norm(one) <= np.pi + 1e-9


def test_antipodal_axis_angle_by_hand():
    # 3/2 pi about z is a quarter turn about -z; a gripper that points down is half a turn, of either sign.
    np.testing.assert_allclose(convert_rotation([0, 0, 1.5 * np.pi], "axis_angle", "axis_angle"), [0, 0, -np.pi / 2])
    for noise in (0.0, 1e-9, -1e-9):
        for sign in (1, -1):
            down = [sign, 0, 0, noise]
            np.testing.assert_allclose(convert_rotation(down, "quat_xyzw", "axis_angle"), [np.pi, 0, 0], atol=1e-7)
            np.testing.assert_allclose(convert_rotation(down, "quat_xyzw", "matrix")[:1], [1], atol=1e-7)


def test_a_share_of_a_rotation_applied_often_is_the_whole():
    whole = Reference.from_quat(np.random.default_rng(0).normal(size=(20, 4)))
    for convention in CONVENTIONS:
        values = convert_rotation(whole.as_quat(), "quat_xyzw", convention)
        third = convert_rotation(values, convention, "quat_xyzw", fraction=1 / 3)
        assert ((Reference.from_quat(third) ** 3).inv() * whole).magnitude().max() < 1e-9, convention


def test_reordering_a_quaternion_keeps_every_bit():
    values = np.random.default_rng(0).normal(size=(5, 3, 4))
    there = convert_rotation(values, "quat_wxyz", "quat_xyzw")
    np.testing.assert_array_equal(there, values[..., [1, 2, 3, 0]])
    np.testing.assert_array_equal(convert_rotation(there, "quat_xyzw", "quat_wxyz"), values)


@pytest.mark.parametrize(
    ("values", "convention", "reason"),
    [
        ([0, 0, 0, 0], "quat_xyzw", "length zero"),
        ([np.nan, 0, 0], "axis_angle", "not finite"),
        ([1, 0, 0, 2, 0, 0], "rot6d_columns", "parallel"),
        ([-1, 0, 0, 0, 1, 0, 0, 0, 1], "matrix", "reflection"),
        ([1, 0, 0], "quat_xyzw", r"4 numbers, got an array of shape \(3,\)"),
        ([1, 0, 0], "euler_zyx", "not one of"),
    ],
)
def test_what_is_no_rotation_is_named(values, convention, reason):
    with pytest.raises(ValueError, match=reason):
        convert_rotation(np.array(values, float), convention, "euler_xyz")


# The causes of a silent zero, one by one --------------------------------------------------------------------------

POSITION = Component("position", 3, "position", "delta", unit="m")
TURN = Component("rotation", 3, "orientation", "delta", unit="rad", rotation="axis_angle")
HAND = Component("gripper", 1, "gripper", closed=1.0, open=-1.0)
EEF = Component("eef_quat", 4, "orientation", rotation="quat_xyzw")
JOINTS = Component("joints", 2, "position", unit="rad")
ARM = Interface(20.0, (POSITION, TURN, HAND), {"agent_pos": (EEF, JOINTS)}, episode_ticks=100)


class Arm(gym.Env):
    """Remembers its actions; has no physics."""

    def __init__(self, interface: Interface = ARM, observation: Any = None, bound: float = 1.0):
        self.interface = interface
        self.action_space = spaces.Box(-bound, bound, (sum(c.size for c in interface.action),), np.float32)
        sent = observation or {"agent_pos": [0, 0, HALF, HALF, 0.5, -0.5]}
        self.observation = {k: np.asarray(v, np.float32) for k, v in sent.items()}
        self.observation_space = spaces.Dict(
            {k: spaces.Box(-np.pi, np.pi, v.shape, np.float32) for k, v in self.observation.items()}
        )
        self.actions: list[np.ndarray] = []
        self.infos: dict[int, dict[str, Any]] = {}
        self.ends_at = 100

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.actions = []
        return dict(self.observation), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.actions.append(action.copy())
        tick = len(self.actions)
        return dict(self.observation), 0.5, tick >= self.ends_at, False, dict(self.infos.get(tick, {}))


def with_action(card: Interface, *changed: Component) -> Interface:
    by_name = {c.name: c for c in changed}
    return replace(card, action=tuple(by_name.get(c.name, c) for c in card.action))


def play(agent: Interface, env: gym.Env, *actions: Sequence[float]) -> tuple[Any, list[np.ndarray]]:
    """The agent's first observation, and what the environment got."""
    converted = reconcile(agent, interface_of(env)).wrap(env)
    observation, _ = converted.reset(seed=0)
    assert converted.observation_space.contains(observation)
    for action in actions:
        assert converted.action_space.contains(np.asarray(action, np.float32)), (action, converted.action_space)
        converted.step(np.asarray(action, np.float32))
    inner = env.unwrapped
    assert isinstance(inner, Arm)
    return observation, inner.actions


def test_the_same_card_needs_no_wrapper():
    env = Arm()
    conversion = reconcile(ARM, env.interface, horizon=8)
    assert conversion.wrap(env) is env
    assert conversion.checked
    assert conversion.summary == "checked"


def test_cause_quaternion_order():
    agent = replace(ARM, observation={"agent_pos": (replace(EEF, rotation="quat_wxyz"), JOINTS)})
    observation, _ = play(agent, Arm())
    np.testing.assert_allclose(observation["agent_pos"], [HALF, 0, 0, HALF, 0.5, -0.5], rtol=1e-6)
    note = reconcile(agent, ARM).notes[0]
    assert "quat_xyzw" in note
    assert "quat_wxyz" in note


def test_cause_antipodal_axis_angle():
    agent = replace(ARM, observation={"agent_pos": (Component("eef_quat", 3, rotation="axis_angle"), JOINTS)})
    agent = replace(agent, observation={"agent_pos": (replace(EEF, size=3, rotation="axis_angle"), JOINTS)})
    seen = []
    for sign in (1, -1):
        # 10 degrees about z; from -q a careless conversion makes 350 degrees
        half = np.deg2rad(5)
        quaternion = sign * np.array([0, 0, np.sin(half), np.cos(half)])
        observation, _ = play(agent, Arm(observation={"agent_pos": [*quaternion, 0.5, -0.5]}))
        seen.append(observation["agent_pos"])
    np.testing.assert_allclose(seen[0], [0, 0, np.deg2rad(10), 0.5, -0.5], atol=1e-6)
    np.testing.assert_allclose(seen[1], seen[0], atol=1e-6)


def test_cause_rot6d_layout():
    env = Arm(
        replace(ARM, observation={"agent_pos": (replace(EEF, size=6, rotation="rot6d_rows"),)}),
        {"agent_pos": QUARTER_TURN["rot6d_rows"]},
    )
    agent = replace(ARM, observation={"agent_pos": (replace(EEF, size=6, rotation="rot6d_columns"),)})
    observation, _ = play(agent, env)
    np.testing.assert_allclose(observation["agent_pos"], QUARTER_TURN["rot6d_columns"], atol=1e-7)


def test_cause_euler_against_axis_angle():
    agent = with_action(ARM, replace(TURN, rotation="euler_xyz"))
    _, actions = play(agent, Arm(bound=np.pi), [0, 0, 0, np.pi / 2, 0, np.pi / 2, 0])
    np.testing.assert_allclose(actions[0][3:6], TWO_TURNS["axis_angle"], rtol=1e-6)


def test_cause_inverted_gripper():
    agent = with_action(ARM, replace(HAND, closed=-1.0, open=1.0))
    _, actions = play(agent, Arm(), [0] * 6 + [1], [0] * 6 + [-1], [0] * 6 + [0.5])
    np.testing.assert_allclose([a[6] for a in actions], [-1, 1, -0.5])
    assert "inverted" in reconcile(agent, ARM).summary


def test_cause_gripper_range():
    # a hand that reports its width in metres, driven by an agent that knows 0 for open and 255 for closed
    raw = replace(HAND, closed=0.0, open=0.08)
    agent = with_action(ARM, replace(HAND, closed=255.0, open=0.0))
    _, actions = play(agent, Arm(with_action(ARM, raw)), [0] * 6 + [255], [0] * 6 + [0], [0] * 6 + [51])
    np.testing.assert_allclose([a[6] for a in actions], [0, 0.08, 0.064], atol=1e-7)


def test_cause_state_not_sent():
    with pytest.raises(InterfaceMismatch, match=r"observation 'agent_pos'.*does not send it.*sends 'pixels'"):
        reconcile(ARM, replace(ARM, observation={"pixels": (Component("image", 3, "image"),)}))
    # the card promises it, the environment was made without
    env = Arm(observation={"pixels": [0, 0, 0]})
    with pytest.raises(InterfaceMismatch, match=r"'agent_pos'.*sends only 'pixels'"):
        reconcile(ARM, ARM).wrap(env)


def test_cause_absolute_for_delta():
    with pytest.raises(
        InterfaceMismatch, match="'position': mode: the agent gives absolute, the environment takes delta"
    ):
        reconcile(with_action(ARM, replace(POSITION, mode="absolute")), ARM)


def test_cause_chunk_length():
    with pytest.raises(InterfaceMismatch, match=r"chunk length: 16 actions are to be executed.*trained to plan 8"):
        reconcile(replace(ARM, chunk=8), ARM, horizon=16)
    assert reconcile(replace(ARM, chunk=8), ARM, horizon=8).checked


def test_cause_too_few_steps():
    agent = replace(ARM, episode_ticks=101)
    with pytest.raises(InterfaceMismatch, match="demonstrations lasted 101 ticks, the environment ends after 100"):
        reconcile(agent, ARM)
    with pytest.raises(InterfaceMismatch, match="lasted 51 ticks, which are 102 of the environment"):
        reconcile(replace(ARM, episode_ticks=51, control_hz=10.0), ARM)


def test_cause_control_rate():
    for hz in (15.0, 40.0):
        with pytest.raises(InterfaceMismatch, match=f"trained at {hz:g} Hz, the environment runs at 20 Hz"):
            reconcile(replace(ARM, control_hz=hz), ARM)

    agent = replace(ARM, control_hz=10.0, episode_ticks=50)
    env = Arm()
    env.infos = {1: {"event": {"time_s": 0.05}, "success": True}, 2: {"event": {"time_s": 0.1}, "success": False}}
    env.ends_at = 3
    converted = reconcile(agent, ARM).wrap(env)
    card = interface_of(converted)
    assert card is not None
    assert (card.control_hz, card.episode_ticks) == (10.0, 50)
    assert isinstance(converted.action_space, spaces.Box)
    np.testing.assert_allclose(converted.action_space.high[:6], 2)  # deltas are shared out
    np.testing.assert_allclose(converted.action_space.high[6], 1)  # a grip is held
    converted.reset()
    _, reward, terminated, _, info = converted.step(np.array([2, 0, 1, 0, 0, 0.5, 1], np.float32))
    np.testing.assert_allclose(env.actions, [[1, 0, 0.5, 0, 0, 0.25, 1]] * 2)
    assert (reward, terminated) == (1.0, False)
    assert info["event"] == {"time_s": 0.05}
    assert info["success"] is True
    _, reward, terminated, _, _ = converted.step(np.zeros(7, np.float32))
    assert (reward, terminated, len(env.actions)) == (0.5, True, 3)


def test_a_turn_at_half_the_rate_is_half_the_turn_in_any_convention():
    agent = with_action(replace(ARM, control_hz=10.0, episode_ticks=50), replace(TURN, rotation="euler_xyz"))
    angles = [0.4, -0.6, 1.0]
    _, actions = play(agent, Arm(), [0, 0, 0, *angles, 0])
    step = Reference.from_rotvec(actions[0][3:6])
    np.testing.assert_allclose((step * step).as_matrix(), matrix_of(np.array(angles), "euler_xyz"), atol=1e-6)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (replace(POSITION, frame="tool"), "frame: the agent gives tool, the environment takes world"),
        (replace(POSITION, quantity="velocity"), "quantity: the agent gives velocity, the environment takes position"),
        (replace(POSITION, unit="normalized"), "unit: the agent gives normalized, the environment takes m"),
        (replace(POSITION, size=2), "size: the agent gives 2 numbers, the environment takes 3 numbers"),
        (replace(POSITION, name="pos"), "'pos': the agent gives it, the environment takes no such component"),
        (replace(POSITION, name="pos"), "'position': the environment takes it, the agent gives no such component"),
    ],
)
def test_other_mismatches(agent, message):
    card = replace(ARM, action=(agent, TURN, HAND))
    with pytest.raises(InterfaceMismatch, match=message):
        reconcile(card, ARM)


def test_every_problem_is_listed_at_once():
    agent = Interface(
        15.0,
        (replace(POSITION, mode="absolute", frame="base"), TURN),
        {"state": (JOINTS,), "agent_pos": (replace(JOINTS, size=7),)},
        episode_ticks=500,
        chunk=4,
    )
    with pytest.raises(InterfaceMismatch) as caught:
        reconcile(agent, ARM, horizon=8)
    message = str(caught.value)
    assert "8 problems" in message
    for word in ("chunk", "rate", "mode", "frame", "'gripper'", "'state'", "size", "episode length"):
        assert word in message, word


@pytest.mark.parametrize(
    ("ours", "theirs", "factor"),
    [
        ("cm", "m", 0.01),
        ("m", "mm", 1000),
        ("deg/s", "rad/s", np.pi / 180),
        ("N·m", "kN*m", 1e-3),
        ("m/s^2", "cm/s²", 100),
    ],
)
def test_units(ours, theirs, factor):
    env = Arm(with_action(ARM, replace(POSITION, unit=theirs)), bound=10.0)
    _, actions = play(with_action(ARM, replace(POSITION, unit=ours)), env, [0.001, 0.002, -0.003, 0, 0, 0, 0])
    np.testing.assert_allclose(actions[0][:3], np.array([0.001, 0.002, -0.003]) * factor, rtol=1e-6)


def test_order_of_components_and_left_out_observations():
    agent = Interface(20.0, (HAND, TURN, POSITION), {"agent_pos": (JOINTS,)})
    observation, actions = play(agent, Arm(), [1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    np.testing.assert_allclose(observation["agent_pos"], [0.5, -0.5])
    np.testing.assert_allclose(actions[0], [0.4, 0.5, 0.6, 0.1, 0.2, 0.3, 1])
    notes = reconcile(agent, ARM).notes
    assert any("reordered" in note for note in notes)
    assert any("'eef_quat': left out" in note for note in notes)


def test_cameras_are_compared_by_name():
    front, wrist = (Component(name, 1, "image", frame=name) for name in ("front", "wrist"))
    both = replace(ARM, observation={"pixels": (front, wrist)})
    assert reconcile(replace(both, observation={"pixels": (wrist, front)}), both).identity
    with pytest.raises(InterfaceMismatch, match="'wrist': the environment sends it, the agent expects no such"):
        reconcile(replace(both, observation={"pixels": (front,)}), both)
    with pytest.raises(InterfaceMismatch, match="'wrist': the agent expects it, the environment sends no such"):
        reconcile(both, replace(both, observation={"pixels": (front,)}))


def test_unknown_is_noted_not_guessed():
    assert not reconcile(None, ARM).checked
    assert "agent" in reconcile(None, ARM).summary
    assert not reconcile(ARM, None).checked
    assert reconcile(None, None).wrap(env := Arm()) is env
    conversion = reconcile(replace(ARM, control_hz=None), replace(ARM, episode_ticks=None))
    assert not conversion.checked
    assert sum("unchecked" in note for note in conversion.notes) == 2
    without_unit = reconcile(with_action(ARM, replace(POSITION, unit="")), ARM)
    assert not without_unit.checked
    assert "unit" in without_unit.notes[0]
    turn = replace(TURN, unit="", rotation="euler_xyz")
    assert "taken for rad" in reconcile(with_action(ARM, turn), ARM).summary


def test_a_normalized_rotation_is_shared_out_but_not_reinterpreted():
    card = with_action(ARM, replace(TURN, unit="normalized"))
    _, actions = play(replace(card, control_hz=10.0, episode_ticks=50), Arm(card), [0, 0, 0, 1, 0, 2, 0])
    np.testing.assert_allclose(actions[0][3:6], [0.5, 0, 1])
    with pytest.raises(
        InterfaceMismatch, match=r"rotation: the agent gives euler_xyz in rad.*axis_angle in normalized"
    ):
        reconcile(with_action(ARM, replace(TURN, rotation="euler_xyz")), card)


def test_what_leaves_the_bounds_is_clipped_and_counted():
    env = Arm()
    env.ends_at = 1
    converted = reconcile(with_action(ARM, replace(TURN, rotation="euler_xyz")), ARM).wrap(env)
    converted.reset()
    *_, info = converted.step(np.array([0, 0, 0, 3.0, 0, 0, 0], np.float32))
    assert env.actions[0][3] == 1.0
    assert info["metrics"] == {"clipped_actions": 1.0}


def test_a_card_that_contradicts_the_space_is_refused():
    env = Arm()
    env.action_space = spaces.Box(-1, 1, (8,))
    with pytest.raises(InterfaceMismatch, match="card describes 7 numbers"):
        Converted(env, reconcile(with_action(ARM, replace(HAND, closed=0.0)), ARM))


def test_windows_convert_row_by_row():
    wrench = Component("force", 3, "force", unit="N")
    env = Arm(replace(ARM, observation={"wrench": (wrench,)}), {"wrench": np.ones((4, 3))})
    agent = replace(ARM, observation={"wrench": (replace(wrench, unit="mN"),)})
    observation, _ = play(agent, env)
    np.testing.assert_array_equal(observation["wrench"], np.full((4, 3), 1000.0))


@given(st.sampled_from(CONVENTIONS), st.sampled_from(CONVENTIONS))
def test_two_conversions_undo_each_other(ours, theirs):
    """An agent's action, sent through A to B and back, is the same motion."""
    a, b = (
        with_action(ARM, Component("rotation", ROTATION_SIZE[c], "orientation", "delta", unit="rad", rotation=c))
        for c in (ours, theirs)
    )
    action = np.concatenate([[0.1, 0.2, 0.3], QUARTER_TURN[ours], [1.0]])
    there = reconcile(a, b).act(action)
    np.testing.assert_allclose(reconcile(b, a).act(there), action, atol=1e-12)
