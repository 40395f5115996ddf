"""Imitation: collect what an environment's expert does, fit a policy to it, keep the policy. ``palaestra train``.

The same recipe on the same kind of machine, with the same library versions and one thread, gives the same weights to
the last bit. A kind of policy brings its recipes, how to make a network for some demonstrations, and which windows of
them it learns from; ``models/flow/train.py`` is the example.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from ..backend import Backend, BackendError
from ..checkpoint import CheckpointError, load, save, versions
from ..data.demonstrations import TEXT_BYTES, DemonstrationError, Demonstrations, collect
from ..normalization import Kind
from ..optim.adamw import AdamW
from ..spec import parse_spec
from ..training import Average, CosineSchedule, Progress, steps
from .action_flow import ActionFlow
from .config import FlowConfig
from .schedules import make_schedule

_FIRST_SEED = 10_000_000  # far from the seeds that anyone evaluates on
_SEEDS_APART = 1_000_000  # two recipe seeds share no demonstration
_OF_THE_NETWORK = ("horizon", "max_delay", "width", "depth", "heads", "mix", "times", "alpha", "mask_finished")
_SAMPLES = 64  # demonstrated chunks kept in the checkpoint, for methods that calibrate


@dataclass(frozen=True)
class Recipe:
    """How to train; ``seed`` decides everything that chance decides.

    ``demonstrations`` episodes are collected, disturbed by ``noise`` and, if ``lags``, by lags of up to ``max_delay``
    ticks (see ``collect``); without lags, prefixes are the expert's own next actions. ``steps`` batches of ``batch``
    windows are fitted, with AdamW at the rate ``lr`` where no backend says otherwise; ``decay`` is that of the moving
    average of the weights, which is what is kept. ``horizon``, ``max_delay``, ``width``, ``depth``, ``heads``,
    ``mix``, ``times``, ``alpha`` and ``mask_finished`` are those of :class:`FlowConfig`. ``execute``,
    ``sampling_steps`` and ``schedule`` (``"constant"`` or ``"has"``) go on the card as the agent's defaults. ``state``
    names the observation keys that the policy reads (empty: every vector of floats but ``wrench``); pictures are read
    where the environment sends them. ``normalization`` overrides the kind for a key (default: mean and standard
    deviation).
    """

    demonstrations: int = 1000
    steps: int = 4000
    batch: int = 128
    lr: float = 1e-3
    seed: int = 0
    noise: float = 0.15
    lags: bool = True
    horizon: int = 16
    max_delay: int = 8
    execute: int = 4
    sampling_steps: int = 5
    schedule: str = "constant"
    mix: float = 0.0
    times: str = "has"
    alpha: float = 0.6
    mask_finished: bool = True
    width: int = 64
    depth: int = 3
    heads: int = 4
    decay: float = 0.998
    state: tuple[str, ...] = ()
    normalization: Mapping[str, Kind] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for argument in ("demonstrations", "steps", "batch", "sampling_steps", "execute"):
            if getattr(self, argument) < 1:
                raise ValueError(f"{argument}={getattr(self, argument)}, expected at least 1")
        if self.execute > self.horizon:
            raise ValueError(f"execute={self.execute}, expected at most horizon={self.horizon}")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}, expected at least 0")
        make_schedule(self.schedule, self.horizon, self.sampling_steps, self.alpha)  # which checks them


Policy = TypeVar("Policy", bound=ActionFlow)
R = TypeVar("R", bound=Recipe)


class Loaded(NamedTuple, Generic[Policy]):
    """A checkpoint to go on from: its policy and its card."""

    policy: Policy
    card: Mapping[str, Any]


@dataclass(frozen=True)
class Trainer(Generic[R, Policy]):
    """A kind of policy that can be trained.

    ``recipes`` are those of the shipped checkpoints: environment id and variant to recipe; ``default`` serves other
    environments. It ``needs`` these observation keys, and an expert that reaches ``expert_success`` undisturbed: below
    that, demonstrations would teach failure. ``read`` makes a policy of a checkpoint's configuration and tensors,
    ``make`` a new one for an environment and its demonstrations. ``windows(demonstrations, policy, recipe,
    generator)`` are its batches, and ``notes(demonstrations, policy)`` are added to the checkpoint's card. Where
    training goes on from a checkpoint, ``start(checkpoint, new)`` is the policy to train: the checkpoint's own, unless
    it makes a ``new()`` one of it. ``check(env)`` raises ``DemonstrationError`` for what else an environment lacks,
    before anything is collected.
    """

    agent: str
    default: R
    recipes: Mapping[str, Mapping[str, R]]
    read: Callable[[Mapping[str, Any], Mapping[str, torch.Tensor]], Policy]
    make: Callable[[Any, Demonstrations, R, torch.Generator], Policy]
    windows: Callable[[Demonstrations, Policy, R, np.random.Generator], Iterator[dict[str, Any]]]
    notes: Callable[[Demonstrations, Policy], Mapping[str, Any]] = lambda demonstrations, policy: {}
    start: Callable[[Loaded[Policy], Callable[[], Policy]], Policy] = lambda loaded, new: loaded.policy
    check: Callable[[Any], None] = lambda env: None
    needs: tuple[str, ...] = ()
    expert_success: float = 0.9

    def recipe_for(self, env_id: str, variant: str = "") -> R:
        """The recipe of the shipped checkpoint for an environment (options are ignored), else the default one.

        Raises ``ValueError`` naming the variants that there are for an unknown one.
        """
        world = parse_spec(env_id.split("+")[0]).name.rpartition(":")[2]
        variants = self.recipes.get(world, {"": self.default})
        if variant not in variants:
            named = [name for name in variants if name]
            raise ValueError(f"variant={variant!r} is not known for {env_id}; it has {', '.join(named) or 'none'}")
        return variants[variant]

    def train(
        self,
        env: Any,
        recipe: R,
        out: Path,
        *,
        backend: Backend | None = None,
        start: Path | None = None,
        progress: Callable[[Progress], None] | None = None,
        card: Mapping[str, Any] | None = None,
    ) -> Path:
        """Collect demonstrations of ``env``'s expert, fit a policy, write the checkpoint ``out``; returns its path.

        ``env`` is a Gymnasium environment with ``env.unwrapped.expert()``. An interrupted collection goes on where it
        stopped, from a file beside ``out`` that is removed at the end. ``backend`` chooses the optimizer (default:
        ``adamw``) and, with ``start``, adapters: the network of that checkpoint is then fine-tuned, the adapter kept in
        a folder beside ``out``, and merged into the checkpoint. ``card`` is added to the checkpoint's card.

        Raises ``DemonstrationError`` when the environment has no expert, or one that succeeds too seldom, or lacks an
        observation that is needed; ``BackendError`` for running methods that cannot be trained; ``CheckpointError``
        for a bad ``start``; ``NonFiniteLoss`` when training diverges.
        """
        backend = backend or Backend()
        _check_backend(backend, start)
        tell = progress or (lambda _: None)
        began = time.perf_counter()
        self._check(env)
        loaded = None if start is None else self._load(start)
        demonstrations, kept_at = _demonstrate(env, recipe, out, tell, self.expert_success)
        collected = time.perf_counter()
        good = demonstrations.select(demonstrations.success)

        seeds = np.random.SeedSequence(recipe.seed).generate_state(3)
        policy = self._begin(env, good, recipe, loaded, torch.Generator().manual_seed(int(seeds[0])))
        policy = backend.apply(policy)  # type: ignore[assignment]
        optimizer = backend.optimizer(policy) or AdamW(recipe.lr).build(policy)
        average = Average(policy, recipe.decay)
        batches = self.windows(good, policy, recipe, np.random.default_rng(int(seeds[1])))
        schedule = CosineSchedule(recipe.steps, warmup=min(200, recipe.steps // 10))
        smooth: dict[str, float] = {}
        policy.train()
        for step in steps(policy, batches, optimizer, schedule, torch.Generator().manual_seed(int(seeds[2]))):
            average.update(policy)
            smooth = {name: 0.98 * smooth.get(name, loss) + 0.02 * loss for name, loss in step.losses.items()}
            tell(Progress("training", step.index + 1, recipe.steps, smooth))
        average.copy_to(policy)
        for method in backend.adapter:
            policy = method.finish(policy, out.with_name(f"{out.name}.{method.name}"))
        trained = time.perf_counter()

        tensors = {f"policy.{name}": tensor for name, tensor in policy.state_dict().items()}
        samples = self.windows(good, policy, replace(recipe, batch=_SAMPLES), np.random.default_rng(recipe.seed))
        for name, values in next(samples).items():
            if isinstance(values, Mapping):
                tensors |= {
                    f"samples.{name}.{key}": kept for key, kept in values.items() if key in policy.config.inputs
                }
            else:
                tensors[f"samples.{name}"] = values
        weights = save(
            out,
            policy.config.to_json(),
            tensors,
            {
                "agent": self.agent,
                "env": _world(env),
                "interface": _interface(env, policy.config, int(good.lengths.max())),
                "sampling": {
                    "steps": recipe.sampling_steps,
                    "execute": recipe.execute,
                    "schedule": recipe.schedule,
                    "alpha": policy.config.alpha,
                },
                "recipe": asdict(recipe),
                "backend": str(backend),
                "start": loaded.card["weights"]["sha256"] if loaded else None,
                "demonstrations": {
                    "episodes": len(demonstrations),
                    "used": len(good),
                    "ticks": int(good.lengths.sum()),
                    "expert_success": _rate(demonstrations.success[~demonstrations.disturbed]),
                    "disturbed_success": _rate(demonstrations.success[demonstrations.disturbed]),
                    "seconds": round(collected - began, 1),
                },
                "training": {
                    "seconds": round(trained - collected, 1),
                    "parameters": sum(p.numel() for p in policy.parameters()),
                    "losses": {name: round(loss, 5) for name, loss in smooth.items()},
                },
                "versions": versions("palaestra", "torch", "numpy", "mujoco", "robosuite"),
                **self.notes(good, policy),
                **(card or {}),
            },
        )
        kept_at.unlink(missing_ok=True)
        return weights

    def _check(self, env: Any) -> None:
        """Refuse an environment that lacks what is needed, before anything is collected."""
        there = getattr(env.observation_space, "spaces", {})
        if missing := [key for key in self.needs if key not in there]:
            raise DemonstrationError(f"{_world(env)} sends {sorted(there)}, and {self.agent} needs {missing} too")
        self.check(env)

    def _load(self, start: Path) -> Loaded[Policy]:
        """A checkpoint to go on from."""
        loaded = load(start)
        if loaded.card.get("agent") != self.agent:
            raise CheckpointError(start, f"is of the agent {loaded.card.get('agent')!r}, expected {self.agent!r}")
        weights = {n.removeprefix("policy."): t for n, t in loaded.tensors.items() if n.startswith("policy.")}
        return Loaded(self.read(loaded.config, weights), loaded.card)

    def _begin(
        self, env: Any, good: Demonstrations, recipe: R, loaded: Loaded[Policy] | None, generator: torch.Generator
    ) -> Policy:
        """The network to train: one that starts from the loaded one, or a new one that fits the demonstrations."""
        if loaded is None:
            return self.make(env, good, recipe, generator)
        policy = self.start(loaded, lambda: self.make(env, good, recipe, generator))
        for key, shape in policy.config.inputs.items():
            there = good.observations[key].shape[1:] if key in good.observations else None
            if there != shape and not (key == "instruction" and there == (TEXT_BYTES,)):  # read as whatever it became
                raise DemonstrationError(f"the network reads {key!r} of shape {shape}, the demonstrations hold {there}")
        return policy


def _check_backend(backend: Backend, start: Path | None) -> None:
    for slot in ("quant", "cache", "decode", "fleet"):
        if getattr(backend, slot):
            raise BackendError(f"{slot} in backend={str(backend)!r} does not train a flow policy; leave it out here")
    for method in backend.adapter:
        if start is None:
            raise BackendError(f"adapter={method.name} adapts a trained network; state the checkpoint to start from")
        if not hasattr(method, "finish"):
            raise BackendError(f"adapter={method.name} cannot be trained here: it has no method finish()")


def _demonstrate(
    env: Any, recipe: Recipe, out: Path, tell: Callable[[Progress], None], expected: float
) -> tuple[Demonstrations, Path]:
    first = _FIRST_SEED + _SEEDS_APART * recipe.seed
    path = out.with_name(f"{out.name}.demonstrations")
    demonstrations = collect(
        env,
        range(first, first + recipe.demonstrations),
        noise=recipe.noise,
        lag=recipe.max_delay if recipe.lags else 0,
        path=path,
        progress=lambda done, total: tell(Progress("demonstrations", done, total)),
    )
    rate, which = demonstrations.undisturbed_success, "undisturbed"
    if np.isnan(rate):  # so few that none was left undisturbed
        rate, which, expected = float(demonstrations.success.mean()), "disturbed", 0.5
    if rate < expected:
        raise DemonstrationError(
            f"the expert of {_world(env)} succeeds in {rate:.0%} of its {which} episodes, and training needs "
            f"{expected:.0%}; mend the expert or the environment's options"
        )
    return demonstrations, path


def fit(env: Any, good: Demonstrations, recipe: Recipe) -> dict[str, Any]:
    """The arguments of a configuration that the demonstrations decide: what there is to be read, and how."""
    shapes = {key: values.shape[1:] for key, values in good.observations.items()}
    floats = {key for key, values in good.observations.items() if values.dtype.kind == "f"}
    state = recipe.state or tuple(key for key in shapes if key in floats and key != "wrench")
    if missing := [key for key in state if key not in floats]:
        raise DemonstrationError(
            f"state={recipe.state}: the environment sends no floats {missing}, it has {sorted(floats)}"
        )
    return {
        "action_size": good.actions.shape[1],
        "state": {key: shapes[key] for key in state},
        "pictures": {k: s for k, s in shapes.items() if len(s) == 3 and good.observations[k].dtype == np.uint8},
        "quaternions": {key: places for key in state if (places := _quaternions(env, key))},
        "normalization": {key: recipe.normalization.get(key, "mean_std") for key in (*state, "action")},
        "first_hit": 1 - 1 / recipe.sampling_steps,
        **{name: getattr(recipe, name) for name in _OF_THE_NETWORK},
    }


def _quaternions(env: Any, key: str) -> tuple[tuple[int, str], ...]:
    """Where the environment's card says that quaternions stand in an observation key: (start, order)."""
    interface = getattr(env.unwrapped, "interface", None)
    places, start = [], 0
    for component in interface.observation.get(key, ()) if interface else ():
        if component.rotation in ("quat_xyzw", "quat_wxyz"):
            places.append((start, component.rotation.removeprefix("quat_")))
        start += component.size
    return tuple(places)


def _interface(env: Any, config: FlowConfig, ticks: int) -> dict[str, Any] | None:
    """The environment's card as this policy needs it: its own inputs, the demonstrations' length, its chunk."""
    interface = getattr(env.unwrapped, "interface", None)
    if interface is None:
        return None
    read = {key.partition("/")[0] for key in config.inputs}
    observation = {key: components for key, components in interface.observation.items() if key in read}
    return replace(interface, observation=observation, episode_ticks=ticks, chunk=config.horizon).to_json()


def _rate(success: np.ndarray) -> float | None:
    """The share of successes; ``None`` of no episodes."""
    return float(success.mean()) if len(success) else None


def _world(env: Any) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__
