"""The adapter beside robosuite itself: first use, reset, step; and how often the experts succeed.

python tests/benchmarks/bench_robosuite.py [--tasks Lift Door] [--rounds 5] [--steps 100]
python tests/benchmarks/bench_robosuite.py --experts 50 [--tasks Lift Door] [--noise 0.1]

Each side runs in a process of its own and measures its processor time; the rounds alternate, and the ratios
are medians over them. ``compiled`` is robosuite as installed, with numba; ``plain`` has numba switched off.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

SIDES = ("ours", "compiled", "plain")


def environment(side, task):
    """``(reset, step, action size)`` of one side."""
    if side == "ours":
        from palaestra.envs.robosuite_arm import RobosuiteArm

        env = RobosuiteArm(task, terminate_on_success=False, horizon=10**6)
        return (lambda seed: env.reset(seed=seed)), env.step, env.action_space.shape[0]
    import robosuite

    robots = ["Panda", "Panda"] if task.startswith("TwoArm") else "Panda"
    env = robosuite.make(
        task,
        robots=robots,
        has_renderer=False,
        has_offscreen_renderer=False,
        use_camera_obs=False,
        renderer="mujoco",
        ignore_done=True,
    )
    return (lambda seed: env.reset()), env.step, env.action_dim


def serve(side, task, steps):
    """A worker: report the first use, then one round per line read."""
    began = time.perf_counter()
    reset, step, size = environment(side, task)
    reset(0)
    step(np.zeros(size))
    actions = np.random.default_rng(0).uniform(-0.3, 0.3, (steps, size))
    print("first", time.perf_counter() - began, flush=True)
    for seed, _ in enumerate(sys.stdin):
        began = time.process_time()
        reset(seed)
        after = time.process_time()
        for action in actions:
            step(action)
        print("round", after - began, (time.process_time() - after) / steps, flush=True)


def compare(task, rounds, steps):
    workers, first = {}, {}
    with tempfile.TemporaryDirectory() as empty:
        for side in SIDES:
            # An empty cache is what numba finds in a fresh installation.
            variables = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": empty}
            if side == "plain":
                variables["NUMBA_DISABLE_JIT"] = "1"
            workers[side] = subprocess.Popen(
                [sys.executable, __file__, "--worker", side, "--tasks", task, "--steps", str(steps)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=variables,
            )
            first[side] = answer(workers[side], "first")[0]
        measured = {side: [] for side in SIDES}
        for _ in range(rounds):
            for side, worker in workers.items():
                print(file=worker.stdin, flush=True)
                measured[side].append(answer(worker, "round"))
        for worker in workers.values():
            worker.stdin.close()
            worker.wait()
    print(f"\n{task}: processor time, median of {rounds} rounds of {steps} steps at 20 Hz")
    print(f"{'':10}{'first use s':>12}{'reset ms':>10}{'step ms':>10}{'step, robosuite / ours':>25}")
    for side in SIDES:
        resets, step_times = zip(*measured[side], strict=True)
        ratio = statistics.median(b / a for (_, a), (_, b) in zip(measured["ours"], measured[side], strict=True))
        print(
            f"{side:10}{first[side]:12.1f}{statistics.median(resets) * 1e3:10.1f}"
            f"{statistics.median(step_times) * 1e3:10.2f}{ratio:25.2f}"
        )


def answer(worker, word):
    """The numbers of the next line that begins with ``word``; robosuite prints lines of its own."""
    for line in worker.stdout:
        if line.startswith(word):
            return tuple(map(float, line.split()[1:]))
    raise SystemExit(f"a worker ended before it answered {word!r}")


def experts(tasks, episodes, noise):
    """Success of each expert, with a Wilson interval, when coloured noise is added to its actions."""
    from scipy.stats import binomtest

    from palaestra.envs.robosuite_arm import RobosuiteArm

    print(f"{'task':20}{'success':>9}{'95 % interval':>18}{'ticks':>8}{'seconds':>9}")
    for task in tasks:
        env, successes, ticks, began = RobosuiteArm(task), 0, [], time.process_time()
        for seed in range(episodes):
            env.reset(seed=seed)
            generator, expert, push, info, length = np.random.default_rng(seed), env.expert(), 0, {}, 0
            while "score" not in info:
                push = 0.7 * push + noise * np.sqrt(1 - 0.7**2) * generator.standard_normal(env.action_space.shape)
                info, length = env.step(np.clip(expert() + push, -1, 1))[-1], length + 1
            successes += info["success"]
            ticks.append(length)
        low, high = binomtest(successes, episodes).proportion_ci(method="wilson")
        print(
            f"{task:20}{successes / episodes:9.2f}{f'{low:.2f} to {high:.2f}':>18}{statistics.median(ticks):8.0f}"
            f"{time.process_time() - began:9.1f}"
        )
        env.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["Lift", "Door", "TwoArmLift"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--experts", type=int, metavar="N", help="run the experts over N seeds instead")
    parser.add_argument("--noise", type=float, default=0.0, help="standard deviation of what is added to an action")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(arguments.worker, arguments.tasks[0], arguments.steps)
    elif arguments.experts:
        experts(arguments.tasks, arguments.experts, arguments.noise)
    else:
        for name in arguments.tasks:
            compare(name, arguments.rounds, arguments.steps)
