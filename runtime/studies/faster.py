"""FASTER: a flow policy whose first action is final after one denoising step reacts sooner, and scores better for it.

Claimed by "FASTER: Rethinking Real-Time Flow VLAs" (arXiv 2603.19199), on robots with pi0.5 and X-VLA. Measured here
with small policies in two worlds on the virtual clock, under the four published latency profiles, every method on the
same episodes and at the execution horizon that its own arrivals allow:

- BallIntercept-v0, where the right action is one, and DetourIntercept-v0, where two routes are right. The second is the
  control that the paper lacks: one plain step gives the mean action, which is right in the first world and runs into
  the post in the second.
- Policies: one trained with the constant schedule (sampled in ten steps, in two and in one; synchronous, naive
  asynchronous, with temporal ensembling, guided at inference, or continuing a prefix as in training-time real-time
  chunking), and one trained on mixed schedules and sampled with the horizon-aware one (FASTER). At ``full`` they are
  trained here, with three seeds, and beside them FASTER without masking finished actions (the paper's loss) and with
  independent times (Diffusion Forcing). At ``quick`` they are the checkpoints that ship.

Guidance and ensembling are tuned: each has the published and a weaker setting, and FASTER must beat the best row.
Refuted where FASTER does not score more than every ten-step asynchronous row on the X-VLA profiles, loses more than 0.05
to the best of them on the pi0.5 ones, or more than 0.05 without latency; where its reaction is not sooner; or where
one or two constant steps, at the timing that they allow, match it in both worlds. All of it is void unless the constant
policy scores 0.95 (0.9 in the second world) without latency.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...models.spec import parse_spec
from ..executor import Execution
from ..latency import LatencyModel, profile
from ..reaction import arrivals_s, min_execution_horizon, reaction_time
from ..rollout import run as run_episodes
from ..statistics import Estimate, mean, paired_difference
from ..store import Store
from ..study import Claim, Lab, Scale, Study, Table
from ..workers import WorkerDied, Workers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYSTEM = "faster"
CLAIM = "A flow policy whose first action is final after one step reacts sooner and scores better under latency."

BALL, DETOUR = "palaestra/BallIntercept-v0", "palaestra/DetourIntercept-v0"
HORIZON, STEPS, ALPHA, TICK_S = 24, 10, 0.8, 1 / 30
FREE = 4  # ticks between plans where thinking takes no time
PROFILES = ("pi05-4090", "pi05-4060", "xvla-4090", "xvla-4060")
REACTION_GAIN = {"pi05-4090": 1.16, "pi05-4060": 1.26, "xvla-4090": 2.31, "xvla-4060": 2.62}
SOONER = {"pi05-4090": 0.66, "pi05-4060": 0.77, "xvla-4090": 1.0, "xvla-4060": 1.0}
NETWORKS: dict[str, dict[str, Any]] = {
    "constant": {"schedule": "constant", "mix": 0.0},
    "mixed": {},
    "unmasked": {"mask_finished": False},
    "independent": {"times": "independent"},
}
SWEEP = (1, 2, 4, 8, 12)


@dataclass(frozen=True)
class Method:
    """A way to act: which network, how it is sampled, and how executed."""

    name: str
    network: str
    mode: str
    sampling: str
    ensemble: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of its sampling."""
        return dict(parse_spec(f"flow:{self.sampling}").options)


