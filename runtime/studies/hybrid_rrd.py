"""Exploring the items and not the pairs: HybridRRD against bandits that flatten each pair into one long feature.

Claimed by the abstract of "bilinear matching bandits / HybridRRD" (NeurIPS 2026): regret O~(d2 sqrt(d1 M T) + M d1 d2)
against O~(d1 d2 sqrt(M T)) of linearised baselines, so a factor of sqrt(d1) less, a matching lower bound, and
experiments in which it "performs favorably". Only the abstract was public; the algorithm here is a reconstruction.

A bound on regret is about the worst instance, and which one that is depends on T, M, d1 and the agent: where the best
item is hardly better nobody loses much, where it is much better everybody finds it at once. The gap of the lower bound,
d2 sqrt(d1 / (M T)), is where nobody can learn; a fixed one is easier the larger T. So each regret is measured, in the
sign-vector instance of the lower bound (noise 1), at several gaps, and *worst regret* is the largest of the means. Gaps
end at 0.8, for the method is for rewards of at most 1; C2UCB's worst one is beyond that where d1 is large, which speaks
for it. There are as many users as d1 at least, or rows of Theta would be nobody's. All agents meet the same seeds, on
one estimator, so that nothing differs but the rule of action. Measured:

1. as they come, the ratio of HybridRRD's worst regret to C2UCB's, and whether it falls as d1 grows. C2UCB has the
radius
   of theory (it is told that Theta is of norm 1; it is longer where the gap is above d1 ** -0.5, and the larger radius
   would only cost it); theory leaves HybridRRD's c open, and its 8 was chosen by a sweep, so c = 1 stands beside it.
   The same at one gap, and beside CombLinTS, which is linearised too and the stronger;
2. the exponents of d1, d2, M, N and T, as slopes of log worst regret, beside those of the bounds. A slope at small T
   is flatter than a bound where regret is near gap M T, which is what random matchings regret;
3. with every agent tuned on other seeds, three settings each, the ratio to the best baseline, in a hard instance and
   in Gaussian ones, with features that stay or that are drawn anew each round, where nobody has to explore much. Which
   baseline is the best is seen on the seeds that are compared, which favours it;
4. a dispatcher that sends policies to tasks, with the scores of this suite's own episodes, where the model is wrong.

Refuted where a ratio of (1) is not below 1 or rises with d1, or the exponent of T is above 0.75. Intervals are over
seeds, each an instance of its own. Explore-then-commit and the modified C2UCB are left out: the one is epsilon-greedy's
poorer relation, the other is C2UCB itself while no width exceeds 1.
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
from ._trials import Cell, Outcome, carry_out, require_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYSTEM = "hybrid-rrd"
CLAIM = "Exploring items and not pairs regrets less than linearised bandits, by a factor that grows with d1."

TYPICAL = 0.4  # the gap of the instance in which all agents are shown and tuned
THEORY = {
    "HybridRRD": ("hybrid_rrd", "c=8.0"),
    "HybridRRD, c = 1": ("hybrid_rrd", "c=1.0"),
    "C2UCB": ("c2ucb", "scale=1.0"),
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
    """How much is measured.

    At each ``d1`` as many ``users``, ``rounds`` and ``seeds``, at each of ``gaps``; the sweeps of (2) from ``base``;
    ``tuning`` is the number of seeds on which settings are chosen, 0 for none, also in the ``gaussian`` instances.
    """

    d1: tuple[int, ...]
    users: int
    rounds: int
    seeds: int
    gaps: tuple[float, ...]
    base: Mapping[str, int]
    sweeps: Mapping[str, tuple[int, ...]]
    tuning: int
    gaussian: tuple[str, ...]


QUICK = Plan(
    (2, 8), 8, 200, 10, (0.2, 0.4, 0.8), {"d1": 2, "d2": 3, "users": 8, "rounds": 200}, {"rounds": (50, 200)}, 0, ()
)
FULL = Plan(
    (2, 4, 8, 16),
    16,
    1000,
    20,
    (0.05, 0.1, 0.2, 0.4, 0.8),
    {"d1": 4, "d2": 3, "users": 16, "rounds": 500},
    {"rounds": (125, 250, 500, 1000), "d2": (2, 3, 4), "users": (4, 8, 16), "items": (16, 32, 64, 128)},
    4,
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
    base = {"d2": 3, "users": plan.users, "rounds": plan.rounds}
    sweeps = {"d1": _swept("d1", plan.d1, base, plan)}
    sweeps |= {name: _swept(name, sizes, plan.base, plan) for name, sizes in plan.sweeps.items()}
    shown = {d1: _hard(TYPICAL, **{**base, "d1": d1}) for d1 in plan.d1}
    calls = [(there, agent, *THEORY[agent]) for where in sweeps.values() for _, there in where for agent in PAIR]
    theory = _play([*calls, *((shown[d1], name, *THEORY[name]) for d1 in plan.d1 for name in THEORY)], plan, lab)
    exponents = {name: _regrets(theory, where) for name, where in sweeps.items()}
    where = [shown[plan.d1[-1]], *(f"{context},rounds={plan.rounds}" for context in plan.gaussian)]
    tuned = _tuned(where, plan, lab) if plan.tuning else {}
    claims, table = dispatched(scale, lab)
    return Study(
        "hybrid_rrd",
        scale,
        (
            *_worst_claims(exponents["d1"]),
            *_typical_claims(theory, shown),
            *_exponent_claims(exponents),
            *_tuned_claims(tuned, where),
            *claims,
        ),
        (
            _worst_table(exponents["d1"], plan),
            _typical_table(theory, shown, plan),
            *_tuned_tables(tuned, where),
            _exponent_table(exponents),
            table,
        ),
        {
            "regret": partial(_draw_regret, theory, shown),
            "ratio": partial(_draw_ratio, exponents["d1"]),
            "exponents": partial(_draw_exponents, exponents),
        },
    )


# Episodes ----------------------------------------------------------------------------------------------------------


def _hard(gap: float, **sizes: int) -> str:
    """The sign-vector instance, as a call has it; always in the same order, so that none is played twice."""
    return ",".join(["instance=hard", f"gap={gap}", *(f"{name}={size}" for name, size in sorted(sizes.items()))])


Call = tuple[str, str, str, str]
"""An instance, the name of an agent in the tables, and the agent with its options as a call has them."""


def _play(calls: Sequence[Call], plan: Plan, lab: Lab, word: str = "theory", seeds: int = 0, first: int = 0) -> Regrets:
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
"""Agent to value of what is swept to regrets [gaps, seeds]."""


def _swept(name: str, sizes: Sequence[int], base: Mapping[str, int], plan: Plan) -> list[tuple[int, str]]:
    """Sizes and instances, as one grows and the others stay; the number of items in Gaussian ones, where it is free."""
    if name == "items":
        return [(size, f"rounds={base['rounds']},items={size}") for size in sizes]
    return [(size, _hard(gap, **{**base, name: size})) for size in sizes for gap in plan.gaps]


def _regrets(theory: Regrets, where: Sequence[tuple[int, str]]) -> Sweep:
    sizes = dict.fromkeys(size for size, _ in where)
    return {a: {n: np.stack([_regret(theory[i, a]) for size, i in where if size == n]) for n in sizes} for a in PAIR}


def _regret(outcome: Outcome) -> np.ndarray:
    """The regret of each episode."""
    return require_whole(outcome, "a matching bandit").metrics["regret"]


# Statistics --------------------------------------------------------------------------------------------------------


def _over_seeds(of: Callable[..., float], *samples: np.ndarray, resamples: int = 2000) -> Estimate:
    """``of(samples)`` with its percentile bootstrap interval; samples [..., seeds], whose seeds are drawn together."""
    draw, n = np.random.default_rng(0), samples[0].shape[-1]
    picks = [draw.integers(n, size=n) for _ in range(resamples)]
    low, high = np.quantile([of(*(sample[..., pick] for sample in samples)) for pick in picks], [0.025, 0.975])
    return Estimate(float(of(*samples)), float(low), float(high), n)


def _worst(regrets: np.ndarray) -> np.ndarray:
    """The largest mean regret, of regrets [..., gaps, seeds]."""
    return regrets.mean(axis=-1).max(axis=-1)


def _ratio(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """The ratio of two worst regrets, of regrets [gaps, seeds]."""
    return _over_seeds(lambda a, b: float(_worst(a) / _worst(b)), np.atleast_2d(ours), np.atleast_2d(theirs))


def _slope(sweep: Mapping[int, np.ndarray], over: Mapping[int, np.ndarray] | None = None) -> Estimate:
    """The exponent with which worst regret, or its ratio to that ``over`` which it is, grows: a slope in logarithms."""
    sizes, ours = np.log(list(sweep)), np.stack(list(sweep.values()))
    theirs = np.ones_like(ours) if over is None else np.stack(list(over.values()))
    return _over_seeds(lambda a, b: float(np.polyfit(sizes, np.log(_worst(a) / _worst(b)), 1)[0]), ours, theirs)


# Claims and tables -------------------------------------------------------------------------------------------------


def _worst_claims(worst: Sweep) -> list[Claim]:
    ours, theirs = (worst[agent] for agent in PAIR)
    largest = max((_ratio(ours[d1], theirs[d1]) for d1 in ours), key=lambda ratio: ratio.mean)
    text = "HybridRRD's worst regret over C2UCB's"
    return [
        Claim.judge(f"{text}, the largest of d1 = {min(ours)} to {max(ours)}", largest, at_most=1.0),
        Claim.judge(f"{text}: it falls as d1 grows (exponent)", _slope(ours, theirs), at_most=0.0, paper=-0.5),
    ]


def _typical_claims(theory: Regrets, shown: Mapping[int, str]) -> list[Claim]:
    """The same at one gap, which is no worst case, beside two linearised bandits."""
    ours, *others = (
        {d1: _regret(theory[there, agent])[None] for d1, there in shown.items()} for agent in (*PAIR, "CombLinTS")
    )
    claims = []
    for name, theirs in zip(("C2UCB", "CombLinTS"), others, strict=True):
        text = f"At gap {TYPICAL}, HybridRRD's regret over {name}'s"
        largest = max((_ratio(ours[d1], theirs[d1]) for d1 in ours), key=lambda ratio: ratio.mean)
        claims.append(Claim.judge(f"{text}, the largest of d1 = {min(ours)} to {max(ours)}", largest, at_most=1.0))
        claims.append(Claim.judge(f"{text}: it falls as d1 grows (exponent)", _slope(ours, theirs), at_most=0.0))
    return claims


def _exponent_claims(exponents: Mapping[str, Sweep]) -> list[Claim]:
    slope = _slope(exponents["rounds"]["HybridRRD"])
    return [Claim.judge("The exponent of T in HybridRRD's worst regret", slope, at_most=0.75, paper=0.5)]


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
    if "gap" in options:
        return f"Hard, d1 = {options['d1']}, gap {options['gap']}, T = {options['rounds']}"
    return f"Gaussian, {options['context']} features, T = {options['rounds']}"


def _worst_table(worst: Sweep, plan: Plan) -> Table:
    """Where which gap is the worst, so that everybody sees whether the worst one is among those tried."""
    rows = []
    for d1 in plan.d1:
        for agent in PAIR:
            means = [mean(list(regrets)) for regrets in worst[agent][d1]]
            at = plan.gaps[int(worst[agent][d1].mean(axis=-1).argmax())]
            rows.append((d1, agent, *means, at, _ratio(worst[agent][d1], worst["C2UCB"][d1])))
    columns = ("d1", "agent", *(f"gap {gap}" for gap in plan.gaps), "worst at", "over C2UCB's worst")
    return Table(f"Regret in T = {plan.rounds} rounds with M = {plan.users}, n {plan.seeds}", columns, tuple(rows))


def _typical_table(typical: Regrets, shown: Mapping[int, str], plan: Plan) -> Table:
    """Regret, and the time that a round's decision takes beside C2UCB's in the same run."""
    rows = []
    for d1, there in shown.items():
        pace = typical[there, "C2UCB"].costs["compute_ms"]
        for name in THEORY:
            outcome = typical[there, name]
            regret = _regret(outcome)
            ratio = _ratio(regret, _regret(typical[there, "C2UCB"]))
            time = float(np.median(outcome.costs["compute_ms"]) / np.median(pace))
            rows.append((d1, name, mean(list(regret)), ratio, time))
    columns = ("d1", "agent", "regret", "over C2UCB's", "time over C2UCB's")
    title = f"Gap {TYPICAL}, as they come, T = {plan.rounds}, M = {plan.users}, n {plan.seeds}"
    return Table(title, columns, tuple(rows))


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
    return Table("Exponents of the worst regret", ("of", "from", "agent", "measured", "in the bound"), rows)


# Pictures ----------------------------------------------------------------------------------------------------------


def _draw_regret(typical: Regrets, shown: Mapping[int, str], figure: Figure) -> None:
    last = list(shown.items())[-2:]
    for axes, (d1, there) in zip(np.atleast_1d(figure.subplots(1, len(last), sharey=True)), last, strict=True):
        for name in THEORY:
            metrics = typical[there, name].metrics
            rounds = sorted(int(key.rpartition("_")[2]) for key in metrics if key.startswith("regret_at_"))
            band = [e for e in (mean(list(metrics[f"regret_at_{k}"])) for k in rounds) if e]
            (line,) = axes.plot([0, *rounds], [0, *(e.mean for e in band)], label=name)
            low, high = [0, *(e.low for e in band)], [0, *(e.high for e in band)]
            axes.fill_between([0, *rounds], low, high, color=line.get_color(), alpha=0.2)
        axes.set(title=f"d1 = {d1}, gap {TYPICAL}", xlabel="rounds", ylim=(0, None), xlim=(0, None))
    figure.axes[0].set_ylabel("regret, 95 %")
    figure.axes[0].legend(fontsize=8)


def _draw_ratio(worst: Sweep, figure: Figure) -> None:
    axes = figure.subplots()
    ours, theirs = (worst[agent] for agent in PAIR)
    sizes = list(ours)
    ratios = [_ratio(ours[d1], theirs[d1]) for d1 in sizes]
    axes.errorbar(
        sizes,
        [r.mean for r in ratios],
        yerr=np.transpose([r.reach for r in ratios]),
        fmt="o-",
        capsize=3,
        label="measured",
    )
    law = [ratios[0].mean * (d1 / sizes[0]) ** -0.5 for d1 in sizes]
    axes.plot(sizes, law, "--", color="0.5", label="the ratio of the bounds, from the first point")
    axes.axhline(1, color="0.8")
    axes.set(xscale="log", xlabel="d1", ylabel="worst regret of HybridRRD over C2UCB's", ylim=(0, 1.1))
    axes.set_xticks(sizes, [str(d1) for d1 in sizes])
    axes.minorticks_off()
    axes.legend()


def _draw_exponents(exponents: Mapping[str, Sweep], figure: Figure) -> None:
    for axes, (name, sweep) in zip(
        np.atleast_1d(figure.subplots(1, len(exponents), sharey=True)), exponents.items(), strict=True
    ):
        for agent in PAIR:
            found = [_over_seeds(lambda a: float(_worst(a)), regrets) for regrets in sweep[agent].values()]
            label = f"{agent}: {_slope(sweep[agent]).mean:.2f}"
            axes.errorbar(
                list(sweep[agent]),
                [e.mean for e in found],
                yerr=np.transpose([e.reach for e in found]),
                fmt="o-",
                capsize=2,
                label=label,
            )
        axes.set(xscale="log", yscale="log", title=SWEPT[name][0])
        axes.set_xticks(list(sweep[PAIR[0]]), [str(size) for size in sweep[PAIR[0]]])
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axes.legend(fontsize=7)
    figure.axes[0].set_ylabel("worst regret, 95 %")
