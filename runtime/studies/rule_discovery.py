"""Whoever seeks to confirm discovers less; looking for opposites helps, can be learned, and carries over.

Claimed of language models by "Failing to Falsify: Evaluating and Mitigating Confirmation Bias in Language Models"
(arXiv 2604.02485): more confirmation, fewer and later discoveries; an instruction to think in opposites raises the rate
of discovery from 42 to 56 % (eleven models; 32 to 41 % in the released table); what it brings about can be distilled
into a model that is no longer told, and carries over to the Blicket test (69 to 89 % of a 32B model, but an 8B model
learns as much from a better teacher without the instruction).

Measured here with agents that reason without fault and differ in how they choose what to test, so that nothing but the
choice can make a difference; all meet the same rules and first triples, 16 rules that no selector has trained on:

1. agents that test against their own hypothesis with a probability of 0 to 1, and one that makes any test: the rank
   correlation of the share of such tests with discoveries, and with the number of tests before them (its interval is
   over episodes; the agents are these seven);
2. an agent that hardly ever does (3 %), with the interventions as rules of choice, which it follows in half of its
   tests: think in opposites, consider counter-examples, and a control that thinks in the same steps without the
   opposite. Beside it an agent without an intervention that goes against its hypothesis as often. What they can name
   of a triple are the rules of training and validation, none of those tested;
3. a selector, which is a small network: taught by the confirming agent (told nothing) and by the one that thinks in
   opposites (told to), in triples and in Blickets, then distilled, told nothing, on training triples only, from four
   teachers: opposites, its control, the confirming one again, and one without an intervention that goes against its
   hypothesis as often as the one with it. Tested on the other rules, and on Blickets (4 or 8 objects, 2 or 3 blickets,
   three rules). As the base has met Blickets, another base that has met triples alone is distilled beside it;
4. the Blicket machine as a physical scene, where a test takes a robot tens of seconds: the time until it is solved.

Refuted where the correlation is not positive, the control gains as much as opposites, or a student of a teacher
without the intervention does as well on Blickets (within two points). Episodes are paired; intervals are drawn over
rules or conditions and over episodes, those of all trainings together. The agents reason over all rules, also those
tested; no hidden rule that a selector learned from is tested. Language models play the same games through the agent
``Proposer``; none is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import spearmanr

from ..statistics import Estimate, bounded_mean, mean, paired_difference
from ..study import Claim, Lab, Scale, Study, Table
from ._trials import Cell, Outcome, Training, carry_out, require_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYSTEM = "rule-discovery"
CLAIM = "Seeking to confirm hinders discovery; thinking in opposites helps, can be distilled, and carries over."

NUMBERS = "palaestra/RuleDiscovery-v0"
RULES = 16  # of the test split; consecutive seeds go through them
TESTS = 45
CONFIRMING = "falsify=0.03"
AS_OPPOSITES = 0.29  # how often the one that thinks in opposites goes against its hypothesis, about
RATES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
CALLS = {  # agents by what the tables call them
    **{f"falsify {rate:g}": ("hypothesis", f"falsify={rate}") for rate in RATES},
    "confirming": ("hypothesis", CONFIRMING),
    "confirming, opposites": ("hypothesis", f"{CONFIRMING},intervention=opposites"),
    "confirming, counter-examples": ("hypothesis", f"{CONFIRMING},intervention=counterexamples"),
    "confirming, control": ("hypothesis", f"{CONFIRMING},intervention=control"),
    "unbiased, as often": ("hypothesis", f"falsify={AS_OPPOSITES}"),
    "any test": ("random_test", ""),
    "information gain": ("information_gain", ""),
}
ON_MACHINE = (
    "confirming",
    "confirming, opposites",
    "confirming, counter-examples",
    "any test",
    "information gain",
)
BLICKETS = tuple(
    f"palaestra/Blicket-v0:n_objects={objects},n_blickets={blickets},rule={rule}"
    for objects, blickets, rule in product((4, 8), (2, 3), ("disjunctive", "conjunctive", "xor"))
)
MACHINE = "palaestra/BlicketMachine-v0:n_objects=6,n_blickets=3"
TEACHERS = ("opposites", "control", "confirming", "unbiased")
_TRIALS = 16  # of a Blicket condition


@dataclass(frozen=True)
class Plan:
    """How much is measured: episodes of agents, of selectors, Blicket conditions, and episodes on the machine."""

    episodes: int
    trainings: int
    recipe: tuple[tuple[str, Any], ...]
    selected: int
    conditions: tuple[str, ...]
    machine: int


QUICK = Plan(16, 1, (("demonstrations", 30), ("steps", 400)), 16, BLICKETS[3:8:4], 0)
FULL = Plan(20 * RULES, 3, (), 10 * RULES, BLICKETS, 64)


def run(scale: Scale, lab: Lab) -> Study:
    """Measure it: under a minute at ``quick``, about ten at ``full``; a GPU changes nothing."""
    plan = QUICK if scale == "quick" else FULL
    asked = _agents(plan, lab)
    selected = _selectors(plan, lab)
    machine = _machine(plan, lab)
    rates = {name: asked[name] for name in asked if name.startswith("falsify") or name == "any test"}
    return Study(
        "rule_discovery",
        scale,
        (*_bias_claims(rates, lab.seed), *_intervention_claims(asked), *_selector_claims(selected), *_robot(machine)),
        (_agent_table(asked), *_selector_tables(selected), *_machine_tables(machine)),
        {
            "bias": partial(_draw_bias, asked),
            "discoveries": partial(_draw_discoveries, asked),
            "selectors": partial(_draw_selectors, selected),
        },
    )


# Agents on number triples ------------------------------------------------------------------------------------------


def _agents(plan: Plan, lab: Lab) -> dict[str, Outcome]:
    """Agents by what the tables call them, on the same episodes."""
    cells = {name: Cell(NUMBERS, agent, "", options, 0, plan.episodes) for name, (agent, options) in CALLS.items()}
    outcomes = carry_out(list(cells.values()), lab, "agents")
    return {name: require_whole(outcomes[cell], name) for name, cell in cells.items()}


def _solved(outcome: Outcome) -> np.ndarray:
    """Whether each episode was solved, [rules, episodes of a rule], so that intervals hold for other rules as well."""
    return outcome.success.reshape(-1, RULES).T.astype(float)


def _incompatible(outcome: Outcome) -> np.ndarray:
    """The share of all tests of each episode that went against its hypothesis: the same window for all."""
    return outcome.metrics["incompatibility_all"]


def _until_solved(outcome: Outcome) -> np.ndarray:
    """Tests before the first right announcement, counted as all where there was none."""
    taken = outcome.metrics.get("tests_to_solve", np.full(len(outcome.success), np.nan))
    return np.where(np.isnan(taken), TESTS, taken)


def _rank(rates: dict[str, Outcome], of: Callable[[Outcome], np.ndarray], seed: int, resamples: int = 1000) -> Estimate:
    """Spearman's correlation over agents of incompatible tests and ``of``, with an interval over their episodes."""
    tried = np.stack([_incompatible(outcome) for outcome in rates.values()])
    found = np.stack([np.asarray(of(outcome), float) for outcome in rates.values()])
    draw, n = np.random.default_rng(seed), tried.shape[1]
    picks = [np.arange(n), *(draw.integers(n, size=n) for _ in range(resamples))]
    ranks = [spearmanr(tried[:, pick].mean(axis=1), found[:, pick].mean(axis=1)).statistic for pick in picks]
    low, high = np.quantile(ranks[1:], [0.025, 0.975])
    return Estimate(float(ranks[0]), float(low), float(high), n)


