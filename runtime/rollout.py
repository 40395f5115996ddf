"""Runs episodes of an agent in an environment and keeps every one of them: the main job.

:func:`run` is what ``palaestra run`` calls. Episodes are seeded ``seed, seed+1, ...``, so that two agents with the
same seed meet the same worlds; each is stored as it finishes, and an interrupted run can be resumed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch

from .. import __version__
from ..agents.agent import Agent, Episode
from ..agents.network import NetworkAgent
from ..envs.conversion import Conversion, interface_of, reconcile
from ..models.backend import Backend
from .clock import Clock, Lockstep, Virtual, Wall
from .executor import Execution, Executor, Outcome, Watcher
from .latency import profile
from .provenance import config_hash, provenance
from .recording import EpisodeRecord, Recorder
from .registry import make_agent, make_env
from .statistics import Estimate, mean, rate
from .store import EpisodeRow, Store
from .video import VideoWriter, concatenate
from .workers import WorkerDied, Workers

VIDEO_EPISODES = 3  # the first episodes of a run are filmed, the rest would only be longer


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what an episode gives, except its seed.

    Raises ``ValueError`` for settings that contradict each other.
    """

    env: str
    agent: str
    backend: str = ""
    clock: str = "lockstep"
    profile: str | None = None
    execution: Execution = field(default_factory=Execution)
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.clock not in ("lockstep", "virtual", "wall"):
            raise ValueError(f"clock={self.clock!r} is not known; choose lockstep, virtual or wall")
        if self.clock == "lockstep" and self.profile is not None:
            raise ValueError(f"profile={self.profile!r} needs clock='virtual': in lockstep thinking takes no time")
        if self.clock == "wall" and self.profile is not None:
            raise ValueError(f"profile={self.profile!r} needs clock='virtual': on the wall clock time is measured")
        if self.clock == "lockstep" and self.execution.mode != "sync":
            raise ValueError(
                f"mode={self.execution.mode!r} needs clock='virtual' or 'wall': the lockstep world waits for the agent"
            )
        if self.lanes < 1:
            raise ValueError(f"lanes={self.lanes}, expected at least 1")
        if self.clock == "wall" and self.lanes > 1:
            raise ValueError(f"lanes={self.lanes} needs a simulated clock: in real time one episode runs at a time")

    def make_clock(self) -> Clock:
        """The clock of this run."""
        match self.clock:
            case "lockstep":
                return Lockstep()
            case "wall":
                return Wall()
            case _:
                return Virtual(profile("zero" if self.profile is None else self.profile))


@dataclass(frozen=True)
class Group:
    """Seeds that are run in step with each other in one process, and what to keep of them."""

    seeds: tuple[int, ...]
    film: tuple[Path | None, ...]
    record: bool = False


@dataclass(frozen=True)
class RunResult:
    """A finished run: its rows and what they say together."""

    run_id: str
    config: RunConfig
    rows: tuple[EpisodeRow, ...]
    seconds: float
    new: int
    video: Path | None = None

    @property
    def failed(self) -> int:
        """Episodes that ended in an error."""
        return sum(row.failed for row in self.rows)

    @property
    def success(self) -> Estimate | None:
        """Success rate with its Wilson interval; a failed episode is no success. ``None`` without a notion of it."""
        if all(row.success is None for row in self.rows):
            return None
        return rate([bool(row.success) for row in self.rows])

    @property
    def score(self) -> Estimate | None:
        """Mean score of the episodes that did not fail, with its bootstrap interval."""
        return mean([row.score for row in self.rows if row.score is not None])

    def cost(self, name: str) -> Estimate | None:
        """Mean of one cost column over the episodes that have it."""
        return mean([row.costs[name] for row in self.rows if name in row.costs])

    def to_json(self) -> dict[str, Any]:
        """The document that ``palaestra run --json`` prints."""

        def interval(estimate: Estimate | None) -> dict[str, float] | None:
            return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high} if estimate else None

        return {
            "env": self.config.env,
            "agent": self.config.agent,
            "clock": self.config.clock,
            "episodes": len(self.rows),
            "success": interval(self.success),
            "score": interval(self.score),
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "run_id": self.run_id,
            "profile": self.config.profile,
            "backend": self.config.backend,
            "lanes": self.config.lanes,
            "new": self.new,
            "video": str(self.video) if self.video else None,
        }


