"""``palaestra study``: measure a published claim again."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from .console import err, out, progress_bar, quiet, table

app = typer.Typer(help="Published claims, measured again: run, list, show.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

_MARKS = {True: "[green]holds[/]", False: "[red]fails[/]", None: "[yellow]void[/]"}
_COLORS = {"holds": "green", "holds in part": "yellow", "refuted": "red", "not at this scale": "yellow"}


@app.command()
def run(
    name: Annotated[str | None, typer.Argument(help="Study (see `palaestra study list`).")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every study that there is, one after the other.")] = False,
    scale: Annotated[
        str, typer.Option(help="quick: within a minute. full: ten, or what the study says. gpu: where there is one.")
    ] = "quick",
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of document and pictures (default: data folder).")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes (default: one a core).", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Decides everything that chance decides.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Measure again what was published. The verdict is computed from the measurement.

    Document and pictures go to a folder, the claims to the store. Exit code 0: it ran, whatever the verdict;
    1: it failed; 2: the call was wrong.

    Examples:

    `palaestra study run serving`

    `palaestra study run serving --scale full --out results`

    `palaestra study run --all --json`
    """
    with quiet():
        from ..provenance import provenance
        from ..store import Store
        from ..study import check_scale, find, studies
    if (name is None) != everything:
        raise ValueError("name a study (`palaestra study list`), or take --all, not both")
    with quiet():
        check_scale(scale)
        entries = [find(one) for one in (sorted(studies()) if everything else [name or ""])]
        store = Store()
        workers = workers or provenance()["machine"]["cores"]
    found, failed = [], 0
    for entry in entries:
        target = data_folder(entry.name) if folder is None else folder / entry.name if everything else folder
        document = _run(entry, scale, store, target, workers, seed, as_json)
        if document is None:
            failed += 1
        else:
            found.append(document)
    if as_json and (found or everything):
        typer.echo(json.dumps(found if everything else found[0], ensure_ascii=False))
    if failed:
        raise typer.Exit(1)


@app.command("list")
def list_(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Every study with its newest verdict.

    Examples:

    `palaestra study list`

    `palaestra study list --markdown`
    """
    with quiet():
        from ..store import Store
        from ..study import find, newest, studies

        store = Store()
        rows: list[dict[str, Any]] = []
        for name in sorted(studies()):
            try:
                entry = find(name)
                row: dict[str, Any] = {"study": name, "system": entry.system, "claim": entry.claim}
            except ValueError as error:  # one that is broken must not hide the others
                row = {"study": name, "system": None, "claim": str(error)}
            known = newest(store, name) or {}
            rows.append(row | {key: known.get(key) for key in ("verdict", "scale", "date")})
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    columns = ("study", "system", "claim", "verdict", "scale", "date")
    cells = [
        [str(row[c] or "-").partition("T")[0] if c == "date" else str(row[c] or "-") for c in columns] for row in rows
    ]
    if markdown:
        for line in (columns, ["---"] * len(columns), *cells):
            typer.echo("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |")
        return
    shown = table(*columns)
    for line in cells:
        color = _COLORS.get(line[3], "dim")
        shown.add_row(*map(escape, line[:3]), f"[{color}]{line[3]}[/]", *line[4:])
    out.print(shown)
    out.print("\n[dim]palaestra study run NAME measures; palaestra study show NAME shows what was found[/]")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Study (see `palaestra study list`).")],
    as_json: Json = False,
) -> None:
    """What a study is about, and what it found the last time.

    Example: `palaestra study show serving`
    """
    with quiet():
        from ..store import Store
        from ..study import find, newest

        entry, known = find(name), newest(Store(), name)
    if as_json:
        typer.echo(json.dumps(known, ensure_ascii=False))
        return
    out.print(escape(entry.about), soft_wrap=True)
    out.print()
    if known is None:
        out.print(f"not measured yet: palaestra study run {name}")
        return
    _show(known)
    out.print(f"measured {known['date']}", soft_wrap=True)


def data_folder(name: str) -> Path:
    """Where the document and the pictures of a study go, and in ``models`` what it trains."""
    from platformdirs import user_data_path

    return user_data_path("palaestra") / "studies" / name


def _run(
    entry: Any, scale: Any, store: Any, target: Path, workers: int, seed: int, as_json: bool
) -> dict[str, Any] | None:
    """Run one study, keep and show what it found; ``None``, with a sentence, when it failed."""
    from ..study import Lab, document, keep, perform, write

    models = data_folder(entry.name) / "models"
    for folder in (models, target):  # now, and not after the measurement
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"the folder {folder} cannot be made ({error.strerror}); choose another by --out"
            ) from None
        if not os.access(folder, os.W_OK):
            raise ValueError(f"the folder {folder} cannot be written to; choose another by --out")
    try:
        with progress_bar(f"study {entry.name}") as bar, quiet():
            lab = Lab(store, models, workers, lambda word, done, total: bar(done, word, total), seed)
            study = perform(entry, scale, lab)
            found = document(entry, study)
            written = write(target, found, study.pictures)
            keep(store, found)
    except KeyboardInterrupt:
        err.print(f"[yellow]interrupted;[/] what was trained is kept in {models}", soft_wrap=True)
        raise typer.Exit(1) from None
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
        err.print(f"[red]study {entry.name} failed:[/] {escape(said)}", soft_wrap=True)
        return None
    if not as_json:
        _show(found)
        for path in written:
            out.print(f"  {path}", soft_wrap=True)
    return found


def _show(found: dict[str, Any]) -> None:
    """A document for a person: the verdict, the claims, the tables."""
    color = _COLORS[found["verdict"]]
    out.print(
        f"[bold]{found['study']}[/]: [{color}]{found['verdict']}[/] at scale {found['scale']}, "
        f"{found['seconds']:.0f} s\n  {escape(found['claim'])}",
        soft_wrap=True,
    )
    shown = table("", "claim", "published", "measured", "95 % interval")
    for claim in found["claims"]:
        text = escape(claim["text"]) + (f"\n[dim]{escape(claim['reason'])}[/]" if claim["reason"] else "")
        interval = "-" if claim["low"] is None else f"{_cell(claim['low'])} to {_cell(claim['high'])}"
        shown.add_row(_MARKS[claim["holds"]], text, _cell(claim["paper"]), _cell(claim["measured"]), interval)
    out.print(shown)
    for one in found["tables"]:
        out.print()
        shown = table(*one["columns"], title=f"[bold]{escape(one['title'])}[/]")
        for row in one["rows"]:
            shown.add_row(*map(_cell, row))
        out.print(shown)


def _cell(value: Any) -> str:
    """A value of a table: text as it is, a number to four digits, an estimate with its interval."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return f"{_cell(value['mean'])} [{_cell(value['low'])}, {_cell(value['high'])}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape(str(value))
