"""Pictures of flat worlds, painted with numpy: no OpenGL, and about ten microseconds a shape."""

from __future__ import annotations

import numpy as np

Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""


class Raster:
    """Paints discs and bars onto a square picture of a square piece of the plane, with edges one pixel wide.

    ``size`` is the picture's side in pixels, ``corner`` the point (x, y) of the plane at its lower left, ``side`` the
    length of the plane that it shows; x runs to the right and y upwards. A picture in the making is float32 [size,
    size, 3], top row first; later shapes cover earlier ones. What lies outside is left out.
    """

    def __init__(self, size: int, corner: tuple[float, float], side: float) -> None:
        self._size, self._corner = size, corner
        self._pixel = side / size
        middles = self._pixel * (np.arange(size) + 0.5)
        self._x = (corner[0] + middles).astype(np.float32)
        self._y = (corner[1] + middles)[::-1].astype(np.float32)

    def blank(self, colour: Colour) -> np.ndarray:
        """A picture of one colour."""
        return np.full((self._size, self._size, 3), colour, np.float32)

    def disc(self, picture: np.ndarray, x: float, y: float, radius: float, colour: Colour) -> None:
        """Paint a disc about (x, y)."""
        rows, columns = self._window(x, y, radius, radius)
        across, upward = self._x[columns] - x, self._y[rows] - y
        distance = np.sqrt((upward * upward)[:, None] + across * across)
        _cover(picture[rows, columns], self._share(radius, distance), colour)

    def bar(self, picture: np.ndarray, x: float, y: float, half_x: float, half_y: float, colour: Colour) -> None:
        """Paint an upright rectangle about (x, y), given half its width and half its height."""
        rows, columns = self._window(x, y, half_x, half_y)
        across = self._share(half_x, np.abs(self._x[columns] - x))
        upward = self._share(half_y, np.abs(self._y[rows] - y))
        _cover(picture[rows, columns], upward[:, None] * across, colour)

    def _window(self, x: float, y: float, half_x: float, half_y: float) -> tuple[slice, slice]:
        """Rows and columns of the pixels that a shape of this reach can touch."""
        pixel, last = self._pixel, self._size
        left, low = (x - self._corner[0]) / pixel, (y - self._corner[1]) / pixel
        wide, high = half_x / pixel + 1, half_y / pixel + 1
        bottom, top = (min(max(int(edge), 0), last) for edge in (low - high, low + high + 1))
        first, end = (min(max(int(edge), 0), last) for edge in (left - wide, left + wide + 1))
        return slice(last - top, last - bottom), slice(first, end)

    def _share(self, half: float, distance: np.ndarray) -> np.ndarray:
        """The share of pixels at this distance that a shape covers; one thinner than a pixel covers what it can."""
        return ((half - distance) / self._pixel + 0.5).clip(0.0, min(1.0, 2 * half / self._pixel))


def finish(picture: np.ndarray) -> np.ndarray:
    """The picture as uint8; the original can be painted on."""
    return np.rint(picture).astype(np.uint8)


def _cover(part: np.ndarray, share: np.ndarray, colour: Colour) -> None:
    part += share[..., None] * (np.array(colour, np.float32) - part)
