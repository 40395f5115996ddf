"""Laws of the force-aware policy, in float64 and against closed forms and one joint pass without any cache."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from palaestra.models.favla.config import FavlaConfig
from palaestra.models.favla.force_tokenizer import ForceTokenizer
from palaestra.models.favla.fusion import FGDF, ForceAdapter
from palaestra.models.favla.policy import FavlaPolicy
from palaestra.models.favla.slow import SlowContext
from palaestra.models.favla.variance import future_variance, variance_label
from palaestra.models.flow.guidance import Guidance
from palaestra.models.flow.schedules import ConstantSchedule, HorizonAwareSchedule
from palaestra.models.kv_cache import KVCache

H, D = 6, 2
CONFIG = FavlaConfig(
    D, H, state={"agent_pos": (3,), "goal": (2,)}, pictures={"pixels": (8, 8, 3)},
    normalization={key: "mean_std" for key in ("agent_pos", "goal", "wrench", "action")},
    max_delay=4, width=16, depth=2, heads=2, hidden=16, text=12, force_width=8, slow_width=24, variance_hidden=(8,),
)  # fmt: skip
FUSIONS = ("none", "prefix", "input", "adapter", "gated")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def config(fusion, **changes):
    return dataclasses.replace(CONFIG, fusion=fusion, **changes)


def policy(fusion="gated", seed=1, **changes):
    """A float64 policy whose every weight is at work (new ones start with closed gates)."""
    made = FavlaPolicy(config(fusion, **changes)).double().eval()
    shake(made, seed)
    return made.requires_grad_(False)


@torch.no_grad()
def shake(module, seed):
    g = generator(seed)
    for parameter in module.parameters():
        parameter.add_(0.2 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))


def observe(size=3, seed=2):
    g = generator(seed)
    return {
        "agent_pos": torch.randn(size, 3, generator=g),
        "goal": torch.randn(size, 2, generator=g),
        "pixels": torch.randint(0, 256, (size, 8, 8, 3), generator=g, dtype=torch.uint8),
        "wrench": torch.randn(size, 10, 6, generator=g),
        "instruction": torch.randint(0, 256, (size, 12), generator=g, dtype=torch.uint8),
    }


def noise(size=3, seed=3):
    return torch.randn(size, H, D, generator=generator(seed), dtype=torch.float64)


# The label


def episodes(seed=0, lengths=(40, 9, 1, 75)):
    """Wrench windows that overlap as those of a 200 Hz sensor at 30 Hz do."""
    rng = np.random.default_rng(seed)
    windows = []
    for length in lengths:
        samples = np.cumsum(rng.normal(size=(7 * length + 10, 6)) * [1, 2, 3, 0.1, 0.2, 0.3], axis=0)
        windows += [samples[7 * t : 7 * t + 10] for t in range(length)]
    return np.array(windows), np.array(lengths)


WEIGHTS = np.array([1.0, 2.0, 0.0, 0.5, 3.0, 1.0])


def test_future_variance_is_the_weighted_variance_of_each_window():
    wrench, lengths = episodes()
    expected, begin = [], 0
    for length in lengths:
        force = wrench[begin : begin + length, -7:].mean(1)
        expected += [float(WEIGHTS @ force[t : t + 8].var(0)) for t in range(length)]
        begin += length
    np.testing.assert_allclose(future_variance(wrench, lengths, 8, WEIGHTS), expected, rtol=1e-9, atol=1e-12)


def test_future_variance_of_a_constant_force_is_exactly_zero():
    wrench = np.full((20, 10, 6), 12.3)
    assert (future_variance(wrench, [20], 6, WEIGHTS) == 0).all()
    label, _, _ = variance_label(wrench, [20], 6, weights=WEIGHTS, sigma=1.0)
    assert (label == 0).all()


def test_future_variance_scales_and_knows_neither_order_nor_past():
    wrench, lengths = episodes(lengths=(30,))
    nu = future_variance(wrench, lengths, 8, WEIGHTS)
    np.testing.assert_allclose(np.sqrt(future_variance(-3 * wrench, lengths, 8, WEIGHTS)), 3 * np.sqrt(nu))
    other = wrench.copy()
    other[10:18] = wrench[np.random.default_rng(1).permutation(np.arange(10, 18))]
    other[:10] = other[18:] = 99.0
    np.testing.assert_allclose(future_variance(other, lengths, 8, WEIGHTS)[10], nu[10])


def test_label_is_the_squashed_moving_average_of_each_episode():
    wrench, lengths = episodes()
    label, weights, sigma = variance_label(wrench, lengths, 8, alpha=0.3)
    force = wrench[:, -7:].mean(1)
    np.testing.assert_allclose(weights, 1 / force.var(0))
    nu = future_variance(wrench, lengths, 8, weights)
    smooth, begin = [], 0
    for length in lengths:
        average = nu[begin]
        for value in nu[begin : begin + length]:
            average = 0.3 * value + 0.7 * average
            smooth.append(average)
        begin += length
    assert sigma == pytest.approx(np.sqrt(smooth).std())
    np.testing.assert_allclose(label, np.tanh(np.sqrt(smooth) / sigma), rtol=1e-6)
    assert label.dtype == np.float32 and (label >= 0).all() and (label < 1).all()
    plain, *_ = variance_label(wrench, lengths, 8, alpha=1.0, weights=weights, sigma=sigma)
    np.testing.assert_allclose(plain, np.tanh(np.sqrt(nu) / sigma), rtol=1e-6)
    same_scale, *_ = variance_label(wrench[:40], lengths[:1], 8, weights=weights, sigma=sigma)
    np.testing.assert_array_equal(same_scale, label[:40])


def test_label_stays_below_one_and_an_axis_that_never_varies_counts_nothing():
    wrench, lengths = episodes()
    wrench[..., 4] = 7.0
    label, weights, _ = variance_label(wrench, lengths, 8, sigma=1e-9)
    assert label.max() < 1 and weights[4] == 0 and (weights[:4] > 0).all()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"window": 0}, "window=0"),
        ({"alpha": 0.0}, "alpha"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": float("nan")}, "sigma"),
        ({"weights": -np.ones(6)}, "weights"),
        ({"fresh": 11}, "fresh=11"),
        ({"wrench": np.zeros((4, 6))}, "wrench has shape"),
        ({"lengths": [3]}, "lengths"),
        ({"wrench": np.full((4, 10, 6), np.nan)}, "NaN"),
        ({"wrench": np.ones((4, 10, 6))}, "sigma=0"),
    ],
)
def test_what_cannot_be_labelled_is_named(changes, named):
    with pytest.raises(ValueError, match=named):
        variance_label(**({"wrench": episodes()[0][:4], "lengths": [4], "window": 2} | changes))


# The tokenizer


def test_the_tokenizer_is_a_causal_dilated_convolution():
    made = ForceTokenizer(10, 6, 4, 8, 16).double()
    shake(made, 0)
    wrench = torch.randn(2, 10, 6, generator=generator(), dtype=torch.float64)
    x = made.enter(wrench).transpose(1, 2)
    for block, dilation in zip(made.blocks, (1, 2, 4, 8), strict=True):
        normal = functional.layer_norm(x.transpose(1, 2), (8,), block.norm.weight, block.norm.bias).transpose(1, 2)
        kernel = block.mix.weight.view(8, 3, 8).transpose(1, 2)
        mixed = functional.conv1d(functional.pad(normal, (2 * dilation, 0)), kernel, block.mix.bias, dilation=dilation)
        x = x + functional.gelu(mixed, approximate="tanh")
    expected = made.leave(x.transpose(1, 2)[:, [2, 4, 7, 9]]) + made.position
    torch.testing.assert_close(made(wrench), expected)


def test_a_force_token_sees_its_samples_and_earlier_ones_alone():
    made = ForceTokenizer(10, 6, 4, 8, 16).double()
    shake(made, 0)
    wrench = torch.randn(1, 10, 6, generator=generator(), dtype=torch.float64, requires_grad=True)
    tokens = made(wrench)
    for token, end in enumerate((2, 4, 7, 9)):
        (reach,) = torch.autograd.grad(tokens[0, token].sum(), wrench, retain_graph=True)
        assert (reach[0, end + 1 :] == 0).all() and (reach[0, : end + 1] != 0).any(1).all()


# Fusion


def heads_attend(q, k, v, may_see=None):
    """Attention written out; ``may_see`` [queries, keys]."""
    score = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    if may_see is not None:
        score = score.masked_fill(~may_see, -torch.inf)
    return torch.einsum("bhqk,bhkd->bhqd", score.softmax(-1), v)


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


def felt(module, h, tokens, gain=1.0):
    """What a fusion module's cross-attention feels, written out."""
    keys, values = module.keys_values(tokens).chunk(2, dim=-1)
    seen = heads_attend(split(module.query(h), 2), split(keys, 2), split(values, 2))
    return module.out(merge(seen * gain))