_TEN, _HAS = "schedule=constant,steps=10", "schedule=has,steps=10,alpha=0.8"
FASTER = Method("FASTER", "mixed", "prefix", _HAS)
ASYNC = Method("naive async", "constant", "async", _TEN)
TRAINED = Method("training-time RTC", "constant", "prefix", _TEN)
SYNC = Method("sync", "constant", "sync", _TEN)
ONE = Method("constant, 1 step", "constant", "prefix", "schedule=constant,steps=1")
TWO = Method("constant, 2 steps", "constant", "prefix", "schedule=constant,steps=2")
RIVALS = (
    ASYNC,
    Method("temporal ensemble, oldest first", "constant", "async", _TEN, ensemble=0.01),
    Method("temporal ensemble, newest first", "constant", "async", _TEN, ensemble=-1.0),
    Method("guided RTC, clip 5", "constant", "prefix", f"{_TEN},guidance=rtc,clip=5"),
    Method("guided RTC, clip 0.5", "constant", "prefix", f"{_TEN},guidance=rtc,clip=0.5"),
    Method("guided RTC, identity", "constant", "prefix", f"{_TEN},guidance=identity,clip=5"),
    TRAINED,
)
VARIANTS = (
    Method("FASTER, alpha 0.6", "mixed", "prefix", "schedule=has,steps=10,alpha=0.6"),
    Method("FASTER, finished not masked", "unmasked", "prefix", _HAS),
    Method("independent times, HAS sampled", "independent", "prefix", _HAS),
)
BRIEF = (SYNC, ASYNC, TRAINED, FASTER, ONE, TWO)
WHOLE = (SYNC, *RIVALS, FASTER, *VARIANTS, ONE, TWO)


class Timing(NamedTuple):
    """Ticks: ``delay`` until a plan's first action is here, ``horizon`` between two plans; and its arrivals in s."""

    delay: int
    horizon: int
    arrivals_s: list[float]


def timing(method: Method, latency: LatencyModel) -> Timing:
    """When a method's actions arrive under a latency, and the shortest horizon at which none comes too late."""
    from ...models.flow.schedules import make_schedule, ready_after

    options = method.options
    schedule = make_schedule(options["schedule"], HORIZON, options["steps"], options.get("alpha", ALPHA))
    if latency.name == "zero":
        return Timing(0, FREE, arrivals_s(latency, ready_after(schedule.taus())))
    first_s = arrivals_s(latency, ready_after(schedule.taus()))[0]
    delay = math.ceil(first_s / TICK_S - 1e-9)
    arrivals = arrivals_s(latency, ready_after(schedule.taus(delay), delay))
    horizon = min_execution_horizon(arrivals, TICK_S)
    if horizon is None:
        raise ValueError(f"{method.name} under {latency.name}: chunks of {HORIZON} are over before they arrive")
    return Timing(delay, max(horizon, delay), arrivals)


# What workers do ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """Train the network of a world with a seed."""

    env: str
    network: str
    seed: int


@dataclass(frozen=True)
class Cell:
    """Episodes of a method in a world; without a ``profile`` the world waits, and ``horizon`` is given."""

    env: str
    method: Method
    profile: str
    seed: int
    episodes: int
    horizon: int = 0


class Outcome(NamedTuple):
    """What a cell gave: arrays over its episodes, and means over them."""

    scores: np.ndarray
    reactions_ms: np.ndarray
    jerk: float
    stalls: float
    steps: float
    failed: int


Job = Training | Cell


class Bench:
    """Trains and runs, in one process; everything is kept in ``folder``, so that what is done is not done again."""

    def __init__(self, folder: Path, shipped: bool):
        self.folder, self.shipped = folder, shipped
        self.store = Store(folder / "episodes.sqlite")

    def __call__(self, job: Job) -> Outcome | None:
        """Do the job; only a cell has an outcome."""
        warnings.simplefilter("ignore", UserWarning)  # a chunk that is too short is a finding here: see the stalls
        if isinstance(job, Cell):
            return self._run(job)
        self._train(job)
        return None

    def _train(self, job: Training) -> None:
        import torch

        from ...models.flow.train import recipe_for, train
        from ..registry import make_env

        out = self._path(job.env, job.network, job.seed)
        if not out.with_name(f"{out.name}.safetensors").exists():
            torch.set_num_threads(1)
            env = make_env(job.env)
            train(env, replace(recipe_for(job.env), seed=job.seed, **NETWORKS[job.network]), out)
            env.close()

    def _run(self, cell: Cell) -> Outcome:
        method = cell.method
        if self.shipped:
            which = "variant=constant," if method.network == "constant" else ""
        else:
            which = f"checkpoint={self._path(cell.env, method.network, cell.seed)}.safetensors,"
        if cell.profile:
            delay, horizon, _ = timing(method, profile(cell.profile))
            execution = Execution(
                mode=method.mode,  # type: ignore[arg-type]
                horizon=horizon,
                delay=delay if method.mode == "prefix" else None,
                ensemble=method.ensemble,
            )
        else:
            execution = Execution(horizon=cell.horizon)
        result = run_episodes(
            cell.env,
            f"flow:{which}{method.sampling}",
            episodes=cell.episodes,
            clock="virtual" if cell.profile else "lockstep",
            profile=cell.profile or None,
            execution=execution,
            lanes=min(cell.episodes, 50),
            resume=True,
            store=self.store,
        )
        rows = result.rows

        def average(cost: str) -> float:
            return float(np.mean([row.costs[cost] for row in rows if cost in row.costs] or [math.nan]))

        return Outcome(
            np.array([row.score or 0.0 for row in rows]),
            np.array([row.costs["reaction_ms"] for row in rows if "reaction_ms" in row.costs]),
            average("jerk"),
            average("stalls"),
            average("evaluations") / average("plans"),
            result.failed,
        )

    def _path(self, env: str, network: str, seed: int) -> Path:
        return self.folder / f"{env.rpartition('/')[2]}.{network}.{seed}"


