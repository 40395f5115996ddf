"""The Blicket machine: its contacts against poses and weights, its arm's time, its slips, and the game on paper."""

import subprocess
import sys

import gymnasium
import mujoco
import numpy as np
import pytest
from playing import assert_gymnasium_accepts

from palaestra.envs.decision.blicket import Blicket, parse_machine
from palaestra.envs.decision.blicket_machine import (
    BY_HAND_S,
    MAX_ACCELERATION,
    MAX_SPEED,
    PLATE,
    PLATE_HALF,
    SOLIDS,
    TICK_S,
    TRAVEL,
    BlicketMachine,
    Workbench,
)
from palaestra.envs.decision.inquiry import ANNOUNCE, TEST
from palaestra.envs.offscreen import available

NOBODY: frozenset[int] = frozenset()
TOP = 2 * PLATE_HALF[2]


@pytest.fixture(scope="module")
def bench():
    return Workbench(8)


def begin(bench, seed=0):
    bench.reset(np.random.default_rng(seed))
    return bench


def beyond_plate(bench, k):
    """How far the middle of an object is outside the plate's rectangle, along the axis where it is most (m)."""
    return (np.abs(bench.position(k)[:2] - PLATE) - PLATE_HALF[:2]).max()


def lay(bench, k, x, y, quaternion=(1, 0, 0, 0), z=0.03):
    at = bench.model.body(f"object {k}").jntadr[0]
    at = bench.model.jnt_qposadr[at]
    bench.data.qpos[at : at + 7] = (x, y, z, *quaternion)
    mujoco.mj_forward(bench.model, bench.data)


# --- what lies where ---


def test_every_object_goes_onto_the_plate_and_home_again(bench):
    begin(bench)
    assert bench.on_plate() == NOBODY
    everything = frozenset(range(8))
    for wanted in (everything, NOBODY, frozenset({1, 2, 5, 6}), frozenset({0, 2, 3, 6, 7})):
        done = bench.arrange(wanted)
        assert done.on_plate == wanted and not done.dropped
        for k, solid in enumerate(SOLIDS):
            x, y, z = bench.position(k)
            spot = bench.place(k) if k in wanted else bench.home(k)
            assert np.hypot(x - spot[0], y - spot[1]) < 0.012
            assert z == pytest.approx(solid.height + TOP * (k in wanted), abs=0.001), "it stands upright"


def test_contacts_say_what_poses_say_also_of_what_was_dropped():
    bench = Workbench(6, slip=0.5)
    surely = {True: 0, False: 0}
    for seed in range(3):
        begin(bench, seed)
        draw = np.random.default_rng(seed)
        for _ in range(4):
            done = bench.arrange(frozenset(np.flatnonzero(draw.integers(2, size=6)).tolist()))
            for k, solid in enumerate(SOLIDS[:6]):
                outside, high = beyond_plate(bench, k), bench.position(k)[2]
                if outside < -0.02 and high < TOP + max(solid.half) + 0.001:
                    surely[True] += 1
                    assert k in done.on_plate
                if outside > np.linalg.norm(solid.half):
                    surely[False] += 1
                    assert k not in done.on_plate
    assert min(surely.values()) > 15


def test_two_fingers_hold_an_object_by_friction_alone(bench):
    """What the fingers exert on an object that hangs between them is its weight; nothing else touches it."""
    begin(bench)
    model, data = bench.model, bench.data
    for k in range(8):
        assert bench._take(k)
        bench._run(0.6)
        mujoco.mj_forward(model, data)
        body, force, local, squeeze = model.body(f"object {k}").id, np.zeros(3), np.zeros(6), 0.0
        for index, contact in enumerate(data.contact):
            bodies = model.geom_bodyid[contact.geom]
            if body in bodies:
                mujoco.mj_contactForce(model, data, index, local)
                force += (1 if bodies[1] == body else -1) * contact.frame.reshape(3, 3).T @ local[:3]
                squeeze += local[0]
                assert {model.body(b).name for b in bodies} - {f"object {k}"} <= {"left", "right"}
        np.testing.assert_allclose(force, [0, 0, model.body_mass[body] * 9.81], atol=0.03)
        assert 18 < squeeze < 30, "12 N a finger, measured as a sum"
        assert data.qpos[bench._axes[2]] == pytest.approx(TRAVEL, abs=0.002)
        begin(bench, k)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4, 8])
def test_nearly_every_placement_succeeds(count):
    bench, moved, missed = Workbench(count), 0, 0
    seed = 0
    while moved < 500:
        begin(bench, seed)
        draw = np.random.default_rng(seed)
        for _ in range(6):
            wanted = frozenset(np.flatnonzero(draw.integers(2, size=count)).tolist())
            moved += len(wanted ^ bench.on_plate())
            missed += len(wanted ^ bench.arrange(wanted).on_plate)
        seed += 1
    assert missed <= moved / 100


