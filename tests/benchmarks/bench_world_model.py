"""Plans of world-action models: milliseconds by variant, beside the bare matrix products of the same size.

    python tests/benchmarks/bench_world_model.py [--calls 100]

All variants are timed in turns, at batch 1 on one thread. "Products" is the time that this machine needs for the
operations that the cost model counts, at the rate of a large product of matrices: what is left is kernels that are
called on little, normalisations, and the attention's bookkeeping.
"""

import argparse
import time

import numpy as np
import torch

from palaestra.runtime.studies._world_model_plans import SIZES, plan_times


def product_rate(size: int = 512) -> float:
    """Operations a second of the product of two square matrices."""
    x, w = torch.randn(size, size), torch.randn(size, size)
    taken = []
    for _ in range(50):
        began = time.perf_counter()
        torch.mm(x, w)
        taken.append(time.perf_counter() - began)
    return 2 * size**3 / float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100)
    calls = parser.parse_args().calls
    torch.set_num_threads(1)
    print(f"{'size':36}{'variant':>20}{'plan ms':>9}{'first ms':>9}{'times fast':>11}{'counted':>9}{'products ms':>13}")
    rate = product_rate()
    for size in SIZES:
        times = plan_times(size, calls, seed=0)
        fast = np.median(times.plan_ms["fast"])
        for variant, milliseconds in times.plan_ms.items():
            plan = np.median(milliseconds)
            first = f"{np.median(times.first_ms):9.1f}" if variant == "fast" else f"{'':9}"
            products = 1e3 * times.operations[variant] / rate
            ratios = f"{plan / fast:11.2f}{times.predicted(variant):9.2f}"
            print(f"{size:36}{variant:>20}{plan:9.1f}{first}{ratios}{products:13.1f}")


if __name__ == "__main__":
    main()
