"""The dispatcher's part of the study `hybrid_rrd`: which robot policy is to be sent to which task?

Six settings of an admittance controller, twelve variants of wiping and inserting; each round sends each policy to a
task of its own and sees the score of one episode there. What such a policy scores is not bilinear in what the names of
policy and task say, so the model of all bandits here is wrong; R² says by how much.

As theory has them, the baselines are told what it asks for: scores in [0, 1] scatter by 1/2 at most, and the norm of
Theta is that of the best bilinear fit. Tuned settings are chosen, of four for each bandit, for what they earn on other
seeds than those that they are compared on; which baseline is the best is seen on those, which favours it. Intervals are
drawn over plays from the start, all of one table.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import linear_sum_assignment

from ...models.spec import format_value
from ..reward_table import Table as RewardTable
from ..reward_table import bilinear_fit, pair_means, reward_table, shipped_table, write_table
from ..statistics import mean, paired_difference
from ..store import Store
from ..study import Claim, Lab, Scale, Table
from ._trials import Cell, Outcome, carry_out

POLICY = "admittance"
POLICIES = tuple(f"damping={damping},slide={slide}" for damping in (15, 600) for slide in (0.01, 0.03, 0.09))
WIPE, INSERT = "palaestra/GuardedWipe-v0", "palaestra/PegInsert-v0"


def _felt(std: float) -> str:
    """Noise of the force, N: a tool that hangs free seems to touch."""
    return f"+sensor_noise:std={std},key=wrench"


def _seen(std: float) -> str:
    """Noise of where the hole seems to be, m: the farther off, the longer the search."""
    return f"+sensor_noise:std={std},key=environment_state"


TASKS = (
    WIPE,
    *(WIPE + _felt(std) for std in (1.0, 3.0, 6.0)),
    f"{WIPE}:flat=true{_felt(3.0)}",
    *(INSERT + _felt(std) for std in (1.0, 2.0, 4.0)),
    *(INSERT + _seen(std) for std in (0.006, 0.012, 0.025)),
    INSERT + _seen(0.012) + _felt(1.0),
)
EPISODES = 24  # of each policy in each task, on the same seeds

TUNING_SEED, PLAYED_SEED = 10_000, 20_000  # settings are chosen, and compared, on seeds apart
WORTH = 0.05  # of a point, that the best matching must be better than random ones in an episode


@dataclass(frozen=True)
class Plan:
    """Rounds of dispatching, how often they are played from the start, and how often to choose settings."""

    rounds: int
    plays: int
    tuning: int


QUICK, FULL = Plan(100, 5, 2), Plan(300, 24, 8)

SETTINGS = {  # each twice the one before, so that nobody is tuned more finely than another
    "HybridRRD": ("hybrid_rrd", ("c=8.0", "c=16.0", "c=32.0", "c=64.0")),
    "C2UCB": ("c2ucb", ("scale=0.05", "scale=0.1", "scale=0.2", "scale=0.4")),
    "CombLinTS": ("comblin_ts", ("scale=0.1", "scale=0.2", "scale=0.4", "scale=0.8")),
    "epsilon-greedy": ("epsilon_greedy", ("epsilon=0.02", "epsilon=0.04", "epsilon=0.08", "epsilon=0.16")),
}
Call = tuple[str, str]
"""An agent and its options."""


def rows(scale: Scale, lab: Lab) -> tuple[list[Claim], Table]:
    """Claims and the table of agents. ``quick`` plays the table that ships; ``full`` runs its episodes anew."""
    plan = QUICK if scale == "quick" else FULL
    table = shipped_table() if scale == "quick" else measure(lab)
    world = f"palaestra/MatchingBandit-v0:instance=dispatcher,rounds={plan.rounds},rewards={_kept(table, lab)}"
    tuned = _choose(world, plan, lab)
    calls = _theory(table) | {f"{name}, tuned": call for name, call in tuned.items()}
    cells = {
        name: Cell(world, agent, "", options, 0, plan.plays, first_seed=PLAYED_SEED)
        for name, (agent, options) in calls.items()
    }
    outcomes = carry_out(list(dict.fromkeys(cells.values())), lab, "dispatching")
    played = {name: outcomes[cell] for name, cell in cells.items()}
    dispatches = plan.rounds * len(table["users"]["names"])
    earned = {name: _earned(outcome) / dispatches for name, outcome in played.items()}
    return _claims(earned, plan.rounds), _table(table, calls, played, earned)


def measure(lab: Lab) -> RewardTable:
    """The table of rewards, from episodes that are run here: about five minutes on one core."""
    cells = [Cell(task, POLICY, "", options, 0, EPISODES) for options, task in product(POLICIES, TASKS)]
    carry_out(cells, lab, "episodes")
    with Store(lab.folder / "episodes.sqlite") as store:
        found = [store.episodes(env_id=cell.env, agent=cell.call, limit=EPISODES) for cell in cells]
    return reward_table([row for pair in found for row in pair], least=EPISODES)


def _theory(table: RewardTable) -> dict[str, Call]:
    """Every agent without a choice of ours."""
    norm = float(np.linalg.norm(bilinear_fit(table)[0]))
    return {
        "HybridRRD": ("hybrid_rrd", "c=8.0"),
        "C2UCB": ("c2ucb", f"noise=0.5,norm={norm:.2f}"),
        "CombLinTS": ("comblin_ts", "noise=0.5"),
        "greedy": ("greedy", ""),
        "random": ("random_matching", ""),
        "best matching": ("expert", ""),
    }


def _kept(table: RewardTable, lab: Lab) -> str:
    """Where the table lies, named by what it holds, so that a resumed run never mixes two."""
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
    path = lab.folder / f"dispatcher.{digest[:12]}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(path, table)
    return format_value(str(path))


def _choose(world: str, plan: Plan, lab: Lab) -> dict[str, Call]:
    """Of each bandit's settings the one that earns most on the seeds for tuning."""
    cells = {
        (name, options): Cell(world, agent, "", options, 0, plan.tuning, first_seed=TUNING_SEED)
        for name, (agent, settings) in SETTINGS.items()
        for options in settings
    }
    outcomes = carry_out(list(cells.values()), lab, "tuning")
    earned = {key: _earned(outcomes[cell]).mean() for key, cell in cells.items()}
    return {
        name: (agent, settings[int(np.argmax([earned[name, options] for options in settings]))])
        for name, (agent, settings) in SETTINGS.items()
    }