def _bias_claims(rates: dict[str, Outcome], seed: int) -> list[Claim]:
    return [
        Claim.judge(
            "Agents that test against their hypothesis more often discover more rules (rank correlation)",
            _rank(rates, lambda outcome: outcome.success, seed),
            above=0.0,
            paper="r < 0 of confirmation",
        ),
        Claim.judge(
            "Agents that test against their hypothesis more often need fewer tests (rank correlation)",
            _rank(rates, _until_solved, seed),
            at_most=0.0,
            paper="r > 0 of confirmation",
        ),
    ]


def _gain(ours: np.ndarray, theirs: np.ndarray, text: str, paper: float | str | None = None, void: str = "") -> Claim:
    """A claim that the first discover more, on the same episodes."""
    return Claim.judge(text, paired_difference(ours, theirs), above=0.0, paper=paper, void=void)


def _intervention_claims(asked: dict[str, Outcome]) -> list[Claim]:
    plain, control = _solved(asked["confirming"]), _solved(asked["confirming, control"])
    opposites = _solved(asked["confirming, opposites"])
    return [
        _gain(opposites, plain, "Thinking in opposites discovers more", 0.14),
        _gain(opposites, control, "Thinking in opposites discovers more than its control"),
        _gain(
            opposites,
            _solved(asked["unbiased, as often"]),
            "Thinking in opposites discovers more than an unbiased agent that goes against its hypothesis as often",
        ),
        _gain(_solved(asked["confirming, counter-examples"]), plain, "Considering counter-examples discovers more"),
    ]


