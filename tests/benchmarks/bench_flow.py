"""What one evaluation of the flow policy's network costs, beside the matrix products that it cannot do without.

Both are measured in one run, so the ratio says how much is overhead whatever the machine:

    python tests/benchmarks/bench_flow.py --batch 1 32
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

from palaestra.models.flow.config import FlowConfig
from palaestra.models.flow.policy import FlowPolicy
from palaestra.models.flow.schedules import ConstantSchedule


def seconds(work: Callable[[], object], repeat: int) -> float:
    """The median time of a call."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return sorted(times)[repeat // 2]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32], help="episodes planned for at once")
    parser.add_argument("--width", type=int, default=64, help="width of the transformer")
    parser.add_argument("--horizon", type=int, default=24, help="actions a chunk")
    parser.add_argument("--repeat", type=int, default=50, help="calls, of which the median counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    policy = FlowPolicy(
        FlowConfig(
            2,
            arguments.horizon,
            state={"environment_state": (11,)},
            normalization={"environment_state": "mean_std", "action": "mean_std"},
            width=arguments.width,
        )
    ).requires_grad_(False)
    print(
        f"{'batch':>5}  {'prefix':>6}  {'evaluation, ms':>14}  {'products, ms':>12}  {'ratio':>5}  {'encoding, ms':>12}"
    )
    with torch.inference_mode():
        for batch in arguments.batch:
            for prefix in (0, 4):
                measure(policy, batch, prefix, arguments.repeat)


def measure(policy: FlowPolicy, batch: int, prefix: int, repeat: int) -> None:
    """Print one row."""
    horizon = policy.config.horizon
    observation = {"environment_state": torch.randn(batch, 11)}
    noise, schedule = torch.randn(batch, horizon, 2), ConstantSchedule(horizon, 10)
    prefixes = [torch.zeros(prefix, 2)] * batch
    layers = [layer for layer in policy.velocity.blocks.modules() if isinstance(layer, nn.Linear)]
    inputs = [torch.randn(batch * horizon, layer.in_features) for layer in layers]
    context = policy.encode(observation)
    encoding = 1e3 * seconds(lambda: policy.encode(observation), repeat)
    products = 1e3 * seconds(lambda: [layer(x) for layer, x in zip(layers, inputs, strict=True)], repeat)
    evaluation = 1e3 * seconds(lambda: list(policy.stream(context, noise, schedule, prefixes)), repeat) / 10
    ratio = evaluation / products
    print(f"{batch:5}  {prefix:6}  {evaluation:14.2f}  {products:12.2f}  {ratio:5.1f}  {encoding:12.2f}")


if __name__ == "__main__":
    main()