def _do(jobs: Sequence[Job], lab: Lab, shipped: bool, word: str) -> dict[Job, Outcome]:
    """All jobs, on as many processes as the lab has."""
    done: dict[Job, Outcome] = {}

    def take(job: Job, outcome: Any) -> None:
        if isinstance(outcome, WorkerDied):
            raise RuntimeError(f"{job}: {outcome}")
        done[job] = outcome
        lab.tell(word, len(done), len(jobs))

    lab.tell(word, 0, len(jobs))
    if min(lab.workers, len(jobs)) == 1:
        bench = Bench(lab.folder, shipped)
        for job in jobs:
            take(job, bench(job))
        return done
    workers: Workers[Job, Any] = Workers(min(lab.workers, len(jobs)), partial(Bench, lab.folder, shipped))
    try:
        for job, outcome in workers.results(jobs):
            take(job, outcome)
    finally:
        workers.close()
    return done


# The study ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    trained: bool
    seeds: tuple[int, ...]
    episodes: int
    profiles: dict[str, tuple[str, ...]]
    methods: dict[str, tuple[Method, ...]]
    sweep: tuple[int, ...]
    rounds: int


QUICK = Plan(
    trained=False,
    seeds=(0,),
    episodes=100,
    profiles={BALL: PROFILES, DETOUR: ("xvla-4090",)},
    methods={BALL: BRIEF, DETOUR: (TRAINED, FASTER, ONE, TWO)},
    sweep=(1, 4, 8),
    rounds=10,
)
FULL = Plan(
    trained=True,
    seeds=(0, 1, 2),
    episodes=200,
    profiles={BALL: PROFILES, DETOUR: PROFILES},
    methods={BALL: WHOLE, DETOUR: (SYNC, ASYNC, TRAINED, FASTER, ONE, TWO)},
    sweep=SWEEP,
    rounds=40,
)

Cells = dict[tuple[str, str, str], list[Outcome]]
"""World, profile (or ``"every N"`` ticks, in lockstep) and method to the outcome of each seed."""