def _agent_table(asked: dict[str, Outcome]) -> Table:
    """The paper: 42 % without and 56 % with an intervention, a ratio of 1.33 (1.30 in the released table)."""
    least = asked["confirming"].success.mean()
    rows = tuple(
        (
            name,
            bounded_mean(list(outcome.success)),
            mean(list(_until_solved(outcome))),
            mean(list(_incompatible(outcome))),
            _pooled(outcome),
            float(np.nanmean(outcome.metrics["no_per_yes"])),
            float(outcome.success.mean() / least) if "confirming," in name and least else None,
        )
        for name, outcome in asked.items()
    )
    columns = (
        "agent",
        "discovered",
        f"tests until then, else {TESTS}",
        "incompatible",
        "I:C before",
        "NO:YES",
        "ratio (paper 1.33)",
    )
    return Table(f"Number triples, {TESTS} tests, n {len(asked['confirming'].success)}", columns, rows)


def _pooled(outcome: Outcome) -> float | None:
    """Incompatible to compatible tests before the first right announcement, over all episodes together."""
    compatible = outcome.metrics["compatible"].sum()
    return float(outcome.metrics["incompatible"].sum() / compatible) if compatible else None


# Selectors ---------------------------------------------------------------------------------------------------------

Selected = dict[tuple[str, str], list[Outcome]]
"""Where ("rules", "blickets") and which selector, to the outcome of each training; those of conditions in one."""

_SELECTORS = {  # name in the tables: network, options
    "base, not told": ("base", ""),
    "base, told": ("base", "told=true"),
    **{f"from {teacher}": (teacher, "") for teacher in TEACHERS},
    "numbers only, base": ("numbers", ""),
    "numbers only, from opposites": ("numbers-opposites", ""),
}


def _selectors(plan: Plan, lab: Lab) -> Selected:
    seeds = [lab.seed + n for n in range(plan.trainings)]
    base = {seed: Training("selector", NUMBERS, "base", (("teacher", ""), *plan.recipe), seed) for seed in seeds}
    only = (("games", "numbers"), *plan.recipe)  # a base that has never seen a Blicket
    blind = {seed: Training("selector", NUMBERS, "numbers", (("teacher", ""), *only), seed) for seed in seeds}
    carry_out([*base.values(), *blind.values()], lab, "selectors")
    distilled = [
        *(
            Training("selector", NUMBERS, teacher, (("teacher", teacher), *plan.recipe), seed, base[seed])
            for teacher in TEACHERS
            for seed in seeds
        ),
        *(
            Training("selector", NUMBERS, "numbers-opposites", (("teacher", "opposites"), *only), seed, blind[seed])
            for seed in seeds
        ),
    ]
    carry_out(distilled, lab, "distillation")
    jobs: dict[Cell, tuple[str, str, int]] = {}
    for (name, (network, options)), seed in product(_SELECTORS.items(), seeds):
        jobs[Cell(NUMBERS, "selector", network, options, seed, plan.selected)] = ("rules", name, seed)
        for env in plan.conditions:
            cell = Cell(env, "selector", network, options, seed, _TRIALS, trained_in=NUMBERS)
            jobs[cell] = ("blickets", name, seed)
    outcomes = carry_out(list(jobs), lab, "selections")
    parts: dict[tuple[str, str, int], list[Outcome]] = {}
    for cell, key in jobs.items():
        parts.setdefault(key, []).append(require_whole(outcomes[cell], key[1]))
    found: Selected = {}
    for (where, name, _), some in parts.items():
        found.setdefault((where, name), []).append(_together(some))
    return found