def run(
    env: str,
    agent: str | Agent,
    *,
    episodes: int = 10,
    seed: int = 0,
    backend: str = "",
    clock: str = "lockstep",
    profile: str | None = None,
    execution: Execution | None = None,
    lanes: int = 1,
    workers: int = 1,
    resume: bool = False,
    store: Store | None = None,
    video: Path | None = None,
    record: Path | None = None,
    progress: Callable[[EpisodeRow, int], None] | None = None,
) -> RunResult:
    """Run ``episodes`` episodes and return their rows, each stored as it finished.

    ``env`` and ``agent`` are names as :mod:`~.registry` reads them; an ``Agent`` object is taken too, with one
    worker. ``workers`` spreads episodes over processes and never changes a result; ``lanes`` steps that many
    episodes together in each process, which may change last bits. ``resume`` continues the newest run of this
    very configuration. ``video`` films the first episodes, ``record`` is the folder of a Minari data set.
    ``progress`` is called with each new row and the number of rows done.

    Raises ``ValueError`` for a call that cannot work, before the first episode. An episode that fails does not
    raise: its row says why.
    """
    if episodes < 1:
        raise ValueError(f"episodes={episodes}, expected at least 1")
    if seed < 0:
        raise ValueError(f"seed={seed}, expected 0 or more")
    if seed + episodes > 2**63 - 1:
        raise ValueError(f"seed={seed}, expected at most 2^63-1 for the last episode; choose a smaller one")
    if workers < 1:
        raise ValueError(f"workers={workers}, expected at least 1")
    if isinstance(agent, Agent) and workers > 1:
        raise ValueError(f"workers={workers} needs an agent by name, so that each process can make its own")
    name = agent if isinstance(agent, str) else f"{type(agent).__module__}:{type(agent).__qualname__}"
    if clock == "wall" and workers > 1:
        raise ValueError(f"workers={workers} needs a simulated clock: processes in real time would disturb each other")
    Backend.parse(backend).require_running()
    config = RunConfig(env, name, backend, clock, profile, execution or Execution(), lanes)
    began = time.perf_counter()
    runner = EpisodeRunner(config, agent if isinstance(agent, Agent) else None)
    try:
        store = store or Store()
        digest = config_hash({**asdict(config), "seed": seed, "checkpoint": runner.checkpoint, "version": __version__})
        run_id = (store.latest_run(digest) if resume else None) or _new_run_id()
        rows = {row.position: row for row in store.episodes(run_id=run_id)} if resume else {}
        rows = {position: row for position, row in rows.items() if position < episodes}
        recorder = Recorder(record, runner.envs[0], env, name, run=run_id) if record else None
        groups, films = _groups(config, seed, episodes, set(rows), video, recorder is not None)
        new = 0
        for outcomes in _outcomes(runner, config, groups, workers):
            for outcome, trajectory in outcomes:
                position = outcome.seed - seed
                if position in rows:  # ran again only to keep its lane company
                    continue
                row = runner.row(run_id, digest, position, outcome)
                new += store.add_episode(row)
                if recorder and trajectory is not None:
                    recorder.add(trajectory)
                rows[position] = row
                if progress:
                    progress(row, len(rows))
        if recorder:
            recorder.close()
        filmed = concatenate([film for film in films if film.exists()], video) if video else None
    finally:
        runner.close()
    ordered = tuple(rows[position] for position in sorted(rows))
    return RunResult(run_id, config, ordered, time.perf_counter() - began, new, filmed)