def run(scale: Scale, lab: Lab) -> Study:
    """Measure it: under a minute at ``quick``, some ten to fifteen at ``full``; a GPU changes nothing."""
    plan = QUICK if scale == "quick" else FULL
    os.makedirs(lab.folder, exist_ok=True)
    seeds = [lab.seed + seed for seed in plan.seeds]
    if plan.trained:
        wanted = {(env, method.network) for env in plan.methods for method in plan.methods[env]}
        _do([Training(env, name, seed) for env, name in sorted(wanted) for seed in seeds], lab, False, "training")
    jobs: dict[Cell, tuple[str, str, str]] = {}
    for env, methods in plan.methods.items():
        for name in ("zero", *plan.profiles[env]):
            for method in methods:
                for seed in seeds:
                    jobs[Cell(env, method, name, seed, plan.episodes)] = (env, name, method.name)
    for every in plan.sweep:
        for method in (TRAINED, FASTER, ONE, TWO):
            for seed in seeds:
                key = (DETOUR, f"every {every}", method.name)
                jobs[Cell(DETOUR, method, "", seed, plan.episodes, every)] = key
    cells: Cells = {}
    for job, outcome in _do(list(jobs), lab, not plan.trained, "episodes").items():
        assert isinstance(job, Cell)
        cells.setdefault(jobs[job], []).append(outcome)
    lab.tell("first actions", 0, 1)
    first = _first_actions(plan.rounds, lab.seed)
    straight = _straightness(lab, plan, seeds[0])
    claims = [
        *_scores(cells, plan),
        *_reactions(cells, plan),
        *_controls(cells, plan),
        *_straight(straight),
        first.claim,
    ]
    tables = [_table(cells, env, name) for env in plan.profiles for name in ("zero", *plan.profiles[env])]
    return Study(
        "faster",
        scale,
        tuple(claims),
        (*tables, _reaction_table(cells, plan), _sweep_table(cells, plan), first.table, _straight_table(straight)),
        {
            "scores": partial(_draw_scores, cells, plan),
            "reactions": partial(_draw_reactions, cells, plan),
            "timeline": _draw_timeline,
            "routes": partial(_draw_routes, cells, plan),
            "straightness": partial(_draw_straightness, straight),
        },
    )


def _score(cells: Cells, env: str, name: str, method: Method) -> np.ndarray:
    return np.stack([outcome.scores for outcome in cells[env, name, method.name]])


def _estimate(scores: np.ndarray) -> Estimate:
    return paired_difference(scores, np.zeros_like(scores))


def _difference(cells: Cells, env: str, name: str, ours: Method, theirs: Sequence[Method]) -> tuple[Estimate, str]:
    """Ours less the best of theirs, and which that is."""
    best = max(theirs, key=lambda method: float(_score(cells, env, name, method).mean()))
    return paired_difference(_score(cells, env, name, ours), _score(cells, env, name, best)), best.name


def _precondition(cells: Cells, env: str, least: float) -> str:
    """Why nothing can be said in a world; empty where something can."""
    score = float(_score(cells, env, "zero", TRAINED).mean())
    if score >= least:
        return ""
    return f"the constant policy scores {score:.3f} without latency, expected {least}: it has not learned {env}"


def _judge(void: str, text: str, estimate: Estimate, **limits: Any) -> Claim:
    claim = Claim.judge(text, estimate, **limits)
    return replace(claim, holds=None, reason=void) if void else claim


def _scores(cells: Cells, plan: Plan) -> list[Claim]:
    void = _precondition(cells, BALL, 0.95)
    rivals = [method for method in RIVALS if method in plan.methods[BALL]]
    claims = []
    for name, paper in (("xvla-4090", None), ("xvla-4060", None)):
        gain, best = _difference(cells, BALL, name, FASTER, rivals)
        text = f"{name}: FASTER scores more than every ten-step asynchronous method (best: {best})"
        claims.append(_judge(void, text, gain, at_least=0.0, paper=paper))
    for name, paper in (("pi05-4090", "+.27 (table tennis)"), ("pi05-4060", "+.17 (table tennis)")):
        gain, best = _difference(cells, BALL, name, FASTER, rivals)
        text = f"{name}: FASTER is at most 0.05 below the best asynchronous method ({best})"
        claims.append(_judge(void, text, gain, at_least=-0.05, paper=paper))
    loss, _ = _difference(cells, BALL, "zero", FASTER, [TRAINED])
    claims.append(
        _judge(void, "Without latency FASTER loses less than 0.05", loss, at_least=-0.05, paper="-.004 (LIBERO)")
    )
    worst = [
        min(plan.methods[BALL], key=lambda method: float(_score(cells, BALL, name, method).mean())) == SYNC
        for name in PROFILES
    ]
    text = "Share of the profiles on which the synchronous robot scores least"
    claims.append(Claim(text, 1.0, float(np.mean(worst)), holds=None if void else all(worst), reason=void))
    return claims


