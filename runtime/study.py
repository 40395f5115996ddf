"""Studies: published claims, measured again.

A study is a module ``runtime/studies/NAME.py``, or one that another package names in the entry-point group
``palaestra.studies``. Its docstring says what was claimed and where, what is measured, and what would refute it::

    SYSTEM = "faster"            # the method or product that the claim is about
    CLAIM = "Streaming the near actions first halves the reaction time."

    def run(scale: Scale, lab: Lab) -> Study: ...

What a study finds is a list of :class:`Claim`; the verdict follows from them and is never written by hand. It is kept
in the store: the whole document as an artifact, each claim as a measurement ``study/NAME`` that names the artifact.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import os
import pkgutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from ..models.spec import nearest
from .provenance import provenance, to_json
from .statistics import Estimate
from .store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["quick", "full", "gpu"]
SCALES: tuple[Scale, ...] = ("quick", "full", "gpu")
Verdict = Literal["holds", "holds in part", "refuted", "not at this scale"]
Draw = Callable[["Figure"], None]
"""Draws on the empty figure that it is given, so that only whoever wants the picture needs matplotlib."""


@dataclass(frozen=True)
class Claim:
    """One sentence that a measurement can refute.

    ``paper`` is the published figure, ``measured`` ours, with its 95 % interval ``low`` to ``high`` where chance plays
    a part. ``holds`` is true, false, or ``None`` for void: a precondition was not met, and ``reason`` says which.

    Raises ``ValueError`` for a claim that is judged without a measurement, or void without a reason.
    """

    text: str
    paper: float | str | None
    measured: float | None
    low: float | None = None
    high: float | None = None
    holds: bool | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        for name in ("measured", "low", "high"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None or math.isnan(value) else float(value))
        if self.holds is not None:
            object.__setattr__(self, "holds", bool(self.holds))
            if self.measured is None:
                raise ValueError(f"claim {self.text!r} is judged, but nothing was measured; leave holds=None (void)")
        elif not self.reason:
            raise ValueError(f"claim {self.text!r} is void without a reason; say which precondition was not met")

    @classmethod
    def judge(
        cls,
        text: str,
        estimate: Estimate,
        *,
        at_least: float = -math.inf,
        at_most: float = math.inf,
        above: float = -math.inf,
        paper: float | str | None = None,
        reason: str = "",
        void: str = "",
    ) -> Claim:
        """A claim that holds when the whole interval keeps to the limits, and fails when all of it is beyond one.

        ``above`` is a limit that does not itself belong to what is claimed: equal is not more. ``void`` says which
        precondition was not met, and then nothing is judged; empty, where all were.

        Where the interval reaches across a limit, the measurement cannot tell, and the claim is void; so a busy
        machine widens an interval and does not turn a verdict round.
        """
        inside = at_least <= estimate.low and above < estimate.low and estimate.high <= at_most
        outside = estimate.high < at_least or estimate.high <= above or estimate.low > at_most
        holds = True if inside else False if outside else None
        if void:
            holds, reason = None, void
        elif holds is None:
            least = max(at_least, above)
            limit = least if estimate.low <= least else at_most
            undecided = f"undecided: the interval {estimate.low:.3g} to {estimate.high:.3g} reaches across {limit:.3g}"
            reason = f"{undecided}; {reason}" if reason else undecided
        return cls(text, paper, estimate.mean, estimate.low, estimate.high, holds, reason)


@dataclass(frozen=True)
class Table:
    """Rows of numbers, :class:`Estimate`, text or ``None``, one value a column. Raises ``ValueError`` otherwise."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {number} of the table {self.title!r} has {len(row)} values, expected {len(self.columns)}: "
                    f"{', '.join(self.columns)}"
                )


@dataclass(frozen=True)
class Study:
    """What a study found at a scale.

    ``pictures`` go by a name, which with that of the study names their file; each is a matplotlib figure, or a
    function that draws on one. ``seconds`` is filled in by :func:`perform`. Raises ``ValueError`` for a study
    without claims.
    """

    name: str
    scale: Scale
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...] = ()
    pictures: Mapping[str, Figure | Draw] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.claims:
            raise ValueError(f"the study {self.name!r} makes no claim; then there is nothing to refute")

    @property
    def verdict(self) -> Verdict:
        """All claims hold: holds; some: holds in part; none, and one fails: refuted; all void: not at this scale."""
        judged = [claim.holds for claim in self.claims]
        if all(judged):
            return "holds"
        if any(judged):
            return "holds in part"
        return "refuted" if False in judged else "not at this scale"

    def to_json(self) -> dict[str, Any]:
        """Plain data for one JSON document; what is not a number (nan, infinity) is ``None``."""
        return {
            "study": self.name,
            "scale": self.scale,
            "verdict": self.verdict,
            "claims": [_plain(claim) for claim in self.claims],
            "tables": [_plain(table) for table in self.tables],
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True)
class Lab:
    """What a study may use.

    ``folder`` keeps trained models and other expensive things between runs, so that an interrupted study resumes;
    ``workers`` is the number of processes; ``tell(word, done, total)`` shows progress; everything that chance decides
    comes from ``seed``.
    """

    store: Store
    folder: Path
    workers: int = 1
    tell: Callable[[str, float, float], None] = lambda word, done, total: None
    seed: int = 0