class EpisodeRunner:
    """The agent, the environments and the executor of a run in one process; callable on a :class:`Group`."""

    def __init__(self, config: RunConfig, agent: Agent | None = None):
        self.config = config
        if agent is None:
            agent = make_agent(config.agent, config.env, Backend.parse(config.backend))
        self.agent = agent
        self.checkpoint = agent.card["weights"]["sha256"] if isinstance(agent, NetworkAgent) else None
        self.executor = Executor(agent, config.make_clock(), config.execution)
        self._renders = False
        self.envs: list[gymnasium.Env] = []
        self.conversion: Conversion
        self._ready(1)
        if agent.privileged:
            self.envs[0].reset(seed=0)  # an expert reads a world that has begun
        world = type(self.envs[0].unwrapped).__module__.partition(".")[0]
        self._packages = {world, type(agent).__module__.partition(".")[0]} - {"palaestra", "__main__"}
        agent.reset(self._episode(self.envs[0], 0))  # a checkpoint that does not fit is refused here

    def __call__(self, group: Group) -> list[tuple[Outcome, EpisodeRecord | None]]:
        """Run the episodes of a group, in step."""
        if any(group.film) and not self._renders:
            self.close()
            self._renders = True
        self._ready(len(group.seeds))
        lanes = [(env, self._episode(env, seed)) for env, seed in zip(self.envs, group.seeds, strict=False)]
        watchers: list[Watcher | None] = [
            _Watch(self._caption(episode), film, group.record) if film or group.record else None
            for (_, episode), film in zip(lanes, group.film, strict=True)
        ]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # small networks only lose by more, and the same bits come out on every machine
        try:
            outcomes = self.executor.run(lanes, watchers)
        finally:
            torch.set_num_threads(threads)
        stopped = any(getattr(env.unwrapped, "stopped", None) for env in self.envs)
        if any(outcome.failed for outcome in outcomes) and not stopped:
            # A world that raised may be in any state. A robot that was stopped must not come back as a new one.
            self.close()
        return [
            (outcome, watcher.record if isinstance(watcher, _Watch) else None)
            for outcome, watcher in zip(outcomes, watchers, strict=True)
        ]

    def close(self) -> None:
        """Close the environments; the next group makes new ones."""
        for env in self.envs:
            env.close()
        self.envs = []

    def row(self, run_id: str, digest: str, position: int, outcome: Outcome) -> EpisodeRow:
        """The row of an outcome, with everything needed to get it again."""
        clock = self.executor.clock
        kept = {f.name: getattr(outcome, f.name) for f in fields(outcome) if f.name != "reactions_s"}
        return EpisodeRow(
            run_id=run_id,
            config_hash=digest,
            position=position,
            env_id=self.config.env,
            agent=self.config.agent,
            privileged=self.agent.privileged,
            backend=self.config.backend,
            clock=clock.name,
            profile=clock.profile,
            mode=self.config.execution.mode,
            lanes=self.config.lanes,
            interface=self.conversion.summary,
            provenance={**provenance(self._packages), "checkpoint": self.checkpoint, "config": asdict(self.config)},
            **kept,
        )

    def _ready(self, lanes: int) -> None:
        while len(self.envs) < lanes:
            env = make_env(self.config.env, render=self._renders)
            try:
                horizon = self.config.execution.horizon or None
                self.conversion = reconcile(self.agent.interface, interface_of(env), horizon=horizon)
                self.envs.append(self.conversion.wrap(env))
            except ValueError:
                env.close()
                raise

    def _episode(self, env: gymnasium.Env, seed: int) -> Episode:
        world = env.unwrapped
        interface = interface_of(env)
        hz = interface.control_hz if interface else env.metadata.get("render_fps")
        if hz is None and not self.executor.clock.waits_for_agent:
            raise ValueError(
                f"{self.config.env} does not say how many actions it takes per second (no interface card, no "
                f"metadata['render_fps']), which clock={self.config.clock!r} needs; use clock='lockstep'"
            )
        return Episode(
            seed=seed,
            env_id=self.config.env,
            observation_space=env.observation_space,
            action_space=env.action_space,
            interface=interface,
            control_hz=hz,
            instruction=getattr(world, "instruction", None),
            options={"expert": getattr(world, "expert", None)} if self.agent.privileged else {},
        )

    def _caption(self, episode: Episode) -> str:
        return f"{self.config.agent} · {self.config.env} · seed {episode.seed}"


