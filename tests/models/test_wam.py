"""Laws of the world-action model, in float64: what its masks promise, to the last digit, and closed forms."""

import dataclasses
import json
from itertools import pairwise

import diffusers
import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from palaestra.models.flow.guidance import Guidance
from palaestra.models.flow.schedules import ConstantSchedule, HorizonAwareSchedule
from palaestra.models.wam.config import WamConfig
from palaestra.models.wam.cost import layer_flops, plan_cost
from palaestra.models.wam.field import Footage
from palaestra.models.wam.latents import PatchLatent, PCALatent
from palaestra.models.wam.masks import wam_mask
from palaestra.models.wam.mixture import Expert, MixtureOfTransformers, resample
from palaestra.models.wam.policy import WamPolicy
from palaestra.models.wam.scheduler import ShiftedFlow

H, D, B = 6, 2, 3
CONFIG = WamConfig(
    D, H, state={"agent_pos": (3,)}, pictures={"pixels": (8, 8, 3)}, text=4, future=(2, 5), patch=4, latent=0,
    normalization={"agent_pos": "mean_std", "action": "mean_std"}, width=12, video_width=16, head_dim=4, heads=2,
    hidden=8, max_delay=3,
)  # fmt: skip
VARIANTS = ("fast", "joint", "idm")
EXACT = {"rtol": 0.0, "atol": 1e-12}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def shake(module, seed=1, size=0.3):
    """Every weight at work, the zeros of a new network too."""
    g = generator(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(size * torch.randn(weight.shape, generator=g, dtype=weight.dtype))
    return module


def policy(variant="fast", **changes):
    made = WamPolicy(dataclasses.replace(CONFIG, variant=variant, **changes)).double()
    return shake(made, size=0.1)


def frames(*lead, seed=0):
    return torch.randint(0, 256, (*lead, 8, 8, 3), dtype=torch.uint8, generator=generator(seed))


def observe(size=B, seed=0):
    g = generator(seed)
    return {
        "pixels": frames(size, seed=seed),
        "agent_pos": torch.randn(size, 3, generator=g),
        "instruction": torch.randn(size, 4, generator=g),
    }


def training_batch(size=B, seed=2):
    return {
        "observation": observe(size, seed),
        "future": {"pixels": frames(size, 2, seed=seed + 1)},
        "future_valid": torch.arange(2) < torch.tensor([2, 1, 0] * size)[:size, None],
        "actions": torch.randn(size, H, D, generator=generator(seed)),
        "valid": torch.arange(H) < torch.tensor([H, 4, 1] * size)[:size, None],
    }


def inputs(made, size=B, seed=5):
    """What the field takes: present and future latents, noisy actions, their times and the condition."""
    g = generator(seed)

    def normal(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64)

    context = made.velocity.context(*made._see(observe(size, seed)), look=False)
    future = [Footage(normal(size, 2, 4, 48), torch.rand(size, generator=g).double()) for _ in range(2)]
    return context, future, normal(size, H, D), torch.rand(size, H, generator=g).double()


def everything(size=B):
    return torch.ones(size, H, dtype=torch.bool), torch.ones(size, 2, dtype=torch.bool)


# Masks and the mixture


def test_masks_are_those_of_the_table():
    video = {"f0": "f0", "F": "f0 F"}
    copies = {"n0": "n0", "N": "n0 N", "c0": "c0", "C": "c0 C"}
    tables = {"fast": video | {"A": "f0 A"}, "joint": video | {"A": "f0 F A"}, "idm": copies | {"A": "c0 C A"}}
    for variant, sees in tables.items():
        group = [name for name in sees for _ in range(3 if name == "A" else 2 if "0" in name else 4)]
        expected = [[key in sees[query].split() for key in group] for query in group]
        assert wam_mask(2, 4, 3, variant).tolist() == expected
    with pytest.raises(ValueError, match="variant='slow'"):
        wam_mask(1, 1, 1, "slow")
    with pytest.raises(ValueError, match="n_first=0"):
        wam_mask(0, 1, 1)


def mixture(seed=1):
    experts = {"video": Expert(16, 3, 2, 4, condition=5), "action": Expert(12, 3, 2, 4, condition=5)}
    return shake(MixtureOfTransformers(experts).double(), seed)


def plain(made, tokens, taus, condition, mask):
    """The mixture written out, sample by sample and head by head."""
    outs = {name: [] for name in tokens}
    for b in range(len(condition)):
        x, modulation = {}, {}
        for name, expert in made.experts.items():
            hidden = expert.time(expert.features(taus[name][b])) + expert.condition(condition[b])
            modulation[name] = expert.project(functional.silu(hidden))
            x[name] = tokens[name][b]
        for layer in range(3):
            pieces, parts = {}, {}
            for name, expert in made.experts.items():
                parts[name] = (modulation[name][:, : 6 * expert.width] + expert.offsets[layer]).chunk(6, -1)
                shift, scale = parts[name][:2]
                h = functional.layer_norm(x[name], (expert.width,)) * scale + shift
                pieces[name] = expert.layers[layer].qkv(h).chunk(3, -1)
            q, k, v = (torch.cat([pieces[name][i] for name in made.experts]) for i in range(3))
            found = []
            for head in (slice(0, 4), slice(4, 8)):
                scores = (q[:, head] @ k[:, head].T / 2).masked_fill(~mask, -torch.inf)
                found.append(scores.softmax(-1) @ v[:, head])
            found = torch.cat(found, -1).split([len(x[name]) for name in made.experts])
            for (name, expert), part in zip(made.experts.items(), found, strict=True):
                own, (_, _, gate, shift, scale, gate_f) = expert.layers[layer], parts[name]
                x[name] = x[name] + gate * own.out(part)
                h = functional.layer_norm(x[name], (expert.width,)) * scale + shift
                x[name] = x[name] + gate_f * own.down(functional.gelu(own.up(h), approximate="tanh"))
        for name, expert in made.experts.items():
            shift, scale = modulation[name][:, 6 * expert.width :].chunk(2, -1)
            outs[name].append(functional.layer_norm(x[name], (expert.width,)) * scale + shift)
    return {name: torch.stack(rows) for name, rows in outs.items()}


@pytest.mark.parametrize("variant", ["fast", "joint"])
def test_the_mixture_is_one_attention_over_all_experts(variant):
    made, g = mixture(), generator(3)
    tokens = {
        "video": torch.randn(B, 5, 16, generator=g).double(),
        "action": torch.randn(B, 4, 12, generator=g).double(),
    }
    taus = {name: torch.rand(x.shape[:2], generator=g).double() for name, x in tokens.items()}
    condition = torch.randn(B, 5, generator=g).double()
    mask = wam_mask(2, 3, 4, variant)
    modulation = {n: e.modulate(taus[n], e.read(condition)) for n, e in made.experts.items()}
    out, cache = made(tokens, modulation, mask)
    for name, expected in plain(made, tokens, taus, condition, mask).items():
        torch.testing.assert_close(out[name], expected, **EXACT)
    assert cache.length == 9
    video = made.prefill("video", tokens["video"], modulation["video"], mask[:5, :5])
    for kept, all_keys in zip(video.keys, cache.keys, strict=True):
        torch.testing.assert_close(kept, all_keys[:, :, :5], **EXACT)
    step = made.step("action", tokens["action"], modulation["action"], video, mask[5:])
    torch.testing.assert_close(step, out["action"], **EXACT)


@pytest.mark.parametrize(("other", "named"), [((2, 2, 4), "layers"), ((3, 4, 4), "heads"), ((3, 2, 8), "head_dim")])
def test_experts_that_cannot_share_an_attention_are_named(other, named):
    with pytest.raises(ValueError, match=f"'video' has {named}=.*'action' {named}="):
        MixtureOfTransformers({"video": Expert(16, 3, 2, 4), "action": Expert(12, *other)})


# What the masks promise


@pytest.mark.parametrize("reuse", [False, True])
def test_fast_actions_are_the_same_with_the_future_and_without(reuse):
    made = policy(reuse_first=reuse)
    seen, (future, other), x, tau = inputs(made)
    trained, _ = made.velocity.together(seen, [future], x, tau, *everything())
    again, _ = made.velocity.together(seen, [other], x, tau, *everything())
    acting = made.velocity(made.encode(observe(seed=5)), x, tau)
    torch.testing.assert_close(acting, trained, **EXACT)
    torch.testing.assert_close(again, trained, **EXACT)


def test_the_flow_loss_does_not_depend_on_co_training():
    with_video, without = policy(), policy(video_weight=0.0)
    losses = with_video.loss(training_batch(), generator())
    batch = {key: value for key, value in training_batch().items() if "future" not in key}
    torch.testing.assert_close(without.loss(batch, generator())["flow"], losses["flow"], **EXACT)
    torch.testing.assert_close(losses["loss"], losses["flow"] + losses["regression"] + losses["video"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_flow_where_the_mask_says_and_nowhere_else(variant):
    made = policy(variant)
    seen, copies, x, tau = inputs(made)
    copies = copies if variant == "idm" else copies[:1]
    leaves = [x.requires_grad_(), *(footage.future.requires_grad_() for footage in copies)]
    action, tokens = made.velocity.together(seen, copies, x, tau, *everything())
    video = made.velocity.video_velocity(copies[0], tokens)

    def reached(output):
        found = torch.autograd.grad(output.square().sum(), leaves, retain_graph=True, allow_unused=True)
        return [gradient is not None and bool((gradient != 0).any()) for gradient in found]

    assert reached(action) == {"fast": [True, False], "joint": [True, True], "idm": [True, False, True]}[variant]
    assert reached(video) == [False, True, False][: len(leaves)]
    _, cache = made.velocity.watch(dataclasses.replace(seen, present=None), copies[0])
    present = sum(
        k[:, :, :4].square().sum() + v[:, :, :4].square().sum() for k, v in zip(cache.keys, cache.values, strict=True)
    )
    (gradient,) = torch.autograd.grad(present, leaves[1], allow_unused=True)
    assert gradient is None or not gradient.any()


@pytest.mark.parametrize("reuse", [False, True])
def test_joint_and_idm_actions_are_the_same_from_a_cache_and_recomputed(reuse):
    made = policy("joint", reuse_first=reuse)
    given, (future, clean), x, tau = inputs(made)
    future = Footage(future.future, future.t[:1].expand(B))
    context = made._context(observe(seed=5))
    seen, cache = made.velocity.watch(context, Footage(future.future, future.t[:1]))
    trained, tokens = made.velocity.together(given, [future], x, tau, *everything())
    torch.testing.assert_close(made.velocity(dataclasses.replace(context, cache=cache), x, tau), trained, **EXACT)
    torch.testing.assert_close(seen, tokens, **EXACT)

    made = policy("idm", reuse_first=reuse)
    clean = Footage(clean.future, torch.zeros(B, dtype=torch.float64))
    trained, _ = made.velocity.together(given, [future, clean], x, tau, *everything())
    context = made._context(observe(seed=5))
    cached = dataclasses.replace(context, cache=made.velocity.remember(context, clean.future))
    torch.testing.assert_close(made.velocity(cached, x, tau), trained, **EXACT)


def test_without_co_training_only_what_makes_the_future_gets_no_gradient():
    made = policy(video_weight=0.0)
    made.loss(training_batch(), generator())["loss"].backward()
    field = made.velocity
    of_the_future = {field.later, *field.head_video.parameters()}
    video = [*field.expert("video").layers[:2].parameters(), field.cell, field.now, *field.embed_video.parameters()]
    assert all(weight.grad is None for weight in of_the_future)
    assert all(bool((weight.grad != 0).any()) for weight in video)


# Imagination


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("shift", [1.0, 5.0])
def test_the_exact_field_imagines_the_truth(steps, shift, monkeypatch):
    made = policy("joint", shift=shift)
    truth, noise = frames(B, 2, seed=4), made.video_noise(B, generator(3))
    monkeypatch.setattr(made.velocity, "video_velocity", lambda footage, tokens: noise - made.latent(truth))
    assert torch.equal(made.imagine(observe(), steps, noise), truth)


@pytest.mark.parametrize("reuse", [False, True])
def test_the_first_frame_is_pinned_while_joint_video_and_actions_are_denoised(reuse):
    made = policy("joint", reuse_first=reuse)
    noise = made.video_noise(B, generator(3))
    context = made.encode(observe(), noise)
    caches = [now.cache for now in made._contexts(context, 4)]
    futures = [future for _, future in made._dream(context, noise, 4)]
    for layer in range(3):
        pinned = [torch.cat([c.keys[layer], c.values[layer]])[:, :, :4] for c in caches]
        assert all(torch.equal(pinned[0], other) for other in pinned)
        assert not torch.allclose(caches[0].keys[layer][:, :, 4:], caches[1].keys[layer][:, :, 4:])
    assert torch.equal(made.latent.decode(futures[-1]), made.imagine(observe(), 4, noise))
    actions = torch.randn(B, H, D, generator=generator(), dtype=torch.float64)
    chunks = []
    for seed in (3, 3, 4):
        context = made.encode(observe(), made.video_noise(B, generator(seed)))
        *_, last = made.stream(context, actions, ConstantSchedule(H, 4))
        chunks.append(last.actions)
    assert torch.equal(chunks[0], chunks[1]) and not torch.allclose(chunks[0], chunks[2])


def test_a_present_frame_that_is_reused_changes_nothing_but_the_cost():
    actions = torch.randn(B, H, D, generator=generator(), dtype=torch.float64)
    for variant in ("joint", "idm"):
        ends = []
        for reuse in (False, True):
            made = policy(variant, reuse_first=reuse, imagine_steps=3)
            context = made.encode(observe(), made.video_noise(B, generator(3)))
            *_, last = made.stream(context, actions, HorizonAwareSchedule(H, 3))
            ends.append(last.actions)
        torch.testing.assert_close(*ends, **EXACT)


def test_idm_acts_on_what_it_imagined():
    made = policy("idm", imagine_steps=3)
    noise = made.video_noise(B, generator(3))
    context = made.encode(observe(), noise)
    assert context.cache.length == 12
    assert torch.equal(made.latent.decode(context.imagined), made.imagine(observe(), 3, noise))
    x = torch.randn(B, H, D, generator=generator(), dtype=torch.float64)
    tau = torch.full((1, 1), 0.5, dtype=torch.float64)
    other = made.encode(observe(), made.video_noise(B, generator(4)))
    assert not torch.allclose(made.velocity(context, x, tau), made.velocity(other, x, tau))


# Sampling


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_streams_near_actions_first_after_any_prefix(variant):
    made = policy(variant)
    noise = torch.randn(2, H, D, generator=generator(), dtype=torch.float64)
    prefix = torch.randn(2, D, dtype=torch.float64, generator=generator(1))
    parts = list(made.stream(made.encode(observe(2)), noise, HorizonAwareSchedule(H, 4), [prefix, prefix[:0]]))
    assert len(parts) == 4
    assert parts[0].newly_final.tolist() == [[False, False, True, *[False] * 3], [True, *[False] * 5]]
    assert torch.equal(parts[-1].actions[0, :2], prefix)
    made.velocity.rest = lambda context, x, tau, valid: torch.zeros_like(x)  # of standard normal actions, the mean
    ends = made.sample(observe(2), noise, ConstantSchedule(H, 400))
    torch.testing.assert_close(ends, noise, rtol=0.0, atol=0.02)  # the flow between equals turns nothing


def test_guidance_pulls_a_joint_plan_too():
    made = policy("joint")
    noise = torch.randn(B, H, D, generator=generator(), dtype=torch.float64)
    target, schedule = torch.zeros(B, H, D, dtype=torch.float64), ConstantSchedule(H, 5)
    weights = (torch.arange(H) < 2).double().expand(B, H)
    *_, free = made.stream(made.encode(observe()), noise, schedule)
    *_, pulled = made.stream(made.encode(observe()), noise, schedule, guidance=Guidance(target, weights))
    far, near = (chunk.actions[:, :2].square().mean() for chunk in (free, pulled))
    assert near < 0.5 * far


# Schedule and latents


@pytest.mark.parametrize("shift", [1.0, 5.0])
def test_the_schedule_is_that_of_diffusers(shift):
    theirs = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    ours = ShiftedFlow(shift)
    u = torch.arange(1000, 0, -1, dtype=torch.float64) / 1000
    torch.testing.assert_close(ours.phi(u), theirs.sigmas.double(), rtol=0.0, atol=1e-6, check_device=False)
    theirs.set_timesteps(sigmas=np.linspace(1, 0, 11)[:-1])
    grid = ours.grid(10)
    torch.testing.assert_close(grid, theirs.sigmas.double(), rtol=0.0, atol=1e-6)
    x, velocity = torch.randn(2, 3, 4, generator=generator()).double().unbind(0)
    ahead = theirs.step(velocity, theirs.timesteps[0], x).prev_sample
    torch.testing.assert_close(x + (grid[1] - grid[0]) * velocity, ahead, rtol=0.0, atol=1e-6)


def test_the_solvers_of_diffusers_come_to_the_same_future():
    made = policy("fast")
    batch = training_batch()
    noise = made.video_noise(len(batch["actions"]), generator())

    def imagined(steps, solver=None):
        return made.imagine(batch["observation"], steps, noise, solver).float()

    shift = made.config.shift
    one = imagined(1, diffusers.FlowMatchEulerDiscreteScheduler(shift=shift))
    assert (one - imagined(1)).abs().max() <= 1  # of 255
    fine = imagined(400)
    apart = (imagined(30, diffusers.FlowMatchHeunDiscreteScheduler(shift=shift)) - fine).abs().mean()
    assert apart < 1 and apart < (imagined(5) - fine).abs().mean()
    with pytest.raises(ValueError, match="steps"):
        imagined(0, diffusers.FlowMatchHeunDiscreteScheduler())


@pytest.mark.parametrize("shift", [0.5, 1.0, 5.0])
def test_laws_of_the_schedule(shift):
    schedule = ShiftedFlow(shift)
    u = torch.linspace(0, 1, 1001, dtype=torch.float64)
    t = schedule.phi(u)
    assert t[0] == 0 and t[-1] == 1 and (t.diff() > 0).all()
    assert schedule.grid(7).diff().sum() == pytest.approx(-1)
    if shift == 1:
        torch.testing.assert_close(schedule.grid(10), torch.linspace(1, 0, 11, dtype=torch.float64))
    weight = schedule.weight(t)
    assert weight[1:].mean() == pytest.approx(1) and (weight >= -1e-12).all() and abs(weight[-1]) < 1e-12
    drawn = schedule.draw(20_000, generator())
    assert drawn.median() == pytest.approx(shift / (1 + shift), abs=0.02)  # phi(1 / 2)
    for bad in (0, True, 2.0):
        with pytest.raises(ValueError, match="steps"):
            schedule.grid(bad)
    with pytest.raises(ValueError, match="shift"):
        ShiftedFlow(0.0)


def test_a_euler_step_with_the_field_of_a_point_returns_it():
    point, x = torch.tensor(2.0), torch.tensor(-0.7)
    for steps in (1, 3):
        at = x
        grid = ShiftedFlow(5.0).grid(steps)
        for t, following in pairwise(grid):
            at = at + (following - t) * (at - point) / t  # of x = (1 - t) point + t noise, noise - point
        assert at == pytest.approx(float(point), abs=1e-6)


def test_patches_are_cut_row_by_row_and_put_together_again():
    latent, pictures = PatchLatent(8, 4, 3), frames(2, 5)
    tokens = latent(pictures)
    assert tokens.shape == (2, 5, 4, 48) == (2, 5, latent.cells, latent.features)
    corner = (pictures[:, :, :4, 4:].flatten(2) / 255 - 0.3) / 0.3
    torch.testing.assert_close(tokens[:, :, 1], corner)
    assert torch.equal(latent.decode(tokens), pictures)
    latent.fit(pictures)
    fitted = latent(pictures)
    assert fitted.mean().abs() < 1e-5 and fitted.std() == pytest.approx(1, abs=1e-3)
    assert torch.equal(latent.decode(fitted), pictures)


def test_principal_components_are_those_of_the_singular_values():
    pictures = frames(50, seed=3)
    patches = PatchLatent(8, 4, 3).double()(pictures).numpy() * 0.3
    centered = (patches - patches.mean(0)).reshape(-1, 48)  # by what differs from the mean picture
    values = np.linalg.svd(centered, compute_uv=False) ** 2 / len(centered)
    latent = PCALatent(8, 4, 3, 10).double()
    with pytest.raises(ValueError, match="fit"):
        latent(pictures)
    latent.fit(pictures)
    tokens = latent(pictures)
    spread = tokens.flatten(0, 1)
    np.testing.assert_allclose(spread.T @ spread / len(spread), np.eye(10), atol=1e-9)
    lost = ((tokens * latent.std) @ latent.basis + latent.mean).numpy() - (patches + 0.3)
    assert (lost**2).sum(-1).mean() == pytest.approx(values[10:].sum())
    whole = PCALatent(8, 4, 3, 48).double()
    whole.fit(pictures)
    assert torch.equal(whole.decode(whole(pictures)), pictures)


# Learning


def test_far_actions_count_as_much_less_as_the_discount_says():
    batch = training_batch() | {"delay": torch.zeros(B, dtype=torch.long)}
    batch["valid"] = torch.ones_like(batch["valid"])
    batch["actions"] = torch.zeros_like(batch["actions"])
    losses = {}
    for discount in (1.0, 0.5):
        made = policy("fast", discount=discount)
        for weight in made.regression.parameters():  # whatever is seen, the guess is that nothing is done
            torch.nn.init.zeros_(weight)
        for place in (0, 3):
            changed = batch["actions"].clone()
            changed[:, place] = 1.0
            losses[discount, place] = made.loss(batch | {"actions": changed}, generator())["regression"].item()
    assert losses[1.0, 0] == pytest.approx(losses[1.0, 3])
    assert losses[0.5, 3] == pytest.approx(losses[0.5, 0] / 8)
    with pytest.raises(ValueError, match="discount=0"):
        policy("fast", discount=0)


@pytest.mark.parametrize("change", [{"video_width": 10**9}, {"head_dim": 10**9}, {"imagine_steps": 10**12}])
def test_sizes_have_a_bound(change):
    (name,) = change
    with pytest.raises(ValueError, match=f"{name}={change[name]}, expected an integer of 1 to"):
        dataclasses.replace(CONFIG, **change)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_beyond_the_end_of_an_episode_is_looked_at(variant):
    made, batch = policy(variant), training_batch()
    losses = made.loss(batch, generator())
    shown, valid = batch["future_valid"], batch["valid"]
    changed = batch | {
        "actions": torch.where(valid[..., None], batch["actions"], batch["actions"] + 5),
        "future": {"pixels": torch.where(shown[..., None, None, None], batch["future"]["pixels"], 255)},
    }
    torch.testing.assert_close(made.loss(changed, generator()), losses, **EXACT)
    film = {key: value for key, value in batch.items() if key not in ("actions", "valid")}
    torch.testing.assert_close(made.video_loss(changed, generator()), made.loss(film, generator()), **EXACT)
    everywhere = {"future_valid": torch.ones_like(shown), "valid": torch.ones_like(valid)}
    assert made.loss(batch | everywhere, generator())["video"] != losses["video"]


def test_an_appended_frame_of_padding_changes_no_loss():
    longer, shorter = policy(future=(2, 5, 9)), policy(future=(2, 5))
    shorter.load_state_dict({n: t[:2] if n == "velocity.later" else t for n, t in longer.state_dict().items()})
    seen, (future, _), x, tau = inputs(shorter)
    padding = torch.randn(B, 1, 4, 48, generator=generator(), dtype=torch.float64)
    padded = Footage(torch.cat([future.future, padding], dim=1), future.t)
    valid, shown = everything()
    ours = shorter.velocity.together(seen, [future], x, tau, valid, shown)
    shown = torch.cat([shown, torch.zeros(B, 1, dtype=torch.bool)], dim=1)
    theirs = longer.velocity.together(seen, [padded], x, tau, valid, shown)
    torch.testing.assert_close(theirs[0], ours[0], **EXACT)
    torch.testing.assert_close(theirs[1][:, :2], ours[1], **EXACT)


def test_controls_replace_what_is_learned_besides_acting():
    batch = training_batch() | {"future_valid": torch.ones(B, 2, dtype=torch.bool)}
    plainly = policy()
    present = batch["observation"]["pixels"][:, None].expand(-1, 2, -1, -1, -1)
    rolled = batch["future"]["pixels"].roll(1, 0)
    for control, pixels in (("present", present), ("shuffled", rolled)):
        expected = plainly.loss(batch | {"future": {"pixels": pixels}}, generator())
        found = policy(control=control).loss(batch, generator())
        torch.testing.assert_close(found, expected, **EXACT)
    made = policy(control="inverse")
    losses = made.loss(batch, generator())
    torch.testing.assert_close(losses["flow"], plainly.loss(batch, generator())["flow"], **EXACT)
    losses["video"].backward()
    assert bool((made.inverse.weight.grad != 0).any())
    assert bool((made.velocity.expert("video").layers[0].qkv.weight.grad != 0).any())
    with pytest.raises(ValueError, match="at least two"):
        policy(control="shuffled").loss({k: v for k, v in training_batch(1).items()}, generator())


def test_the_weight_of_the_loss_and_the_share_of_the_video():
    plainly, heavy = policy(), policy(video_weight=0.3)
    losses = heavy.loss(training_batch(), generator())
    torch.testing.assert_close(losses["loss"], losses["flow"] + losses["regression"] + 0.3 * losses["video"])
    torch.testing.assert_close(losses["video"], plainly.loss(training_batch(), generator())["video"])
    one = training_batch(1)
    pair = [policy(weighted=w).video_loss(one, generator())["video"] for w in (False, True)]
    t = plainly._film(one, plainly._see(one["observation"])[0], generator()).t
    torch.testing.assert_close(pair[1], pair[0] * ShiftedFlow().weight(t)[0])


def learnable(size, g):
    """A white patch says where to go, and will be red."""
    cell = torch.randint(0, 4, (size,), generator=g)
    place = torch.stack([cell // 2, cell % 2], dim=1)
    pictures = torch.zeros(size, 2, 4, 2, 4, 3, dtype=torch.uint8)
    pictures[torch.arange(size), place[:, 0], :, place[:, 1]] = 255
    later = pictures * torch.tensor([1, 0, 0], dtype=torch.uint8)
    return {
        "observation": {"pixels": pictures.view(size, 8, 8, 3)},
        "future": {"pixels": later.view(size, 1, 8, 8, 3).expand(-1, 2, -1, -1, -1)},
        "future_valid": torch.ones(size, 2, dtype=torch.bool),
        "actions": (place * 2.0 - 1)[:, None].expand(-1, H, -1),
        "valid": torch.ones(size, H, dtype=torch.bool),
    }


def learn(steps, **changes):
    """A tiny model that has learned for so many steps, how wrong its actions are, and how right its frames."""
    config = WamConfig(
        D, H, pictures={"pixels": (8, 8, 3)}, patch=4, latent=0, max_delay=3, prefix_rate=0.0, depth=2, width=24,
        video_width=32, head_dim=8, hidden=16, normalization={"action": "mean_std"}, imagine_steps=5, **changes,
    )  # fmt: skip
    made, g = WamPolicy(config), generator(2)
    optimizer = torch.optim.AdamW(made.parameters(), lr=4e-3)
    for _ in range(steps):
        losses = made.loss(learnable(32, g), g)
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
    batch = learnable(32, g)
    with torch.no_grad():
        dreamt = made.imagine(batch["observation"], 5, made.video_noise(32, g))
        context = made.encode(batch["observation"], made.video_noise(32, g))
        *_, last = made.stream(context, torch.randn(32, H, D, generator=g), ConstantSchedule(H, 5))
    right = (dreamt > 127) == (batch["future"]["pixels"] > 127)
    return (last.actions - batch["actions"]).square().mean(), right.float().mean()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_tiny_model_learns_to_act_and_to_foresee(variant):
    wrong, right = learn(150, variant=variant, summary=False)
    assert wrong < 0.1 and right > 0.95


def test_with_a_summary_it_learns_to_act_sooner():
    wrong, _ = learn(80, video_weight=0.0)
    assert wrong < 0.1


# Starting from video


def test_a_policy_starts_from_a_video_expert_of_any_variant():
    teacher = policy("joint")
    tensors = teacher.video_tensors()
    made = WamPolicy.from_video(CONFIG, tensors).double()
    noise = teacher.video_noise(B, generator(1))
    assert torch.equal(made.imagine(observe(), 2, noise), teacher.imagine(observe(), 2, noise))
    fresh = WamPolicy(CONFIG)
    ours = {name: t for name, t in fresh.state_dict().items() if name not in tensors}
    assert all(torch.equal(made.state_dict()[name].float(), t) for name, t in ours.items())
    whole = WamPolicy.from_video(CONFIG, teacher.state_dict(), action=True)
    assert not torch.equal(whole.velocity.expert("action").offsets, fresh.velocity.expert("action").offsets)
    assert torch.equal(whole.velocity.head.weight, fresh.velocity.head.weight)
    with pytest.raises(ValueError, match=r"velocity.later has shape \(2, 1, 16\), not \(3, 1, 16\)"):
        WamPolicy(dataclasses.replace(CONFIG, future=(1, 2, 3))).load_video(tensors)
    with pytest.raises(ValueError, match=r"velocity\.cell is missing"):
        made.load_video({n: t for n, t in tensors.items() if n != "velocity.cell"})


def test_weights_are_interpolated_to_another_width():
    expert, same, smaller = (shake(Expert(w, 2, 2, 4), seed) for w, seed in ((16, 1), (16, 2), (12, 3)))
    same.resample_from(expert)
    assert all(torch.equal(a, b) for a, b in zip(same.parameters(), expert.parameters(), strict=True))
    smaller.resample_from(expert)
    line = torch.linspace(0, 1, 16)
    shorter = torch.linspace(0, 1, 12)
    torch.testing.assert_close(resample(torch.stack([line, 1 - line]), (2, 12)), torch.stack([shorter, 1 - shorter]))
    expected = np.interp(np.linspace(0, 15, 12), np.arange(16), expert.layers[0].out.bias.detach().numpy())
    np.testing.assert_allclose(smaller.layers[0].out.bias.detach(), expected, rtol=1e-5, atol=1e-6)
    shift = expert.project.bias.view(8, 16)[6].detach()
    expected = np.interp(np.linspace(0, 15, 12), np.arange(16), shift.numpy())
    np.testing.assert_allclose(smaller.project.bias.detach().view(8, 12)[6], expected, rtol=1e-5, atol=1e-6)
    # White input through weights that are smooth over their inputs keeps its variance.
    phase = 2 * torch.pi * torch.rand(100, 1, generator=generator())
    smooth = torch.sin(torch.linspace(0, 9, 96) + phase)
    before, after = (weight.square().sum(1).mean() for weight in (smooth, resample(smooth, (100, 64), inputs=1)))
    assert after == pytest.approx(float(before), rel=0.1)
    with pytest.raises(ValueError, match=r"'layers': 2, .* cannot start from .*'layers': 3"):
        smaller.resample_from(Expert(16, 3, 2, 4))


# Cost


def counted(work):
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_the_cost_of_a_layer_is_what_is_counted():
    made = mixture()
    video = made.experts["video"]
    x, modulation = torch.randn(1, 5, 16).double(), video.modulate(torch.zeros(1, 1).double())
    cache = made.prefill("video", x, modulation)
    work = counted(lambda: made.step("video", x, modulation, cache))
    assert work == 3 * layer_flops(tokens=5, keys=10, width=16, inner=8, expansion=3)


@pytest.mark.parametrize("reuse", [False, True])
def test_the_ratios_of_plans_are_about_those_counted(reuse):
    sizes = {"video_width": 256, "width": 192, "head_dim": 64, "heads": 4, "depth": 6, "reuse_first": reuse}
    pictures = {"pictures": {"pixels": (20, 20, 3)}, "patch": 5, "latent": 0}
    work = {}
    for variant in VARIANTS:
        made = WamPolicy(dataclasses.replace(CONFIG, variant=variant, **sizes, **pictures))
        seen = observe(1) | {"pixels": torch.zeros(1, 20, 20, 3, dtype=torch.uint8)}
        work[variant] = counted(lambda made=made, seen=seen: made.sample(seen, torch.zeros(1, H, D)))
    cost = plan_cost(made.config, 10)
    assert work["joint"] / work["fast"] == pytest.approx(cost.joint_over_fast, rel=0.1)
    assert work["idm"] / work["fast"] == pytest.approx(cost.idm_over_fast, rel=0.1)
    assert work["fast"] == pytest.approx(cost.fast, rel=0.1)


# Doors


@pytest.mark.parametrize("variant", VARIANTS)
def test_configuration_and_weights_survive_a_checkpoint(variant):
    made = policy(variant, latent=10, future=(1, 3)).float()
    made.fit_latent(frames(30))
    assert WamConfig.from_json(json.loads(json.dumps(made.config.to_json()))) == made.config
    assert set(made.config.inputs) == set(observe())
    again = WamPolicy.from_tensors(made.config, made.state_dict())
    assert all(torch.equal(tensor, made.state_dict()[name]) for name, tensor in again.state_dict().items())
    assert torch.equal(again.imagine(observe(), 2), made.imagine(observe(), 2))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"variant": "slow"}, "variant"),
        ({"control": "past"}, "control"),
        ({"patch": 3}, "patch"),
        ({"pictures": {"pixels": (8, 12, 3)}}, "square"),
        ({"picture": "front"}, "picture"),
        ({"latent": 49}, "latent"),
        ({"future": ()}, "future"),
        ({"future": (5, 2)}, "future"),
        ({"future": (0, 2)}, "future"),
        ({"text": 1}, "text"),
        ({"video_weight": -1.0}, "video_weight"),
        ({"variant": "idm", "video_weight": 0.0}, "video_weight"),
        ({"variant": "joint", "control": "present"}, "control"),
        ({"video_width": 0}, "video_width"),
        ({"head_dim": True}, "head_dim"),
        ({"imagine_steps": 0}, "imagine_steps"),
        ({"condition_noise": 2.0}, "condition_noise"),
        ({"shift": 0.0}, "shift"),
        ({"backbone": "mlp"}, "backbone"),
    ],
)
def test_a_bad_configuration_is_named(changes, named):
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"pixels": torch.zeros(3, 8, 9, 3, dtype=torch.uint8)}, "pixels"),
        ({"pixels": torch.zeros(3, 8, 8, 3)}, "uint8"),
        ({"instruction": torch.zeros(3, 5)}, "instruction"),
        ({"agent_pos": None}, "agent_pos"),
    ],
)
def test_a_bad_observation_is_named(change, named):
    seen = {key: value for key, value in (observe() | change).items() if value is not None}
    with pytest.raises(ValueError, match=named):
        policy().encode(seen)