def test_how_far_an_object_reaches_is_that_of_its_farthest_point():
    """Against the corners of boxes and points around the rims of cylinders."""
    draw, turn = np.random.default_rng(0), np.zeros(9)
    around = np.linspace(0, 2 * np.pi, 721)
    for solid in SOLIDS:
        signs = np.array(np.meshgrid(*[(-1, 1)] * 3)).reshape(3, -1).T
        rim = np.array([(np.cos(a), np.sin(a), side) for a in around for side in (-1, 1)])
        points = signs * solid.half if solid.kind == "box" else rim * (solid.half[0], solid.half[0], solid.half[1])
        for _ in range(20):
            quaternion, direction = draw.normal(size=4), draw.normal(size=3)
            mujoco.mju_quat2Mat(turn, quaternion / np.linalg.norm(quaternion))
            direction /= np.linalg.norm(direction)
            matrix = turn.reshape(3, 3)
            assert solid.reach(matrix, direction) == pytest.approx((points @ matrix.T @ direction).max(), abs=2e-6)


# --- what it costs ---


def test_what_stays_costs_nothing_and_time_grows_with_what_moves(bench):
    begin(bench)
    assert bench.arrange(NOBODY).seconds == 0
    spent = []
    for count in range(1, 8):
        begin(bench)
        spent.append(bench.arrange(frozenset(range(count))).seconds)
        assert bench.arrange(frozenset(range(count))).seconds < 0.1
    more = np.diff([0, *spent])
    assert (more > 1.5).all() and (more < 5).all()
    begin(bench)
    still = {k: bench.position(k) for k in range(8)}
    bench.arrange(frozenset({3}))
    assert all(np.allclose(bench.position(k), still[k], atol=1e-3) for k in range(8) if k != 3), (
        "others are not touched"
    )


def test_the_hand_keeps_its_limits(bench):
    begin(bench)
    places = []
    bench.watch = lambda: places.append(bench.data.act[:2].copy())
    bench.arrange(frozenset({0, 7}))
    bench.watch = None
    velocity = np.diff(places, axis=0) / TICK_S
    assert 0.8 * MAX_SPEED < np.hypot(*velocity.T).max() <= MAX_SPEED
    assert np.hypot(*np.diff(velocity, axis=0).T).max() / TICK_S <= 1.02 * MAX_ACCELERATION


# --- what goes wrong ---


@pytest.mark.parametrize("k", range(8))
def test_what_lies_on_its_side_beside_the_plate_is_fetched(bench, k):
    begin(bench)
    lay(bench, k, -0.24, 0.08, (np.cos(np.pi / 4), np.sin(np.pi / 4) * 0.8, np.sin(np.pi / 4) * 0.6, 0))
    bench._run(0.5)
    done = bench.arrange(frozenset({k}))
    assert done.on_plate == {k} and done.seconds < BY_HAND_S


def test_what_is_out_of_reach_is_put_back_by_a_person_and_so_is_what_lies_there(bench):
    begin(bench)
    lay(bench, 2, 0.45, 0.1)
    done = bench.arrange(frozenset({2}))
    assert done.on_plate == {2} and BY_HAND_S < done.seconds < BY_HAND_S + 6
    begin(bench)
    lay(bench, 2, 0.45, 0.1)
    lay(bench, 3, *bench.home(2))
    assert bench._put_home(2) == 2
    bench._run(0.3)
    assert bench.arrange(NOBODY) == (NOBODY, 0, 0)


def test_fingers_give_way_as_often_as_it_says():
    bench, drops, carries = Workbench(3, slip=0.3), 0, 0
    carry = bench._carry

    def counted(k, goal):
        nonlocal carries
        carries += 1
        return carry(k, goal)

    bench._carry = counted
    for seed in range(16):
        begin(bench, seed)
        drops += sum(bench.arrange(wanted).dropped for wanted in (frozenset({0, 1, 2}), NOBODY, frozenset({1})))
    assert abs(drops - 0.3 * carries) < 4 * np.sqrt(carries * 0.3 * 0.7), "within four standard deviations"
    assert np.isfinite(bench.data.qpos).all() and not any(warning.number for warning in bench.data.warning)


# --- the game ---


def say(machine="blickets=[object 0, object 1]; rule=xor", n=4):
    return {"kind": ANNOUNCE, "objects": np.zeros(n, np.int8), "announcement": machine}


def ask(mask):
    return {"kind": TEST, "objects": np.asarray(mask, np.int8), "announcement": ""}


def test_an_arm_that_never_fails_plays_the_game_on_paper():
    table, paper = BlicketMachine(tests=6, noise=0.2), Blicket(tests=6, noise=0.2)
    draw = np.random.default_rng(0)
    for seed in range(3):
        seen, expected = table.reset(seed=seed)[0], paper.reset(seed=seed)[0]
        for _ in range(6):
            mask = draw.integers(2, size=4)
            for action in (say(), ask(mask)):
                assert all(np.array_equal(seen[key], expected[key]) for key in expected)
                seen, expected = table.step(action)[0], paper.step(action)[0]
        metrics, others = table.step(say())[-1]["metrics"], paper.step(say())[-1]["metrics"]
        assert metrics["failed_tests"] == metrics["dropped"] == 0 < metrics["robot_s"]
        assert others == {name: metrics[name] for name in others}