def test_fusion_is_what_the_page_says():
    g = generator()
    z, tokens, seen = (torch.randn(2, n, 16, generator=g, dtype=torch.float64) for n in (H, 4, H))
    y_hat, magnitude = torch.rand(2, generator=g, dtype=torch.float64), torch.tensor([0.1, 3.0]).double()
    normal = functional.layer_norm(z, (16,))
    adapter, fgdf, static = ForceAdapter(16, 2).double(), FGDF(16, 2).double(), FGDF(16, 2, fixed=0.5).double()
    out = torch.nn.Linear(16, 16).double()
    for module in (adapter, fgdf, static):
        shake(module, 5)
    torch.testing.assert_close(adapter(z, adapter.project(tokens)), z + felt(adapter, normal, tokens))
    read = torch.cat([tokens.mean(1), functional.layer_norm(z.mean(1), (16,)), y_hat[:, None], magnitude[:, None]], -1)
    gate = (read @ fgdf.gate.weight.T + fgdf.gate.bias).sigmoid()
    force = fgdf.weigh(tokens, z.mean(1), y_hat, magnitude)
    torch.testing.assert_close(force.gate, gate)
    gate = gate[..., None, None]
    expected = out(merge(2 * (1 - gate) * split(seen, 2))) + felt(fgdf, normal, tokens, 2 * gate)
    torch.testing.assert_close(fgdf(normal, split(seen, 2), out, force), expected)
    half = static.weigh(tokens, z.mean(1), y_hat, magnitude)
    assert (half.gate == 0.5).all()
    torch.testing.assert_close(static(normal, split(seen, 2), out, half), out(seen) + felt(static, normal, tokens))


