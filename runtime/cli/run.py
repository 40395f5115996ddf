"""``palaestra run``: episodes of an agent in an environment, with a table at the end."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..executor import Execution
from .console import err, number, out, progress_bar, quiet, table

DEMO_ENV, DEMO_AGENT, DEMO_EPISODES = "palaestra/robosuite.Lift-v0", "flow", 5

Env = Annotated[str, typer.Argument(help="Environment: any Gymnasium id, with options and perturbations.")]
_Agent = Annotated[str, typer.Argument(help="Agent: a name (see `palaestra list agents`) or module:Class.")]


def run(
    env: Env = DEMO_ENV,
    agent: _Agent = DEMO_AGENT,
    episodes: Annotated[int, typer.Option("--episodes", "-n", help="Number of episodes.", min=1)] = DEMO_EPISODES,
    seed: Annotated[int, typer.Option(help="Seed of the first episode; the next has seed+1.", min=0)] = 0,
    clock: Annotated[
        str, typer.Option(help="lockstep: the world waits for the agent. virtual: it does not. wall: in real time.")
    ] = "lockstep",
    profile: Annotated[
        str | None, typer.Option(help="Latency profile of the virtual clock (`palaestra list profiles`).")
    ] = None,
    mode: Annotated[str, typer.Option(help="While the agent thinks: sync, async or prefix.")] = "sync",
    horizon: Annotated[int, typer.Option(help="Ticks between two plans; 0: the agent decides.", min=0)] = 0,
    delay: Annotated[int | None, typer.Option(help="Committed ticks in mode prefix (default: estimated).")] = None,
    hold: Annotated[str, typer.Option(help="At a tick without action: zero, hold_last or decelerate.")] = "zero",
    ensemble: Annotated[
        float | None, typer.Option(help="Average overlapping plans, weight exp(-m i) from the oldest on.")
    ] = None,
    max_ticks: Annotated[int, typer.Option(help="An episode longer than this counts as failed.", min=1)] = 10_000,
    workers: Annotated[int, typer.Option(help="Processes; never changes a result.", min=1)] = 1,
    lanes: Annotated[int, typer.Option(help="Episodes batched in each process.", min=1)] = 1,
    serve: Annotated[
        bool, typer.Option("--serve", help="One agent plans for all workers; may change last bits, as lanes do.")
    ] = False,
    backend: Annotated[str, typer.Option(help="Methods on the agent's network, e.g. adapter=lora:path=DIR.")] = "",
    video: Annotated[
        Path | None,
        typer.Option(help="Film the first episodes into this .mp4, and beside them what an agent imagines."),
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Keep the episodes as a Minari data set here.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the newest run of this very call.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Run episodes of AGENT in ENV. Without arguments: a shipped policy lifts a cube with a Panda arm.

    Every episode is stored as it finishes (`palaestra episodes`). Exit code 0: all episodes ran; 1: some failed;
    2: the call was wrong.

    Examples:

    `palaestra run palaestra/BallIntercept-v0 flow -n 50 --lanes 25`

    `palaestra run palaestra/BallIntercept-v0 flow --clock virtual --profile xvla-4090 --mode async --horizon 4`

    `palaestra run CartPole-v1 random`
    """
    with quiet():
        from ..rollout import RunResult, run

    demo = (env, agent, video, as_json) == (DEMO_ENV, DEMO_AGENT, None, False)
    if demo:
        video = _demo_video()
    execution = Execution(
        mode=mode,  # type: ignore[arg-type]
        horizon=horizon,
        delay=delay,
        hold=hold,  # type: ignore[arg-type]
        max_ticks=max_ticks,
        ensemble=ensemble,
    )
    if video:
        check_video(video)
    with _stored_when_interrupted(), progress_bar(f"{agent} in {env}", episodes) as bar, quiet():
        result: RunResult = run(
            env,
            agent,
            episodes=episodes,
            seed=seed,
            backend=backend,
            clock=clock,
            profile=profile,
            execution=execution,
            lanes=lanes,
            workers=workers,
            serve=serve,
            resume=resume,
            video=video,
            record=record,
            progress=lambda row, done: bar(done, word_of(row)),
        )
    if as_json:
        typer.echo(json.dumps(result.to_json(), ensure_ascii=False))
    else:
        show(result, record)
    if result.failed or result.trouble:
        raise typer.Exit(1)


@contextmanager
def _stored_when_interrupted() -> Iterator[None]:
    """On Ctrl-C say what is kept, and end with code 1."""
    try:
        yield
    except KeyboardInterrupt:
        err.print("[yellow]interrupted; finished episodes are stored: the same call with --resume goes on[/]")
        raise typer.Exit(1) from None


