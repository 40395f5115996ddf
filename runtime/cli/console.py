"""What the commands share in talking to a person: tables on stdout, progress and trouble on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

out = Console(highlight=False, width=None if sys.stdout.isatty() else 200)  # a pipe has no edge to fold at
err = Console(stderr=True, highlight=False)

_LOG_EVERY_S = 60.0


@contextmanager
def progress_bar(title: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show progress while the block runs; call what it yields as ``bar(done, word, total)``.

    A bar with an estimate of the time left on a terminal, one line a minute in a log.
    """
    if not err.is_terminal:
        last = time.monotonic()

        def log(done: float, word: str = "", total: float | None = total) -> None:
            nonlocal last
            if time.monotonic() - last >= _LOG_EVERY_S:
                last = time.monotonic()
                err.print(f"{title}: {done:g} of {total or '?'} {word}")

        yield log
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[word]}"),
    )
    with Progress(*columns, console=err, transient=True, redirect_stdout=False, redirect_stderr=True) as progress:
        task = progress.add_task(title, total=total, word="")
        yield lambda done, word="", total=total: progress.update(task, completed=done, word=word, total=total)


@contextmanager
def quiet() -> Iterator[None]:
    """Send to stderr whatever third-party code prints, also from C: stdout is for results."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the house style."""
    made = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def number(value: Any, digits: int = 2) -> str:
    """A number for a table, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