def _together(parts: Sequence[Outcome]) -> Outcome:
    """The outcomes of several conditions as one."""
    names = set().union(*(part.metrics for part in parts))
    columns = {
        name: np.concatenate([part.metrics.get(name, np.full(len(part.success), np.nan)) for part in parts])
        for name in names
    }
    scores, success = (np.concatenate([getattr(part, what) for part in parts]) for what in ("scores", "success"))
    return Outcome(scores, success, sum(part.failed for part in parts), {}, columns)


def _success(selected: Selected, where: str, name: str) -> np.ndarray:
    """[trainings, kinds, episodes]: a kind is a rule, or a condition of Blickets."""
    return np.stack([_by_kind(where, outcome.success.astype(float)) for outcome in selected[where, name]])


def _by_kind(where: str, values: np.ndarray) -> np.ndarray:
    """Rules take turns from episode to episode; conditions stand one after the other, of equally many episodes."""
    return values.reshape(-1, RULES).T if where == "rules" else values.reshape(-1, _TRIALS)


def _tests(selected: Selected, where: str, name: str) -> np.ndarray:
    """[trainings, kinds, episodes]."""
    return np.stack([_by_kind(where, _until_solved(outcome)) for outcome in selected[where, name]])


def _selector_claims(selected: Selected) -> list[Claim]:
    """What the students of opposites discover more than others, and how many tests less they need for it."""
    claims = []
    told = _apart(*(_success(selected, "rules", f"base, {which}") for which in ("told", "not told")))
    untaught = "" if told.low > 0 else f"being told changes nothing in the base: {told}"
    for where, place in (("rules", "On other rules"), ("blickets", "On Blickets")):
        of = partial(_success, selected, where)
        base = of("base, not told").mean()
        void = untaught or ("" if base < 1 - _MORE else f"the base discovers {base:.3f}, which leaves no room")
        for rival, name in _RIVALS.items():
            text = f"{place}, a student of opposites discovers at least {_MORE} more than {name}"
            more, paper = _apart(of("from opposites"), of(rival)), _PAPER.get((where, rival))
            claims.append(Claim.judge(text, more, at_least=_MORE, paper=paper, void=void))
        fewer = _apart(*(_tests(selected, where, which) for which in ("from opposites", "from unbiased")))
        text = f"{place}, it needs fewer tests than one of a teacher that is unbiased at the same rate"
        claims.append(Claim.judge(text, fewer, at_most=0.0, void=void))
    blind = _success(selected, "blickets", _BLIND)
    more = _apart(_success(selected, "blickets", "numbers only, from opposites"), blind)
    void = "" if blind.mean() < 1 - _MORE else f"the base discovers {blind.mean():.3f}, which leaves no room"
    text = f"On Blickets, which neither has seen, a student of opposites discovers at least {_MORE} more than its base"
    return [*claims, Claim.judge(text, more, at_least=_MORE, void=void)]


_MORE = 0.02
_BLIND = "numbers only, base"
_RIVALS = {
    "base, not told": "the base",
    "from control": "one of the control",
    "from confirming": "one of the confirming teacher",
    "from unbiased": "one of a teacher that is unbiased at the same rate",
}


