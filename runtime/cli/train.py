"""``palaestra train``: make an agent from an environment's expert, and measure it before it is believed."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from .console import err, out, progress_bar, quiet


def train(
    agent: Annotated[str, typer.Argument(help="Agent that can be trained: flow, favla, wam, selector.")],
    env: Annotated[str, typer.Argument(help="Environment with an expert, with options: ID:pixels=32.")],
    variant: Annotated[str, typer.Option(help="A variant of the shipped recipe, such as constant.")] = "",
    demonstrations: Annotated[int | None, typer.Option(help="Episodes to collect.", min=1)] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Decides everything that chance decides.", min=0)] = 0,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the checkpoint (default: data folder).")
    ] = None,
    backend: Annotated[str, typer.Option(help="Methods for training, e.g. optim=adamw:lr=0.0005.")] = "",
    start: Annotated[Path | None, typer.Option("--from", help="Checkpoint to go on from.")] = None,
    evaluate: Annotated[int, typer.Option(help="Episodes to measure the result on; 0: do not.", min=0)] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Train an agent: collect demonstrations of an environment's expert, fit, evaluate, write weights and card.

    A selector learns from other agents instead, in games that it plays by itself.

    The options that made the shipped checkpoint of ENV are the defaults, so the same command makes it again.

    Examples:

    `palaestra train flow palaestra/BallIntercept-v0`

    `palaestra train flow palaestra/robosuite.Lift-v0 --demonstrations 100 --steps 2000 --out checkpoints`
    """
    with quiet():
        import torch
        from platformdirs import user_data_path

        from ...models.backend import Backend
        from ...models.checkpoint import amend, name_for
        from ...models.training import NonFiniteLoss, Progress
        from ..registry import make_env, trainer_of

        torch.set_num_threads(1)  # the same bits on every machine size; the networks are small
        changes: dict[str, Any] = {"demonstrations": demonstrations, "steps": steps}
        trainer = trainer_of(agent)
        recipe = replace(
            trainer.recipe_for(env, variant), seed=seed, **{k: v for k, v in changes.items() if v is not None}
        )
        method = Backend.parse(backend)
        world = make_env(env)
    target = (folder or user_data_path("palaestra") / "checkpoints") / name_for(
        f"{agent}-{variant}" if variant else agent, env
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out={str(target.parent)!r} cannot be a folder: {error.strerror}") from error
    began = time.perf_counter()
    with progress_bar(f"{agent} for {env}") as bar, quiet():

        def show(progress: Progress) -> None:
            losses = " ".join(f"{name} {value:.3f}" for name, value in progress.losses.items())
            bar(progress.done, f"{progress.phase} {losses}", progress.total)

        command = _command(sys.argv[1:])
        made = {"command": command}
        try:
            weights = trainer.train(world, recipe, target, backend=method, start=start, progress=show, card=made)
        except KeyboardInterrupt:
            kept = target.with_name(f"{target.name}.demonstrations").exists()
            what = f"demonstrations so far are kept beside {target}" if kept else "nothing is kept"
            err.print(f"[yellow]interrupted;[/] {what}", soft_wrap=True)
            raise typer.Exit(1) from None
        except NonFiniteLoss as error:
            err.print(f"[red]training came to nothing:[/] {escape(str(error))}", soft_wrap=True)
            raise typer.Exit(1) from None
        world.close()
    trained_s = time.perf_counter() - began
    scores = _evaluate(agent, env, weights, evaluate) if evaluate else {}
    amend(weights, {"scores": scores})
    if as_json:
        typer.echo(json.dumps({"checkpoint": str(weights), "seconds": round(trained_s, 1), "scores": scores}))
    else:
        for name, score in scores.items():
            out.print(f"{name}: success {_interval(score['success'])}, score {_interval(score['score'])}, n {evaluate}")
        out.print(f"trained in {trained_s:.0f} s: {weights}", soft_wrap=True)
        out.print(f"run it: palaestra run {env} {agent}:checkpoint={weights}", soft_wrap=True)
    if any(score["failed"] for score in scores.values()):
        raise typer.Exit(1)


def _command(arguments: list[str]) -> str:
    """The call as it goes on the card: without the folder, which says nothing about the result."""
    kept = [a for before, a in zip(["", *arguments], arguments, strict=False) if "--out" not in (before, a)]
    return shlex.join(["palaestra", *(a for a in kept if not a.startswith("--out="))])


def _evaluate(agent: str, env: str, weights: Path, episodes: int) -> dict[str, Any]:
    """Scores of the new agent and of the expert on the same seeds, in lockstep."""
    from ..rollout import run

    scores = {}
    for name, call in ((agent, f"{agent}:checkpoint={weights}"), ("expert", "expert")):
        with progress_bar(f"evaluating {name}", episodes) as bar, quiet():
            lanes = 1 if name == "expert" else min(episodes, 25)
            result = run(env, call, episodes=episodes, lanes=lanes, progress=partial(_advance, bar))
        if result.failed:
            reason = next(row.reason for row in result.rows if row.failed)
            err.print(f"[red]{result.failed} episodes of {name} failed:[/] {reason}")
        document = result.to_json()
        scores[name] = {key: document[key] for key in ("success", "score", "episodes", "failed", "clock", "lanes")}
    return scores


def _advance(bar: Callable[..., None], row: Any, done: int) -> None:
    bar(done)


def _interval(estimate: dict[str, float] | None) -> str:
    return "-" if estimate is None else f"{estimate['mean']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"
