"""``palaestra episodes``: look at what is stored."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from .console import number, out, quiet, table


def episodes(
    env: Annotated[str | None, typer.Option(help="Only this environment.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="The episodes of this run, one line each.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many lines, newest first.", min=1)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Show stored runs, or the episodes of one.

    Examples:

    `palaestra episodes --agent flow`

    `palaestra episodes --run 20260301-120000-ab12cd --json`
    """
    with quiet():
        from ..store import Store
    store = Store()
    if run is None:
        _show_runs(store.runs(env_id=env, agent=agent, limit=limit), as_json)
        return
    rows = store.episodes(run_id=run, env_id=env, agent=agent, limit=None if as_json else limit)
    if not rows:
        raise ValueError(f"run={run!r} has no stored episodes in {store.location()}; see `palaestra episodes`")
    rows = sorted(rows, key=lambda row: row.position)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], default=str, ensure_ascii=False))
        return
    shown = table("seed", "success", "score", "ticks", "seconds", "evaluations", "failed")
    for row in rows:
        success = {True: "yes", False: "no", None: "-"}[row.success]
        evaluations = number(row.costs.get("evaluations"), 0)
        shown.add_row(
            str(row.seed), success, number(row.score, 3), str(row.ticks), number(row.seconds), evaluations, row.reason
        )
    out.print(shown)


def _show_runs(runs: list, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(run) for run in runs], default=str, ensure_ascii=False))
        return
    if not runs:
        out.print("no episodes are stored yet; `palaestra run` makes some")
        return
    shown = table("run", "environment", "agent", "clock", "mode", "n", "success", "95 %", "score", "failed")
    for run in runs:
        shown.add_row(
            run.run_id,
            run.env_id,
            run.agent + (" *" if run.privileged else ""),
            run.clock + (f" {run.profile}" if run.profile else ""),
            run.mode,
            str(run.episodes),
            number(run.success),
            "-" if run.success is None else _interval(run),
            number(run.score),
            str(run.failed or ""),
        )
    out.print(shown)
    if any(run.privileged for run in runs):
        out.print("[dim]* privileged: reads the simulator's state[/]")


def _interval(run: Any) -> str:
    from ..statistics import bounded_mean

    estimate = bounded_mean([1.0] * run.successes + [0.0] * (run.episodes - run.successes))
    return f"{estimate.low:.2f} to {estimate.high:.2f}" if estimate else "-"
