"""``palaestra list``: what there is to run."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .console import out, quiet, table

app = typer.Typer(help="What there is: environments, agents, latency profiles.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def _print(rows: list[dict[str, str]], as_json: bool, hint: str) -> None:
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    shown = table(*rows[0])
    for row in rows:
        shown.add_row(*row.values())
    out.print(shown)
    out.print(f"\n[dim]{hint}[/]")


@app.command()
def envs(as_json: Json = False) -> None:
    """Environments of the suite and perturbations; any other Gymnasium id runs as well.

    Example: `palaestra list envs`
    """
    with quiet():
        import palaestra

        from ...envs import WORLDS
        from ...envs.wrappers import PERTURBATIONS
        from ...models.checkpoint import shipped_names
    assert palaestra
    shipped = shipped_names()
    rows = [
        {
            "environment": f"palaestra/{name}-v0",
            "trained agents": ", ".join(a for a, e in shipped if e == f"{name}-v0"),
        }
        for name in WORLDS
    ]
    rows += [{"environment": f"...+{name}", "trained agents": ""} for name in PERTURBATIONS]
    _print(rows, as_json, "palaestra run ENV AGENT; options follow a colon: palaestra/BallIntercept-v0:pixels=64")


@app.command()
def agents(as_json: Json = False) -> None:
    """Agents of the suite and those that other packages offer.

    Example: `palaestra list agents`
    """
    with quiet():
        from ..registry import agent_class, agent_names
    rows = []
    for name in agent_names():
        cls = agent_class(name)
        note = "privileged" if cls.privileged else ""
        rows.append({"agent": name, "what it does": (cls.__doc__ or "").strip().partition("\n")[0], "note": note})
    _print(rows, as_json, "your own: palaestra run ENV my_module:MyAgent")


@app.command()
def profiles(as_json: Json = False) -> None:
    """Latency profiles of the virtual clock.

    Example: `palaestra list profiles`
    """
    from ..latency import profiles

    rows = [
        {
            "profile": p.name,
            "encode, ms": f"{p.encode_ms:g}",
            "evaluation, ms": f"{p.evaluation_ms:g}",
            "source": p.source,
        }
        for p in profiles().values()
    ]
    _print(rows, as_json, "your own: --profile encode_ms=20,evaluation_ms=5 or --profile FILE.json#NAME")
