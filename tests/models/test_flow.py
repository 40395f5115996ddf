"""Laws of the flow policy, in float64 and against closed forms."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.transform import Rotation
from torch import nn

from palaestra.models.flow.encoder import unfold_quaternions
from palaestra.models.flow.policy import FlowConfig, FlowPolicy, draw_training, flow_loss
from palaestra.models.flow.schedules import ConstantSchedule, ready_after
from palaestra.models.normalization import NormalizationError

H, D = 6, 2
CONFIG = FlowConfig(
    D, H, state={"agent_pos": (3,)}, normalization={"agent_pos": "mean_std", "action": "mean_std"}, max_delay=4,
    width=16, depth=2, heads=2, hidden=16,
)  # fmt: skip


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def policy(config=CONFIG, seed=1):
    """A float64 policy whose every weight is at work (new ones start with closed gates)."""
    made = FlowPolicy(config).double().eval()
    g = generator(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return made.requires_grad_(False)


def batch(size=5, seed=2):
    g = generator(seed)
    return {
        "observation": {"agent_pos": torch.randn(size, 3, generator=g, dtype=torch.float64)},
        "actions": torch.randn(size, H, D, generator=g, dtype=torch.float64),
        "valid": torch.arange(H) < torch.tensor([H, H, 4, 2, 1])[:size, None],
    }


class Field(nn.Module):
    """Stands in for the network: ``velocity(context, x, tau)`` from a function of x and tau."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, context, x, tau, valid=None):
        return self.function(x, tau.expand(x.shape[:2]))


def sampled(field, noise, steps, prefixes=None):
    made = FlowPolicy(CONFIG).double()
    made.velocity = Field(field)
    *_, last = made.stream(None, noise, ConstantSchedule(H, steps), prefixes)
    return last.actions


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 31])
@pytest.mark.parametrize("delay", [0, 3])
def test_the_field_of_a_point_is_sampled_exactly(steps, delay):
    goal = torch.randn(H, D, generator=generator(), dtype=torch.float64)
    noise = torch.randn(4, H, D, generator=generator(1), dtype=torch.float64)

    def field(x, tau):
        return torch.where(tau[..., None] > 0, (x - goal) / tau[..., None], 1e300)

    actions = sampled(field, noise, steps, [goal[:delay]] * 4)
    torch.testing.assert_close(actions, goal.expand(4, H, D), rtol=0, atol=1e-12)


def test_the_field_of_a_correlated_gaussian_is_sampled_with_its_covariance():
    """The field E[noise - A | x] of A ~ N(m, S) is linear, so the sampler is a matrix: its covariance is exact."""
    n = H * D
    root = torch.randn(n, n, generator=generator(), dtype=torch.float64) / 4
    mean, covariance = torch.linspace(-1, 1, n, dtype=torch.float64), root @ root.T + 0.1 * torch.eye(n)

    def field(x, tau):
        t = tau[0, 0]
        total = t**2 * torch.eye(n) + (1 - t) ** 2 * covariance
        gain = (t * torch.eye(n) - (1 - t) * covariance) @ torch.linalg.inv(total)
        return ((x.reshape(-1, n) - (1 - t) * mean) @ gain.T - mean).view_as(x)

    errors = []
    for steps in (10, 20, 40, 80):
        points = torch.cat([torch.zeros(1, n), torch.eye(n)]).double().view(-1, H, D)
        moved = sampled(field, points, steps).reshape(-1, n)
        torch.testing.assert_close(moved[0], mean, rtol=0, atol=1e-9)  # Euler keeps the mean
        matrix = (moved[1:] - moved[0]).T
        errors.append(float((matrix @ matrix.T - covariance).norm() / covariance.norm()))
    assert errors[-1] < 0.05
    assert all(1.6 < a / b < 2.6 for a, b in pairwise(errors)), errors  # first order


