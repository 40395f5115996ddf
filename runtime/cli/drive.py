"""``palaestra drive``: an environment or a robot here, in real time, with an agent that is served elsewhere."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.text import Text

from ..executor import Execution
from .console import err, number, quiet
from .run import check_video, show, word_of

if TYPE_CHECKING:
    from ..client import RemoteAgent
    from ..robots.as_env import RobotEnv
    from ..rollout import EpisodeRunner
    from ..store import EpisodeRow


def drive(
    env: Annotated[
        str, typer.Argument(help="Environment; robot:MODULE:CLASS for a robot, simulated:ENV for a world in real time.")
    ],
    connect: Annotated[str, typer.Option(help="Where the agent is served, as `palaestra serve` prints it.")],
    episodes: Annotated[int, typer.Option("--episodes", "-n", help="Number of episodes.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the first episode; the next has seed+1.", min=0)] = 0,
    clock: Annotated[str, typer.Option(help="wall: in real time; lockstep, virtual: as in `palaestra run`.")] = "wall",
    profile: Annotated[
        str | None, typer.Option(help="Latency profile of the virtual clock (`palaestra list profiles`).")
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="While the agent thinks: sync, async or prefix (default: async; lockstep: sync).")
    ] = None,
    horizon: Annotated[int, typer.Option(help="Ticks between two plans; 0: the agent decides.", min=0)] = 0,
    delay: Annotated[int | None, typer.Option(help="Committed ticks in mode prefix (default: estimated).")] = None,
    hold: Annotated[str, typer.Option(help="At a tick without action: zero, hold_last or decelerate.")] = "decelerate",
    max_ticks: Annotated[int, typer.Option(help="An episode longer than this counts as failed.", min=1)] = 10_000,
    max_age_s: Annotated[
        float, typer.Option(help="In real time, nothing is planned from an observation older than this.", min=0.001)
    ] = 0.5,
    patience_s: Annotated[float, typer.Option(help="How long to wait for a server that is gone.", min=0.1)] = 60.0,
    token: Annotated[str | None, typer.Option(envvar="PALAESTRA_TOKEN", help="The server's word.")] = None,
    key: Annotated[Path | None, typer.Option(help="Your own .key_secret file, for a server with keys.")] = None,
    server_key: Annotated[Path | None, typer.Option(help="The server's .key file.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a real robot moves.")] = False,
    video: Annotated[Path | None, typer.Option(help="Film the first episodes into this .mp4.")] = None,
    record: Annotated[Path | None, typer.Option(help="Keep the episodes as a Minari data set here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Drive ENV, an environment or a robot, with the agent that is served at --connect.

    While the server is gone the robot holds; Ctrl-C holds it and ends. Every episode is stored as it finishes. Exit
    code 0: all episodes ran; 1: some failed, were interrupted, or there was no server; 2: the call was wrong.

    Examples:

    `palaestra drive simulated:palaestra/BallIntercept-v0 --connect tcp://127.0.0.1:5600 -n 5`

    `palaestra drive robot:lab.arm:Arm --connect tcp://gpu.lab:5600 --key robot.key_secret --server-key gpu.key`
    """
    with quiet():
        from ..client import RemoteAgent
        from ..connection import ServerLost
        from ..frame_codec import WireError
        from ..registry import require_env
        from ..robots.robot import RobotLost
        from ..rollout import run

        require_env(env)  # before the wait for a server

    execution = Execution(
        mode=mode or ("sync" if clock == "lockstep" else "async"),  # type: ignore[arg-type]
        horizon=horizon,
        delay=delay,
        hold=hold,  # type: ignore[arg-type]
        max_ticks=max_ticks,
    )
    if video:
        check_video(video)
    try:
        err.print(f"connecting to {connect}, for up to {patience_s:g} s", soft_wrap=True)
        agent = RemoteAgent(
            connect,
            token=token,
            key=key,
            server_key=server_key,
            patience_s=patience_s,
            max_age_s=max_age_s if clock == "wall" else None,
        )
        with _Cockpit(agent, env, episodes, ask=not yes) as cockpit, quiet():
            result = run(
                env,
                agent,
                name=f"remote:url={connect}",
                episodes=episodes,
                seed=seed,
                clock=clock,
                profile=profile,
                execution=execution,
                video=video,
                record=record,
                ready=cockpit.ready,
                progress=cockpit.progress,
            )
    except WireError as error:
        raise ValueError(f"connect={connect!r}: {error}") from error
    except (ServerLost, RobotLost) as error:
        err.print(f"[red]error:[/] {error}", soft_wrap=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(result.to_json() | {"reconnects": agent.reconnects}, ensure_ascii=False))
    else:
        show(result, record)
        if agent.reconnects:
            err.print(f"the server was lost and found again {agent.reconnects} times")
    agent.close()
    if result.failed or result.trouble:
        raise typer.Exit(1)