class _Watch:
    """Films an episode, keeps it for a data set, or both."""

    def __init__(self, caption: str, film: Path | None, record: bool):
        self._caption, self._film = caption, film
        self._writer: VideoWriter | None = None
        self._env: gymnasium.Env | None = None
        self._tick = 0
        self._keep = record
        self.record: EpisodeRecord | None = None

    def reset(self, env: gymnasium.Env, observation: Any) -> None:
        self._env = env
        if self._film:
            self._writer = VideoWriter(self._film, fps=env.metadata.get("render_fps") or 30)
            self._shoot()
        if self._keep:
            self.record = EpisodeRecord.begin(observation)

    def step(self, step: Any, info: dict[str, Any]) -> None:
        self._tick += 1
        if self._writer:
            self._shoot()
        if self.record:
            self.record.add(step, info)

    def close(self, outcome: Outcome) -> None:
        if self._writer:
            word = {True: "success", False: "no success", None: f"score {outcome.score}"}[outcome.success]
            for _ in range(10):  # hold the last picture with the result, long enough to be read
                self._shoot(outcome.reason or word)
            if self._writer:
                self._writer.close()
        if self.record:
            self.record.seed = outcome.seed
            if outcome.failed:
                self.record = None

    def _shoot(self, word: str = "") -> None:
        assert self._writer is not None
        assert self._env is not None
        try:
            picture: Any = self._env.render()
            self._writer.add(picture, f"{self._caption} · tick {self._tick} {word}")
        except BaseException:
            self._writer.discard()
            self._writer = None  # what cannot be filmed once is not asked again
            raise


def _groups(
    config: RunConfig, seed: int, episodes: int, done: set[int], video: Path | None, record: bool
) -> tuple[list[Group], list[Path]]:
    """Cut the seeds into groups of ``lanes``, leaving out groups that are done; and the parts of the film.

    The cut depends on nothing but the seeds, so that an episode meets the same company in every run.
    """
    groups, films = [], []
    for first in range(0, episodes, config.lanes):
        positions = range(first, min(first + config.lanes, episodes))
        if done.issuperset(positions):
            continue
        film: list[Path | None] = [None] * len(positions)
        for lane, position in enumerate(positions):
            if video and position < VIDEO_EPISODES:
                film[lane] = video.with_suffix(f".part{position}{video.suffix}")
        films += [part for part in film if part]
        groups.append(Group(tuple(seed + position for position in positions), tuple(film), record))
    return groups, films


def _outcomes(
    runner: EpisodeRunner, config: RunConfig, groups: Sequence[Group], workers: int
) -> Iterator[list[tuple[Outcome, EpisodeRecord | None]]]:
    """The outcomes of each group, from this process or from several."""
    if workers == 1 or len(groups) < 2:
        yield from map(runner, groups)
        return
    pool: Workers[Group, list[tuple[Outcome, EpisodeRecord | None]]] = Workers(
        min(workers, len(groups)), partial(EpisodeRunner, config)
    )
    try:
        for group, result in pool.results(groups):
            if isinstance(result, WorkerDied):
                yield [(Outcome(seed, failed=True, reason=str(result)), None) for seed in group.seeds]
            else:
                yield result
    finally:
        pool.close()


def _new_run_id() -> str:
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