def test_a_new_network_is_the_best_guess_for_actions_of_unit_variance():
    made = FlowPolicy(CONFIG).double()
    x, tau = torch.randn(5, H, D, dtype=torch.float64), torch.rand(5, H, dtype=torch.float64)
    velocity = made.velocity(made.encode(batch()["observation"]), x, tau)
    cov, var = (2 * tau - 1)[..., None], (tau**2 + (1 - tau) ** 2)[..., None]  # of noise - A with x, and of x
    torch.testing.assert_close(velocity, cov / var * x)


def test_schedules_run_from_noise_to_clean_and_are_final_at_the_end():
    for steps, delay in ((1, 0), (3, 2), (10, 5)):
        schedule = ConstantSchedule(H, steps)
        taus = schedule.taus(delay)
        assert taus.shape == (steps + 1, H)
        assert (taus[:, :delay] == 0).all()
        assert (taus[0, delay:] == 1).all()
        torch.testing.assert_close(taus.diff(dim=0)[:, delay:], torch.full((steps, H - delay), -1 / steps))
        assert ready_after(taus, delay) == [range(delay, delay)] * (steps - 1) + [range(delay, H)]
    with pytest.raises(ValueError, match="delay=6, expected 0 <= delay < horizon=6"):
        ConstantSchedule(H, 3).taus(6)
    with pytest.raises(ValueError, match="steps=0"):
        ConstantSchedule(H, 0)


def test_a_prefix_comes_back_bit_for_bit_and_steers_what_follows():
    made, data = policy(), batch()
    made.normalize_action.fit(3 + 5 * torch.randn(100, D, dtype=torch.float64))  # so that a round trip would show
    noise = torch.randn(5, H, D, generator=generator(), dtype=torch.float64)
    free = made.sample(data["observation"], noise)
    for d in (1, 4):
        prefixes = [data["actions"][row, : d if row else 0] for row in range(5)]
        actions = made.sample(data["observation"], noise, prefixes=prefixes)
        assert torch.equal(actions[1:, :d], data["actions"][1:, :d])
        assert not torch.allclose(actions[1:, d:], free[1:, d:])
        torch.testing.assert_close(actions[0], free[0])
    with pytest.raises(ValueError, match="prefix of 5 actions, but max_delay=4"):
        made.sample(data["observation"], noise, prefixes=[data["actions"][0, :5]] * 5)
    with pytest.raises(ValueError, match=r"expected \[d, 2\]"):
        made.sample(data["observation"], noise, prefixes=[torch.zeros(2, 3)] * 5)


def test_neither_prefix_nor_padding_is_a_target():
    data = batch()
    target = data["actions"].clone().requires_grad_()
    noise = torch.randn(5, H, D, generator=generator(), dtype=torch.float64)
    rho, delay = torch.rand(5, generator=generator(), dtype=torch.float64), torch.tensor([0, 3, 1, 1, 0])
    losses = flow_loss(lambda x, tau: torch.zeros_like(x), target, data["valid"], noise, rho, delay)
    gradient = torch.autograd.grad(losses["flow"], target)[0].abs().sum(-1)
    index = torch.arange(H)
    counted = data["valid"] & (index >= delay[:, None])
    assert (gradient[~counted] == 0).all()
    assert (gradient[counted] > 0).all()


def test_what_lies_beyond_the_end_of_an_episode_does_not_change_the_loss():
    made, data = policy(), batch()
    before = made.loss(data, generator(3))
    data["actions"] = torch.where(data["valid"][..., None], data["actions"], 77.0)
    after = made.loss(data, generator(3))
    for name in ("loss", "flow", "near", "regression"):
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-12)


