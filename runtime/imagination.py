"""What an agent foresees beside what it sees: a panel in the film of an episode.

An agent that sets ``imagines`` says in the extras of its plans which pictures it foresees: ``"imagined"``, uint8
[T, H, W, C], and ``"imagined_in"``, at how many ticks after the observation, int [T]. The panel shows the picture that
is seen, the one that had been foreseen for it, and those that the newest plan foresees. How good a forecast is, is told
by its PSNR, beside that of the forecast that nothing moves: on a still ground any picture looks like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, inf, log10
from typing import NamedTuple

import numpy as np

from ..agents.agent import Observation
from ..models.data.demonstrations import flatten
from .video import GROUND, INK, Ink, enlarged, line_of_text, magnification

_SEEN, _FORESEEN, _FAINT, _EMPTY = INK, (255, 184, 77), (150, 150, 155), (34, 34, 38)
_COLUMNS = 3  # at most, of what a plan foresees
_LETTERS = 10  # the least width of a column, in heights of a line


class Foreseen(NamedTuple):
    """A picture [H, W, 3] for the tick ``due``, by the plan of the tick ``made``, when ``present`` was seen."""

    made: int
    due: int
    frame: np.ndarray
    present: np.ndarray


class Checked(NamedTuple):
    """A forecast whose tick has come, with its PSNR in dB, and that of the picture that was seen when it was made."""

    forecast: Foreseen
    psnr_db: float
    still_db: float


class Imagination:
    """Keeps what is foreseen in an episode until it can be checked, and draws it beside the pictures of a film.

    ``key`` is the picture of the observation that is foreseen, uint8 [H, W, C] (nested keys are joined by a slash), and
    ``ahead`` are the ticks after the observation at which it is: so many forecasts are shown. Of more than three
    channels the first three are shown and compared, of one or two the first.

    ``plan`` is what the newest plan foresees. ``checked`` is the forecast for the newest tick that has come and was
    foreseen, by the newest plan that did; also one that arrives after its tick, for that is no fault of its picture.
    """

    def __init__(self, key: str, ahead: tuple[int, ...]) -> None:
        self.key = key
        self.checked: Checked | None = None
        self.plan: list[Foreseen] = []
        self._count = len(ahead)
        self._tick = 0
        self._shape: tuple[int, ...] = ()
        self._seen: dict[int, np.ndarray] = {}  # by tick, back to that of the newest plan
        self._awaited: dict[int, Foreseen] = {}  # by the tick that is to come

    def see(self, tick: int, observation: Observation) -> None:
        """What is seen at ``tick``. Raises ``ValueError`` where the observation has no such picture."""
        parts = flatten(observation)
        picture = parts.get(self.key)
        if picture is None or picture.dtype != np.uint8 or picture.ndim != 3:
            found = sorted(key for key, part in parts.items() if part.ndim == 3)
            raise ValueError(f"the agent imagines {self.key!r}, expected a picture of the observation: {found}")
        self._tick, self._shape = tick, picture.shape
        self._seen[tick] = _rgb(picture)
        if tick in self._awaited:
            self._check(self._awaited.pop(tick))

    def foresee(self, tick: int, extras: Mapping[str, np.ndarray]) -> None:
        """Part of the plan of ``tick`` has arrived, with these extras.

        Raises ``ValueError`` for pictures of another kind than the one that is seen, and for ticks that are no count.
        """
        self._seen = {then: frame for then, frame in self._seen.items() if then >= tick}
        if "imagined" not in extras:
            return
        frames, ahead = np.asarray(extras["imagined"]), np.asarray(extras.get("imagined_in"))
        if frames.dtype != np.uint8 or frames.shape[1:] != self._shape:
            raise ValueError(
                f"extras['imagined'] is {frames.dtype} of shape {frames.shape}, expected uint8 [T, "
                f"{', '.join(map(str, self._shape))}] like the picture {self.key!r}"
            )
        if ahead.dtype.kind not in "iu" or ahead.shape != frames.shape[:1] or (ahead < 0).any():
            raise ValueError(
                f"extras['imagined_in'] is {ahead.tolist()}, expected for each of the {len(frames)} imagined pictures "
                f"the ticks after the observation, 0 or more"
            )
        present = self._seen[tick]
        self.plan = [
            Foreseen(tick, tick + int(n), _rgb(frame), present) for n, frame in zip(ahead, frames, strict=True)
        ]
        for forecast in self.plan:
            if forecast.due > self._tick:
                self._awaited[forecast.due] = forecast
            elif self.checked is None or forecast.due >= self.checked.forecast.due:
                self._check(forecast)

    def beside(self, picture: np.ndarray) -> np.ndarray:
        """The picture, uint8 [H, W, 3], with the panel to its right: of one size for all pictures of one size."""
        picture = enlarged(picture, magnification(picture.shape[1]))
        height, width = picture.shape[:2]
        columns = min(max(self._count, 2), _COLUMNS)
        rows = 1 + ceil(self._count / columns)
        line, least = max(16, height // 30), max(4, height // 120)
        text = (2 * rows + 1) * line  # above and below each row, and the verdict on the first
        factor = max(1, (height - text - (rows + 1) * least) // (rows * self._shape[0]))
        high, wide = self._shape[0] * factor, self._shape[1] * factor
        gap = max(least, (height - text - rows * high) // (rows + 1))
        tall = max(height, text + rows * high + (rows + 1) * gap)
        cell = max(wide, _LETTERS * line) + line
        canvas = np.full((tall, width + columns * cell + line, 3), GROUND, np.uint8)
        top = (tall - height) // 2
        canvas[top : top + height, :width] = picture

        def write(words: str, x: int, y: int, room: int, ink: Ink) -> None:
            canvas[y : y + line, x : x + room] = line_of_text(words, room, line, ink, int(line * 0.75), 0)

        def hang(tile: _Tile, x: int, y: int) -> None:
            write(tile.title, x, y, cell - line // 2, tile.ink)
            canvas[y + line : y + line + high, x : x + wide] = (
                _EMPTY if tile.frame is None else enlarged(tile.frame, factor)
            )
            write(tile.note, x, y + line + high, cell - line // 2, _FAINT)

        left, below = width + line, 2 * line + high
        for column, tile in enumerate(self._present()):
            hang(tile, left + column * cell, gap)
        write(self._verdict(), left, gap + below, columns * cell, _FORESEEN)
        for place, tile in enumerate(self._future()):
            row, column = divmod(place, columns)
            hang(tile, left + column * cell, gap + line + (row + 1) * (gap + below))
        return canvas

    def _check(self, forecast: Foreseen) -> None:
        seen = self._seen[forecast.due]
        self.checked = Checked(forecast, _psnr_db(forecast.frame, seen), _psnr_db(forecast.present, seen))

    def _present(self) -> Iterator[_Tile]:
        """What is seen, and what of it had been foreseen."""
        now = self._tick
        yield _Tile("seen now", f"tick {now}", self._seen[now], _SEEN)
        if self.checked:
            past = self.checked.forecast
            title = "foreseen for now" if past.due == now else f"foreseen for tick {past.due}"
            yield _Tile(title, f"{_ticks(now - past.made)} ago, at tick {past.made}", past.frame, _FORESEEN)
        else:
            yield _NOTHING

    def _verdict(self) -> str:
        if self.checked is None:
            return ""
        forecast, psnr_db, still_db = self.checked
        good = "exactly so" if psnr_db == inf else f"PSNR {psnr_db:.1f} dB"
        still = "nothing moved" if still_db == inf else f"had nothing moved {still_db:.1f} dB"
        return f"tick {forecast.due}: {good}, {still}"

    def _future(self) -> Iterator[_Tile]:
        """What the newest plan foresees."""
        for forecast in self.plan[: self._count]:
            note = f"{_when(forecast.due - self._tick)}, by the plan of tick {forecast.made}"
            yield _Tile(f"foreseen for tick {forecast.due}", note, forecast.frame, _FORESEEN)
        yield from [_NOTHING] * (self._count - len(self.plan))


class _Tile(NamedTuple):
    title: str
    note: str
    frame: np.ndarray | None
    ink: Ink


_NOTHING = _Tile("foreseen", "nothing yet", None, _FORESEEN)


def _rgb(picture: np.ndarray) -> np.ndarray:
    """A copy of it as it is shown, [H, W, 3]: a picture of more channels begins with the present one."""
    return np.repeat(picture[..., :1], 3, axis=-1) if picture.shape[-1] < 3 else picture[..., :3].copy()


def _psnr_db(one: np.ndarray, other: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two pictures of 8 bits; infinite where they are the same."""
    error = np.square(one.astype(np.float64) - other).mean()
    return 10 * log10(255**2 / error) if error else inf


def _when(ticks: int) -> str:
    return "now" if not ticks else f"in {_ticks(ticks)}" if ticks > 0 else f"{_ticks(-ticks)} ago"


def _ticks(count: int) -> str:
    return f"{count} tick" if count == 1 else f"{count} ticks"
