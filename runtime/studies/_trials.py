"""Trials of a study: train policies, run them under latency, on several processes; what is done is not done again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...models.spec import parse_spec
from ..executor import Execution
from ..latency import LatencyModel, profile
from ..reaction import arrivals_s, min_execution_horizon
from ..rollout import run as run_episodes
from ..store import Store
from ..study import Lab
from ..workers import WorkerDied, Workers

CHUNK, TICK_S = 24, 1 / 30  # actions a plan of the networks here, and the control period of the worlds
FREE = 4  # ticks between plans where thinking takes no time


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


def short(env: str) -> str:
    """The name of a world without our namespace."""
    return env.rpartition("/")[2]


class Timing(NamedTuple):
    """Ticks: ``delay`` until a plan's first action is here, ``horizon`` between two plans; and its arrivals in s."""

    delay: int
    horizon: int
    arrivals_s: list[float]


def timing(method: Method, latency: LatencyModel) -> Timing:
    """When a method's actions arrive under a latency, and the shortest horizon at which none comes too late."""
    from ...models.flow.schedules import make_schedule, ready_after

    options = method.options
    schedule = make_schedule(options["schedule"], CHUNK, options["steps"], options.get("alpha", 0.6))
    if latency.name == "zero":
        return Timing(0, FREE, arrivals_s(latency, ready_after(schedule.taus())))
    first_s = arrivals_s(latency, ready_after(schedule.taus()))[0]
    delay = math.ceil(first_s / TICK_S - 1e-9)
    arrivals = arrivals_s(latency, ready_after(schedule.taus(delay), delay))
    horizon = min_execution_horizon(arrivals, TICK_S)
    if horizon is None:
        raise ValueError(f"{method.name} under {latency.name}: chunks of {CHUNK} are over before they arrive")
    return Timing(delay, max(horizon, delay), arrivals)


@dataclass(frozen=True)
class Training:
    """Train a network of a world: its recipe with ``changes``, from a seed."""

    env: str
    network: str
    changes: tuple[tuple[str, Any], ...]
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
    """What a cell gave: the score of each episode, and means over them."""

    scores: np.ndarray
    jerk: float
    stalls: float
    steps: float
    failed: int


def weights(folder: Path, env: str, network: str, seed: int) -> Path:
    """Where the checkpoint of a network is kept, without its suffix."""
    return folder / f"{short(env)}.{network}.{seed}"


Job = Training | Cell


SHIPPED = ("transformer", "transformer-constant")
"""Networks that take too long to train in a study, and are those that ship."""


class Bench:
    """Trains and runs, in one process; everything is kept in ``folder``, so that what is done is not done again.

    ``shipped`` takes the networks that ship for all of them, instead of trained ones.
    """

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

        from ...models.flow.train import TRAINER
        from ..registry import make_env

        out = weights(self.folder, job.env, job.network, job.seed)
        if not out.with_name(f"{out.name}.safetensors").exists():
            torch.set_num_threads(1)
            env = make_env(job.env)
            TRAINER.train(env, replace(TRAINER.recipe_for(job.env), seed=job.seed, **dict(job.changes)), out)
            env.close()

    def _run(self, cell: Cell) -> Outcome:
        method = cell.method
        if self.shipped or method.network in SHIPPED:
            which = "" if method.network == "mixed" else f"variant={method.network},"
        else:
            which = f"checkpoint={weights(self.folder, cell.env, method.network, cell.seed)}.safetensors,"
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
            average("jerk"),
            average("stalls"),
            average("evaluations") / average("plans"),
            result.failed,
        )


def carry_out(jobs: Sequence[Job], lab: Lab, shipped: bool, word: str) -> dict[Job, Outcome]:
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