def _ratio(slow: np.ndarray, quick: np.ndarray, of: Any = np.mean) -> Estimate:
    """The ratio of two means (or medians), with a bootstrap interval."""
    draw = np.random.default_rng(0)
    pairs = [(draw.choice(slow, len(slow)), draw.choice(quick, len(quick))) for _ in range(2000)]
    low, high = np.quantile([of(a) / of(b) for a, b in pairs], [0.025, 0.975])
    return Estimate(float(of(slow) / of(quick)), float(low), float(high), len(slow))


def _reacted(cells: Cells, name: str, method: Method) -> np.ndarray:
    return np.concatenate([outcome.reactions_ms for outcome in cells[BALL, name, method.name]])


def _reactions(cells: Cells, plan: Plan) -> list[Claim]:
    claims = []
    for name in PROFILES:
        gain = _ratio(_reacted(cells, name, ASYNC), _reacted(cells, name, FASTER))
        text = f"{name}: mean reaction to the kick, asynchronous / FASTER"
        claims.append(Claim.judge(text, gain, at_least=1.0, paper=REACTION_GAIN[name]))
    return claims


def _controls(cells: Cells, plan: Plan) -> list[Claim]:
    claims = []
    for env, least, names in ((BALL, 0.95, ("xvla-4090", "xvla-4060")), (DETOUR, 0.9, plan.profiles[DETOUR][-2:])):
        void = _precondition(cells, env, least)
        for name in names:
            gain, best = _difference(cells, env, name, FASTER, [ONE, TWO])
            text = f"{env.rpartition('/')[2]}, {name}: FASTER scores more than plain few-step sampling ({best})"
            claims.append(_judge(void, text, gain, at_least=0.0))
    void = _precondition(cells, DETOUR, 0.9)
    key = f"every {plan.sweep[-1]}"
    one, _ = _difference(cells, DETOUR, key, TRAINED, [ONE])
    claims.append(_judge(void, "Two routes: ten steps score more than one, which averages them", one, at_least=0.0))
    loss, _ = _difference(cells, DETOUR, key, FASTER, [TRAINED])
    text = f"Two routes, {plan.sweep[-1]} ticks a plan: FASTER is at most 0.05 below ten constant steps"
    claims.append(_judge(void, text, loss, at_least=-0.05))
    if VARIANTS[0] in plan.methods[BALL]:
        for variant, text in zip(
            VARIANTS[1:], ("masking finished actions", "the schedule over independent times"), strict=True
        ):
            gains = [
                _score(cells, BALL, name, FASTER) - _score(cells, BALL, name, variant) for name in ("zero", *PROFILES)
            ]
            gain = _estimate(np.concatenate(gains, axis=1))
            claims.append(_judge("", f"What {text} adds to the score, over all profiles", gain, at_least=0.0))
    return claims


# First actions of a larger network, in real time -------------------------------------------------------------------


class FirstActions(NamedTuple):
    """Times to the first action in real time."""

    claim: Claim
    table: Table


