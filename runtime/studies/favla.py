"""FAVLA: a policy that foresees how much the contact force will vary, and looks more often then, hits less hard.

Claimed by "FAVLA: A Force-Adaptive Fast-Slow VLA model for Contact-Rich Robotic Manipulation" (arXiv 2602.23648), on a
robot with pi0: success 80.8 % against 67 % for the best force-aware baseline, and peak forces of .64 (gear) and .81
(box) of what one plan a slow cycle gives. There is no comparison at equal compute in it: a schedule that adapts is set
beside fixed ones of fewer calls. That is what is added here. Measured:

- A script that presses on a table of unknown height (``GuardedWipe-v0``, flat) and decides at its calls alone: what
  looking often is worth, and what it is worth to be told when.
- Small policies in GuardedWipe-v0 and PegInsert-v0, trained here at ``full`` (the gated ones three times, others
  twice; about an hour on two cores), without latency and under two profiles of it: force nowhere, in the slow pass
  alone, among the fast inputs, in every layer (adapter), and gated (FGDF); one to eight plans a cycle; the paper's
  adaptive rate (FAMI); at as many calls a fixed, a random and a reactive one, one plan a cycle with more when the force
  jumps, and an oracle; both ensembles; plans that stream (FASTER).
- The forecast and the gate on held-out demonstrations. The label looks as far ahead as a chunk of 24 ticks lasts; with
  16, as long as a slow cycle, it could not rise a whole cycle before contact.

"As many calls" is brought about on other episodes, for each world, profile and training apart, and what was really
made stands in the claim, which is void where the one that hits less hard makes over a tenth more of them. So is every
claim about peaks where the policies do not do the task: without latency they must succeed in 0.9 of the episodes,
under latency in half of them. What speaks against FAVLA is FAMI that hits no less hard than the others at as many
calls, force in the slow pass that does as well as in the expert, or a peak that does not fall with the number of
calls. The classical reference, an admittance controller that decides at every tick, is in the table; learned policies
are not expected to beat it. ``quick`` takes the policies that ship.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...agents.inference_rate import Random, Static
from ..executor import Execution
from ..latency import profile
from ..statistics import Estimate, mean, paired_difference, rate
from ..study import Claim, Lab, Scale, Study, Table
from ._foresight import Diary, Foresight, diary, foresight
from ._pressing import PERIOD, Forecast, Pressed, press
from ._trials import Cell, Outcome, Training, carry_out, short, weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYSTEM = "favla"
CLAIM = "Planning as often as the foreseen variance of the contact force asks for lowers the peak force at equal calls."

WIPE, PEG = "palaestra/GuardedWipe-v0", "palaestra/PegInsert-v0"
LEARNED, LATE = 0.9, 0.5  # the success that a gated policy must reach with four plans a cycle, without latency and with
EARLIEST = 36  # ticks before a touch; a forecast that has risen earlier does not say when
APART = 0.1  # by which numbers of calls may differ that are called equal
ZERO, PROFILES = "zero", ("pi05-4090", "xvla-4090")
REFERENCE = {"static 1": 17.8, "static 2": 10.5, "static 4": 6.5, "static 8": 5.2, "told 1 or 8": 5.2, "random": 14.9}
NETWORKS: dict[str, dict[str, Any]] = {
    "gated": {},
    "adapter": {"fusion": "adapter"},
    "input": {"fusion": "input"},
    "prefix": {"fusion": "prefix"},
    "none": {"fusion": "none"},
    "fixed gate": {"fixed_gate": 0.5},
    "force only": {"fixed_gate": 1.0},
    "no forecast": {"variance_weight": 0.0},
    "streaming": {"mix": 0.5, "alpha": 0.8},
}


class Way(NamedTuple):
    """A way to act: its name in the tables, a network, the agent's options, and how overlapping plans are averaged.

    With ``tried`` the options have a place for each of these values; the one is taken that gives as many calls as FAMI
    makes, times which a number of calls is meant.
    """

    name: str
    network: str = "gated"
    options: str = "rate=fami"
    ensemble: float | None = None
    tried: tuple[tuple[float, ...], ...] = ()


def _static(calls: int, network: str = "gated") -> Way:
    name = f"static {calls}" if network == "gated" else f"{network}, static {calls}"
    return Way(name, network, f"rate=static,calls={calls}")


FAMI = Way("FAMI")
EQUAL = Way("static, as many calls", options="rate=static,calls={:.2f}", tried=((1.0,), (1.1,)))
RANDOM = Way("random, as many calls", options="rate=random,calls={:.2f},most=8", tried=((1.0,), (1.15,), (1.3,)))
THRESHOLD = Way(
    "threshold, as many calls",
    options="rate=threshold,force_n={},most={}",
    tried=tuple((force_n, most) for force_n in (0.3, 4.5, 6.0, 8.0) for most in (4, 8)),
)
EVENTS = Way(
    "one and events, as many calls",
    options="rate=static,calls=1,event=true,budget={}",
    tried=((2,), (3,), (4,), (6,), (8,)),
)
ORACLE = Way("oracle, as many calls", options="rate=oracle,most={}", tried=((2,), (3,), (4,), (5,), (6,)))
EQUALS = (EQUAL, RANDOM, THRESHOLD, EVENTS)
RATES = (*map(_static, (1, 2, 4, 8)), FAMI, *EQUALS)
FUSIONS = tuple(
    _static(4, name) for name in ("none", "prefix", "input", "adapter", "fixed gate", "force only", "no forecast")
)
OPTIONS = (
    Way("FAMI up to 8", options="rate=fami,most=8"),
    Way("FAMI, event", options="rate=fami,event=true"),
    Way("FAMI, ensemble newest first", ensemble=-0.3),
    Way("FAMI, ensemble oldest first", ensemble=0.3),
)
WHOLE = Way("streaming network, whole plans", "streaming", "rate=fami,schedule=constant")
STREAMED = Way("streaming network, FASTER", "streaming", "rate=fami,schedule=has")


class World(NamedTuple):
    """What is run in a world: under which profiles beside none, and the ways to act, without latency and with."""

    profiles: tuple[str, ...]
    at_once: tuple[Way, ...]
    late: tuple[Way, ...]


@dataclass(frozen=True)
class Plan:
    """How much is measured. The gated network is trained from each of the ``seeds``, the others from the ``first``."""

    trained: bool
    seeds: tuple[int, ...]
    first: int
    episodes: int
    calibration: int
    presses: int
    worlds: dict[str, World]


_BRIEF = (*map(_static, (1, 2, 4)), FAMI, *EQUALS)
QUICK = Plan(False, (0,), 1, 24, 6, 16, {WIPE: World((), _BRIEF[:-1], ())})
FULL = Plan(
    True,
    (0, 1, 2),
    2,
    48,
    10,
    100,
    {
        WIPE: World(PROFILES, (*RATES, ORACLE, *FUSIONS, *OPTIONS, WHOLE, STREAMED), (*RATES, WHOLE, STREAMED)),
        PEG: World(PROFILES[:1], (*_BRIEF, _static(4, "none"), _static(4, "prefix")), _BRIEF),
    },
)

Cells = dict[tuple[str, str, str], list[Outcome]]
"""World, profile and way to the outcome of each training seed."""


def run(scale: Scale, lab: Lab) -> Study:
    """Measure it: under a minute at ``quick``; ``full`` trains 26 networks first; a GPU changes nothing."""
    plan = QUICK if scale == "quick" else FULL
    seeds = [lab.seed + seed for seed in plan.seeds]
    lab.tell("pressing", 0, 1)
    pressed = _press(plan, lab.seed)
    if plan.trained:
        wanted = {(env, way.network) for env, world in plan.worlds.items() for way in (*world.at_once, *world.late)}
        changes = {name: tuple(what.items()) for name, what in NETWORKS.items()}
        jobs = [
            Training("favla", env, name, changes[name], seed)
            for env, name in sorted(wanted)
            for seed in _seeds_of(plan, name, seeds)
        ]
        carry_out(jobs, lab, "training")
    cells = _episodes(plan, seeds, lab)
    lab.tell("forecasts", 0, 1)
    foreseen = {env: [_foresight(plan, env, seed, lab) for seed in seeds] for env in plan.worlds}
    episode = _diary(plan, seeds[0], lab)
    return Study(
        "favla",
        scale,
        (*_script_claims(pressed), *_claims(plan, cells), *_forecast_claims(foreseen)),
        (
            _script_table(pressed),
            *(_table(cells, plan, env, name) for env, world in plan.worlds.items() for name in (ZERO, *world.profiles)),
            _forecast_table(foreseen),
        ),
        {
            "episode": partial(_draw_episode, episode),
            "peaks": partial(_draw_peaks, cells, plan),
            "pressing": partial(_draw_pressing, pressed),
        },
    )


# Without learning --------------------------------------------------------------------------------------------------


def _press(plan: Plan, seed: int) -> dict[str, np.ndarray]:
    """Schedule to episodes [n, 3]: peak, calls a cycle, error; all on the same tables."""
    seeds = range(1000 * seed, 1000 * seed + plan.presses)
    found: dict[str, list[Pressed]] = {}
    for count in (1, 2, 4, 8):
        found[f"static {count}"] = press(lambda _, count=count: Static(count), seeds)  # type: ignore[misc]
    found["told 1 or 8"] = press(lambda world: Forecast(8, world.foresee), seeds)
    calls = float(np.mean([one.calls for one in found["told 1 or 8"]]))
    found["random"] = press(lambda _: Random(2.28, 8), seeds)
    found["random, as many calls"] = press(lambda _: Random(calls, 8), seeds)
    return {name: np.array(one) for name, one in found.items()}


def _script_claims(pressed: dict[str, np.ndarray]) -> list[Claim]:
    peaks = {name: values[:, 0] for name, values in pressed.items()}
    apart = [paired_difference(peaks[name] / reference, np.ones(1)) for name, reference in REFERENCE.items()]
    widest = max(apart, key=lambda estimate: abs(estimate.mean))
    told, calls = pressed["told 1 or 8"], float(pressed["told 1 or 8"][:, 1].mean())
    few = pressed["static 4"]
    return [
        Claim.judge(
            "A script presses: largest relative difference of a mean peak force from the reference (17.8 ... 14.9 N)",
            widest,
            at_least=-0.25,
            at_most=0.25,
        ),
        Claim.judge(
            f"A script presses: told when, {calls:.2f} calls a cycle hit no harder than four",
            paired_difference(told[:, 0], few[:, 0]),
            at_most=0.0,
        ),
        Claim.judge(
            "A script presses: told when, less hard than at random at as many calls",
            paired_difference(told[:, 0], peaks["random, as many calls"]),
            at_most=0.0,
        ),
    ]


# Episodes of policies ----------------------------------------------------------------------------------------------


def _seeds_of(plan: Plan, network: str, seeds: Sequence[int]) -> Sequence[int]:
    return seeds if network == "gated" else seeds[: plan.first]


def _cell(plan: Plan, env: str, name: str, way: Way, seed: int, options: str) -> Cell:
    network = way.network if plan.trained else "!"
    mode: Any = "async" if name == ZERO or way.ensemble is not None else "prefix"
    return Cell(env, "favla", network, options, seed, plan.episodes, name, Execution(mode=mode, ensemble=way.ensemble))


def _episodes(plan: Plan, seeds: Sequence[int], lab: Lab) -> Cells:
    wanted = [
        (env, name, way, seed)
        for env, world in plan.worlds.items()
        for name in (ZERO, *world.profiles)
        for way in (world.at_once if name == ZERO else world.late)
        for seed in _seeds_of(plan, way.network, seeds)
    ]
    options = _match(plan, wanted, lab)
    jobs = {_cell(plan, *key, options[key]): key for key in wanted}
    cells: Cells = {}
    outcomes = carry_out(list(jobs), lab, "episodes")
    for cell, (env, name, way, _) in jobs.items():
        cells.setdefault((env, name, way.name), []).append(outcomes[cell])
    for env in plan.worlds:  # the classical reference has no training
        reference = Cell(env, "admittance", "", "", 0, plan.episodes, ZERO, Execution(mode="async"))
        cells[env, ZERO, "admittance"] = [carry_out([reference], lab, "reference")[reference]]
    return cells


Key = tuple[str, str, Way, int]
"""World, profile, way and training seed."""


def _match(plan: Plan, wanted: Sequence[Key], lab: Lab) -> dict[Key, str]:
    """The options of every way; where values are tried, those that come nearest to FAMI's calls on other episodes."""

    def calls(keys: Sequence[tuple[Key, str]]) -> dict[tuple[Key, str], float]:
        cells = {
            replace(_cell(plan, *key, options), episodes=plan.calibration, first_seed=1_000_000): (key, options)
            for key, options in keys
        }
        made = {}
        for job, outcome in carry_out(list(cells), lab, "matching").items():
            assert isinstance(job, Cell)
            made[cells[job]] = float(outcome.costs["plans"].sum() / outcome.costs["encodes"].sum())
        return made

    adaptive = calls([((env, name, FAMI, seed), FAMI.options) for env, name, way, seed in wanted if way == FAMI])
    target = {(env, name, seed): made for ((env, name, _, seed), _), made in adaptive.items()}
    tries = {}
    for key in wanted:
        env, name, way, seed = key
        scale = target[env, name, seed] if "calls={" in way.options else 1
        tried = way.tried if plan.trained else way.tried[::2]
        tries[key] = [way.options.format(*(scale * value for value in values)) for values in tried]
    made = calls([(key, options) for key, some in tries.items() for options in some])
    return {
        key: min(some, key=lambda options: abs(made[key, options] - target[key[0], key[1], key[3]]))
        if (some := tries[key])
        else key[2].options
        for key in wanted
    }


