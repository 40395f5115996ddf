"""Plans of world-action models: milliseconds by variant, beside the bare matrix products of the same size.

    python tests/benchmarks/bench_world_model.py [--calls 100]

All variants are timed in turns, at batch 1 on one thread. "Products" is the time that this machine needs for the
operations that the cost model counts, at the rate of the products of one layer over one frame: what is left is kernels
that are called, normalisations, and the attention's bookkeeping.
"""

import argparse
import time

import numpy as np
import torch

from palaestra.models.wam.config import WamConfig
from palaestra.models.wam.cost import plan_cost
from palaestra.runtime.studies._world_model_plans import SIZES, STEPS, VARIANTS, plan_times


def product_rate(tokens: int, width: int, expansion: int) -> float:
    """Operations a second of the products of a feed-forward half, [tokens, width] by [width, expansion width]."""
    x, w = torch.randn(tokens, width), torch.randn(width, expansion * width)
    taken = []
    for _ in range(300):
        began = time.perf_counter()
        torch.mm(x, w)
        taken.append(time.perf_counter() - began)
    return 2 * tokens * width * expansion * width / float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100)
    calls = parser.parse_args().calls
    torch.set_num_threads(1)
    print(f"{'size':36}{'variant':>8}{'plan ms':>9}{'first ms':>9}{'times fast':>11}{'counted':>9}{'products ms':>13}")
    for size, changes in SIZES.items():
        times = plan_times(size, calls, seed=0)
        pictures = {"pictures": {"pixels": (20, 20, 3)}, **changes}
        config = WamConfig(2, 12, latent=0, text=4, normalization={"action": "mean_std"}, **pictures)
        cost = plan_cost(config, STEPS)
        rate = product_rate(config.cells, config.video_width, config.expansion)
        fast = np.median(times.plan_ms["fast"])
        for variant in VARIANTS:
            plan = np.median(times.plan_ms[variant])
            first = f"{np.median(times.first_ms):9.1f}" if variant == "fast" else f"{'':9}"
            products = 1e3 * getattr(cost, variant) / rate
            counted = times.predicted.get(variant, 1.0)
            print(f"{size:36}{variant:>8}{plan:9.1f}{first}{plan / fast:11.2f}{counted:9.2f}{products:13.1f}")


if __name__ == "__main__":
    main()