def grafted(fixed=None):
    """A base policy with every weight at work, and a gated one that has just been made of it."""
    base = FavlaPolicy(config("prefix")).double()
    shake(base, 1)
    gated = FavlaPolicy(config("gated", fixed_gate=fixed)).double()
    gated.load_state_dict(gated.state_dict() | base.state_dict())
    return base, gated


@pytest.mark.parametrize("fixed", [None, 0.5])
def test_a_new_gate_changes_no_bit_of_the_base_model(fixed):
    base, gated = grafted(fixed)
    schedule = HorizonAwareSchedule(H, 4)
    chunks = [made.sample(observe(), noise(), schedule) for made in (base, gated)]
    assert torch.equal(*chunks)
    gate = gated.encode(observe()).gate
    assert gate.shape == (3, 2, 2) and (gate == 0.5).all()
    assert base.encode(observe()).gate is None


def test_the_gradient_of_a_new_gate_reaches_its_output_first_and_the_tokenizer_next():
    _, gated = grafted()
    made = gated.velocity
    optimizer = torch.optim.SGD(gated.parameters(), lr=0.1)
    reached = []
    for _ in range(2):
        optimizer.zero_grad()
        gated.loss(training_batch(), generator())["loss"].backward()
        reached.append(tuple(bool((m.weight.grad != 0).any()) for m in (made.blocks[0].fgdf.out, made.tokenizer.enter)))
        optimizer.step()
    assert reached == [(True, False), (True, True)]


@pytest.mark.parametrize("fusion", ["input", "adapter", "gated"])
def test_without_force_tokens_the_expert_is_the_base_expert(fusion):
    made, base = policy(fusion), FavlaPolicy(config("prefix")).double()
    base.load_state_dict({name: made.state_dict()[name] for name in base.state_dict()})
    slow, state = made.encode_slow(observe()), torch.randn(3, 3, dtype=torch.float64, generator=generator())
    tau = torch.rand(3, H, dtype=torch.float64, generator=generator())
    fields = [p.velocity(p.velocity.context(slow, state), noise(), tau) for p in (made, base)]
    assert torch.equal(*fields)


@pytest.mark.parametrize("fusion", ["none", "prefix"])
def test_an_expert_that_does_not_feel_reads_no_newest_wrench(fusion):
    made = policy(fusion)
    slow, now = made.encode_slow(observe()), observe(seed=9)
    without = {key: value for key, value in now.items() if key != "wrench"}
    contexts = [made.context(slow, seen) for seen in (now, without)]
    tau = torch.full((1, 1), 0.5, dtype=torch.float64)
    assert torch.equal(*(made.velocity(c, noise(), tau) for c in contexts))


