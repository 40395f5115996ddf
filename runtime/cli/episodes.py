"""``palaestra episodes``: look at what is stored."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import number, out, quiet, table


def episodes(
    env: Annotated[str | None, typer.Option(help="Only this environment; * stands for anything.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent; * stands for anything.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="The episodes of this run, one line each.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many lines, newest first.", min=1)] = 20,
    rewards: Annotated[
        Path | None,
        typer.Option(help="Write the scores of all these episodes to this file, as rewards of a dispatcher."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Show stored runs, or the episodes of one; or make rewards of them.

    A table of rewards says what each agent scored in each environment, so all of these need episodes of each other;
    palaestra/MatchingBandit-v0:instance=dispatcher,rewards=FILE draws from it.

    Examples:

    `palaestra episodes --agent flow`

    `palaestra episodes --run 20260301-120000-ab12cd --json`

    `palaestra episodes --agent "admittance*" --env "palaestra/GuardedWipe-v0*" --rewards rewards.json`
    """
    with quiet():
        from ..store import Store
    store = Store()
    of_env, of_agent = _exact(env), _exact(agent)
    if rewards is not None:
        found = store.episodes(of_env, of_agent, run)
        _write_rewards(rewards, _like(found, env, agent), as_json)
        return
    if run is None:
        starred = (of_env, of_agent) != (env, agent)
        runs = store.runs(of_env, of_agent, limit=None if starred else limit)
        _show_runs(_like(runs, env, agent)[:limit], as_json)
        return
    rows = _like(store.episodes(of_env, of_agent, run, limit=None if as_json else limit), env, agent)
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


def _exact(name: str | None) -> str | None:
    """What the store can look up by itself: a name without a star."""
    return None if name is None or "*" in name else name


def _like(rows: list[Any], env: str | None, agent: str | None) -> list[Any]:
    """The rows whose environment and agent are as asked for."""
    for name, column in ((env, "env_id"), (agent, "agent")):
        if name is not None:
            pattern = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
            rows = [row for row in rows if pattern.fullmatch(getattr(row, column))]
    return rows


def _write_rewards(path: Path, rows: list[Any], as_json: bool) -> None:
    from ..reward_table import bilinear_fit, pair_means, reward_table, write_table

    made = reward_table(rows)
    write_table(path, made)
    users, items, means = made["users"]["names"], made["items"]["names"], pair_means(made)
    _, r2 = bilinear_fit(made)
    if as_json:
        found = {
            "rewards": str(path),
            "users": users,
            "items": items,
            "means": means.tolist(),
            "bilinear_r2": None if r2 != r2 else r2,
            "made_by": made["made_by"],
        }
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    shown = table("environment", *(f"({k + 1})" for k in range(len(users))))
    for name, column in zip(items, means.T, strict=True):
        shown.add_row(name, *(number(mean, 2) for mean in column))
    out.print(shown)
    for k, name in enumerate(users):
        out.print(f"({k + 1}) {name}", markup=False, soft_wrap=True)
    made_by = made["made_by"]
    without = made_by["episodes_without_score"]
    out.print(
        f"mean scores of {made_by['episodes']} episodes{f', and {without} without a score' if without else ''}; R² of "
        f"a bilinear fit: {number(r2, 2)}; written to {path}",
        soft_wrap=True,
    )


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
