"""Fast-WAM: is a world-action model good because it learned to foresee, or because it foresees while it acts?

Claimed by "Fast-WAM: Do World Action Models Need Test-time Future Imagination?" (arXiv 2603.16666), with a video model
of five billion weights: without imagination at test time nothing is lost (-1.2 to +0.9 points), without co-training on
video much is (8.0 and 4.1 points), and a plan takes 190 ms (110 in the conference's abstract) in place of 580 and 810.
No seeds or intervals are published. Measured here, with models of a third of a million weights:

- PixelReach-v0 with one disc, from few demonstrations, starting from a model that learned video alone: the fast, joint
  and imagine-then-act (idm) variants and no co-training, from the same start, in the same steps; no co-training also
  for as long as co-training takes. Three controls at the same cost ask what it is about video that helps:
  reconstructing the *present* frame, foreseeing the *shuffled* future of another episode, and telling the actions from
  future frames (*inverse* dynamics). The video counts as much as the actions, as published; other weights, and no
  pre-training, beside that.
- PixelReach-v0 with three discs and an instruction, without pre-training.
- What a network knows: the error of its actions on episodes that it was not trained on, how much better imagined frames
  are than the last one seen, and how well a linear map finds agent and disc in what actions attend to.
- The time of a plan of each variant, in turns in one process, beside a count of operations; the imagining variants in
  the faster of two forms, which compute the present frame at every step of imagination or once ("frame kept").
- PixelIntercept-v0, where a ball is kicked aside in flight, on the virtual clock under the published latencies. Each
  row acts meanwhile in the best of three ways, chosen on other episodes. The fast variant as late as the others shows
  what delay alone does; the others with few steps, joint in three (174 ms) and idm imagining in one (288 ms), are the
  rivals that the paper leaves out; streaming the plans of the fast variant (FASTER) has not been published.

What speaks against Fast-WAM is a fast variant that is worse than the imagining ones by more than 5 points, or no better
than without co-training at any number of demonstrations, or than the control that reconstructs the present. Claims
about success are void where neither side has learned the task.

Limits. The latencies are inputs: even the expert, with plans that take 6, 18 and 25 ticks, succeeds in .88, .18 and
.05 of the episodes of PixelIntercept-v0. They are one number a variant, divided into seeing and steps as if a step of
video took as long alone as together with actions (see the profiles; a model that counts operations cannot be made to
agree with all three). That only matters to what streams, which is also run with most of the time spent on seeing. The
video models are pre-trained on the expert's own episodes, five times as many as the most demonstrations: they have
seen how the task is done, though not what was commanded. All variants have a summary of the present frame that the
paper's do not have (see :class:`WamConfig`), to learn from few demonstrations; it is a way around the video. Intervals
are drawn over three trainings, which is few, and with three discs and in PixelIntercept-v0 over the episodes of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...models.spec import parse_spec
from ..executor import Execution
from ..latency import profile
from ..reaction import arrivals_s, min_execution_horizon
from ..statistics import Estimate, mean, paired_difference, rate
from ..study import Claim, Lab, Scale, Study, Table
from ._timing import FREE, TICK_S
from ._trials import Cell, Outcome, Reading, Training, carry_out
from ._world_model_plans import KEPT, SIZES, VARIANTS, Times, identities, plan_times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYSTEM = "fast-wam"
CLAIM = "Learning to foresee video makes a policy better; imagining it before acting only makes it slower."

REACH, INSTRUCTED = "palaestra/PixelReach-v0:discs=1", "palaestra/PixelReach-v0"
INTERCEPT = "palaestra/PixelIntercept-v0"
LEARNED = 0.5  # the success that some variant must reach, for differences of success to say something
CAUGHT = 0.8  # the same of a variant in PixelIntercept without latency
BELOW = 0.05  # by which the fast variant may be below the imagining ones and still be as good
READ = "palaestra.runtime.studies._world_model:read"

FAST, NONE, JOINT, IDM = "fast", "no co-training", "joint", "idm"
LONGER, AS_LONG = "no co-training, as long", 2.8  # times the steps: what a step costs more with video
MAIN = (FAST, NONE, JOINT, IDM)
CONTROLS = ("present", "shuffled", "inverse")
NETWORKS: dict[str, dict[str, Any]] = {
    FAST: {},
    NONE: {"video_weight": 0.0},
    LONGER: {"video_weight": 0.0},
    JOINT: {"variant": "joint"},
    IDM: {"variant": "idm"},
    **{name: {"control": name} for name in CONTROLS},
}
SCRATCH = "from scratch"
WEIGHTS = (0.1,)  # of the video, beside that of the recipe
OTHERS = 500  # between the seed of a training and that of the video model it starts from: other episodes

ZERO = "zero"
QUICKER = "fastwam-110ms"
LATENCY = {FAST: "fastwam-5090", JOINT: "fastwam-joint-5090", IDM: "fastwam-idm-5090"}
IMAGINING = (JOINT, IDM)
MODES = ("sync", "async", "prefix")
SYNC_TICKS = 10  # executed before the robot stops to think again
CHUNK = 32  # actions of a plan, by PixelIntercept's recipe
FIRST_TUNED = 1_000_000  # seed of the episodes on which the way to act meanwhile is chosen
WHOLE, STREAMED = "schedule=constant,steps=10", "schedule=has,steps=10,alpha=0.8"
THREE, ONE = "schedule=constant,steps=3", "schedule=constant,steps=10,imagine_steps=1"


@dataclass(frozen=True)
class Row:
    """What is run in PixelIntercept: a network, under a latency, sampled in a way."""

    name: str
    network: str
    profile: str
    sampling: str = WHOLE


ROWS = (
    *(Row(f"{name}, no latency", name, ZERO) for name in VARIANTS),
    Row("fast, streamed, no latency", FAST, ZERO, STREAMED),
    Row("joint, 3 steps, no latency", JOINT, ZERO, THREE),
    Row("idm, imagining in 1 step, no latency", IDM, ZERO, ONE),
    Row("fast, 190 ms", FAST, LATENCY[FAST]),
    Row("fast, 110 ms", FAST, QUICKER),
    Row("joint, 580 ms", JOINT, LATENCY[JOINT]),
    Row("idm, 810 ms", IDM, LATENCY[IDM]),
    Row("fast, as late as joint", FAST, LATENCY[JOINT]),
    Row("fast, as late as idm", FAST, LATENCY[IDM]),
    Row("joint, 3 steps, 174 ms", JOINT, LATENCY[JOINT], THREE),
    Row("idm, imagining in 1 step, 288 ms", IDM, "encode_ms=116,evaluation_ms=17.2", ONE),
    Row("fast, 190 ms, streamed", FAST, LATENCY[FAST], STREAMED),
    Row("fast, 190 ms, most of it to see, streamed", FAST, "encode_ms=100,evaluation_ms=9", STREAMED),
    Row("fast, 110 ms, streamed", FAST, QUICKER, STREAMED),
)


@dataclass(frozen=True)
class Plan:
    """How much is measured, and how the recipes are changed for it.

    ``sizes`` are numbers of demonstrations with one disc, the last one that of the variations; ``few`` changes those
    trainings, ``pretraining`` those of video alone, ``instructed`` those with three discs and ``intercepting`` those in
    PixelIntercept. Those of few demonstrations are done from each of the ``seeds``, the others, which take longer, from
    the first. ``rows`` are run in PixelIntercept, and how they act meanwhile is chosen on ``tuning`` other episodes.
    """

    seeds: tuple[int, ...]
    sizes: tuple[int, ...]
    few: dict[str, Any]
    pretraining: dict[str, Any]
    instructed: dict[str, Any]
    intercepting: dict[str, Any]
    episodes: int
    tuning: int
    calls: dict[str, int]
    rows: tuple[Row, ...] = ROWS

    @property
    def most(self) -> int:
        """The number of demonstrations of the variations."""
        return self.sizes[-1]


QUICK = Plan(
    seeds=(),
    sizes=(),
    few={},
    pretraining={},
    instructed={},
    intercepting={},
    episodes=50,
    tuning=16,
    calls=dict.fromkeys(list(SIZES)[:2], 12),
    rows=tuple(row for row in ROWS if row.network == FAST and row.profile in (ZERO, *LATENCY.values())),
)
FULL = Plan(
    seeds=(0, 1, 2),
    sizes=(120, 240),
    few={"steps": 600, "batch": 48},
    pretraining={
        "actions": False,
        "demonstrations": 1200,
        "steps": 1500,
        "batch": 48,
        "lr": 4e-3,
        "video_weight": 1.0,
    },
    instructed={"steps": 1200},
    intercepting={},
    episodes=200,
    tuning=48,
    calls=dict(zip(SIZES, (200, 200, 60), strict=True)),
)

Key = tuple[str, str, str]
"""World, network, and what else sets it apart."""
Networks = dict[Key, list[Training]]
"""To a training of each seed."""
Runs = dict[tuple[str, ...], list[Outcome]]
"""What was run, by name, to the outcome of each training."""
Readings = dict[Key, list[dict[str, Any]]]
"""What each training knows, see :mod:`._world_model`."""


def run(scale: Scale, lab: Lab) -> Study:
    """Measure it: under a minute at ``quick``, with what ships; ``full`` trains 49 networks first, over an hour."""
    plan = QUICK if scale == "quick" else FULL
    lab.tell("plans of random weights", 0, 1)
    times = {size: plan_times(size, calls, lab.seed) for size, calls in plan.calls.items()}
    _check(identities(lab.seed))
    networks = _networks(plan, lab.seed)
    trainings = [one for ones in networks.values() for one in ones]
    carry_out(list({one.start: None for one in trainings if one.start}), lab, "pre-training")
    carry_out(trainings, lab, "training")
    reached, caught = _reach(plan, networks, lab), _intercept(plan, networks, lab)
    known = _read(networks, lab)
    tables = (
        *(_reach_table(reached, known, env) for env in (REACH, INSTRUCTED)),
        _late_table(caught),
        _time_table(times),
    )
    return Study(
        "fast_wam",
        scale,
        (
            *_time_claims(times),
            *_reach_claims(plan, reached, known),
            *_late_claims(caught),
        ),
        tuple(table for table in tables if table.rows),
        {
            "late": partial(_draw_late, caught),
            "times": partial(_draw_times, times),
            **({"demonstrations": partial(_draw_sizes, plan, reached, known)} if plan.seeds else {}),
        },
    )


# What is trained and run -------------------------------------------------------------------------------------------


def _networks(plan: Plan, seed: int) -> Networks:
    found: Networks = {}

    def add(env: str, name: str, apart: str, seeds: Sequence[int], *, pretrained: bool = False, **changes: Any) -> None:
        found[env, name, apart] = [
            Training(
                "wam",
                env,
                f"{name} {apart}".replace(",", "").replace(" ", "-"),
                tuple((changes | NETWORKS[name]).items()),
                seed + one,
                Training("wam", env, "video", tuple(plan.pretraining.items()), seed + one + OTHERS)
                if pretrained
                else None,
            )
            for one in seeds
        ]

    if not plan.seeds:
        return found
    for size in plan.sizes:
        for name in NETWORKS if size == plan.most else (FAST, NONE):
            steps = round(plan.few["steps"] * (AS_LONG if name == LONGER else 1))
            few = {**plan.few, "demonstrations": size, "steps": steps}
            add(REACH, name, _of(size), plan.seeds, pretrained=True, **few)
    few = {**plan.few, "demonstrations": plan.most}
    for name in (FAST, NONE):
        add(REACH, name, SCRATCH, plan.seeds, **few)
    for weight in WEIGHTS:
        add(REACH, FAST, f"weight {weight:g}", plan.seeds, pretrained=True, **few | {"video_weight": weight})
    for name in MAIN:
        add(INSTRUCTED, name, "", plan.seeds[:1], **plan.instructed)
    for name in VARIANTS:
        add(INTERCEPT, name, "", plan.seeds[:1], **plan.intercepting)
    return found


def _of(size: int) -> str:
    return f"{size} demonstrations"


def _run(cells: dict[Cell, tuple[str, ...]], lab: Lab, word: str) -> Runs:
    runs: Runs = {}
    outcomes = carry_out(list(cells), lab, word)
    for cell, key in cells.items():
        runs.setdefault(key, []).append(outcomes[cell])
    return runs


def _reach(plan: Plan, networks: Networks, lab: Lab) -> Runs:
    """Episodes of PixelReach, where the world waits; without trainings, of the policy that ships."""
    cells: dict[Cell, tuple[str, ...]] = {
        Cell(env, "wam", one.network, WHOLE, one.seed, plan.episodes): (env, name, apart)
        for (env, name, apart), ones in networks.items()
        if env != INTERCEPT
        for one in ones
    }
    if not cells:
        cells = {Cell(INSTRUCTED, "wam", "!", WHOLE, 0, plan.episodes): (INSTRUCTED, FAST, "")}
    return _run(cells, lab, "reaching")


def _intercept(plan: Plan, networks: Networks, lab: Lab) -> Runs:
    """Episodes of PixelIntercept under every latency, each row in the way to act meanwhile that served it best before.

    Without trainings they are those of the policy that ships, which is of the fast variant.
    """

    def cell(row: Row, mode: str, network: str, seed: int) -> Cell:
        execution = _execution(row, mode)
        return Cell(INTERCEPT, "wam", network, row.sampling, seed, plan.episodes, row.profile, execution)

    trained = {
        row: [(one.network, one.seed) for one in networks.get((INTERCEPT, row.network, ""), [])]
        or [("!", 0)] * (row.network == FAST)
        for row in plan.rows
    }
    tried: dict[Cell, tuple[str, ...]] = {
        replace(cell(row, mode, *one), episodes=plan.tuning, first_seed=FIRST_TUNED): (row.name, mode)
        for row, ones in trained.items()
        if row.profile != ZERO
        for one in ones
        for mode in MODES
    }
    before = _run(tried, lab, "choosing how to act meanwhile")
    cells: dict[Cell, tuple[str, ...]] = {}
    for row, ones in trained.items():
        score = {mode: float(_success(before, row.name, mode).mean()) for mode in MODES if (row.name, mode) in before}
        mode = max(score, key=lambda mode: score[mode]) if score else "async"
        cells |= {cell(row, mode, *one): (row.name, mode) for one in ones}
    return _run(cells, lab, "intercepting")


def _execution(row: Row, mode: str) -> Execution:
    """How a row is executed: the next plan is begun as soon as the last one allows."""
    if mode == "sync":
        return Execution(mode="sync", horizon=SYNC_TICKS)
    if row.profile == ZERO:
        return Execution(mode="async", horizon=FREE)
    from ...models.flow.schedules import make_schedule, ready_after

    options: dict[str, Any] = dict(parse_spec(f"wam:{row.sampling}").options)
    schedule = make_schedule(options["schedule"], CHUNK, options["steps"], options.get("alpha", 0.6))
    horizon = min_execution_horizon(arrivals_s(profile(row.profile), ready_after(schedule.taus())), TICK_S)
    assert horizon is not None  # no chunk is over before it arrives
    return Execution(mode=mode, horizon=horizon)  # type: ignore[arg-type]


def _read(networks: Networks, lab: Lab) -> Readings:
    """What the trainings with few demonstrations know."""
    jobs = {Reading(one, READ): key for key, ones in networks.items() if key[0] == REACH for one in ones}
    known: Readings = {}
    found = carry_out(list(jobs), lab, "reading")
    for job, key in jobs.items():
        known.setdefault(key, []).append(found[job])
    return known


# Claims ------------------------------------------------------------------------------------------------------------


def _success(runs: Runs, *key: str) -> np.ndarray:
    """Of each training and episode."""
    return np.stack([outcome.success for outcome in runs[key]]).astype(float)


def _unlearned(least: float, **reached: np.ndarray) -> str:
    """Why nothing is said of these: none of them has learned the task; empty where one has."""
    means = {name: float(values.mean()) for name, values in reached.items()}
    if max(means.values()) >= least:
        return ""
    return f"not learned: success {', '.join(f'{mean:.2f} ({name})' for name, mean in means.items())}, expected {least}"


def _check(exact: dict[str, float]) -> None:
    """Without these nothing here would be about Fast-WAM."""
    if (
        max(exact["fast without future"], exact["fast, another future"]) > 1e-12
        or exact["joint, another future"] < 1e-6
    ):
        raise AssertionError(f"the masks are not those of the variants: {exact}")


def _time_claims(times: dict[str, Times]) -> list[Claim]:
    """At the second size: of the first, kernels take more time to be called than to compute."""
    size = list(SIZES)[1]
    found = times[size]
    claims = []
    for name, paper, least in ((JOINT, "580/190 = 3.05", 3.05), (IDM, "810/190 = 4.26; over 6", 4.26)):
        best = min((name, f"{name}{KEPT}"), key=lambda one: float(np.median(found.plan_ms[one])))
        ratio = _times_as_long(found.plan_ms[best], found.plan_ms[FAST])
        counted = f"operations: {found.predicted(best):.1f}"
        text = f"{size}: a plan of {best} takes at least {least} times as long as one of fast ({counted})"
        claims.append(Claim.judge(text, ratio, at_least=least, paper=paper))
    return claims


def _times_as_long(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """The ratio of two medians of times that were taken in turns."""
    rows = np.random.default_rng(0).integers(len(ours), size=(2000, len(ours)))
    ratios = np.median(ours[rows], axis=1) / np.median(theirs[rows], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Estimate(float(np.median(ours) / np.median(theirs)), float(low), float(high), len(ours))


def _reach_claims(plan: Plan, runs: Runs, known: Readings) -> list[Claim]:
    if not plan.seeds:
        return []
    sizes = [_of(size) for size in plan.sizes]

    def read(name: str, what: str) -> np.ndarray:
        return np.array([one[what] for one in known[REACH, name, _of(plan.most)]])

    claims = []
    for size in sizes:
        ours, theirs = (_success(runs, REACH, name, size) for name in (FAST, NONE))
        text = f"One disc, {size}: success with co-training less without"
        void = _unlearned(LEARNED, ours=ours, theirs=theirs)
        claims.append(
            Claim.judge(
                text, paired_difference(ours, theirs), above=0.0, paper="+.080 (RoboTwin), +.041 (LIBERO)", void=void
            )
        )
    where = f"One disc, {_of(plan.most)}"
    claims.append(_as_good(where, {name: _success(runs, REACH, name, _of(plan.most)) for name in (FAST, *IMAGINING)}))
    best = _success(runs, REACH, FAST, _of(plan.most))
    for other, what in (
        (LONGER, "without co-training but for as long"),
        *((name, f"with the control {name!r}, at equal cost") for name in CONTROLS),
    ):
        text = f"{where}: success with co-training less {what}"
        rival = _success(runs, REACH, other, _of(plan.most))
        void = _unlearned(LEARNED, ours=best, theirs=rival)
        claims.append(Claim.judge(text, paired_difference(best, rival), above=0.0, void=void))
    for other in (NONE, "present"):
        text = f"{where}: error of actions on other episodes, {other} less co-training"
        gain = paired_difference(read(other, "action_error"), read(FAST, "action_error"))
        claims.append(Claim.judge(text, gain, above=0.0))
    text = f"{where}: PSNR (dB) of what is imagined less that of nothing moving, on other episodes"
    claims.append(Claim.judge(text, _mean(read(FAST, "foreseen_db") - read(FAST, "still_db")), above=0.0))
    text = f"{where}: where things are, told from what actions attend to, error (m) without co-training less with"
    claims.append(Claim.judge(text, _mean(read(NONE, "probe_m") - read(FAST, "probe_m")), above=0.0))
    three = {name: _success(runs, INSTRUCTED, name, "") for name in (FAST, NONE, *IMAGINING)}
    where = "Three discs, no pre-training"
    void = _unlearned(LEARNED, ours=three[FAST], theirs=three[NONE])
    text = f"{where}: success with co-training less without"
    gain = paired_difference(three[FAST], three[NONE])
    claims.append(Claim.judge(text, gain, above=0.0, paper="+.080 (RoboTwin), +.041 (LIBERO)", void=void))
    claims.append(_as_good(where, three))
    return claims


def _as_good(where: str, success: dict[str, np.ndarray]) -> Claim:
    """Whether nothing is lost without imagination."""
    best = max(IMAGINING, key=lambda name: float(success[name].mean()))
    void = _unlearned(LEARNED, ours=success[FAST], theirs=success[best])
    text = f"{where}: success of fast less the better of joint and idm ({best}), not worse by more than {BELOW}"
    gain = paired_difference(success[FAST], success[best])
    return Claim.judge(text, gain, at_least=-BELOW, paper="-.012 to +.009", void=void)


def _mean(values: np.ndarray) -> Estimate:
    found = mean(list(values))
    assert found is not None
    return found


def _row(runs: Runs, name: str) -> tuple[np.ndarray, str]:
    """The success of a row, and the way to act that was chosen for it."""
    (mode,) = (mode for row, mode in runs if row == name)
    return _success(runs, name, mode), mode


def _late_claims(runs: Runs) -> list[Claim]:
    there = {name for name, _ in runs}
    claims = []

    def less(ours: str, theirs: str, void: str = "", **limits: Any) -> None:
        if ours in there and theirs in there:
            (one, mode), (other, its_mode) = _row(runs, ours), _row(runs, theirs)
            void = void or _unlearned(CAUGHT, **{"ours, without latency": _row(runs, idle(ours))[0]})
            text = f"PixelIntercept: success of {ours} ({mode}) less {theirs} ({its_mode})"
            text += f", not worse by more than {BELOW}" if "at_least" in limits else ""
            claims.append(Claim.judge(text, paired_difference(one, other), **limits, void=void))

    def idle(name: str) -> str:
        return f"{name.partition(',')[0]}, no latency"

    for other in IMAGINING:
        less("fast, no latency", f"{other}, no latency", at_least=-BELOW)
    for other in ("joint, 580 ms", "idm, 810 ms"):
        if other in there:
            void = _unlearned(CAUGHT, **{f"{other}, without latency": _row(runs, idle(other))[0]})
            less("fast, 190 ms", other, void, above=0.0)
            cost = [_row(runs, idle(name))[0] - _row(runs, name)[0] for name in (other, "fast, 190 ms")]
            text = f"PixelIntercept: success that {other} loses by its latency less what fast loses by 190 ms"
            claims.append(Claim.judge(text, paired_difference(*cost), above=0.0, void=void))
    for other in ("joint, 3 steps, 174 ms", "idm, imagining in 1 step, 288 ms"):
        less("fast, 190 ms", other, at_least=-BELOW)
    less("fast, 190 ms", "fast, as late as joint", above=0.0)
    for ours in ("fast, 190 ms", "fast, 110 ms"):
        less(f"{ours}, streamed", ours, above=0.0)
    less("fast, 190 ms, most of it to see, streamed", "fast, 190 ms", above=0.0)
    less("fast, streamed, no latency", "fast, no latency", at_least=-BELOW)
    return claims


# Tables and pictures -----------------------------------------------------------------------------------------------


_READ = {
    "action_error": "error of actions",
    "mean_db": "mean forecast, dB",
    "foreseen_db": "imagined, dB",
    "still_db": "nothing moves, dB",
    "probe_m": "probe, m",
    "pixels_m": "probe of the picture, m",
}


def _reach_table(runs: Runs, known: Readings, env: str) -> Table:
    rows = []
    columns_read = _READ if any(key[0] == env for key in known) else {}
    for key, outcomes in runs.items():
        if key[0] != env:
            continue
        success = np.concatenate([outcome.success for outcome in outcomes])
        read = known.get((key[0], key[1], key[2]), [])
        numbers = [
            float(np.mean([np.mean(one[name]) for one in read])) if read and name in read[0] else None
            for name in columns_read
        ]
        rows.append((key[1], key[2], rate(list(success)), *numbers, len(outcomes), sum(one.failed for one in outcomes)))
    columns = ("network", "", "success", *columns_read.values(), "trainings", "failed")
    return Table(f"PixelReach-v0, {'one disc' if env == REACH else 'three discs'}", columns, tuple(rows))


def _late_table(runs: Runs) -> Table:
    rows = []
    for (name, mode), outcomes in runs.items():
        costs = {
            cost: [value for one in outcomes if cost in one.costs for value in one.costs[cost] if np.isfinite(value)]
            for cost in ("ttfa_ms", "reaction_ms", "age_p50_ms", "stalls")
        }
        success = np.concatenate([outcome.success for outcome in outcomes])
        score = np.concatenate([outcome.scores for outcome in outcomes])
        rows.append(
            (
                name,
                mode,
                rate(list(success)),
                float(score.mean()),
                *(float(np.mean(values)) if values else None for values in costs.values()),
                len(outcomes),
                sum(one.failed for one in outcomes),
            )
        )
    columns = (
        *("row", "meanwhile", "success", "score", "first action after, ms", "reaction to the kick, ms"),
        *("age of what was seen, ms", "ticks without action", "trainings", "failed"),
    )
    return Table("PixelIntercept-v0", columns, tuple(rows))


def _time_table(times: dict[str, Times]) -> Table:
    rows = []
    for size, found in times.items():
        for name, milliseconds in found.plan_ms.items():
            ratio = _times_as_long(milliseconds, found.plan_ms[FAST])
            first = float(np.median(found.first_ms)) if name == FAST else None
            counted = found.predicted(name)
            rows.append((size, found.parameters, name, float(np.median(milliseconds)), first, ratio, counted))
    columns = ("size", "weights", "variant", "a plan, ms", "first action streamed, ms", "times fast", "by operations")
    return Table("Plans in ten steps, one thread", columns, tuple(rows))


def _draw_late(runs: Runs, figure: Figure) -> None:
    names = [row.name for row in ROWS if any(row.name == name for name, _ in runs)]
    figure.set_size_inches(8, 0.42 * len(names) + 1.2)
    axes = figure.subplots()
    for place, name in enumerate(names):
        success, mode = _row(runs, name)
        estimate = rate(list(success.ravel().astype(bool)))
        assert estimate is not None
        colour = {FAST: "C0", JOINT: "C1", IDM: "C3"}[name.partition(",")[0]]
        axes.barh(place, estimate.mean, color=colour, alpha=0.55 if "as late" in name or "no latency" in name else 1.0)
        error = [[estimate.mean - estimate.low], [estimate.high - estimate.mean]]
        axes.errorbar(estimate.mean, place, xerr=error, color="black", lw=0.9)
        axes.text(1.01, place, mode if "no latency" not in name else "", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12)
    axes.set_xlabel("success in PixelIntercept-v0")
    axes.set_title("Is imagination worth its latency? (right: what the robot does meanwhile)", loc="left", fontsize=10)


def _draw_times(times: dict[str, Times], figure: Figure) -> None:
    axes = figure.subplots()
    for place, found in enumerate(times.values()):
        for offset, name in enumerate((f"{JOINT}{KEPT}", f"{IDM}{KEPT}")):
            ratio = _times_as_long(found.plan_ms[name], found.plan_ms[FAST])
            x = place + 0.35 * offset
            error = [[ratio.mean - ratio.low], [ratio.high - ratio.mean]]
            axes.bar(x, ratio.mean, 0.3, yerr=error, color=("C1", "C3")[offset], label="" if place else name)
            counted = 2 * [found.predicted(name)]
            axes.plot(
                [x - 0.15, x + 0.15], counted, color="black", lw=1.2, label="" if place or offset else "operations"
            )
    axes.axhline(580 / 190, color="C1", lw=0.8, ls="--", label="published, joint")
    axes.axhline(810 / 190, color="C3", lw=0.8, ls="--", label="published, idm")
    axes.set_xticks([place + 0.175 for place in range(len(times))], times, fontsize=8)
    axes.set_ylabel("a plan, times as long as fast")
    axes.set_title("What imagining costs", loc="left", fontsize=10)
    axes.legend(fontsize=8)


def _draw_sizes(plan: Plan, runs: Runs, known: Readings, figure: Figure) -> None:
    figure.set_size_inches(10, 4)
    left, right = figure.subplots(1, 2)
    for name in NETWORKS:
        sizes = [size for size in plan.sizes if (REACH, name, _of(size)) in runs]
        success = [rate(list(_success(runs, REACH, name, _of(size)).ravel().astype(bool))) for size in sizes]
        means = np.array([[one.mean, one.low, one.high] for one in success if one])
        style = {"lw": 1.8, "marker": "o"} if name in MAIN else {"lw": 0, "marker": "x"}
        left.errorbar(sizes, means[:, 0], abs(means[:, 1:] - means[:, :1]).T, ms=4, capsize=2, label=name, **style)
        errors = [np.mean([one["action_error"] for one in known[REACH, name, _of(size)]]) for size in sizes]
        right.plot(sizes, errors, ms=4, **style)
    for axes, what in ((left, "success"), (right, "error of actions on other episodes")):
        axes.set_xticks(plan.sizes, plan.sizes)
        axes.set_xlabel("demonstrations")
        axes.set_ylabel(what)
    left.set_title("PixelReach-v0 with one disc, after video pre-training", loc="left", fontsize=10)
    left.legend(fontsize=7)
