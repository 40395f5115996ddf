"""Exploring the items and not the pairs: HybridRRD against bandits that flatten each pair into one long feature.

Claimed by the abstract of "bilinear matching bandits / HybridRRD" (NeurIPS 2026): regret O~(d2 sqrt(d1 M T) + M d1 d2)
against O~(d1 d2 sqrt(M T)) of linearised baselines, so a factor of sqrt(d1) less, a matching lower bound, and
experiments in which it "performs favorably". Only the abstract was public; the algorithm here is a reconstruction.

Measured in the sign-vector instance of the lower bound (gap 0.3, noise 1), all agents on the same seeds and on one
estimator, so that nothing differs but the rule of action:

1. with the constants of theory, the ratio of HybridRRD's regret to C2UCB's for d1 of 2 to 16, and whether it falls; 2.
with every agent tuned on other seeds, three settings each, the ratio to the best baseline; 3. the exponents of d1, d2,
M, N and T, as slopes of log regret, beside those of theory. A regret is never above gap M T,
   so slopes are flatter than the bounds: a learner that is far from done regrets as much as one that is lost;
4. Gaussian instances, with features that stay and that are drawn anew each round, in which nobody has to explore much;
5. a dispatcher that sends policies to tasks, with the scores of this suite's own episodes, where the model is wrong.

Refuted where the ratio of (1) is not below 1 or rises with d1, or the exponent of T is above 0.75. Intervals are over
seeds, each an instance of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..statistics import Estimate, mean
from ..study import Claim, Lab, Scale, Study, Table
from ._dispatcher import rows as dispatched
from ._trials import Cell, Outcome, carry_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYSTEM = "hybrid-rrd"
CLAIM = "Exploring items and not pairs regrets less than linearised bandits, by a factor that grows with d1."

HARD = "instance=hard,gap=0.3"
THEORY = {
    "HybridRRD": ("hybrid_rrd", "c=8.0"),
    "C2UCB": ("c2ucb", "scale=1.0"),
    "C2UCB, modified": ("c2ucb", "scale=1.0,modified=true"),
    "CombLinTS": ("comblin_ts", "scale=1.0"),
    "greedy": ("greedy", ""),
}
TRIED = {  # what each is tuned over; three settings each
    "HybridRRD": ("hybrid_rrd", ("c=8.0", "c=32.0", "c=128.0")),
    "C2UCB": ("c2ucb", ("scale=1.0", "scale=0.3", "scale=0.1")),
    "CombLinTS": ("comblin_ts", ("scale=1.0", "scale=0.3", "scale=0.1")),
    "epsilon-greedy": ("epsilon_greedy", ("epsilon=0.1", "epsilon=0.03", "epsilon=0.01")),
}
_TUNED_ON = 1_000_000  # the first of the seeds on which settings are chosen


@dataclass(frozen=True)
class Plan:
    """How much is measured: user dimensions, rounds, seeds, seeds for tuning, and the sweeps of (3)."""

    d1: tuple[int, ...]
    rounds: int
    seeds: int
    tuning: int
    sweeps: Mapping[str, tuple[int, ...]]
    swept_rounds: int
    gaussian: tuple[str, ...]


QUICK = Plan((2, 8), 400, 6, 0, {"rounds": (100, 200, 400)}, 400, ())
FULL = Plan(
    (2, 4, 8, 16),
    4000,
    12,
    4,
    {"rounds": (500, 1000, 2000, 4000), "d2": (2, 3, 4), "users": (4, 8, 16), "items": (16, 32, 64)},
    1000,
    ("context=fixed", "context=fresh"),
)
SWEPT = {  # name of an option: its symbol, and the exponents in the bounds of HybridRRD and of linearised bandits
    "d1": ("d1", 0.5, 1.0),
    "d2": ("d2", 1.0, 1.0),
    "users": ("M", 0.5, 0.5),
    "items": ("N", 0.0, 0.0),
    "rounds": ("T", 0.5, 0.5),
}
PAIR = ("HybridRRD", "C2UCB")

Regrets = dict[tuple[str, str], Outcome]
"""Instance and agent, by the name in the tables, to the outcome of its episodes."""


def run(scale: Scale, lab: Lab) -> Study:
    """Measure it: under half a minute at ``quick``, about ten minutes at ``full``; a GPU changes nothing."""
    plan = QUICK if scale == "quick" else FULL
    theory = _play([(_hard(plan, d1), name, *THEORY[name]) for d1 in plan.d1 for name in THEORY], plan, lab, "theory")
    where = [_hard(plan, plan.d1[-1]), *(f"{context},rounds={plan.rounds // 2}" for context in plan.gaussian)]
    tuned = _tuned(where, plan, lab) if plan.tuning else {}
    spread = {name: _sweep(name, values, plan, lab) for name, values in plan.sweeps.items()}
    exponents = {"d1": _of_d1(theory, plan), **spread}
    claims, table = dispatched(scale, lab)
    return Study(
        "hybrid_rrd",
        scale,
        (*_theory_claims(theory, plan), *_exponent_claims(exponents), *_tuned_claims(tuned, where), *claims),
        (_theory_table(theory, plan), *_tuned_tables(tuned, where), _exponent_table(exponents), table),
        {
            "regret": partial(_draw_regret, theory, plan),
            "ratio": partial(_draw_ratio, theory, plan),
            "exponents": partial(_draw_exponents, exponents),
        },
    )


# Episodes ----------------------------------------------------------------------------------------------------------


def _hard(plan: Plan, d1: int) -> str:
    return f"{HARD},d1={d1},rounds={plan.rounds}"


Call = tuple[str, str, str, str]
"""An instance, the name of an agent in the tables, and the agent with its options as a call has them."""


def _play(calls: Sequence[Call], plan: Plan, lab: Lab, word: str, seeds: int = 0, first: int = 0) -> Regrets:
    cells = {
        Cell(f"palaestra/MatchingBandit-v0:{instance}", agent, "", options, 0, seeds or plan.seeds, first_seed=first): (
            instance,
            name,
        )
        for instance, name, agent, options in calls
    }
    outcomes = carry_out(list(cells), lab, word)
    return {key: outcomes[cell] for cell, key in cells.items()}


def _tuned(where: Sequence[str], plan: Plan, lab: Lab) -> Regrets:
    """Every agent with the setting that regretted least on other seeds of the same instance."""
    tries = [
        (instance, f"{name} {options}", agent, options)
        for instance in where
        for name, (agent, settings) in TRIED.items()
        for options in settings
    ]
    tried = _play(tries, plan, lab, "tuning", plan.tuning, lab.seed + _TUNED_ON)
    calls = []
    for instance in where:
        for name, (agent, settings) in TRIED.items():
            best = min(settings, key=lambda options: _regret(tried[instance, f"{name} {options}"]).mean())
            calls.append((instance, f"{name} ({best})", agent, best))
        calls.append((instance, "greedy", "greedy", ""))
    return _play(calls, plan, lab, "tuned")


Sweep = dict[str, dict[int, np.ndarray]]
"""Agent to value of what is swept to the regret of each seed."""


def _sweep(name: str, values: Sequence[int], plan: Plan, lab: Lab) -> Sweep:
    """Regret as one size grows and the others stay; the number of items in the Gaussian instance, where it is free."""
    rounds = "" if name == "rounds" else f",rounds={plan.swept_rounds}"
    base = "instance=gaussian" if name == "items" else HARD
    calls = [(f"{base}{rounds},{name}={value}", agent, *THEORY[agent]) for value in values for agent in PAIR]
    found = _play(calls, plan, lab, f"as {SWEPT[name][0]} grows")
    return {a: {v: _regret(found[f"{base}{rounds},{name}={v}", a]) for v in values} for a in PAIR}


def _of_d1(theory: Regrets, plan: Plan) -> Sweep:
    return {agent: {d1: _regret(theory[_hard(plan, d1), agent]) for d1 in plan.d1} for agent in PAIR}


def _regret(outcome: Outcome) -> np.ndarray:
    """The regret of each episode; of one that failed there is none, and the study must not hide it."""
    if outcome.failed:
        raise RuntimeError(f"{outcome.failed} episodes of a matching bandit failed; run one alone to see why")
    return outcome.metrics["regret"]


# Statistics --------------------------------------------------------------------------------------------------------


def _over_seeds(of: Callable[..., float], *samples: np.ndarray, resamples: int = 2000) -> Estimate:
    """``of(samples)`` with its percentile bootstrap interval; samples [..., seeds], whose seeds are drawn together."""
    draw, n = np.random.default_rng(0), samples[0].shape[-1]
    picks = [draw.integers(n, size=n) for _ in range(resamples)]
    low, high = np.quantile([of(*(sample[..., pick] for sample in samples)) for pick in picks], [0.025, 0.975])
    return Estimate(float(of(*samples)), float(low), float(high), n)


def _ratio(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """The ratio of two mean regrets."""
    return _over_seeds(lambda a, b: a.mean() / b.mean(), ours, theirs)


def _slope(sweep: Mapping[int, np.ndarray], over: Mapping[int, np.ndarray] | None = None) -> Estimate:
    """The exponent with which mean regret, or its ratio to that ``over`` which it is, grows: a slope in logarithms."""
    sizes = np.log(list(sweep))
    below = np.ones((len(sweep), 1)) if over is None else np.stack(list(over.values()))

    def fit(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.polyfit(sizes, np.log(a.mean(axis=1) / b.mean(axis=1)), 1)[0])

    ours = np.stack(list(sweep.values()))
    return _over_seeds(fit, ours, np.broadcast_to(below, ours.shape))


# Claims and tables -------------------------------------------------------------------------------------------------


def _theory_claims(theory: Regrets, plan: Plan) -> list[Claim]:
    ours, theirs = (_of_d1(theory, plan)[agent] for agent in PAIR)
    text = "With the constants of theory, HybridRRD's regret over C2UCB's"
    return [
        *(Claim.judge(f"{text}, d1 = {d1}", _ratio(ours[d1], theirs[d1]), at_most=1.0) for d1 in plan.d1),
        Claim.judge(f"{text}: it falls as d1 grows (exponent)", _slope(ours, theirs), at_most=0.0, paper=-0.5),
    ]


def _exponent_claims(exponents: Mapping[str, Sweep]) -> list[Claim]:
    slope = _slope(exponents["rounds"]["HybridRRD"])
    return [Claim.judge("The exponent of T in HybridRRD's regret", slope, at_most=0.75, paper=0.5)]


def _tuned_claims(tuned: Regrets, where: Sequence[str]) -> list[Claim]:
    claims = []
    for instance in where if tuned else ():
        regrets = {name: _regret(outcome) for (there, name), outcome in tuned.items() if there == instance}
        ours = next(name for name in regrets if name.startswith("HybridRRD"))
        best = min((name for name in regrets if name != ours), key=lambda name: regrets[name].mean())
        text = f"{_title(instance)}: tuned, HybridRRD's regret over that of the best baseline, {best}"
        claims.append(Claim.judge(text, _ratio(regrets[ours], regrets[best]), at_most=1.0))
    return claims


def _title(instance: str) -> str:
    """An instance in words."""
    options = dict(option.split("=") for option in instance.split(","))
    kind = f"hard, d1 = {options['d1']}" if "d1" in options else f"Gaussian, {options['context']} features"
    return f"{kind}, T = {options['rounds']}"


def _theory_table(theory: Regrets, plan: Plan) -> Table:
    """Regret, and the time that a round's decision takes beside C2UCB's in the same run."""
    rows = []
    for d1 in plan.d1:
        pace = theory[_hard(plan, d1), "C2UCB"].costs["compute_ms"]
        for name in THEORY:
            outcome = theory[_hard(plan, d1), name]
            regret = _regret(outcome)
            ratio = _ratio(regret, _regret(theory[_hard(plan, d1), "C2UCB"]))
            time = float(np.median(outcome.costs["compute_ms"]) / np.median(pace))
            rows.append((d1, name, mean(list(regret)), ratio, time))
    columns = ("d1", "agent", "regret", "over C2UCB's", "time over C2UCB's")
    return Table(f"Hard instance, constants of theory, T = {plan.rounds}, n {plan.seeds}", columns, tuple(rows))


def _tuned_tables(tuned: Regrets, where: Sequence[str]) -> list[Table]:
    tables = []
    for instance in where if tuned else ():
        some = {name: outcome for (there, name), outcome in tuned.items() if there == instance}
        rows = tuple(
            (name, mean(list(_regret(outcome))), mean(list(outcome.scores)))
            for name, outcome in sorted(some.items(), key=lambda pair: _regret(pair[1]).mean())
        )
        tables.append(Table(f"{_title(instance)}, tuned on other seeds", ("agent", "regret", "score"), rows))
    return tables


def _exponent_table(exponents: Mapping[str, Sweep]) -> Table:
    rows = tuple(
        (SWEPT[name][0], f"{min(sweep[PAIR[0]])} to {max(sweep[PAIR[0]])}", agent, _slope(sweep[agent]), theory)
        for name, sweep in exponents.items()
        for agent, theory in zip(PAIR, SWEPT[name][1:], strict=True)
    )
    return Table("Exponents of the regret", ("of", "from", "agent", "measured", "in the bound"), rows)


# Pictures ----------------------------------------------------------------------------------------------------------


def _draw_regret(theory: Regrets, plan: Plan, figure: Figure) -> None:
    shown = plan.d1[-2:]
    for axes, d1 in zip(np.atleast_1d(figure.subplots(1, len(shown), sharey=True)), shown, strict=True):
        for name in THEORY:
            metrics = theory[_hard(plan, d1), name].metrics
            rounds = sorted(int(key.rpartition("_")[2]) for key in metrics if key.startswith("regret_at_"))
            curves = np.stack([metrics[f"regret_at_{k}"] for k in rounds])
            band = [mean(list(curve)) for curve in curves]
            (line,) = axes.plot([0, *rounds], [0, *(e.mean for e in band if e)], label=name)
            low, high = ([0, *(getattr(e, end) for e in band if e)] for end in ("low", "high"))
            axes.fill_between([0, *rounds], low, high, color=line.get_color(), alpha=0.2)
        axes.set(title=f"d1 = {d1}", xlabel="rounds", ylim=(0, None), xlim=(0, plan.rounds))
    figure.axes[0].set_ylabel("regret, 95 %")
    figure.axes[0].legend(fontsize=8)


def _draw_ratio(theory: Regrets, plan: Plan, figure: Figure) -> None:
    axes = figure.subplots()
    ours, theirs = (_of_d1(theory, plan)[agent] for agent in PAIR)
    ratios = [_ratio(ours[d1], theirs[d1]) for d1 in plan.d1]
    spread = [[r.mean - r.low for r in ratios], [r.high - r.mean for r in ratios]]
    axes.errorbar(plan.d1, [r.mean for r in ratios], yerr=spread, fmt="o-", capsize=3, label="measured")
    law = [ratios[0].mean * (d1 / plan.d1[0]) ** -0.5 for d1 in plan.d1]
    axes.plot(plan.d1, law, "--", color="0.5", label="the ratio of the bounds, from the first point")
    axes.axhline(1, color="0.8")
    axes.set(xscale="log", xlabel="d1", ylabel="regret of HybridRRD over C2UCB's", ylim=(0, 1.1))
    axes.set_xticks(plan.d1, [str(d1) for d1 in plan.d1])
    axes.minorticks_off()
    axes.legend()


def _draw_exponents(exponents: Mapping[str, Sweep], figure: Figure) -> None:
    for axes, (name, sweep) in zip(
        np.atleast_1d(figure.subplots(1, len(exponents), sharey=True)), exponents.items(), strict=True
    ):
        for agent in PAIR:
            means = [regret.mean() for regret in sweep[agent].values()]
            slope = _slope(sweep[agent]).mean
            axes.plot(list(sweep[agent]), means, "o-", label=f"{agent}: {slope:.2f}")
        axes.set(xscale="log", yscale="log", title=SWEPT[name][0])
        axes.set_xticks(list(sweep[PAIR[0]]), [str(size) for size in sweep[PAIR[0]]])
        axes.minorticks_off()
        axes.legend(fontsize=7)
    figure.axes[0].set_ylabel("regret")