def test_the_loss_is_the_mean_square_over_counted_actions():
    data = batch()
    config = FlowConfig(D, H, state={"agent_pos": (3,)}, normalization=CONFIG.normalization, max_delay=H - 1)
    draw = draw_training(5, config, generator(5), data["actions"])
    x_seen, tau_seen = [], []

    def field(x, tau):
        x_seen.append(x)
        tau_seen.append(tau)
        return torch.zeros_like(x)

    losses = flow_loss(field, data["actions"], data["valid"], *draw)
    errors, near = [], []
    for b in range(5):
        d = int(draw.delay[b])
        for i in range(H):
            t = 0.0 if i < d else float(draw.rho[b])
            expected = t * draw.noise[b, i] + (1 - t) * data["actions"][b, i]
            torch.testing.assert_close(x_seen[0][b, i], expected)
            assert float(tau_seen[0][b, i]) == pytest.approx(t)
            if i >= d and data["valid"][b, i]:
                errors.append(float((draw.noise[b, i] - data["actions"][b, i]).square().mean()))
                near += errors[-1:] if i == d else []
    assert float(losses["flow"]) == pytest.approx(np.mean(errors))
    assert float(losses["near"]) == pytest.approx(np.mean(near))


def test_times_follow_their_beta_law_and_prefixes_theirs():
    draw = draw_training(20000, CONFIG, generator(), torch.zeros(1, dtype=torch.float64))
    assert stats.kstest((draw.rho.numpy() - 0.001) / 0.999, stats.beta(1.5, 1).cdf).pvalue > 0.01
    counts = np.bincount(draw.delay.numpy(), minlength=5)
    expected = 20000 * np.array([0.5 + 0.5 / 5, *[0.5 / 5] * 4])
    assert stats.chisquare(counts, expected).pvalue > 0.01


def test_one_row_of_time_is_the_same_as_a_table_of_equal_times():
    made, data = policy(), batch()
    context = made.encode(data["observation"])
    x = torch.randn(5, H, D, dtype=torch.float64)
    tau = torch.full((1, 1), 0.3, dtype=torch.float64)
    torch.testing.assert_close(made.velocity(context, x, tau), made.velocity(context, x, tau.expand(5, H)))


def test_pictures_reach_the_actions_and_samples_of_a_batch_do_not_mix():
    config = FlowConfig(
        D, H, state={"agent_pos": (3,), "wrench": (4, 6)}, pictures={"pixels/a": (32, 24, 3), "pixels/b": (16, 16, 3)},
        normalization={"agent_pos": "quantile", "wrench": "mean_std", "action": "min_max"}, max_delay=2, width=16,
        depth=1, heads=2, hidden=16,
    )  # fmt: skip
    made = policy(config)
    g = generator()
    seen = {
        "agent_pos": torch.randn(3, 3, generator=g, dtype=torch.float64),
        "wrench": torch.randn(3, 4, 6, generator=g, dtype=torch.float64),
        "pixels/a": torch.randint(0, 255, (3, 32, 24, 3), generator=g, dtype=torch.uint8),
        "pixels/b": torch.randint(0, 255, (3, 16, 16, 3), generator=g, dtype=torch.uint8),
    }
    noise = torch.randn(3, H, D, generator=g, dtype=torch.float64)
    actions = made.sample(seen, noise)
    for row in range(3):
        alone = made.sample({k: v[row : row + 1] for k, v in seen.items()}, noise[row : row + 1])
        torch.testing.assert_close(alone[0], actions[row])
    for key in seen:
        changed = {k: v.clone() for k, v in seen.items()}
        changed[key][0] = changed[key][0].flip(0)
        difference = (made.sample(changed, noise) - actions).abs().amax((1, 2))
        assert difference[0] > 1e-6, key
        assert (difference[1:] < 1e-12).all()