def _earned(outcome: Outcome) -> np.ndarray:
    """The sum of the mean scores of all pairs played, of each play: what the draws of their episodes scatter about."""
    return outcome.metrics["optimal"] - outcome.metrics["regret"]


def _claims(earned: dict[str, np.ndarray], rounds: int) -> list[Claim]:
    worth = float((earned["best matching"] - earned["random"]).mean())
    void = "" if worth >= WORTH else f"the best matching is only {worth:.3f} better than random ones: nothing to learn"

    def more(ours: str, theirs: str, words: str) -> Claim:
        difference = paired_difference(earned[ours], earned[theirs])
        text = f"Dispatcher, {rounds} rounds: score of an episode, {words}"
        return Claim.judge(text, difference, above=0.0, void=void)

    rivals = [name for name in earned if name.endswith(", tuned") and not name.startswith("HybridRRD")]
    best = max([*rivals, "greedy"], key=lambda name: earned[name].mean())
    return [
        more("HybridRRD", "random", "HybridRRD less random assignment"),
        more("HybridRRD", "C2UCB", "HybridRRD less C2UCB, both as theory has them"),
        more("HybridRRD", "CombLinTS", "HybridRRD less CombLinTS, both as theory has them"),
        more("HybridRRD", "greedy", "HybridRRD less greedy"),
        more("HybridRRD, tuned", best, f"HybridRRD less the best baseline, both tuned: {best.removesuffix(', tuned')}"),
    ]


def _table(
    table: RewardTable, calls: dict[str, Call], played: dict[str, Outcome], earned: dict[str, np.ndarray]
) -> Table:
    means = pair_means(table)
    users, items = means.shape
    best = means[np.arange(users), linear_sum_assignment(means, maximize=True)[1]].mean()
    return Table(
        f"Dispatcher: {users} policies, {items} tasks; a bilinear fit of their mean scores has R² "
        f"{bilinear_fit(table)[1]:.2f}; an episode scores {best:.3f} in the best matching and {means.mean():.3f} in a "
        "random one",
        ("agent", "setting", "score of an episode", "share of what can be gained", "regret", "failed"),
        tuple(
            (
                name,
                calls[name][1] or "-",
                mean(earned[name].tolist()),
                mean(outcome.scores.tolist()),
                mean(outcome.metrics["regret"].tolist()),
                outcome.failed,
            )
            for name, outcome in played.items()
        ),
    )
