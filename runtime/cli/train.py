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

from .console import err, out, progress_bar, quiet

app = typer.Typer(help="Train an agent from an environment's expert.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Train an agent from an environment's expert."""


@app.command()
def flow(
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
    """Train a flow-matching policy: collect demonstrations, fit, evaluate, write weights and card.

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
        from ...models.flow.train import Progress, recipe_for, train
        from ..registry import make_env

        torch.set_num_threads(1)  # the same bits on every machine size; the networks are small
        changes: dict[str, Any] = {"demonstrations": demonstrations, "steps": steps}
        recipe = replace(recipe_for(env, variant), seed=seed, **{k: v for k, v in changes.items() if v is not None})
        method = Backend.parse(backend)
        world = make_env(env)
    target = (folder or user_data_path("palaestra") / "checkpoints") / name_for(
        f"flow-{variant}" if variant else "flow", env
    )
    began = time.perf_counter()
    with progress_bar(f"flow for {env}") as bar, quiet():

        def show(progress: Progress) -> None:
            losses = " ".join(f"{name} {value:.3f}" for name, value in progress.losses.items())
            bar(progress.done, f"{progress.phase} {losses}", progress.total)

        command = _command(sys.argv[1:])
        weights = train(world, recipe, target, backend=method, start=start, progress=show, card={"command": command})
        world.close()
    trained_s = time.perf_counter() - began
    scores = _evaluate(env, weights, evaluate) if evaluate else {}
    amend(weights, {"scores": scores})
    if as_json:
        typer.echo(json.dumps({"checkpoint": str(weights), "seconds": round(trained_s, 1), "scores": scores}))
        return
    for name, score in scores.items():
        out.print(f"{name}: success {_interval(score['success'])}, score {_interval(score['score'])}, n {evaluate}")
    out.print(f"trained in {trained_s:.0f} s: {weights}", soft_wrap=True)
    out.print(f"run it: palaestra run {env} flow:checkpoint={weights}", soft_wrap=True)


def _command(arguments: list[str]) -> str:
    """The call as it goes on the card: without the folder, which says nothing about the result."""
    kept = [a for before, a in zip(["", *arguments], arguments, strict=False) if "--out" not in (before, a)]
    return shlex.join(["palaestra", *(a for a in kept if not a.startswith("--out="))])


def _evaluate(env: str, weights: Path, episodes: int) -> dict[str, Any]:
    """Scores of the new agent and of the expert on the same seeds, in lockstep."""
    from ..rollout import run

    scores = {}
    for name, agent in (("flow", f"flow:checkpoint={weights}"), ("expert", "expert")):
        with progress_bar(f"evaluating {name}", episodes) as bar, quiet():
            lanes = min(episodes, 25) if name == "flow" else 1
            result = run(env, agent, episodes=episodes, lanes=lanes, progress=partial(_advance, bar))
        if result.failed:
            err.print(f"[red]{result.failed} episodes of {name} failed:[/] {result.rows[0].reason}")
        document = result.to_json()
        scores[name] = {key: document[key] for key in ("success", "score", "episodes", "failed", "clock", "lanes")}
    return scores


def _advance(bar: Callable[..., None], row: Any, done: int) -> None:
    bar(done)


def _interval(estimate: dict[str, float] | None) -> str:
    return "-" if estimate is None else f"{estimate['mean']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"