def _first_actions(rounds: int, seed: int) -> FirstActions:
    """A transformer of some five million random weights, behind a socket: constant schedule against horizon-aware."""
    import torch
    from gymnasium import spaces

    from ...agents.agent import Call, Episode
    from ...agents.flow import Flow
    from ...models.flow.policy import FlowConfig, FlowPolicy
    from ...models.flow.schedules import make_schedule
    from ..client import RemoteAgent
    from ..server import PolicyServer

    kinds = {"state": "mean_std", "action": "mean_std"}
    config = FlowConfig(7, 50, {"state": (32,)}, normalization=kinds, width=256, depth=6, hidden=1024)  # type: ignore[arg-type]
    policy = FlowPolicy(config, torch.Generator().manual_seed(seed)).eval().requires_grad_(False)
    space = spaces.Dict(state=spaces.Box(-1, 1, (32,)))
    episode = Episode(seed, "faster/first-actions", space, spaces.Box(-1, 1, (7,)))
    observation = {"state": np.zeros(32, np.float32)}
    agents = {name: Flow(policy, schedule=make_schedule(name, 50, STEPS), execute=8) for name in ("constant", "has")}
    steps_s: list[float] = []
    firsts_s: list[float] = []
    served: dict[str, list[float]] = {name: [] for name in agents}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    servers = {name: PolicyServer(agent, episode, "tcp://127.0.0.1:*").start() for name, agent in agents.items()}
    remotes = {name: RemoteAgent(server.bind) for name, server in servers.items()}
    try:
        memories = {name: remote.reset(episode) for name, remote in remotes.items()}
        memory = agents["constant"].reset(episode)
        for round_ in range(rounds + 2):
            times = [time.perf_counter()]
            times += [time.perf_counter() for _ in agents["constant"].plan(memory, Call(observation))]
            if round_ >= 2:  # the first ones pay for caches
                firsts_s.append(times[1] - times[0])
                steps_s += list(np.diff(times[1:]))
            for name, remote in remotes.items():
                began = time.perf_counter()
                for part in remote.plan(memories[name], Call(observation)):
                    if len(part.actions):
                        if round_ >= 2:
                            served[name].append(time.perf_counter() - began)
                        break
    finally:
        for remote in remotes.values():
            remote.close()
        for server in servers.values():
            server.close()
        torch.set_num_threads(threads)
    step = float(np.median(steps_s))
    encode = max(float(np.median(firsts_s)) - step, 0.0)
    predicted = (encode + STEPS * step) / (encode + step)
    constant, has = (1000 * np.array(served[name]) for name in ("constant", "has"))
    gain = _ratio(constant, has, np.median)
    claim = Claim.judge(
        "Time to the first action through a socket, constant / FASTER, within 10 % of the predicted",
        gain,
        at_least=0.9 * predicted,
        at_most=1.1 * predicted,
        paper=f"{predicted:.2f} predicted",
    )
    rows = (
        ("encoding, in process", 1000 * encode),
        ("one step, in process", 1000 * step),
        ("constant, served", float(np.median(constant))),
        ("FASTER, served", float(np.median(has))),
        ("constant / FASTER, measured", gain),
        ("constant / FASTER, predicted", predicted),
    )
    size = sum(p.numel() for p in policy.parameters()) / 1e6
    return FirstActions(claim, Table(f"First action of {size:.1f} M parameters, median ms", ("", "value"), rows))


# Straightness ------------------------------------------------------------------------------------------------------


def _straightness(lab: Lab, plan: Plan, seed: int) -> dict[str, Any]:
    """The pilot study, of the constant policy on its own demonstrations: world to what was measured."""
    import torch

    from ...models.checkpoint import load, shipped
    from ...models.flow.policy import FlowConfig, FlowPolicy
    from ...models.flow.straightness import straightness

    found = {}
    for env in (BALL, DETOUR):
        if plan.trained:
            path = lab.folder / f"{env.rpartition('/')[2]}.constant.{seed}.safetensors"
        else:
            path = shipped("flow-constant", env)
        config, tensors, _ = load(path)
        weights = {name.removeprefix("policy."): t for name, t in tensors.items() if name.startswith("policy.")}
        policy = FlowPolicy.from_tensors(FlowConfig.from_json(config), weights).eval()
        start = "samples.observation."
        seen = {
            name.removeprefix(start): t.repeat_interleave(32, 0)
            for name, t in tensors.items()
            if name.startswith(start)
        }
        valid = tensors["samples.valid"].repeat_interleave(32, 0)
        found[env] = straightness(policy, seen, valid, STEPS, torch.Generator().manual_seed(seed))
    return found


def _straight(found: dict[str, Any]) -> list[Claim]:
    claims = []
    for env, measured in found.items():
        bend = measured.bend.numpy()
        ratio = float(bend[6:16].mean() / bend[:2].mean())
        text = f"{env.rpartition('/')[2]}: paths of actions 6 to 15 are less straight than those of the first two"
        claims.append(Claim(text, "grows with the index", ratio, holds=ratio > 1.0))
    return claims


# Tables and pictures -----------------------------------------------------------------------------------------------