def _demo_video() -> Path | None:
    """Where the demonstration's film goes; ``None``, with a word, where no picture can be drawn."""
    from platformdirs import user_data_path

    from ...envs.offscreen import RenderingUnavailable, backend

    try:
        backend()
    except RenderingUnavailable as error:
        err.print(f"[yellow]no video:[/] {error}")
        return None
    folder = user_data_path("palaestra") / "videos"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "demo.mp4"


def check_video(video: Path) -> None:
    """Refuse a film that cannot be made before the first episode, not after the last."""
    if video.suffix.lower() != ".mp4":
        raise ValueError(f"video={str(video)!r}, expected a name that ends in .mp4")
    if not video.absolute().parent.is_dir():
        raise ValueError(f"video={str(video)!r}: the folder {video.absolute().parent} does not exist; make it first")
    if not os.access(video.absolute().parent, os.W_OK):
        raise ValueError(f"video={str(video)!r}: the folder {video.absolute().parent} cannot be written to")


def word_of(row: Any) -> str:
    """How an episode ended, in a few words."""
    if row.failed:
        return f"seed {row.seed}: failed"
    return f"seed {row.seed}: " + ("success" if row.success else f"score {number(row.score)}")


def show(result: Any, record: Path | None) -> None:
    """The result for a person: what, how sure, at what cost, and where it is kept."""
    from ..store import Store

    config = result.config
    mark = " (privileged: reads the simulator's state)" if any(row.privileged for row in result.rows) else ""
    out.print(f"[bold]{config.agent}[/] in [bold]{config.env}[/]{mark}", soft_wrap=True)
    settings = [f"clock {config.clock}"]
    if config.clock == "virtual":
        settings.append(f"profile {config.profile or 'zero'}")
    if config.clock != "lockstep":
        settings.append(f"mode {config.execution.mode}")
    checked, *notes = result.rows[0].interface.split("; ")
    settings += [f"lanes {config.lanes}", f"interface {checked.partition(':')[0]}"]
    if config.serve:
        settings.append("served to its workers")
    if config.backend:
        settings.append(f"backend {config.backend}")
    out.print("  " + ", ".join(settings), soft_wrap=True)
    for note in notes:
        if not note.startswith("unchecked"):
            out.print(f"  {note}", soft_wrap=True)
    rows = table("", "mean", "95 % interval", "n")
    for name, estimate in (("success", result.success), ("score", result.score)):
        if estimate:
            interval = f"{estimate.low:.3f} to {estimate.high:.3f}"
            rows.add_row(name, f"{estimate.mean:.3f}", interval, str(estimate.n))
    for name, label in _COSTS.items():
        estimate = result.cost(name)
        if estimate:
            rows.add_row(label, f"{estimate.mean:.1f}", f"{estimate.low:.1f} to {estimate.high:.1f}", str(estimate.n))
    for name in sorted({name for row in result.rows for name in row.metrics}, key=_natural):
        values = [row.metrics[name] for row in result.rows if name in row.metrics]
        rows.add_row(name, f"{sum(values) / len(values):.3f}", "", str(len(values)))
    out.print(rows)
    for row in [row for row in result.rows if row.failed][:5]:
        out.print(f"[red]failed[/] seed {row.seed}: {escape(row.reason or '')}", soft_wrap=True)
    if result.failed > 5:
        out.print(f"[red]failed[/] and {result.failed - 5} more (`palaestra episodes --run {result.run_id}`)")
    done = f"{result.new} new episodes" if result.new < len(result.rows) else f"{len(result.rows)} episodes"
    out.print(f"{done} in {result.seconds:.1f} s, stored as run {result.run_id} in {Store.location()}", soft_wrap=True)
    if result.trouble:
        err.print(f"[red]{escape(result.trouble)}[/]", soft_wrap=True)
    if result.video:
        out.print(f"video: {result.video}", soft_wrap=True)
    if record:
        out.print(f"data set: {record}", soft_wrap=True)


def _natural(name: str) -> list[Any]:
    """A key that sorts ``regret_at_75`` before ``regret_at_112``."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


_COSTS = {
    "evaluations": "evaluations",
    "compute_ms": "computing a plan, ms",
    "ttfa_ms": "time to first action, ms",
    "reaction_ms": "reaction to an event, ms",
    "age_p50_ms": "age of the executed observation, median, ms",
    "age_p95_ms": "age of the executed observation, 95 %, ms",
    "age_max_ms": "age of the executed observation, oldest, ms",
    "stalls": "ticks without action",
    "late_ticks": "ticks more than half a tick late",
}