def _apart(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """The difference on the same episodes, of [trainings, kinds, episodes]; kinds and episodes of all are drawn
    anew."""
    return paired_difference(*(np.concatenate(list(each), axis=-1) for each in (ours, theirs)))


_PAPER = {("blickets", "base, not told"): 0.20}  # the released table: a 32B model with 2 blickets, .687 to .886


def _selector_tables(selected: Selected) -> list[Table]:
    tables = []
    for where, title in (("rules", "Selectors, number triples of other rules"), ("blickets", "Selectors, Blickets")):
        base = _success(selected, where, "base, not told").mean()
        rows = []
        for name in _SELECTORS:
            outcomes = selected[where, name]
            solved = _success(selected, where, name)
            rows.append(
                (
                    name,
                    bounded_mean(solved.ravel().tolist()),
                    float(np.mean([_until_solved(outcome).mean() for outcome in outcomes])),
                    float(np.mean([np.nanmean(_incompatible(outcome)) for outcome in outcomes])),
                    float(solved.mean() / base) if base else None,
                )
            )
        n = f"{len(selected[where, 'base, told'])} trainings of {solved[0].size} episodes"
        columns = ("selector", "discovered", f"tests until then, else {TESTS}", "incompatible", "ratio to the base")
        tables.append(Table(f"{title}, {n}", columns, tuple(rows)))
    return tables


# The machine -------------------------------------------------------------------------------------------------------


def _machine(plan: Plan, lab: Lab) -> dict[str, Outcome]:
    """Agents whose tests a robot carries out, on the same episodes; none at a scale without."""
    if not plan.machine:
        return {}
    cells = {name: Cell(MACHINE, CALLS[name][0], "", CALLS[name][1], 0, plan.machine) for name in ON_MACHINE}
    outcomes = carry_out(list(cells.values()), lab, "machine")
    return {name: require_whole(outcomes[cell], name) for name, cell in cells.items()}


def _robot_s(outcome: Outcome) -> np.ndarray:
    """Seconds of robot time until the machine was understood, those of the whole episode where it was not."""
    whole = outcome.metrics["robot_s"]
    until = outcome.metrics.get("robot_s_to_solve", np.full(len(whole), np.nan))
    return np.where(np.isnan(until), whole, until)


def _robot(machine: dict[str, Outcome]) -> list[Claim]:
    if not machine:
        return []
    text = "On the physical machine, thinking in opposites takes less robot time until it is solved, in s"
    saved = paired_difference(_robot_s(machine["confirming, opposites"]), _robot_s(machine["confirming"]))
    return [Claim.judge(text, saved, at_most=0.0)]


def _machine_tables(machine: dict[str, Outcome]) -> list[Table]:
    if not machine:
        return []
    rows = tuple(
        (
            name,
            bounded_mean(list(outcome.success)),
            mean(list(_robot_s(outcome))),
            mean(list(outcome.metrics["robot_s"])),
            float(60 * outcome.success.sum() / _robot_s(outcome).sum()),
            float(outcome.metrics["failed_tests"].sum()),
        )
        for name, outcome in machine.items()
    )
    columns = ("agent", "solved", "robot s until then", "robot s in all", "solved a robot minute", "failed tests")
    return [Table(f"The Blicket machine, 6 objects, 3 blickets, n {len(machine['confirming'].success)}", columns, rows)]


# Pictures ----------------------------------------------------------------------------------------------------------


def _draw_bias(asked: dict[str, Outcome], figure: Figure) -> None:
    axes = figure.subplots()
    for n, (name, outcome) in enumerate(asked.items()):
        rate = bounded_mean(list(outcome.success))
        assert rate is not None
        x = float(np.nanmean(_incompatible(outcome)))
        colour = "tab:blue" if name.startswith("falsify") else "tab:orange" if "," in name else "0.4"
        axes.errorbar(x, rate.mean, yerr=np.transpose([rate.reach]), fmt="o", color=colour, capsize=3)
        axes.annotate(name, (x, rate.mean), (6, 6 if n % 2 else -14), textcoords="offset points", fontsize=8)
    axes.set(xlabel="share of tests against the own hypothesis", ylabel="rules discovered, 95 %", ylim=(-0.05, 1.12))
    axes.set_xlim(-0.04, 1.12)


def _draw_discoveries(asked: dict[str, Outcome], figure: Figure) -> None:
    axes = figure.subplots()
    shown = ("information gain", "confirming, counter-examples", "any test", "confirming, opposites")
    for name in (*shown, "confirming, control", "confirming"):
        outcome = asked[name]
        when = np.where(outcome.success, _until_solved(outcome), np.inf)
        axes.step(range(TESTS + 1), [(when <= k).mean() for k in range(TESTS + 1)], where="post", label=name)
    axes.set(xlabel="tests made", ylabel="share of rules discovered", ylim=(0, 1.03), xlim=(0, TESTS))
    axes.legend(loc="lower right", fontsize=8)


def _draw_selectors(selected: Selected, figure: Figure) -> None:
    for axes, where in zip(figure.subplots(1, 2, sharey=True), ("rules", "blickets"), strict=True):
        for n, name in enumerate(_SELECTORS):
            solved = _success(selected, where, name)
            estimate = bounded_mean(solved.ravel().tolist())
            assert estimate is not None
            colour = "tab:orange" if name in ("base, told", "from opposites") else "0.6"
            axes.barh(n, estimate.mean, xerr=np.transpose([estimate.reach]), color=colour, capsize=3)
        axes.set(title={"rules": "other rules", "blickets": "Blickets"}[where], xlim=(0, 1.02), xlabel="discovered")
        axes.set_yticks(range(len(_SELECTORS)), list(_SELECTORS))
    axes.invert_yaxis()  # of both: they share it