def _table(cells: Cells, env: str, name: str) -> Table:
    rows = []
    latency = profile(name)
    for method in WHOLE:
        if (env, name, method.name) not in cells:
            continue
        outcomes = cells[env, name, method.name]
        delay, horizon, _ = timing(method, latency)
        reacted = np.concatenate([outcome.reactions_ms for outcome in outcomes])
        rows.append(
            (
                method.name,
                f"{delay}, {horizon}",
                _estimate(_score(cells, env, name, method)),
                float(reacted.mean()) if len(reacted) else None,
                float(np.mean([outcome.steps for outcome in outcomes])),
                float(np.mean([outcome.stalls for outcome in outcomes])),
                float(np.mean([outcome.jerk for outcome in outcomes])),
                sum(outcome.failed for outcome in outcomes),
            )
        )
    columns = ("method", "d, s", "score", "reaction ms", "steps a plan", "ticks without action", "jerk", "failed")
    return Table(f"{env.rpartition('/')[2]} under {name}", columns, tuple(rows))


def _closed(method: Method, name: str, tick_s: float = TICK_S) -> Any:
    delay, horizon, arrivals = timing(method, profile(name))
    scale = round(TICK_S / tick_s)
    return reaction_time(
        method.mode, arrivals[0], horizon * scale, tick_s, delay * scale if method.mode == "prefix" else 0
    )


def _reaction_table(cells: Cells, plan: Plan) -> Table:
    rows: list[tuple[Any, ...]] = []
    for name in PROFILES:
        slow, quick = _closed(ASYNC, name), _closed(FASTER, name)
        measured = [_reacted(cells, name, method) for method in (SYNC, ASYNC, FASTER)]
        sooner = float((measured[2][:, None] < measured[1][None]).mean())
        rows.append(
            (
                name,
                *(mean(list(values)) for values in measured),
                1000 * _closed(SYNC, name).mean_s,
                1000 * slow.mean_s,
                1000 * quick.mean_s,
                f"{_ratio(measured[1], measured[2]).mean:.2f} ({REACTION_GAIN[name]})",
                f"{sooner:.2f} ({SOONER[name]:.2f})",
            )
        )
    columns = (
        *("profile", "sync ms", "async ms", "FASTER ms", "sync, closed form", "async, closed form"),
        *("FASTER, closed form", "async / FASTER (paper)", "P(FASTER sooner) (paper)"),
    )
    return Table("Reaction to the kick, at 30 Hz", columns, tuple(rows))


def _sweep_table(cells: Cells, plan: Plan) -> Table:
    rows = tuple(
        (every, *(_estimate(_score(cells, DETOUR, f"every {every}", method)) for method in (TRAINED, FASTER, TWO, ONE)))
        for every in plan.sweep
    )
    columns = ("ticks a plan", "constant, 10 steps", "FASTER", "constant, 2 steps", "constant, 1 step")
    return Table("Two routes: DetourIntercept-v0 in lockstep", columns, rows)


def _straight_table(found: dict[str, Any]) -> Table:
    places = (0, 1, 2, 4, 8, 12, 16, 23)
    rows = tuple((env.rpartition("/")[2], *(float(one.bend[k]) for k in places)) for env, one in found.items())
    return Table("Straightness by action (0: straight)", ("world", *(f"action {k}" for k in places)), rows)


def _draw_scores(cells: Cells, plan: Plan, figure: Figure) -> None:
    figure.set_size_inches(11, 7)
    panels = figure.subplots(2, 1)
    for axes, env in zip(panels, (BALL, DETOUR), strict=True):
        methods, names = plan.methods[env], ("zero", *plan.profiles[env])
        width = 0.85 / len(methods)
        for k, method in enumerate(methods):
            estimates = [_estimate(_score(cells, env, name, method)) for name in names]
            at = np.arange(len(names)) + (k - (len(methods) - 1) / 2) * width
            bars = [[e.mean - e.low for e in estimates], [e.high - e.mean for e in estimates]]
            color = "black" if method == FASTER else f"C{k % 10}"
            axes.bar(
                at, [e.mean for e in estimates], width, yerr=bars, color=color, label=method.name, error_kw={"lw": 0.7}
            )
        axes.set_xticks(range(len(names)), names)
        axes.set_ylim(0, 1.05)
        axes.set_ylabel("score")
        axes.set_title(env.rpartition("/")[2], loc="left", fontsize=10)
        axes.legend(fontsize=6, ncols=2)