# The cache


def joint_pass(made, seen, now, x, tau):
    """The velocity without any cache: slow, state and action tokens side by side through every layer at once."""
    expert, slow, heads = made.velocity, made.slow, made.config.heads
    normal = {key: n(made._features(key, seen[key])) for key, n in made.normalize.items()}
    fresh = {key: n(made._features(key, now[key])) for key, n in made.normalize.items()}
    places, summary = slow.cameras["pixels"](seen["pixels"])
    tokens = [places, summary[:, None], slow.text(seen["instruction"])]
    tokens += [slow.state[key](normal[key])[:, None] for key in ("agent_pos", "goal")]
    tokens += [slow.force(normal["wrench"])] if slow.force else []
    s = torch.cat([*tokens, slow.variance.expand(len(x), 1, -1)], dim=1)
    c, force = expert.state(fresh["agent_pos"])[:, None], None
    if expert.tokenizer:
        force = expert.tokenizer(fresh["wrench"])
        if made.config.fusion == "input":
            c, force = torch.cat([c, force], dim=1), None
    deviation = (tau**2 + (1 - tau) ** 2).sqrt()[..., None]
    a = expert.embed(x / deviation) + expert.position
    place = torch.cat([torch.full((n,), i) for i, n in enumerate((s.shape[1], c.shape[1], H))])
    may_see = place[:, None] >= place  # slow tokens see slow ones, clean ones also themselves, actions everything
    times = torch.cat([torch.zeros(len(x), c.shape[1], dtype=torch.float64), tau], dim=1)
    time = expert.time(expert.features(times))
    y_hat, z = made.encode_slow(seen).y_hat, torch.cat([c, a], dim=1)
    magnitude = (fresh["wrench"][:, -1] if "wrench" in fresh else z[:, 0] * 0).square().mean(-1).sqrt()
    clean = c.shape[1]
    for index, (below, above) in enumerate(zip(slow.blocks, expert.blocks, strict=True)):
        shift, scale, gate_a, shift_f, scale_f, gate_f = (time[..., : 6 * 16] + expert.offsets[index]).chunk(6, -1)
        h = functional.layer_norm(z, (16,)) * scale + shift
        q, k, v = (
            torch.cat(pair, dim=1)
            for pair in zip(below.qkv(below.before_attention(s)).chunk(3, -1), above.qkv(h).chunk(3, -1), strict=True)
        )
        attended = merge(heads_attend(split(q, heads), split(k, heads), split(v, heads), may_see))
        seen_s, seen_z = attended.split([s.shape[1], z.shape[1]], dim=1)
        s = s + below.out(seen_s)
        s = s + below.down(functional.gelu(below.up(below.before_feed_forward(s)), approximate="tanh"))
        if above.fgdf is not None:
            mean = functional.layer_norm(z[:, :clean].mean(1), (16,))
            read = torch.cat([force.mean(1), mean, y_hat[:, None], magnitude[:, None]], dim=-1)
            g = above.fgdf.gate(read).sigmoid()[..., None, None]
            found = above.out(merge(2 * (1 - g) * split(seen_z, heads))) + felt(above.fgdf, h, force, 2 * g)
        else:
            found = above.out(seen_z)
        z = z + gate_a * found
        if above.adapter is not None:
            z = z + felt(above.adapter, functional.layer_norm(z, (16,)), force)
        h = functional.layer_norm(z, (16,)) * scale_f + shift_f
        z = z + gate_f * above.down(functional.gelu(above.up(h), approximate="tanh"))
    shift, scale = time[..., 6 * 16 :].chunk(2, -1)
    rest = expert.head(functional.layer_norm(z, (16,)) * scale + shift)[:, clean:]
    raw = slow.head(slow.norm(s[:, -1]))
    t = tau[..., None]
    return (2 * t - 1) / deviation**2 * x + rest / deviation, raw


@pytest.mark.parametrize("fusion", FUSIONS)
def test_cached_and_joint_attention_agree(fusion):
    made = policy(fusion)
    seen, now = observe(), observe(seed=7)
    tau = torch.rand(3, H, dtype=torch.float64, generator=generator(4))
    slow = made.encode_slow(seen)
    expected, raw = joint_pass(made, seen, now, noise(), tau)
    torch.testing.assert_close(made.velocity(made.context(slow, now), noise(), tau), expected)
    torch.testing.assert_close(slow.raw, raw)
    torch.testing.assert_close(slow.y_hat, raw.clamp(0, 1))