def test_a_bad_batch_and_bad_noise_are_named():
    made, batch = policy("joint"), training_batch()
    with pytest.raises(ValueError, match="'future_valid'"):
        made.loss({key: value for key, value in batch.items() if key != "future"}, generator())
    with pytest.raises(ValueError, match=r"\(3, 1, 8, 8, 3\)"):
        made.loss(batch | {"future": {"pixels": frames(3, 1)}}, generator())
    with pytest.raises(ValueError, match=r"expected \[B, 6, 2\]"):
        made.loss(batch | {"actions": torch.zeros(3, H, D + 1)}, generator())
    with pytest.raises(ValueError, match="noise has shape"):
        made.encode(observe(), torch.zeros(3, 2, 4, 47))
    with pytest.raises(ValueError, match="steps=0"):
        made.imagine(observe(), 0)
    with pytest.raises(ValueError, match="fast inference"):
        made.velocity(made.encode(observe()), torch.zeros(3, H, D).double(), torch.ones(1, 1).double())
    with pytest.raises(ValueError, match="size=8 is not divisible by patch=3"):
        PatchLatent(8, 3)
    with pytest.raises(ValueError, match="components=49"):
        PCALatent(8, 4, 3, 49)
    with pytest.raises(ValueError, match="inverse"):
        policy(control="inverse").video_loss(batch, generator())
