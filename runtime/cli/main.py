"""The command ``palaestra``. Each command is a file of this folder; they are loaded when called."""

from __future__ import annotations

import os
import sys
import warnings

import typer

from .doctor import doctor
from .drive import drive
from .episodes import episodes
from .lists import app as lists
from .run import run
from .serve import serve
from .study import app as study
from .train import train

app = typer.Typer(
    name="palaestra",
    help="Run any agent in any Gymnasium environment, and know how sure the result is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(train)
app.add_typer(lists, name="list")
app.command()(serve)
app.command()(drive)
app.command()(episodes)
app.add_typer(study, name="study")
app.command()(doctor)


def _version(value: bool) -> None:
    if value:
        from ... import __version__

        typer.echo(f"palaestra {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line; a wrong call ends with a sentence and exit code 2, failed work with 1."""
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"warning: {message}\n"  # the sentence alone
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # an agent or environment of one's own is named from where one stands
    try:
        app()
    except ValueError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