@dataclass(frozen=True)
class Entry:
    """A study that can be run. ``about`` is the docstring of its module."""

    name: str
    system: str
    claim: str
    about: str
    run: Callable[[Scale, Lab], Study]


def studies() -> dict[str, str]:
    """Every known study, by name: the module that holds it. Ours first, then those of other packages."""
    from . import studies as ours

    found = {
        module.name: f"{ours.__name__}.{module.name}"
        for module in pkgutil.iter_modules(ours.__path__)
        if not module.name.startswith("_")
    }
    return {point.name: point.value for point in entry_points(group="palaestra.studies")} | found


def find(name: str) -> Entry:
    """The study of this name. Raises ``ValueError`` with the nearest names, or saying what is wrong with its module."""
    known = studies()
    if name not in known:
        raise ValueError(f"study {name!r} is not known; {nearest(name, known)}")
    try:
        module = importlib.import_module(known[name])
    except Exception as error:
        raise ValueError(f"study {name!r} cannot be imported, {type(error).__name__}: {error}") from error
    missing = [part for part in ("SYSTEM", "CLAIM", "run") if not hasattr(module, part)]
    if missing:
        raise ValueError(f"study {name!r}: {known[name]} has no {', '.join(missing)}; see palaestra.runtime.study")
    return Entry(name, module.SYSTEM, module.CLAIM, inspect.getdoc(module) or "", module.run)


def check_scale(scale: str) -> None:
    """Raise ``ValueError`` for a scale that is none, or that this machine does not have."""
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r}, expected one of {', '.join(SCALES)}")
    if scale == "gpu":
        import torch

        if not torch.cuda.is_available():
            raise ValueError("scale='gpu' needs a CUDA device, and torch finds none; take scale='full'")


def perform(entry: Entry, scale: Scale, lab: Lab) -> Study:
    """Run a study, with its time taken. Raises ``TypeError`` for a study that returns something else."""
    check_scale(scale)
    began = time.perf_counter()
    study = entry.run(scale, lab)
    if not isinstance(study, Study):
        raise TypeError(f"the study {entry.name!r} returned a {type(study).__name__}, expected a Study")
    return replace(study, name=entry.name, scale=scale, seconds=time.perf_counter() - began)


# Results -----------------------------------------------------------------------------------------------------------


def document(entry: Entry, study: Study) -> dict[str, Any]:
    """What is kept of a study: its own JSON, what it is about, when and with what it was made."""
    return {
        **study.to_json(),
        "system": entry.system,
        "claim": entry.claim,
        "pictures": [f"{study.name}.{name}.png" for name in study.pictures],
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "provenance": provenance(("zmq", "websockets", "msgpack")),
    }


def keep(store: Store, found: Mapping[str, Any]) -> None:
    """Store a document, and each claim as a measurement that refers to it."""
    digest = hashlib.sha256(to_json(found).encode()).hexdigest()
    store.add_artifact(digest, "study", found)  # first: whatever refers to it finds it
    for claim in found["claims"]:
        data = {**claim, "scale": found["scale"], "verdict": found["verdict"], "document": digest}
        store.add_measurement(f"study/{found['study']}", claim["measured"], claim["low"], claim["high"], data)


def newest(store: Store, name: str) -> dict[str, Any] | None:
    """The newest document of a study in the store, else the one that ships with the package, else ``None``."""
    for row in store.measurements(f"study/{name}", limit=1):
        if artifact := store.artifact(row.data["document"]):
            return artifact.card
    shipped = files("palaestra.assets") / "studies" / f"{name}.json"
    return json.loads(shipped.read_text(encoding="utf-8")) if shipped.is_file() else None


def write(folder: Path, found: Mapping[str, Any], pictures: Mapping[str, Figure | Draw]) -> list[Path]:
    """Write ``NAME.json`` and the pictures into ``folder``; returns their paths, the document first.

    Everything is made beside the folder's files and then put in their place, the document last: whoever finds it
    finds all of it. An error while drawing leaves the folder as it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".study-", dir=folder) as scratch:
        drawn = [_draw(picture, Path(scratch) / f"{found['study']}.{name}.png") for name, picture in pictures.items()]
        text = Path(scratch) / f"{found['study']}.json"
        text.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        made = [*drawn, text]
        for path in made:
            os.replace(path, folder / path.name)
    return [folder / path.name for path in reversed(made)]


def _draw(picture: Figure | Draw, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if isinstance(picture, Figure):
        figure = picture
    else:
        figure = Figure(figsize=(8.0, 4.5), layout="constrained")
        picture(figure)
    FigureCanvasAgg(figure)  # no window system is asked
    figure.savefig(path, dpi=150)
    return path


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
