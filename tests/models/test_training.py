import math

import pytest
import torch
from torch import nn

from palaestra.models.optim.adamw import AdamW
from palaestra.models.training import Average, CosineSchedule, NonFiniteLoss, steps


class Quadratic(nn.Module):
    """Half the squared distance of a vector from a batch's target."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3))
        self.vector = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def loss(self, batch, generator):
        noise = torch.randn((), generator=generator, dtype=torch.float64)
        loss = (self.matrix @ self.vector - batch["target"]).square().sum() / 2 + 0 * noise
        return {"loss": loss, "noise": noise}


BATCHES = [{"target": torch.tensor([float(i), 1.0], dtype=torch.float64)} for i in range(20)]


def test_the_loop_is_adamw_with_a_cosine():
    """Against the equations of the paper, written out."""
    method = AdamW(lr=0.1, weight_decay=0.3)
    model, reference = Quadratic(), Quadratic()
    state = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in reference.named_parameters()}
    schedule = CosineSchedule(20, warmup=5, floor=0.1)
    done = list(steps(model, BATCHES, method.build(model), schedule, torch.Generator().manual_seed(0), clip=None))
    for t, batch in enumerate(BATCHES):
        rate = 0.1 * ((t + 1) / 6 if t < 5 else 0.1 + 0.9 * (1 + math.cos(math.pi * (t - 5) / 15)) / 2)
        assert done[t].lr == pytest.approx(rate)
        reference.zero_grad()
        reference.loss(batch, torch.Generator())["loss"].backward()
        with torch.no_grad():
            for name, p in reference.named_parameters():
                m, v = state[name]
                m.mul_(0.9).add_(0.1 * p.grad)
                v.mul_(0.95).add_(0.05 * p.grad**2)
                p.mul_(1 - rate * (0.3 if name == "matrix" else 0.0))
                p.sub_(rate * (m / (1 - 0.9 ** (t + 1))) / ((v / (1 - 0.95 ** (t + 1))).sqrt() + 1e-8))
    torch.testing.assert_close(model.matrix, reference.matrix)
    torch.testing.assert_close(model.vector, reference.vector)


def test_it_ends_with_the_schedule_or_the_batches_and_repeats_with_its_generator():
    for total, expected in ((7, 7), (50, 20)):
        runs = []
        for _ in range(2):
            model = Quadratic()
            generator = torch.Generator().manual_seed(3)
            runs.append(list(steps(model, BATCHES, AdamW().build(model), CosineSchedule(total), generator)))
        assert len(runs[0]) == expected
        assert [s.index for s in runs[0]] == list(range(expected))
        assert runs[0] == runs[1]


def test_a_gradient_is_clipped_and_its_norm_reported():
    model = Quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    step = next(iter(steps(model, BATCHES, optimizer, None, torch.Generator(), clip=0.5)))
    moved = sum((p.detach() - b).square().sum() for p, b in zip(model.parameters(), before, strict=True)).sqrt()
    assert step.grad_norm > 0.5
    assert moved == pytest.approx(0.5, rel=1e-4)


def test_a_nan_stops_before_the_weights_are_touched():
    model = Quadratic()
    batches = [BATCHES[0], {"target": torch.tensor([math.nan, 0.0])}]
    training = steps(model, batches, AdamW().build(model), None, torch.Generator())
    next(training)
    weights = model.matrix.detach().clone()
    with pytest.raises(NonFiniteLoss, match="step 1"):
        next(training)
    assert torch.equal(model.matrix, weights)


def test_the_average_is_the_closed_form():
    model = Quadratic()
    average = Average(model, decay=0.5)
    expected = model.matrix.detach().clone()
    for n in range(15):
        with torch.no_grad():
            model.matrix.add_(1.0)
        average.update(model)
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * model.matrix.detach()
    average.copy_to(model)
    torch.testing.assert_close(model.matrix.detach(), expected)


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="warmup=5"):
        CosineSchedule(5, warmup=5)
    with pytest.raises(ValueError, match=r"decay=1"):
        Average(Quadratic(), decay=1)
    with pytest.raises(ValueError, match="nothing to train"):
        AdamW().build(Quadratic().requires_grad_(False))