def test_stacked_contexts_are_planned_as_each_alone():
    made = policy()
    seen, now = observe(), observe(seed=7)
    rows = [{key: value[row : row + 1] for key, value in seen.items()} for row in range(3)]
    stacked = SlowContext.stack([made.encode_slow(row) for row in rows])
    assert len(stacked) == 3
    schedule = ConstantSchedule(H, 3)
    *_, together = made.stream(made.context(stacked, now), noise(), schedule)
    for row in range(3):
        alone = made.context(made.encode_slow(rows[row]), {key: value[row : row + 1] for key, value in now.items()})
        *_, single = made.stream(alone, noise()[row : row + 1], schedule)
        torch.testing.assert_close(together.actions[row], single.actions[0])


def test_a_cache_grows_and_knows_its_size():
    first, later = (KVCache((t,), (t + 1,)) for t in torch.randn(2, 2, 3, 4, 5).unbind(0))
    both = first.append(later)
    assert both.length == 8 and both.bytes == 2 * first.bytes == 2 * 2 * 2 * 3 * 4 * 5 * 4
    assert torch.equal(both.values[0][:, :, 4:], later.values[0])
    assert KVCache.stack([first, later]).keys[0].shape == (4, 3, 4, 5)
    with pytest.raises(ValueError, match="may differ in dimension 0"):
        KVCache.stack([first, both])
    with pytest.raises(ValueError, match="layer 0"):
        KVCache(first.keys, both.values)


# Sampling and training


def test_equal_noise_and_force_give_equal_chunks_and_others_others():
    made, slow = policy(), policy().encode_slow(observe())
    now, schedule = observe(seed=7), ConstantSchedule(H, 3)

    def chunk(observation, seed):
        *_, last = made.stream(made.context(slow, observation), noise(seed=seed), schedule)
        return last.actions

    assert torch.equal(chunk(now, 3), chunk(now, 3))
    assert not torch.allclose(chunk(now, 3), chunk(now, 4))
    assert not torch.allclose(chunk(now, 3), chunk({**now, "wrench": now["wrench"] + 1}, 3))


def test_near_actions_stream_first_and_a_prefix_comes_back():
    made = policy()
    prefix = torch.randn(2, D, dtype=torch.float64, generator=generator())
    context = made.encode(observe(2))
    parts = list(made.stream(context, noise(2), HorizonAwareSchedule(H, 4), [prefix, prefix[:0]]))
    assert parts[0].newly_final.tolist() == [[False, False, True, *[False] * 3], [True, *[False] * 5]]
    final = torch.stack([part.newly_final.long() for part in parts]).argmax(0)
    assert (final[0, 2:].diff() >= 0).all() and (final[1].diff() >= 0).all()
    assert torch.equal(parts[-1].actions[0, :2], prefix)


def test_guidance_pulls_a_chunk_to_the_plan_that_is_running():
    made = policy()
    context = made.context(made.encode_slow(observe()), observe(seed=7))
    target, schedule = torch.zeros(3, H, D, dtype=torch.float64), ConstantSchedule(H, 5)
    weights = (torch.arange(H) < 2).double().expand(3, H)
    *_, free = made.stream(context, noise(), schedule)
    *_, pulled = made.stream(context, noise(), schedule, guidance=Guidance(target, weights))
    far, near = (chunk.actions[:, :2].square().mean() for chunk in (free, pulled))
    assert near < 0.1 * far


def training_batch(size=5, seed=2):
    g = generator(seed)
    return {
        "observation": observe(size, seed),
        "slow": observe(size, seed + 1),
        "label": torch.rand(size, generator=g),
        "actions": torch.randn(size, H, D, generator=g),
        "valid": torch.arange(H) < torch.tensor([H, H, 4, 2, 1])[:size, None],
    }


def test_the_loss_adds_the_forecast_of_the_slow_pass_and_looks_at_no_action_beyond_the_end():
    made, batch = policy(), training_batch()
    losses = made.loss(batch, generator())
    raw = made.encode_slow(batch["slow"]).raw
    torch.testing.assert_close(losses["variance"], (raw - batch["label"]).square().mean())
    torch.testing.assert_close(losses["loss"], losses["flow"] + 0.1 * losses["variance"])
    changed = torch.where(batch["valid"][..., None], batch["actions"], batch["actions"] + 5)
    torch.testing.assert_close(made.loss(batch | {"actions": changed}, generator()), losses)
    fresh = {key: value for key, value in batch.items() if key != "slow"}
    assert made.loss(fresh, generator())["variance"] != losses["variance"]
    with pytest.raises(ValueError, match="label"):
        made.loss({key: value for key, value in batch.items() if key != "label"}, generator())


