"""Pictures per second: ours beside robosuite's default renderer and beside ``mujoco.Renderer``, in one process.

python tests/benchmarks/bench_offscreen.py [--sizes 64 84 256] [--rounds 7] [--task Lift]

The contenders draw the same state in turn; the ratios are medians over the rounds.
"""

import argparse
import statistics
import time

import mujoco
import numpy as np

from palaestra.envs.offscreen import Offscreen, backend

TABLE = """
<mujoco>
  <worldbody>
    <light pos="0 0 3"/>
    <camera name="eye" pos="0 -2 1" xyaxes="1 0 0 0 .4 .9"/>
    <geom type="plane" size="2 2 .1" rgba=".8 .8 .7 1"/>
    <geom type="sphere" size=".2" pos="0 0 .2" rgba="1 0 0 1"/>
    <geom type="box" size=".2 .2 .2" pos=".6 0 .2" rgba="0 0 1 1"/>
  </worldbody>
</mujoco>
"""


def alternate(contenders, rounds):
    """Milliseconds per call of each contender, per round."""
    times = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, draw in contenders.items():
            calls, began = 0, time.perf_counter()
            while time.perf_counter() - began < 0.1:
                draw()
                calls += 1
            times[name].append((time.perf_counter() - began) / calls * 1e3)
    return {name: values[1:] for name, values in times.items()}  # the first round warms up


def report(title, times):
    ours = times["ours, fast"]
    for name, values in times.items():
        ratio = statistics.median(value / own for value, own in zip(values, ours, strict=True))
        print(f"{title:34}{name:20}{statistics.median(values):9.2f} ms{ratio:8.1f} x")


def simple_scene(size, rounds):
    model = mujoco.MjModel.from_xml_string(TABLE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    fast, full = Offscreen(model, size, size), Offscreen(model, size, size, quality="full")
    theirs = mujoco.Renderer(model, size, size)

    def renderer():
        theirs.update_scene(data, "eye")
        return theirs.render()

    contenders = {
        "ours, fast": lambda: fast.render(data, "eye"),
        "ours, full": lambda: full.render(data, "eye"),
        "mujoco.Renderer": renderer,
    }
    report(f"three shapes, {size} px", alternate(contenders, rounds))
    for one in (fast, full, theirs):
        one.close()


def robot_scene(task, size, rounds):
    import robosuite

    from palaestra.envs.robosuite_arm import RobosuiteArm

    env = RobosuiteArm(task, pixels=size)
    env.reset(seed=0)
    plain = robosuite.make(
        task,
        robots="Panda",
        has_renderer=False,
        has_offscreen_renderer=True,
        renderer="mujoco",
        camera_heights=size,
        camera_widths=size,
    )
    plain.reset()
    for camera in ("agentview", "frontview"):
        contenders = {
            "ours, fast": lambda camera=camera: env._picture(camera, (size, size)),
            "robosuite": lambda camera=camera: np.ascontiguousarray(
                plain.sim.render(camera_name=camera, width=size, height=size)[::-1]
            ),
        }
        report(f"{task}, {camera}, {size} px", alternate(contenders, rounds))
    env.close()
    plain.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 84, 256])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--task", default="Lift")
    arguments = parser.parse_args()
    print(f"backend: {backend()}")
    for pixels in arguments.sizes:
        simple_scene(pixels, arguments.rounds)
    for pixels in arguments.sizes:
        robot_scene(arguments.task, pixels, arguments.rounds)
