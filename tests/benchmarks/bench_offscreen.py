"""Milliseconds per picture: ours beside ``mujoco.Renderer`` and beside robosuite's default renderer.

python tests/benchmarks/bench_offscreen.py [--sizes 64 84 256] [--rounds 7] [--task Lift]

The contenders draw the same scene in turn, each in a process of its own (robosuite draws into whatever context
was used last); times are processor times, the ratios medians over the rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
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


def simple(side, size):
    """Draws three shapes."""
    model = mujoco.MjModel.from_xml_string(TABLE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    if side == "ours":
        camera = Offscreen(model, size, size)
        return lambda: camera.render(data, "eye")
    renderer = mujoco.Renderer(model, size, size)

    def draw():
        renderer.update_scene(data, "eye")
        return renderer.render()

    return draw


def robot(side, task, view, size):
    """Draws a task at its start."""
    if side == "ours":
        from palaestra.envs.robosuite_arm import RobosuiteArm

        env = RobosuiteArm(task, pixels=size, cameras=[view])
        env.reset(seed=0)
        return lambda: env._picture(view, (size, size))
    import robosuite

    plain = robosuite.make(
        task, robots="Panda", has_renderer=False, renderer="mujoco", camera_heights=size, camera_widths=size
    )
    plain.reset()
    return lambda: np.ascontiguousarray(plain.sim.render(camera_name=view, width=size, height=size)[::-1])


def serve(side, task, view, size):
    """A worker: one round per line read."""
    draw = robot(side, task, view, size) if task else simple(side, size)
    draw()
    print("ready", 0, flush=True)
    for _ in sys.stdin:
        calls, began = 0, time.process_time()
        while time.process_time() - began < 0.2:
            draw()
            calls += 1
        print("round", (time.process_time() - began) / calls * 1e3, flush=True)


def answer(worker, word):
    for line in worker.stdout:
        if line.startswith(word):
            return float(line.split()[1])
    raise SystemExit(f"a worker ended before it answered {word!r}")


def compare(title, other, rounds, *arguments):
    workers = {}
    for side in ("ours", other):
        command = [sys.executable, __file__, "--worker", side, *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        workers[side] = subprocess.Popen(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
        answer(workers[side], "ready")
    times = {side: [] for side in workers}
    for _ in range(rounds):
        for side, worker in workers.items():
            print(file=worker.stdin, flush=True)
            times[side].append(answer(worker, "round"))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    ours, theirs = times["ours"], times[other]
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    print(
        f"{title:30} ours {statistics.median(ours):7.2f} ms   {other:15} {statistics.median(theirs):7.2f} ms"
        f"   {ratio:6.1f} x",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 84, 256])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--task", default="Lift")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--view", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(arguments.worker, arguments.view and arguments.task, arguments.view, arguments.sizes[0])
        raise SystemExit
    print(f"backend: {backend()}")  # which also sets MUJOCO_GL for the workers
    for pixels in map(str, arguments.sizes):
        compare(f"three shapes, {pixels} px", "mujoco.Renderer", arguments.rounds, "--sizes", pixels)
    for pixels in map(str, arguments.sizes):
        for eye in ("agentview", "frontview"):
            title = f"{arguments.task}, {eye}, {pixels} px"
            options = ("--sizes", pixels, "--task", arguments.task, "--view", eye)
            compare(title, "robosuite", arguments.rounds, *options)
