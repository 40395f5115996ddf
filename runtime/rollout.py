"""Runs episodes of an agent in an environment and keeps every one of them: the main job.

:func:`run` is what ``palaestra run`` calls. Episodes are seeded ``seed, seed+1, ...``, so that two agents with the
same seed meet the same worlds; each is stored as it finishes, and an interrupted run can be resumed.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
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
from ..models.spec import Spec, parse_spec
from .client import RemoteAgent
from .clock import Clock, Lockstep, Virtual, Wall
from .executor import Execution, Executor, Outcome, Watcher
from .frame_codec import WireError
from .latency import profile
from .provenance import config_hash, provenance
from .recording import EpisodeRecord, Recorder
from .registry import make_agent, make_env
from .server import PolicyServer
from .statistics import Estimate, bounded_mean, mean, rate
from .store import EpisodeRow, Store
from .video import concatenate
from .watch import Watch
from .workers import WorkerDied, Workers

VIDEO_EPISODES = 3  # the first episodes of a run are filmed, the rest would only be longer
_SECRETS = ("expert", "foresee")  # what a world tells privileged agents alone
_PATIENCE_S = 600.0  # of workers with the server of their own parent, which cannot be lost without them


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what an episode gives, except its seed.

    ``serve`` has one agent plan for all worker processes; plans that are made together may change last bits.
    Raises ``ValueError`` for settings that contradict each other.
    """

    env: str
    agent: str
    backend: str = ""
    clock: str = "lockstep"
    profile: str | None = None
    execution: Execution = field(default_factory=Execution)
    lanes: int = 1
    serve: bool = False

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

    @property
    def public(self) -> RunConfig:
        """As it may be stored and shown: without the word that a server wants to hear."""
        if "token=" not in self.agent:
            return self
        spec = parse_spec(self.agent)
        return replace(self, agent=str(Spec(spec.name, {k: v for k, v in spec.options.items() if k != "token"})))

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
    """A finished run: its rows and what they say together. ``trouble`` is a film that could not be made, and why."""

    run_id: str
    config: RunConfig
    rows: tuple[EpisodeRow, ...]
    seconds: float
    new: int
    video: Path | None = None
    trouble: str | None = None

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
        """Mean score of the episodes that did not fail: with a Wilson interval in [0, 1], else a bootstrap one."""
        scores = [row.score for row in self.rows if row.score is not None]
        return bounded_mean(scores) if all(0 <= score <= 1 for score in scores) else mean(scores)

    def cost(self, name: str) -> Estimate | None:
        """Mean of one cost column over the episodes that have it."""
        return mean([row.costs[name] for row in self.rows if name in row.costs])

    def _means(self, columns: str) -> dict[str, float]:
        values: dict[str, list[float]] = {}
        for row in self.rows:
            for name, value in getattr(row, columns).items():
                values.setdefault(name, []).append(value)
        return {name: sum(found) / len(found) for name, found in sorted(values.items())}

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
            "costs": self._means("costs"),
            "seconds": round(self.seconds, 3),
            "run_id": self.run_id,
            "profile": self.config.profile,
            "seed": min((row.seed for row in self.rows), default=None),
            "execution": asdict(self.config.execution),
            "metrics": self._means("metrics"),
            "backend": self.config.backend,
            "lanes": self.config.lanes,
            "served": self.config.serve,
            "new": self.new,
            "video": str(self.video) if self.video else None,
            "trouble": self.trouble,
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
    serve: bool = False,
    resume: bool = False,
    store: Store | None = None,
    video: Path | None = None,
    record: Path | None = None,
    name: str | None = None,
    ready: Callable[[EpisodeRunner], None] | None = None,
    progress: Callable[[EpisodeRow, int], None] | None = None,
) -> RunResult:
    """Run ``episodes`` episodes and return their rows, each stored as it finished.

    ``env`` and ``agent`` are names as :mod:`~.registry` reads them; an ``Agent`` object is taken too, with one
    worker, and is called ``name`` in the rows (default: its class). ``workers`` spreads episodes over processes and
    never changes a result; ``lanes`` steps that many episodes together in each process, which may change last bits.
    With ``serve`` the workers have no agent of their own: one in this process plans for all of them, which may change
    last bits too, and pays for networks that are large; the time of one that plans in 2 ms goes into the socket.
    ``resume`` continues the newest run of this very configuration. ``video`` films the first episodes, with what an
    agent imagines beside what it sees; ``record`` is the folder of a Minari data set, for which a resumed run repeats
    the episodes that the set lacks.
    ``ready`` is called once, before the first episode, when agent and environment are made and fit each other;
    ``progress`` with each new row and the number of rows done.

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
    if isinstance(agent, Agent) and workers > 1 and not serve:
        raise ValueError(f"workers={workers} needs an agent by name, so that each process can make its own")
    if isinstance(agent, str):
        name = agent
    elif name is None:
        name = f"{type(agent).__module__}:{type(agent).__qualname__}"
    if clock == "wall" and workers > 1:
        raise ValueError(f"workers={workers} needs a simulated clock: processes in real time would disturb each other")
    Backend.parse(backend).require_running()
    config = RunConfig(env, name, backend, clock, profile, execution or Execution(), lanes, serve)
    began = time.perf_counter()
    here = workers == 1 and not serve
    runner = EpisodeRunner(config, agent if isinstance(agent, Agent) else None, render=here and video is not None)
    films: list[Path] = []
    filmed = trouble = None
    try:
        store = store or Store()
        settings = {**asdict(config.public), "seed": seed, "checkpoint": runner.checkpoint, "version": __version__}
        digest = config_hash(settings)
        run_id = (store.latest_run(digest) if resume else None) or _new_run_id(digest if resume else None)
        rows = {row.position: row for row in store.episodes(run_id=run_id)} if resume else {}
        rows = {position: row for position, row in rows.items() if position < episodes}
        recorder = Recorder(record, runner.envs[0], env, config.public.agent, run=run_id) if record else None
        done = _recorded(rows, recorder, clock) if recorder else set(rows)
        groups, films = _groups(config, seed, episodes, done, video, recorder is not None)
        if ready:
            ready(runner)
        new = 0
        for outcomes in _outcomes(runner, config, groups, workers):
            for outcome, trajectory in outcomes:
                position = outcome.seed - seed
                if recorder and trajectory is not None:
                    recorder.add(trajectory)  # before the row, so that a run that is killed in between repeats it
                if position in rows:  # ran again only for the data set, or to keep its lane company
                    continue
                row = runner.row(run_id, digest, position, outcome)
                new += store.add_episode(row)
                rows[position] = row
                if progress:
                    progress(row, len(rows))
        if recorder:
            recorder.close()
    finally:
        runner.close()
        if video:
            filmed, trouble = _join(films, video)
    ordered = tuple(rows[position] for position in sorted(rows))
    return RunResult(run_id, config.public, ordered, time.perf_counter() - began, new, filmed, trouble)


class EpisodeRunner:
    """The agent, the environments and the executor of a run in one process; callable on a :class:`Group`.

    ``render`` makes environments that can be filmed from the start, which spares making them twice. Raises
    ``ValueError`` for an agent and an environment that do not fit each other.
    """

    def __init__(self, config: RunConfig, agent: Agent | None = None, render: bool = False):
        self.config = config
        if agent is None:
            agent = make_agent(config.agent, config.env, Backend.parse(config.backend))
        self.agent = agent
        self.checkpoint: str | None = None
        self._served: dict[str, Any] = {}
        if isinstance(agent, NetworkAgent):
            self.checkpoint = agent.checkpoint
        elif isinstance(agent, RemoteAgent):
            self.checkpoint = agent.served.get("checkpoint")
            self._served = {"served": dict(agent.served)}
        self.executor = Executor(agent, config.make_clock(), config.execution)
        self._renders = render
        self.envs: list[gymnasium.Env] = []
        self.conversion: Conversion
        self._ready(1)
        if agent.privileged:
            self.envs[0].reset(seed=0)  # an expert reads a world that has begun
        world = type(self.envs[0].unwrapped).__module__.partition(".")[0]
        self._packages = {world, type(agent).__module__.partition(".")[0]} - {"palaestra", "__main__"}
        try:
            agent.reset(self.episode(self.envs[0], 0))  # a checkpoint that does not fit is refused here
        except WireError as error:
            self.close()
            raise ValueError(f"agent {config.public.agent!r}: {error}") from error

    def __call__(self, group: Group) -> list[tuple[Outcome, EpisodeRecord | None]]:
        """Run the episodes of a group, in step."""
        if any(group.film) and not self._renders:
            self.close()
            self._renders = True
        self._ready(len(group.seeds))
        lanes = [(env, self.episode(env, seed)) for env, seed in zip(self.envs, group.seeds, strict=False)]
        watchers: list[Watcher | None] = [
            Watch(self._caption(episode), film, group.record, self.agent.imagines) if film or group.record else None
            for (_, episode), film in zip(lanes, group.film, strict=True)
        ]
        with _one_thread():
            outcomes = self.executor.run(lanes, watchers)
        robots = any(getattr(env.unwrapped, "irreplaceable", False) for env in self.envs)
        if any(outcome.failed for outcome in outcomes) and not robots:
            # A world that raised may be in any state. A robot must not come back as a new one without a person.
            self.close()
        return [
            (outcome, watcher.record if isinstance(watcher, Watch) else None)
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
            agent=self.config.public.agent,
            privileged=self.agent.privileged,
            backend=self.config.backend,
            clock=clock.name,
            profile=clock.profile,
            mode=self.config.execution.mode,
            lanes=self.config.lanes,
            interface=self.conversion.summary,
            provenance={
                **provenance(self._packages),
                **self._served,
                "checkpoint": self.checkpoint,
                "config": asdict(self.config.public),
            },
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

    def episode(self, env: gymnasium.Env, seed: int) -> Episode:
        """What the agent may know of the episode with this seed."""
        world = env.unwrapped
        interface = interface_of(env)
        hz = interface.control_hz if interface else env.metadata.get("render_fps")
        if hz is None and not self.executor.clock.waits_for_agent:
            lacks = "its card has no control_hz" if interface else "no interface card, no metadata['render_fps']"
            raise ValueError(
                f"{self.config.env} does not say how many actions it takes per second ({lacks}), which "
                f"clock={self.config.clock!r} needs; use clock='lockstep'"
            )
        return Episode(
            seed=seed,
            env_id=self.config.env,
            observation_space=env.observation_space,
            action_space=env.action_space,
            interface=interface,
            control_hz=hz,
            instruction=getattr(world, "instruction", None),
            options=self._secrets(world) if self.agent.privileged else {},
        )

    def _secrets(self, world: Any) -> dict[str, Any]:
        """What only privileged agents are told. In real time they think beside the physics, so none may be copied."""
        told = {name: getattr(world, name, None) for name in _SECRETS}
        return told if self.config.clock != "wall" else {**told, "foresee": None}

    def _caption(self, episode: Episode) -> str:
        return f"{self.config.public.agent} · {self.config.env} · seed {episode.seed}"


def _recorded(rows: Mapping[int, EpisodeRow], recorder: Recorder, clock: str) -> set[int]:
    """The positions that a data set has, or will not get because they failed: the others are run again for it."""
    done = {position for position, row in rows.items() if row.failed or row.seed in recorder.seeds}
    if clock == "wall" and len(done) < len(rows):
        raise ValueError(
            f"the data set {recorder.dataset_id} lacks {len(rows) - len(done)} episodes of the run to be resumed, "
            f"which do not happen twice in real time; leave --resume or --record out"
        )
    return done


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
    if not groups:
        return
    if not config.serve and (workers == 1 or len(groups) < 2):
        yield from map(runner, groups)
        return
    with ExitStack() as stack:
        make = partial(EpisodeRunner, config)
        if config.serve:
            make = partial(_served_runner, config, stack.enter_context(_inference_server(runner)))
        pool: Workers[Group, list[tuple[Outcome, EpisodeRecord | None]]] = Workers(min(workers, len(groups)), make)
        stack.callback(pool.close)
        for group, result in pool.results(groups):
            if isinstance(result, WorkerDied):
                yield [(Outcome(seed, failed=True, reason=str(result)), None) for seed in group.seeds]
            else:
                yield result


@contextmanager
def _inference_server(runner: EpisodeRunner) -> Iterator[str]:
    """Serve the runner's agent to the workers of this process, and to nobody else; yields the address."""
    with tempfile.TemporaryDirectory(prefix="palaestra-") as folder, _one_thread():  # a folder of this user alone
        server = PolicyServer(
            runner.agent,
            runner.episode(runner.envs[0], 0),
            f"ipc://{folder}/agent",
            client_timeout_s=_PATIENCE_S,
            hang_s=_PATIENCE_S,
            warmup=False,  # an agent that fails fails its episodes
        )
        with server:
            yield server.bind


def _served_runner(config: RunConfig, url: str) -> EpisodeRunner:
    """What runs groups in a worker whose parent serves the agent."""
    return EpisodeRunner(config, RemoteAgent(url, timeout_s=_PATIENCE_S, patience_s=_PATIENCE_S, silence_s=_PATIENCE_S))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small networks only lose by more threads, and with one the same bits come out on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _join(films: Sequence[Path], video: Path) -> tuple[Path | None, str | None]:
    """Put the filmed episodes into one video, or say why not; no parts are left, whatever happened before."""
    try:
        return concatenate([film for film in films if film.exists()], video), None
    except (OSError, RuntimeError, ValueError) as error:  # the episodes are worth more than their film
        return None, f"there is no video: {str(error).splitlines()[0]}"
    finally:
        for film in films:
            for part in (film, *film.parent.glob(f".{film.stem}.*.partial.mp4")):
                part.unlink(missing_ok=True)


def _new_run_id(digest: str | None = None) -> str:
    """A name for a run; the same for all that begin to run the same configuration on the same day to resume it."""
    now = datetime.now(timezone.utc)
    return f"{now:%Y%m%d}-{digest[:12]}" if digest else f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