def test_training_learns_actions_that_only_the_newest_force_tells():
    made = FavlaPolicy(config("gated", prefix_rate=0.0))
    g = generator()
    batch = training_batch(64) | {"valid": torch.ones(64, H, dtype=torch.bool)}
    for when in ("observation", "slow"):
        batch[when]["wrench"][:] = torch.randn(64, 1, 6, generator=g)
    batch["actions"] = 3 * batch["observation"]["wrench"][:, :1, :D].expand(-1, H, -1).contiguous()
    batch["label"] = batch["slow"]["wrench"][:, 0, 0].sigmoid()
    made.fit_normalization(batch["observation"], batch["actions"].flatten(0, 1))
    optimizer = torch.optim.AdamW(made.parameters(), lr=5e-3)
    for _ in range(150):
        optimizer.zero_grad()
        losses = made.loss(batch, g)
        losses["loss"].backward()
        optimizer.step()
    chunk = made.sample(batch["observation"], torch.randn(64, H, D, generator=g), ConstantSchedule(H, 5))
    error = (chunk - batch["actions"]).square().mean()
    assert error < 0.1 * batch["actions"].var()
    assert losses["variance"] < 0.1 * batch["label"].var()
    assert (made.encode(batch["observation"]).gate - 0.5).abs().max() > 0.01  # the gate has moved


def test_normalization_of_the_wrench_is_an_axis_each_over_all_samples():
    made = FavlaPolicy(CONFIG).double()
    seen = observe(50)
    made.fit_normalization(seen, noise(50).flatten(0, 1))
    samples = seen["wrench"].double().flatten(0, 1)
    torch.testing.assert_close(made.normalize["wrench"].mean, samples.mean(0))
    torch.testing.assert_close(made.normalize["wrench"].std, samples.std(0, unbiased=False))


# Doors


@pytest.mark.parametrize("fusion", FUSIONS)
def test_configuration_and_weights_survive_a_checkpoint(fusion):
    made = policy(fusion)
    assert FavlaConfig.from_json(json.loads(json.dumps(made.config.to_json()))) == made.config
    assert set(made.config.inputs) == set(observe()) - ({"wrench"} if fusion == "none" else set())
    tensors = {name: tensor.float() for name, tensor in made.state_dict().items()}
    again = FavlaPolicy.from_tensors(made.config, tensors)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fusion": "late"}, "fusion"),
        ({"fusion": "adapter", "fixed_gate": 0.5}, "fixed_gate"),
        ({"fixed_gate": 1.5}, "fixed_gate"),
        ({"fast": ()}, "fast"),
        ({"fast": ("tool",)}, "fast"),
        ({"wrench": (10, 3)}, "wrench"),
        ({"normalization": {"agent_pos": "mean_std", "goal": "mean_std", "action": "mean_std"}}, "wrench"),
        ({"state": {"agent_pos": (3,), "wrench": (60,)}}, "wrench"),
        ({"force_tokens": 11}, "force_tokens"),
        ({"slow_every": 0}, "slow_every"),
        ({"late": -1}, "late"),
        ({"label_window": 0}, "label_window"),
        ({"variance_weight": -1.0}, "variance_weight"),
        ({"variance_hidden": (0,)}, "variance_hidden"),
        ({"text": -1}, "text"),
        ({"heads": 3}, "heads"),
        ({"backbone": "mlp"}, "backbone"),
    ],
)
def test_a_bad_configuration_is_named(changes, named):
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"wrench": torch.zeros(3, 9, 6)}, "wrench"),
        ({"wrench": torch.full((3, 10, 6), torch.nan)}, "NaN"),
        ({"instruction": torch.zeros(3, 5, dtype=torch.uint8)}, "instruction"),
        ({"pixels": torch.zeros(3, 8, 9, 3, dtype=torch.uint8)}, "pixels"),
        ({"goal": None}, "goal"),
    ],
)
def test_a_bad_observation_is_named(change, named):
    seen = {key: value for key, value in (observe() | change).items() if value is not None}
    with pytest.raises(ValueError, match=named):
        policy().encode(seen)
    with pytest.raises(ValueError, match="2 samples and slow 3"):
        policy().context(policy().encode_slow(observe()), observe(2))