class _Cockpit:
    """What a person at the robot sees and is asked: the card before anything moves, then a line of what happens.

    On the way out, Ctrl-C (or a SIGTERM) becomes a sentence and exit code 1; by then the robot has been told to hold.
    """

    def __init__(self, agent: RemoteAgent, env: str, episodes: int, ask: bool):
        self._agent, self._env, self._episodes, self._ask = agent, env, episodes, ask
        self._runner: EpisodeRunner | None = None
        self._rows: list[EpisodeRow] = []
        self._live = Live(self, console=err, refresh_per_second=4, transient=True)

    def __enter__(self) -> _Cockpit:
        self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        self._live.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            kept = f"{len(self._rows)} of {self._episodes} episodes are finished"
            if self._rows:
                kept += f" and stored as run {self._rows[0].run_id}"
            err.print(f"[yellow]interrupted: {self._env} was told to hold; {kept}[/]", soft_wrap=True)
            raise typer.Exit(1)

    def ready(self, runner: EpisodeRunner) -> None:
        """Show whom the robot is about to obey, and let a person say no."""
        from ..robots.as_env import RobotEnv

        served, execution = self._agent.served, runner.config.execution
        checkpoint = f", checkpoint {served['checkpoint'][:12]}" if served.get("checkpoint") else ""
        who = f"[bold]{served['name']}[/]{checkpoint}, served for {served['env_id']} at {served['url']}"
        err.print(who, soft_wrap=True)
        lines = [
            f"{1 / served['dt']:g} Hz" if served["dt"] else "no control rate",
            f"chunks of {served['H']}" if served["H"] else "",
            served.get("schedule") or "",
            f"continues up to {served['max_delay']} committed actions" if served.get("max_delay") else "",
        ]
        err.print("  " + ", ".join(filter(None, lines)), soft_wrap=True, markup=False)
        err.print(f"  interface {runner.conversion.summary}", soft_wrap=True, markup=False)
        err.print(f"  clock {runner.config.clock}, mode {execution.mode}, hold {execution.hold}")
        world = runner.envs[0].unwrapped
        if isinstance(world, RobotEnv) and not world.robot.simulated:
            self._warn(world)
        self._runner = runner
        if err.is_terminal:
            self._live.start()

    def _warn(self, world: RobotEnv) -> None:
        """A real robot: say what guards it, and ask."""
        bounds = ", ".join(limits.action for limits in world.robot.limits)
        guard = f"limits on {bounds}" if bounds else "[yellow]no limits on position, speed or force[/]"
        err.print(f"  watchdog after {1000 * world.robot.deadline_s:g} ms without a command, {guard}")
        if self._ask:
            if not sys.stdin.isatty():
                raise ValueError(
                    f"{self._env} is a real robot, and nobody is at a terminal to say that it may move; "
                    f"where that is certain, add --yes"
                )
            if not typer.confirm("This is a real robot, and it is about to move. Is everybody clear of it?", err=True):
                err.print("nothing has moved")
                raise typer.Exit(1)
            world.operator = world.operator or self._between

    def _between(self) -> None:
        """Ask before every episode but the first, where a real robot has no operator of its own."""
        if not self._rows:
            return
        self._live.stop()
        question = f"Episode {len(self._rows) + 1} of {self._episodes}: is the scene ready?"
        try:
            go_on = typer.confirm(question, default=True, err=True)
        except typer.Abort:
            go_on = False
        if not go_on:
            raise KeyboardInterrupt
        if err.is_terminal:
            self._live.start()

    def progress(self, row: EpisodeRow, done: int) -> None:
        """An episode is over."""
        self._rows.append(row)
        reason = f": {row.reason}" if row.failed else ""
        err.print(f"episode {done} of {self._episodes}: {word_of(row)}{reason}", soft_wrap=True, markup=False)

    def __rich__(self) -> Text:
        """The line, asked for four times a second by a thread that draws it."""
        lanes = self._runner.executor.lanes if self._runner else []
        if not lanes:
            return Text("")
        costs = lanes[0].costs()
        connection = self._agent.connection
        trouble = ""
        if connection.state != "READY":
            trouble = "the server does not answer: holding"
        elif connection.worker_busy_ms > 1000:
            trouble = f"the agent has been at one step for {connection.worker_busy_ms / 1000:.0f} s"
        words = [
            f"episode {len(self._rows) + 1} of {self._episodes}",
            f"tick {lanes[0].tick}",
            f"first action {number(costs.get('ttfa_ms'), 0)} ms",
            f"age {number(costs.get('age_p50_ms'), 0)} ms (95 %: {number(costs.get('age_p95_ms'), 0)})",
            f"stalls {costs['stalls']:.0f}",
            trouble,
        ]
        return Text("  ".join(filter(None, words)), style="yellow" if trouble else "")
