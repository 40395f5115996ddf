"""Laws of the flow policy, in float64 and against closed forms."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.transform import Rotation
from torch import nn

from palaestra.models.flow.config import FlowConfig
from palaestra.models.flow.encoder import unfold_quaternions
from palaestra.models.flow.guidance import Guidance, chunking_weights, guided
from palaestra.models.flow.objective import draw_training, flow_loss, training_times
from palaestra.models.flow.policy import FlowPolicy
from palaestra.models.flow.schedules import ConstantSchedule, HorizonAwareSchedule, make_schedule, ready_after
from palaestra.models.flow.straightness import straightness
from palaestra.models.normalization import NormalizationError

H, D = 6, 2
SCHEDULES = [ConstantSchedule, HorizonAwareSchedule]
CONFIG = FlowConfig(
    D, H, state={"agent_pos": (3,)}, normalization={"agent_pos": "mean_std", "action": "mean_std"}, max_delay=4,
    width=16, depth=2, heads=2, hidden=16,
)  # fmt: skip


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


MLP = FlowConfig.from_json(CONFIG.to_json() | {"backbone": "mlp"})
BACKBONES = pytest.mark.parametrize("config", [CONFIG, MLP], ids=["transformer", "mlp"])


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

    def context(self, vector, tokens=None):
        return None

    def forward(self, context, x, tau, valid=None):
        return self.function(x, tau.expand(x.shape[:2]))


def sampled(field, noise, schedule, prefixes=None):
    made = FlowPolicy(CONFIG).double()
    made.velocity = Field(field)
    *_, last = made.stream(None, noise, schedule, prefixes)
    return last.actions


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 31])
@pytest.mark.parametrize("delay", [0, 3])
def test_the_field_of_a_point_is_sampled_exactly(kind, steps, delay):
    goal = torch.randn(H, D, generator=generator(), dtype=torch.float64)
    noise = torch.randn(4, H, D, generator=generator(1), dtype=torch.float64)

    def field(x, tau):
        return torch.where(tau[..., None] > 0, (x - goal) / tau[..., None], 1e300)

    actions = sampled(field, noise, kind(H, steps), [goal[:delay]] * 4)
    torch.testing.assert_close(actions, goal.expand(4, H, D), rtol=0, atol=1e-12)


def gaussian_field(mean, covariance):
    """E[noise - A | x, tau] of A ~ N(mean, covariance) with a time for every action, by conditioning: it is linear."""
    n = len(mean)

    def field(x, tau):
        t = torch.diag(tau[0].repeat_interleave(D))
        c = torch.eye(n) - t
        total = t @ t + c @ covariance @ c
        gain = (t - covariance @ c).mT @ torch.linalg.pinv(total, hermitian=True)
        return ((x.reshape(-1, n) - c @ mean) @ gain.T - mean).view_as(x)

    return field


@pytest.mark.parametrize("kind", SCHEDULES)
def test_the_field_of_a_correlated_gaussian_is_sampled_with_its_covariance(kind):
    """The sampler is then a matrix, so its covariance is exact: any path of times must lead to the same law."""
    n = H * D
    root = torch.randn(n, n, generator=generator(), dtype=torch.float64) / 4
    mean, covariance = torch.linspace(-1, 1, n, dtype=torch.float64), root @ root.T + 0.1 * torch.eye(n)
    field, errors = gaussian_field(mean, covariance), []
    for steps in (20, 40, 80, 160):
        points = torch.cat([torch.zeros(1, n), torch.eye(n)]).double().view(-1, H, D)
        moved = sampled(field, points, kind(H, steps, **({} if kind is ConstantSchedule else {"first_hit": 0.8})))
        moved = moved.reshape(-1, n)
        torch.testing.assert_close(moved[0], mean, rtol=0, atol=1e-7)  # Euler keeps the mean
        matrix = (moved[1:] - moved[0]).T
        errors.append(float((matrix @ matrix.T - covariance).norm() / covariance.norm()))
    assert errors[-1] < 0.08
    assert all(1.5 < a / b < 2.7 for a, b in pairwise(errors)), errors  # first order


def test_one_step_is_the_mean_of_the_modes_unless_the_prefix_tells_them_apart():
    """Actions are all +1 or all -1. At time 1 the input is noise, so the first action is the mean, whatever the noise;
    that is what a horizon-aware schedule pays. A prefix reveals the mode, and then the first action is right."""

    def field(x, tau):
        t = tau[..., None]
        c = 1 - t
        # log odds of the mode +1 given x, of which time 0 leaves no doubt
        odds = (2 * x * c / t.clamp(min=1e-6) ** 2).sum((1, 2), keepdim=True)
        clean = torch.tanh(odds / 2)
        return torch.where(t > 0, (x - clean) / t.clamp(min=1e-9), 0.0)

    noise = torch.randn(64, H, D, generator=generator(), dtype=torch.float64)
    schedule = HorizonAwareSchedule(H, 10)
    made = FlowPolicy(CONFIG).double()
    made.velocity = Field(field)
    first = next(iter(made.stream(None, noise, schedule))).actions[:, 0]
    torch.testing.assert_close(first, torch.zeros(64, D, dtype=torch.float64), rtol=0, atol=1e-12)
    many = sampled(field, noise, ConstantSchedule(H, 50))
    assert (many.abs() > 0.9).all()
    assert 16 < (many[:, 0, 0] > 0).sum() < 48
    sign = torch.where(torch.arange(64) % 2 == 0, 1.0, -1.0).double()
    prefixes = [value.expand(2, D) for value in sign]
    told = next(iter(made.stream(None, noise, schedule, prefixes))).actions[:, 2]
    torch.testing.assert_close(told, sign[:, None].expand(64, D), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("horizon", "delay", "steps", "counts"),
    [
        (50, 0, 10, [1, 2, 4, 8, 13, 19, 25, 33, 41, 50]),
        (50, 8, 10, [1, 2, 4, 7, 11, 16, 21, 27, 34, 42]),
        (24, 3, 10, [1, 1, 2, 4, 6, 8, 11, 14, 17, 21]),
        (16, 0, 10, [1, 1, 2, 3, 4, 6, 8, 10, 13, 16]),
        (8, 1, 5, [1, 1, 2, 4, 7]),
    ],
)
def test_near_actions_are_final_first_by_the_published_counts(horizon, delay, steps, counts):
    schedule = HorizonAwareSchedule(horizon, steps)
    ready = ready_after(schedule.taus(delay), delay)
    assert np.cumsum([len(now) for now in ready]).tolist() == counts
    assert ready[0].start == delay
    assert all(a.stop == b.start for a, b in pairwise(ready))  # always the next few in a row


def test_the_horizon_aware_schedule_is_what_its_equations_say():
    published = torch.tensor([0.8, 0.5511, 0.4227, 0.3188, 0.2282, 0.1462, 0.0707, 0.0], dtype=torch.float64)
    torch.testing.assert_close(HorizonAwareSchedule(8, 5).hit_times(torch.tensor([0]))[0], published, rtol=0, atol=5e-5)
    for delay in (0, 1, 5, H - 1):
        schedule = HorizonAwareSchedule(H, 7, alpha=0.8)
        hits, taus = schedule.hit_times(torch.tensor([delay]))[0, delay:], schedule.taus(delay)
        assert (hits.diff() < 0).all()
        assert (taus.diff(dim=0) <= 0).all()
        assert (taus[0, delay:] == 1).all()
        assert (taus[-1] == 0).all()
        torch.testing.assert_close(taus.diff(dim=0).sum(0), -(torch.arange(H) >= delay).float())
        assert torch.equal(HorizonAwareSchedule(H, 7, first_hit=0.0).taus(delay), ConstantSchedule(H, 7).taus(delay))
    for bad, says in (
        ({"alpha": 0}, "alpha=0, expected 0 < alpha <= 1"),
        ({"alpha": 1.1}, "alpha=1.1"),
        ({"first_hit": 1.0}, "first_hit=1.0, expected 0 <= first_hit < 1"),
        ({"steps": 0}, "steps=0, expected a whole number, at least 1"),
    ):
        with pytest.raises(ValueError, match=says):
            HorizonAwareSchedule(**{"horizon": H, "steps": 3, **bad})
    with pytest.raises(ValueError, match="delay=-1, expected 0 <= delay < horizon=6"):
        HorizonAwareSchedule(H, 3).taus(-1)
    with pytest.raises(ValueError, match="schedule='hase' is not known; choose one of constant, has"):
        make_schedule("hase", H, 3)


@BACKBONES
@pytest.mark.parametrize("delay", [0, 3])
def test_parts_of_a_stream_are_the_sample_and_never_change_again(config, delay):
    made, data = policy(config), batch()
    noise = torch.randn(5, H, D, generator=generator(), dtype=torch.float64)
    prefixes = [row[:delay] for row in data["actions"]]
    schedule = HorizonAwareSchedule(H, 8)
    whole = made.sample(data["observation"], noise, schedule, prefixes)
    pieces, columns = [], []
    for evaluation in made.stream(made.encode(data["observation"]), noise, schedule, prefixes):
        now = evaluation.newly_final[0]
        assert torch.equal(evaluation.newly_final, now.expand(5, H))
        pieces.append(evaluation.actions[:, now])
        columns += now.nonzero().flatten().tolist()
    assert columns == list(range(delay, H))
    assert torch.equal(torch.cat(pieces, dim=1), whole[:, delay:])
    assert torch.equal(whole[:, :delay], data["actions"][:, :delay])


@BACKBONES
def test_a_new_network_is_the_best_guess_for_actions_of_unit_variance(config):
    made = FlowPolicy(config).double()
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
    draw = draw_training(5, CONFIG, generator(), target)._replace(noise=noise, rho=rho, delay=delay)
    tau, counts = training_times(CONFIG, draw, data["valid"])
    losses = flow_loss(lambda x, tau: torch.zeros_like(x), target, noise, tau, counts, delay)
    gradient = torch.autograd.grad(losses["flow"], target)[0].abs().sum(-1)
    index = torch.arange(H)
    counted = data["valid"] & (index >= delay[:, None])
    assert (gradient[~counted] == 0).all()
    assert (gradient[counted] > 0).all()


@BACKBONES
def test_what_lies_beyond_the_end_of_an_episode_does_not_change_the_loss(config):
    made, data = policy(config), batch()
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

    tau, counted = training_times(config, draw, data["valid"])
    losses = flow_loss(field, data["actions"], draw.noise, tau, counted, draw.delay)
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


@pytest.mark.parametrize("mask_finished", [True, False])
def test_mixed_samples_have_the_times_of_their_schedule_and_finished_actions_do_not_count(mask_finished):
    config = FlowConfig.from_json(CONFIG.to_json() | {"mix": 0.5, "alpha": 0.7, "mask_finished": mask_finished})
    draw = draw_training(400, config, generator(), torch.zeros(1, dtype=torch.float64))
    valid = torch.rand(400, H, generator=generator(1)) < 0.8
    tau, counted = training_times(config, draw, valid)
    assert 160 < draw.mixed.sum() < 240
    for b in range(400):
        d, rho = int(draw.delay[b]), float(draw.rho[b])
        for i in range(H):
            hit = (1 - ((i - d) / max(H - 1 - d, 1)) ** 0.7) * 0.9 if i >= d else 1.0
            own = min(max((rho - hit) / (1 - hit), 0.0), 1.0) if draw.mixed[b] and i >= d else rho * (i >= d)
            assert float(tau[b, i]) == pytest.approx(own, abs=1e-9)
            assert bool(counted[b, i]) == (bool(valid[b, i]) and i >= d and (own > 0 or not mask_finished))


def test_independent_times_are_independent_and_follow_the_same_law():
    config = FlowConfig.from_json(CONFIG.to_json() | {"mix": 1.0, "times": "independent", "prefix_rate": 0.0})
    draw = draw_training(4000, config, generator(), torch.zeros(1, dtype=torch.float64))
    tau, _ = training_times(config, draw, torch.ones(4000, H, dtype=torch.bool))
    assert np.abs(np.corrcoef(tau.numpy().T) - np.eye(H)).max() < 0.06
    assert stats.kstest((tau.flatten().numpy() - 0.001) / 0.999, stats.beta(1.5, 1).cdf).pvalue > 0.01


@BACKBONES
def test_guidance_is_the_error_taken_back_through_the_network(config):
    made, data = policy(config), batch()
    context = made.encode(data["observation"])
    x, target = (torch.randn(5, H, D, generator=generator(k), dtype=torch.float64) for k in (1, 2))
    weights, time = torch.rand(5, H, generator=generator(3), dtype=torch.float64), 0.7
    tau = torch.full((1, 1), time, dtype=torch.float64)

    def field(at, tau):
        return made.velocity(context, at, tau)

    def guess(at):
        return at - time * field(at, tau)

    plain = field(x, tau)
    error = (target - guess(x)) * weights[..., None]
    strength = (time**2 + (1 - time) ** 2) / (time * (1 - time))
    jacobian = torch.autograd.functional.jacobian(guess, x)  # [5, H, D, 5, H, D], row by row
    pull = torch.einsum("bhd,bhdcij->cij", error, jacobian)
    torch.testing.assert_close(guided(field, x, tau, Guidance(target, weights, 1e9)), plain - strength * pull)
    torch.testing.assert_close(guided(field, x, tau, Guidance(target, weights, 0.5, exact=False)), plain - 0.5 * error)
    assert not guided(field, x, tau, Guidance(target, weights)).requires_grad


def test_guidance_weights_are_the_published_ones():
    weights = chunking_weights(10, 3, 8)
    for i in range(10):
        linear = min(max((3 - 1 - i) / (8 - 3 + 1) + 1, 0.0), 1.0)
        expected = linear * np.expm1(linear) / (np.e - 1) if i < 8 else 0.0
        assert float(weights[i]) == pytest.approx(expected, abs=1e-6)
    assert (weights[:3] == 1).all()


def test_guidance_draws_samples_to_the_target():
    made, data = policy(), batch()
    noise, target = (torch.randn(5, H, D, generator=generator(k), dtype=torch.float64) for k in (1, 2))
    context, schedule = made.encode(data["observation"]), ConstantSchedule(H, 20)
    weights = chunking_weights(H, 3, H).double().expand(5, H)
    distances = []
    for guidance in (None, Guidance(target, weights, 2.0), Guidance(target, weights, 10.0, exact=False)):
        *_, last = made.stream(context, noise, schedule, None, guidance)
        distances.append(float((last.actions - target)[:, :3].norm()))
    assert distances[1] < 0.8 * distances[0]
    assert distances[2] < 0.2 * distances[0]


def test_straight_paths_have_no_bend_and_bent_ones_their_own():
    made = FlowPolicy(CONFIG).double()
    goal = torch.randn(H, D, dtype=torch.float64)
    slope = torch.tensor([[0.0], [0.0], [0.0], [2.0], [2.0], [2.0]])

    def field(x, tau):  # to the goal, and for the far half on a parabola there and back
        return (x - goal - slope * tau[..., None] * (1 - tau[..., None])) / tau[..., None] + slope * (
            1 - 2 * tau[..., None]
        )

    made.velocity = Field(field)
    valid = torch.ones(7, H, dtype=torch.bool)
    measured = straightness(made, batch(5)["observation"] | {"agent_pos": torch.zeros(7, 3)}, valid, 200, generator())
    torch.testing.assert_close(measured.bend[:3], torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-6)
    assert measured.distance.shape == (200, H)
    expected = D * 4 / 3  # the mean of (2 (1 - 2 tau))^2 over tau, for each dimension
    torch.testing.assert_close(measured.bend[3:], torch.full((3,), expected).double(), rtol=0.1, atol=0)


@BACKBONES
def test_one_row_of_time_is_the_same_as_a_table_of_equal_times(config):
    made, data = policy(config), batch()
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
    draw = draw_training(5, CONFIG, generator(3), data["actions"])._replace(delay=data["delay"])
    context = made.encode(data["observation"])
    expected = flow_loss(
        lambda x, tau: made.velocity(context, x, tau, data["valid"]),
        data["actions"], draw.noise, *training_times(CONFIG, draw, data["valid"]), data["delay"],
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
        ({"backbone": "unet"}, "backbone='unet' is not known; choose one of transformer, mlp"),
        ({"times": "random"}, "times='random' is not known"),
        ({"mix": -0.1}, r"mix=-0.1, expected a share in \[0, 1\]"),
        ({"alpha": 2}, "alpha=2, expected 0 < alpha <= 1"),
        ({"first_hit": 1}, "first_hit=1, expected"),
        ({"colour": 1}, "unknown entries \\['colour'\\]"),
    ],
)
def test_bad_configurations_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        FlowPolicy(FlowConfig.from_json(CONFIG.to_json() | change))