def _draw_reactions(cells: Cells, plan: Plan, figure: Figure) -> None:
    figure.set_size_inches(10, 6)
    for axes, name in zip(figure.subplots(2, 2).flat, PROFILES, strict=True):
        for k, method in enumerate((SYNC, ASYNC, FASTER)):
            values, closed = _reacted(cells, name, method), _closed(method, name)
            low, high = 1000 * closed.low_s, 1000 * closed.high_s
            axes.hist(
                values,
                bins=np.arange(0, 1300, 1000 * TICK_S / 2),
                density=True,
                alpha=0.4,
                color=f"C{k}",
                label=method.name,
            )
            axes.plot([low, low, high, high], [0, 1 / (high - low), 1 / (high - low), 0], color=f"C{k}")
        axes.set_title(f"{name}: measured, and the closed form (line)", loc="left", fontsize=9)
        axes.set_xlim(0, 2.2 * high if name.endswith("4090") else 1200)
        axes.set_xlabel("reaction to the kick, ms")
        axes.set_yticks([])
        axes.legend(fontsize=7)


def _draw_timeline(figure: Figure) -> None:
    figure.set_size_inches(10, 4.5)
    for axes, name in zip(figure.subplots(1, 2), ("pi05-4090", "xvla-4060"), strict=True):
        for k, method in enumerate((TRAINED, FASTER)):
            delay, horizon, arrivals = timing(method, profile(name))
            actions = np.arange(delay, delay + len(arrivals))
            axes.step(
                1000 * np.array(arrivals),
                actions,
                where="post",
                color=f"C{k}",
                marker="o",
                ms=3,
                label=f"{method.name}: arrival",
            )
            axes.axhline(delay, color=f"C{k}", lw=0.5, ls=":")
            axes.axvline(1000 * horizon * TICK_S, color=f"C{k}", lw=0.8, ls="--", label=f"{method.name}: next plan")
        ticks = np.arange(HORIZON)
        axes.plot(1000 * TICK_S * ticks, ticks, color="grey", lw=1, label="executed at its tick")
        axes.set_xlim(0, 1000 * TICK_S * HORIZON)
        axes.set_xlabel("ms after the observation")
        axes.set_ylabel("action of the chunk")
        axes.set_title(name, loc="left", fontsize=9)
        axes.legend(fontsize=7)


def _draw_routes(cells: Cells, plan: Plan, figure: Figure) -> None:
    axes = figure.subplots()
    for method in (TRAINED, FASTER, TWO, ONE):
        estimates = [_estimate(_score(cells, DETOUR, f"every {every}", method)) for every in plan.sweep]
        label = "constant, 10 steps" if method == TRAINED else method.name
        axes.plot(plan.sweep, [e.mean for e in estimates], marker="o", label=label)
        axes.fill_between(plan.sweep, [e.low for e in estimates], [e.high for e in estimates], alpha=0.15)
    axes.set_xlabel("ticks between two plans")
    axes.set_ylabel("score in lockstep")
    axes.set_ylim(0, 1.05)
    axes.set_title("Two routes: what one step averages", loc="left", fontsize=10)
    axes.legend()


def _draw_straightness(found: dict[str, Any], figure: Figure) -> None:
    left, *maps = figure.subplots(1, 1 + len(found))
    for env, one in found.items():
        left.plot(one.bend.numpy(), marker=".", label=env.rpartition("/")[2])
    left.set_xlabel("action of the chunk")
    left.set_ylabel("bend of its path (0: straight)")
    left.legend(fontsize=7)
    for axes, (env, one) in zip(maps, found.items(), strict=True):
        axes.imshow(one.distance.numpy(), aspect="auto", cmap="magma")
        axes.set_title(f"{env.rpartition('/')[2]}: guess to final", fontsize=8)
        axes.set_xlabel("action")
        axes.set_ylabel("step")
