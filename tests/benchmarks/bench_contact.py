"""What a physics step of the contact worlds costs, Python and sensors included, beside MuJoCo's own step.

Both in one run and in the same states of an expert's episode, in contact:

    python tests/benchmarks/bench_contact.py
"""

import argparse
import time

import mujoco

from palaestra.envs.contact.guarded_wipe import GuardedWipe
from palaestra.envs.contact.peg_insert import PegInsert


def measure(env: GuardedWipe | PegInsert, episodes: int) -> None:
    """Print one row: microseconds a substep, over the ticks with contact."""
    act_s = step_s = bare_s = 0.0
    substeps = 0
    twin = mujoco.MjData(env.model)
    for seed in range(episodes):
        env.reset(seed=seed)
        expert, over = env.expert(), False
        while not over:
            began = time.perf_counter()
            action = expert()
            planned = time.perf_counter()
            mujoco.mj_copyData(twin, env.model, env.data)
            copied = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            stepped = time.perf_counter()
            over = terminated or truncated
            if env._wrist.contact_n.min() < 0.1:  # the peg or tool was free for some of it
                continue
            count = len(env._wrist.contact_n)
            twin.ctrl[:] = env.data.ctrl
            bare = time.perf_counter()
            mujoco.mj_step(env.model, twin, nstep=count)
            bare_s += time.perf_counter() - bare
            act_s += planned - began
            step_s += stepped - copied
            substeps += count
    whole, least = 1e6 * step_s / substeps, 1e6 * bare_s / substeps
    print(
        f"{type(env).__name__:>12}  {whole:13.2f}  {least:12.2f}  {whole / least:5.2f}  "
        f"{33.3e3 * act_s / substeps:10.3f}  {substeps:8}"
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20, help="episodes of each world")
    arguments = parser.parse_args()
    print(
        f"{'world':>12}  {'env.step, us':>13}  {'mj_step, us':>12}  {'ratio':>5}  {'expert, ms':>10}  {'substeps':>8}"
    )
    for env in (GuardedWipe(), PegInsert()):
        measure(env, arguments.episodes)


if __name__ == "__main__":
    main()