def test_the_answer_is_that_of_what_really_lies_on_the_plate():
    env, failed, wrong = BlicketMachine(5, tests=20, slip=0.5, rule="xor"), 0, 0
    draw = np.random.default_rng(1)
    env.reset(seed=5)
    truth = parse_machine(env.expert()()["announcement"], 5)
    for _ in range(20):
        env.step(say(n=5))
        mask = draw.integers(2, size=5)
        seen, *_ = env.step(ask(mask))
        there, asked = env._bench.on_plate(), frozenset(np.flatnonzero(mask).tolist())
        assert bool(seen["feedback"]) == truth.lights(there)
        assert np.array_equal(seen["objects"], mask), "the player is told of the test that was asked for"
        failed += there != asked
        wrong += truth.lights(there) != truth.lights(asked)
    metrics = env.step(say(n=5))[-1]["metrics"]
    assert metrics["failed_tests"] == failed >= wrong > 0 and metrics["dropped"] >= failed / 2


def test_the_time_to_solve_is_that_before_the_first_right_announcement():
    env = BlicketMachine(tests=3)
    env.reset(seed=0)
    truth, spent = env.expert()()["announcement"], [0.0]
    for words in ("no idea", "no idea", truth):
        env.step(say(words))
        spent.append(env.step(ask([len(spent) % 2, 1, 0, 1]))[-1]["robot_s"])
    metrics = env.step(say("no idea"))[-1]["metrics"]
    assert metrics["robot_s_to_solve"] == spent[2] < metrics["robot_s"] == spent[3]
    env.reset(seed=0)
    assert env.step(say("no idea"))[-1]["robot_s"] == 0, "the example costs nothing"


# --- as an environment ---


@pytest.mark.parametrize("options", [{"tests": 3}, {"tests": 2, "actions": "text", "n_objects": 2, "slip": 0.3}])
def test_gymnasium_accepts_it(options):
    env = gymnasium.make("palaestra/BlicketMachine-v0", render_mode="rgb_array" if available() else None, **options)
    assert_gymnasium_accepts(env, skip_render_check=not available())
    env.close()


_PROGRAM = """
import numpy as np
from palaestra.envs.decision.blicket_machine import BlicketMachine
def play(seed):
    env.reset(seed=seed); act = env.expert()
    for _ in range(5): env.step(act())
    return env._bench.data.qpos.tobytes().hex(), env.step(act())[-1]["robot_s"]
env = BlicketMachine(slip=0.4, actions="text")
"""


def test_the_same_seed_is_the_same_episode_in_another_process():
    program = _PROGRAM + "play(3); print(play(19))"
    elsewhere = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    env = BlicketMachine(slip=0.4, actions="text")
    env.reset(seed=19)
    act = env.expert()
    for _ in range(5):
        env.step(act())
    assert str((env._bench.data.qpos.tobytes().hex(), env.step(act())[-1]["robot_s"])) == elsewhere.strip()


@pytest.mark.skipif(not available(), reason="no OpenGL here")
def test_the_film_shows_the_arm_and_the_lamp():
    env = BlicketMachine(tests=2, rule="disjunctive", render_mode="rgb_array")
    env.reset(seed=0)
    env.step(say())
    truth = env.expert()
    before = env._bench.data.qpos.copy()
    env.step(truth())
    lit, film = env.render(), list(env.footage())
    assert len(film) > 10 and all(picture.shape == (480, 640, 3) for picture in film)
    assert np.array_equal(film[-1], lit) and not np.array_equal(film[0], lit)
    env.step(say())
    env.step(ask([0, 0, 0, 0]))
    yellow = [((p[..., 0] > 200) & (p[..., 1] > 200) & (p[..., 2] < 180)).sum() for p in (env.render(), lit)]
    assert yellow[0] < 50 < 1000 < yellow[1]
    assert not np.array_equal(before, env._bench.data.qpos)
    env.close()
    with pytest.warns(UserWarning, match="render_mode"):
        assert BlicketMachine().render() is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"n_objects": 9}, "n_objects=9, expected 2 to 8 objects on the table"),
        ({"n_objects": 1}, "n_objects=1"),
        ({"n_objects": True}, "n_objects=True"),
        ({"n_blickets": 4}, "n_blickets=4"),
        ({"slip": 1.0}, r"slip=1.0, expected the probability that a carry fails, in \[0, 1\)"),
        ({"slip": -0.1}, "slip=-0.1"),
        ({"slip": float("nan")}, "slip=nan"),
        ({"slip": "often"}, "slip='often'"),
        ({"render_mode": "human"}, "render_mode='human'"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        BlicketMachine(**arguments)


def test_what_nobody_touches_stays_standing():
    bench = Workbench(3)
    for seed in range(20):
        bench.reset(np.random.default_rng(seed))
        bench._run(8.0)
        upright = [bench.data.xmat[bench.model.body(f"object {k}").id, 8] for k in range(3)]
        assert min(upright) > 0.999, f"an object fell over, seed {seed}"