def _peaks(cells: Cells, env: str, name: str, way: Way) -> np.ndarray:
    """The peak force of each episode [trainings, episodes], in N."""
    return np.stack([outcome.metrics["peak_force_n"] for outcome in cells[env, name, way.name]])


def _success(cells: Cells, env: str, name: str, way: Way) -> np.ndarray:
    return np.stack([outcome.success for outcome in cells[env, name, way.name]])


def _less(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """The difference of two ways on the same episodes and training seeds: those that both have."""
    runs = min(len(ours), len(theirs))
    return paired_difference(ours[:runs], theirs[:runs])


def _calls(outcomes: Sequence[Outcome]) -> float:
    """Plans a second."""
    return float(np.mean([one.costs["plans"].sum() / one.metrics["duration_s"].sum() for one in outcomes]))


def _claims(plan: Plan, cells: Cells) -> list[Claim]:
    claims = []
    for env, world in plan.worlds.items():
        for name in (ZERO, *world.profiles):
            ways = world.at_once if name == ZERO else world.late
            where, least = f"{short(env)}, {_under(name)}", LEARNED if name == ZERO else LATE
            reached = float(_success(cells, env, name, _static(4)).mean())
            void = "" if reached >= least else f"success is {reached:.2f} with four plans a cycle, expected {least}"
            peaks = {way: _peaks(cells, env, name, way) for way in ways}
            few, many = _static(1), _static(4)
            text = f"{where}: peak force (N) of four plans asked for a cycle less that of one"
            claims.append(Claim.judge(text, _less(peaks[many], peaks[few]), at_most=0.0, void=void))
            for other in (way for way in EQUALS if way in ways):
                made = [_calls(cells[env, name, way.name]) for way in (FAMI, other)]
                text = f"{where}: peak force (N) of FAMI ({made[0]:.1f} plans/s) less {other.name} ({made[1]:.1f})"
                claim = Claim.judge(text, _less(peaks[FAMI], peaks[other]), at_most=0.0, void=void)
                if (claim.holds and made[1] < (1 - APART) * made[0]) or (
                    claim.holds is False and made[1] > (1 + APART) * made[0]
                ):
                    claim = replace(claim, holds=None, reason="the one that hits less hard makes more calls")
                claims.append(claim)
            text = f"{where}: peak force of FAMI over that of one plan a cycle"
            share = _ratio(peaks[FAMI], peaks[few])
            claims.append(Claim.judge(text, share, at_most=0.81, paper=".64 (gear), .81 (box)", void=void))
            prefix, adapter, fixed = (_static(4, network) for network in ("prefix", "adapter", "fixed gate"))
            if prefix in ways:
                gain = _less(_success(cells, env, name, many), _success(cells, env, name, prefix))
                text = f"{where}: success of the gated policy less that of force in the slow pass alone"
                claims.append(Claim.judge(text, gain, above=0.0, paper="+.14 (80.8 % less 66.5 %)", void=void))
                ours = adapter if adapter in ways else many
                text = f"{where}: peak force (N) of {ours.name} less that of force in the slow pass alone"
                claims.append(Claim.judge(text, _less(peaks[ours], peaks[prefix]), at_most=0.0, void=void))
            if fixed in ways:
                text = f"{where}: peak force (N) of the gate less that of a gate fixed at one half"
                claims.append(Claim.judge(text, _less(peaks[many], peaks[fixed]), at_most=0.0, void=void))
            if STREAMED in ways and name != ZERO:
                text = f"{where}: peak force (N) of streamed plans less that of whole ones"
                claims.append(Claim.judge(text, _less(peaks[STREAMED], peaks[WHOLE]), at_most=0.0, void=void))
    return claims


def _under(name: str) -> str:
    return "no latency" if name == ZERO else name


def _ratio(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """The ratio of two means over the same episodes, trainings and episodes drawn anew."""
    draw, (runs, episodes) = np.random.default_rng(0), ours.shape
    ratios = []
    for _ in range(2000):
        rows, columns = draw.integers(runs, size=runs), draw.integers(episodes, size=episodes)
        ratios.append(ours[rows][:, columns].mean() / theirs[rows][:, columns].mean())
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Estimate(float(ours.mean() / theirs.mean()), float(low), float(high), episodes)


# What is foreseen --------------------------------------------------------------------------------------------------


def _checkpoint(plan: Plan, env: str, seed: int, lab: Lab) -> Any:
    from ...models.checkpoint import shipped

    return weights(lab.folder, env, "gated", seed) if plan.trained else shipped("favla", env)


def _foresight(plan: Plan, env: str, seed: int, lab: Lab) -> Foresight:
    return foresight(env, _checkpoint(plan, env, seed, lab), range(2_000_000, 2_000_000 + plan.episodes // 2))


def _diary(plan: Plan, seed: int, lab: Lab) -> Diary:
    return diary(WIPE, _checkpoint(plan, WIPE, seed, lab), seed=3)


Foreseen = dict[str, list[Foresight]]
"""World to what each training seed foresees."""


def _over(ones: Sequence[Foresight], of: str) -> Estimate:
    """The mean over trainings and episodes; episodes that cannot tell (no touch, or nothing else) are left out."""
    values = np.stack([getattr(one, of) for one in ones])
    values = values[:, np.isfinite(values).all(axis=0)]
    return paired_difference(values, np.zeros_like(values))


def _leads(leads: np.ndarray) -> list[bool]:
    """Whether a rise comes a slow cycle before the first touch, and not so early that it says nothing of when."""
    return [PERIOD <= lead <= EARLIEST for lead in leads.ravel()]


def _forecast_claims(foreseen: Foreseen) -> list[Claim]:
    claims = []
    for env, ones in foreseen.items():
        if env == WIPE:  # the peg is near its block from the start
            for what in ("label", "forecast"):
                share = rate(_leads(np.stack([getattr(one, f"{what}_lead") for one in ones])))
                assert share is not None
                when = f"{PERIOD} to {EARLIEST} ticks before touch"
                text = f"{short(env)}: share of demonstrations whose {what} rises {when}"
                claims.append(Claim.judge(text, share, at_least=0.8))
        text = f"{short(env)}: correlation of the forecast with what came, within a held-out demonstration"
        claims.append(Claim.judge(text, _over(ones, "correlation"), at_least=0.5))
        text = f"{short(env)}: gate towards force in contact less that in free space"
        claims.append(Claim.judge(text, _over(ones, "gate_rise"), above=0.0, paper="higher in contact (expected)"))
    return claims


# Tables and pictures -----------------------------------------------------------------------------------------------


def _script_table(pressed: dict[str, np.ndarray]) -> Table:
    rows = tuple(
        (name, REFERENCE.get(name), mean(list(values[:, 0])), float(values[:, 1].mean()), mean(list(values[:, 2])))
        for name, values in pressed.items()
    )
    columns = ("schedule", "reference peak, N", "mean peak, N", "calls a cycle", "steady error, N")
    return Table("A script presses on a table of unknown height", columns, rows)


def _table(cells: Cells, plan: Plan, env: str, name: str) -> Table:
    rows = []
    cost = profile("pi05-4090" if name == ZERO else name)
    for (world, under, way), outcomes in cells.items():
        if (world, under) != (env, name):
            continue
        peaks = np.stack([one.metrics["peak_force_n"] for one in outcomes])
        success = np.concatenate([one.success for one in outcomes])
        seconds = sum(one.metrics["duration_s"].sum() for one in outcomes)
        busy_ms = sum(
            one.costs["encodes"].sum() * cost.encode_ms + one.costs["evaluations"].sum() * cost.evaluation_ms
            for one in outcomes
        )
        learned = "context_age_ms" in outcomes[0].costs
        rows.append(
            (
                way,
                rate(list(success)),
                paired_difference(peaks, np.zeros_like(peaks)),
                float(np.quantile(peaks, 0.95)),
                _calls(outcomes),
                float(busy_ms / seconds) if learned else None,
                float(np.nanmean([np.nanmean(one.costs["ttfa_ms"]) for one in outcomes])) if name != ZERO else None,
                float(np.nanmean([np.nanmean(one.costs["age_p50_ms"]) for one in outcomes])),
                float(np.nanmean([np.nanmean(one.costs["context_age_ms"]) for one in outcomes])) if learned else None,
                " x ".join(map(str, peaks.shape)),
                sum(one.failed for one in outcomes),
            )
        )
    columns = (
        *("way to act", "success", "mean peak, N", "95 % peak, N", "plans a second", f"busy ms a second ({cost.name})"),
        *(
            "first action after, ms",
            "age of what was felt, ms",
            "age of what was seen, ms",
            "trainings x episodes",
            "failed",
        ),
    )
    return Table(f"{short(env)}, {_under(name)}", columns, tuple(rows))


def _forecast_table(foreseen: Foreseen) -> Table:
    rows = tuple(
        (
            short(env),
            _over(ones, "correlation"),
            *(float(np.median([getattr(one, f"{what}_lead") for one in ones])) for what in ("label", "forecast")),
            *(float(np.mean([one.gates[place] for one in ones])) for place in (0, 1)),
        )
        for env, ones in foreseen.items()
    )
    columns = (
        *("world", "correlation", "label rises (ticks before touch)", "forecast rises (ticks before touch)"),
        *("gate, free", "gate, touching"),
    )
    return Table("Forecast and gate on held-out demonstrations", columns, rows)


def _draw_episode(episode: Diary, figure: Figure) -> None:
    figure.set_size_inches(10, 7)
    force, variance, gate = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    force.plot(episode.sample_s, episode.force_n, lw=0.8, color="C3", label="what the wrist feels, upwards (200 Hz)")
    force.axhline(-episode.asked_n, color="grey", lw=0.7, ls="--", label=f"asked for: {episode.asked_n:g} N")
    force.vlines(episode.call_s, *force.get_ylim(), color="C0", lw=0.4, label=f"plans ({len(episode.call_s)})")
    force.set_ylabel("force, N")
    force.set_title(
        "One episode of GuardedWipe-v0: plans come where the force is foreseen to vary", loc="left", fontsize=10
    )
    force.legend(fontsize=7, loc="lower left")
    variance.step(episode.cycle_s, episode.y_hat, where="post", color="C1", label="forecast")
    variance.plot(episode.tick_s, episode.label, color="C2", lw=0.8, label="what came")
    for time_s, calls in zip(episode.cycle_s, episode.calls, strict=True):
        variance.text(time_s, 1.02, f"{calls}", fontsize=7, color="C0")
    variance.set_ylim(0, 1.15)
    variance.set_ylabel("variance of the force\n(0 to 1)")
    variance.legend(fontsize=7, loc="lower right")
    for layer in range(episode.gate.shape[1]):
        gate.step(episode.call_s, episode.gate[:, layer], where="post", lw=0.9, label=f"layer {layer}")
    gate.axhline(0.5, color="grey", lw=0.5)
    gate.set_ylabel("gate: 0 sees, 1 feels")
    gate.set_xlabel("time, s")
    gate.legend(fontsize=7, loc="lower right")


def _draw_peaks(cells: Cells, plan: Plan, figure: Figure) -> None:
    panels = [(env, name) for env, world in plan.worlds.items() for name in (ZERO, *world.profiles)]
    figure.set_size_inches(4.2 * len(panels), 4)
    axes_of = figure.subplots(1, len(panels), squeeze=False)[0]
    marks = {FAMI: "*", EQUAL: "D", RANDOM: "x", THRESHOLD: "s", EVENTS: "v", ORACLE: "P"}
    for axes, (env, name) in zip(axes_of, panels, strict=True):
        fixed = [way for way in map(_static, (1, 2, 4, 8)) if (env, name, way.name) in cells]
        for way in (*fixed, *marks):
            outcomes = cells.get((env, name, way.name))
            if outcomes is None:
                continue
            peaks = _peaks(cells, env, name, way)
            estimate = paired_difference(peaks, np.zeros_like(peaks))
            error = [[estimate.mean - estimate.low], [estimate.high - estimate.mean]]
            label = way.name if way in marks else None
            axes.errorbar(
                _calls(outcomes),
                estimate.mean,
                error,
                fmt=marks.get(way, "o"),
                color="grey" if way in fixed else None,
                ms=7,
                lw=0.8,
                label=label,
            )
        line = [(_calls(cells[env, name, way.name]), _peaks(cells, env, name, way).mean()) for way in fixed]
        axes.plot(*zip(*line, strict=True), color="grey", lw=0.8, label="static 1, 2, 4, 8")
        axes.set_xlabel("plans a second")
        axes.set_ylabel("mean peak force, N")
        axes.set_title(f"{short(env)}, {_under(name)}", fontsize=9, loc="left")
        axes.legend(fontsize=7)


def _draw_pressing(pressed: dict[str, np.ndarray], figure: Figure) -> None:
    axes = figure.subplots()
    for name, values in pressed.items():
        estimate = mean(list(values[:, 0]))
        assert estimate is not None
        error = [[estimate.mean - estimate.low], [estimate.high - estimate.mean]]
        axes.errorbar(
            values[:, 1].mean(), estimate.mean, error, fmt="o" if name.startswith("static") else "*", ms=8, label=name
        )
        if name in REFERENCE:
            axes.plot(values[:, 1].mean(), REFERENCE[name], "_", color="black", ms=12)
    axes.set_xlabel("calls a slow cycle")
    axes.set_ylabel("mean peak force, N (dash: reference)")
    axes.set_title("A script presses on a table of unknown height", loc="left", fontsize=10)
    axes.legend(fontsize=8)
