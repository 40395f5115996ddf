"""Trials of a study: train networks, run agents, on several processes; what is done is not done again."""

from __future__ import annotations

import hashlib
import inspect
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..executor import Execution
from ..rollout import run as run_episodes
from ..store import Store
from ..study import Lab
from ..workers import WorkerDied, Workers


def short(env: str) -> str:
    """The name of a world without our namespace."""
    return env.rpartition("/")[2]


@dataclass(frozen=True)
class Training:
    """Train the network of this name, of an agent for a world: its recipe with ``changes``, from a seed.

    ``start`` is another training, done before, from whose network this one starts.
    """

    agent: str
    env: str
    network: str
    changes: tuple[tuple[str, Any], ...]
    seed: int
    start: Training | None = None


@dataclass(frozen=True)
class Cell:
    """Episodes of an agent with ``options`` in a world; without a ``profile`` the world waits.

    ``network`` is one that was trained with the ``seed``, in this world or in ``trained_in``; where it ends in an
    exclamation mark, it is the variant of that name that ships (``"!"``: the one without a name), and an empty one says
    that the agent has none.
    """

    env: str
    agent: str
    network: str
    options: str
    seed: int
    episodes: int
    profile: str = ""
    execution: Execution | None = None
    first_seed: int = 0
    trained_in: str = ""

    @property
    def call(self) -> str:
        """The agent as ``palaestra run`` names it, less the checkpoint that was trained here."""
        variant = self.network.removesuffix("!") if self.network.endswith("!") else ""
        options = ",".join(filter(None, (f"variant={variant}" if variant else "", self.options)))
        return f"{self.agent}:{options}" if options else self.agent


@dataclass(frozen=True)
class Reading:
    """Numbers by name that ``function`` (``module:name``) gives of the weights and the world of a training."""

    training: Training
    function: str


class Outcome(NamedTuple):
    """What a cell gave: for each episode its score, whether it succeeded, its costs and its metrics."""

    scores: np.ndarray
    success: np.ndarray
    failed: int
    costs: Mapping[str, np.ndarray]
    metrics: Mapping[str, np.ndarray]


def require_whole(outcome: Outcome, what: str) -> Outcome:
    """The outcome, unless episodes of it failed: raises ``RuntimeError``, for a study must not pass them over."""
    if outcome.failed:
        raise RuntimeError(f"{outcome.failed} episodes of {what} failed; `palaestra run` one alone to see why")
    return outcome


def weights(folder: Path, env: str, network: str, seed: int) -> Path:
    """Where the checkpoint of a network is kept, without its suffix."""
    return folder / f"{short(env).replace(':', '-')}.{network}.{seed}"


J = TypeVar("J", Training, Cell, Reading)
Job = Training | Cell | Reading


class Bench:
    """Trains and runs, in one process; everything is kept in ``folder``, so that what is done is not done again."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.store = Store(folder / "episodes.sqlite")

    def __call__(self, job: Job) -> Any:
        """Do the job: a cell gives its outcome, a reading its numbers."""
        warnings.simplefilter("ignore", UserWarning)  # a chunk that is too short is a finding here: see the stalls
        if isinstance(job, Cell):
            return self._run(job)
        if isinstance(job, Reading):
            return self._read(job)
        return self._train(job)

    def _train(self, job: Training) -> None:
        import torch

        from ...models.checkpoint import CheckpointError, load_card
        from ...models.data.demonstrations import DemonstrationError
        from ..registry import make_env, trainer_of

        trainer = trainer_of(job.agent)
        recipe = replace(trainer.recipe_for(job.env), seed=job.seed, **dict(job.changes))
        out = weights(self.folder, job.env, job.network, job.seed)
        start = weights(self.folder, job.start.env, job.start.network, job.start.seed) if job.start else None
        begun_from = load_card(start)["weights"]["sha256"] if start else None
        try:
            card = load_card(out)
            if (card["recipe"], card["start"]) == (json.loads(json.dumps(asdict(recipe))), begun_from):
                return
        except (CheckpointError, KeyError):
            pass  # there is none, or a broken one
        torch.set_num_threads(1)
        env = make_env(job.env)
        try:
            trainer.train(env, recipe, out, start=start)
        except DemonstrationError:  # those of another recipe, interrupted
            out.with_name(f"{out.name}.demonstrations").unlink(missing_ok=True)
            trainer.train(env, recipe, out, start=start)
        env.close()

    def _read(self, job: Reading) -> dict[str, Any]:
        from ...models.checkpoint import load_card
        from ..registry import load

        path = weights(self.folder, job.training.env, job.training.network, job.training.seed)
        function = load(job.function)
        code = hashlib.sha256(inspect.getsource(inspect.getmodule(function)).encode())  # type: ignore[arg-type]
        made_of = [load_card(path)["weights"]["sha256"], code.hexdigest()]
        kept = path.with_name(f"{path.name}.{function.__name__}.json")
        if kept.is_file() and (found := json.loads(kept.read_text()))["made_of"] == made_of:
            return found
        found = {**function(path, job.training.env), "made_of": made_of}
        kept.write_text(json.dumps(found))
        return found

    def _run(self, cell: Cell) -> Outcome:
        call = cell.call
        if cell.network and not cell.network.endswith("!"):
            path = weights(self.folder, cell.trained_in or cell.env, cell.network, cell.seed)
            call += f"{',' if ':' in call else ':'}checkpoint={path}.safetensors"
        result = run_episodes(
            cell.env,
            call,
            episodes=cell.episodes,
            seed=cell.first_seed,
            clock="virtual" if cell.profile else "lockstep",
            profile=cell.profile or None,
            execution=cell.execution,
            lanes=min(cell.episodes, 50),
            resume=True,
            store=self.store,
        )
        rows = result.rows
        return Outcome(
            np.array([row.score or 0.0 for row in rows]),
            np.array([bool(row.success) for row in rows]),
            result.failed,
            _columns([row.costs for row in rows]),
            _columns([row.metrics for row in rows]),
        )


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """Each name that any row has, with its value in every row (NaN where it has none)."""
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in {name for row in rows for name in row}}


def carry_out(jobs: Sequence[J], lab: Lab, word: str) -> dict[J, Any]:
    """All jobs, on as many processes as the lab has."""
    done: dict[J, Any] = {}

    def take(job: J, outcome: Any) -> None:
        if isinstance(outcome, WorkerDied):
            raise RuntimeError(f"{job}: {outcome}")
        done[job] = outcome
        lab.tell(word, len(done), len(jobs))

    lab.tell(word, 0, len(jobs))
    if min(lab.workers, len(jobs)) <= 1:
        bench = Bench(lab.folder)
        for job in jobs:
            take(job, bench(job))
        return done
    workers: Workers[J, Any] = Workers(min(lab.workers, len(jobs)), partial(Bench, lab.folder))
    try:
        for job, outcome in workers.results(jobs):
            take(job, outcome)
    finally:
        workers.close()
    return done