def test_a_quaternion_and_its_negative_are_the_same_observation():
    turns = Rotation.random(4, random_state=0)
    q = turns.as_quat()
    vectors = np.concatenate([np.full((4, 2), 7.0), q, np.full((4, 1), 9.0), q[:, [3, 0, 1, 2]]], axis=1)
    unfolded = unfold_quaternions(torch.from_numpy(vectors), [(7, "wxyz"), (2, "xyzw")]).numpy()
    matrix = turns.as_matrix()
    columns = np.concatenate([matrix[:, :, 0], matrix[:, :, 1]], axis=1)
    np.testing.assert_allclose(unfolded, np.concatenate([vectors[:, :2], columns, vectors[:, 6:7], columns], axis=1))

    config = FlowConfig.from_json(
        CONFIG.to_json() | {"state": {"agent_pos": (7,)}, "quaternions": {"agent_pos": [[3, "xyzw"]]}}
    )
    made, g = policy(config), generator()
    seen = torch.randn(3, 7, generator=g, dtype=torch.float64)
    other = torch.cat([seen[:, :3], -seen[:, 3:]], dim=1)
    noise = torch.randn(3, H, D, generator=g, dtype=torch.float64)
    torch.testing.assert_close(made.sample({"agent_pos": seen}, noise), made.sample({"agent_pos": other}, noise))


def test_a_delay_in_the_batch_is_the_prefix():
    made, data = policy(), batch()
    data["delay"] = torch.tensor([0, 3, 1, 0, 0])
    noise, rho, _ = draw_training(5, CONFIG, generator(3), data["actions"])
    context = made.encode(data["observation"])
    expected = flow_loss(
        lambda x, tau: made.velocity(context, x, tau, data["valid"]),
        data["actions"], data["valid"], noise, rho, data["delay"],
    )  # fmt: skip
    losses = made.loss(data, generator(3))
    torch.testing.assert_close(losses["flow"], expected["flow"])
    data["actions"][1, 4:], data["actions"][2, 3:] = 5.0, 5.0  # what follows a prefix is no target of the regression
    torch.testing.assert_close(made.loss(data, generator(3))["regression"], losses["regression"])


def test_a_policy_is_rebuilt_from_its_tensors_and_misfits_are_named():
    made = policy().float()
    tensors = made.state_dict()
    again = FlowPolicy.from_tensors(FlowConfig.from_json(CONFIG.to_json()), tensors)
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), tensors.values(), strict=True))
    with pytest.raises(NormalizationError, match=r"normalize.agent_pos: .*'quantile'.*those of 'mean_std'"):
        FlowPolicy.from_tensors(
            FlowConfig.from_json(CONFIG.to_json() | {"normalization": {"agent_pos": "quantile", "action": "mean_std"}}),
            tensors,
        )
    with pytest.raises(ValueError, match=r"velocity.position has shape \(6, 16\), expected \(6, 32\)"):
        FlowPolicy.from_tensors(FlowConfig.from_json(CONFIG.to_json() | {"width": 32}), tensors)
    with pytest.raises(ValueError, match=r"velocity.head.bias is missing"):
        FlowPolicy.from_tensors(CONFIG, {n: t for n, t in tensors.items() if n != "velocity.head.bias"})


def test_initial_weights_come_from_their_generator_alone():
    before = torch.get_rng_state()
    first, second, other = (FlowPolicy(CONFIG, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.velocity.embed.weight, second.velocity.embed.weight)
    assert not torch.equal(first.velocity.embed.weight, other.velocity.embed.weight)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_delay": 6}, "max_delay < horizon=6"),
        ({"width": 0}, "width=0"),
        ({"heads": 3}, "width=16 is not a multiple of heads=3"),
        ({"state": {}}, "at least one observation key"),
        ({"state": {"a.b": (3,)}}, "hold a dot"),
        ({"normalization": {}}, "no kind for \\['agent_pos', 'action'\\]"),
        ({"pictures": {"pixels": (3, 3)}}, "height, width, channels"),
        ({"prefix_rate": 2}, "prefix_rate=2"),
        ({"quaternions": {"agent_pos": [[0, "xyzw"]]}}, r"quaternions\['agent_pos'\] names \(0, 'xyzw'\)"),
        ({"colour": 1}, "unknown entries \\['colour'\\]"),
    ],
)
def test_bad_configurations_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        FlowPolicy(FlowConfig.from_json(CONFIG.to_json() | change))
