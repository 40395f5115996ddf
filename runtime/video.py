"""Pictures of an episode as an .mp4, with a caption under them."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_MIN_WIDTH = 320  # smaller pictures are enlarged by a whole factor, or nobody could read the caption
Ink = tuple[int, int, int]
GROUND: Ink = (18, 18, 20)
INK: Ink = (235, 235, 235)


class VideoWriter:
    """An mp4 (H.264, yuv420p: every player and browser), frame by frame.

    ``path`` ends in ``.mp4``; ``fps`` is frames per second, above zero. The file appears when it is closed, whole;
    without a frame, none does. Used as a context, an exception discards it. Pictures of less than 320 pixels in
    width are enlarged by a whole factor. The first frame decides on the size, and whether there is a strip for
    captions below the picture.

    Raises ``ValueError`` for another file type, a rate that is not above zero, a frame that is no picture or of
    another size than the first; ``RuntimeError`` when the encoder fails.
    """

    def __init__(self, path: str | os.PathLike[str], fps: float = 30.0) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() != ".mp4":
            raise ValueError(f"path={str(path)!r}, expected a file name that ends in .mp4")
        if not (math.isfinite(fps) and fps > 0):
            raise ValueError(f"fps={fps}, expected frames per second above zero")
        self._fps = float(fps)
        self._partial = self.path.with_name(f".{self.path.stem}.{os.getpid()}.partial.mp4")
        self._encoder: Any = None
        self._shape: tuple[int, ...] = ()
        self._strip = 0
        self.frames = 0

    def add(self, frame: np.ndarray | None, caption: str | None = None) -> None:
        """Append a picture, uint8 [H, W, 3], with a line of text below it."""
        frame = as_picture(frame)
        if self._encoder is None:
            self._begin(frame.shape, caption is not None)
        if frame.shape != self._shape:
            raise ValueError(f"frame {self.frames} has shape {frame.shape}, the first had {self._shape}")
        picture = self._compose(frame, caption or "")
        try:
            self._encoder.send(picture)
        except (OSError, StopIteration) as error:
            self.discard()
            raise RuntimeError(f"the video encoder stopped at frame {self.frames} of {self.path}: {error}") from error
        self.frames += 1

    def close(self) -> None:
        """Finish the file and put it in its place."""
        if self._encoder is None:
            return
        encoder, self._encoder = self._encoder, None
        encoder.close()
        if not self._is_whole():
            self._partial.unlink(missing_ok=True)
            raise RuntimeError(f"the video encoder did not finish {self.path}; is there space on the disk?")
        os.replace(self._partial, self.path)

    def discard(self) -> None:
        """Give the video up; an older file at ``path`` stays."""
        if self._encoder is not None:
            encoder, self._encoder = self._encoder, None
            encoder.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _begin(self, shape: tuple[int, ...], captioned: bool) -> None:
        import imageio_ffmpeg

        height, width = shape[:2]
        self._shape = shape
        self._scale = magnification(width)
        height, width = height * self._scale, width * self._scale
        self._strip = max(18, height // 20) if captioned else 0
        # The chroma planes of yuv420p have half the size: an odd last row or column is repeated.
        self._canvas = np.empty((_even(height + self._strip), _even(width), 3), np.uint8)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._encoder = imageio_ffmpeg.write_frames(
            str(self._partial),
            (self._canvas.shape[1], self._canvas.shape[0]),
            fps=self._fps,
            codec="libx264",
            quality=None,
            macro_block_size=1,
            ffmpeg_log_level="error",
            output_params=["-crf", "20", "-preset", "veryfast", "-movflags", "+faststart"],
        )
        self._encoder.send(None)

    def _is_whole(self) -> bool:
        """Whether the file has every frame: an encoder that runs out of disk ends without a word."""
        import imageio_ffmpeg

        try:
            frames, _ = imageio_ffmpeg.count_frames_and_secs(str(self._partial))
        except (OSError, RuntimeError):
            return False
        return frames == self.frames

    def _compose(self, frame: np.ndarray, caption: str) -> np.ndarray:
        frame = enlarged(frame, self._scale)
        height, width = frame.shape[:2]
        canvas = self._canvas
        canvas[:height, :width] = frame
        canvas[height:, :width] = frame[-1] if not self._strip else GROUND
        if self._strip:
            canvas[height : height + self._strip, :width] = line_of_text(caption, width, self._strip)
        if canvas.shape[1] > width:
            canvas[:, width] = canvas[:, width - 1]
        return canvas


def concatenate(parts: Sequence[str | os.PathLike[str]], path: str | os.PathLike[str]) -> Path | None:
    """Join videos of :class:`VideoWriter` one after the other, without encoding again, and remove the parts.

    Returns ``path``, or ``None`` and makes no file when there are no parts. Raises ``ValueError`` for parts that are
    missing or of different sizes, ``RuntimeError`` when they cannot be joined; then the parts are kept.
    """
    import imageio_ffmpeg

    files, path = [Path(part) for part in parts], Path(path)
    if not files:
        return None
    sizes = {}
    for file in files:
        if not file.is_file():
            raise ValueError(f"part {str(file)!r} of the video {str(path)!r} does not exist")
        reader = imageio_ffmpeg.read_frames(str(file))
        sizes[next(reader)["size"]] = file
        reader.close()
    if len(sizes) > 1:
        shown = ", ".join(f"{width}x{height} ({file.name})" for (width, height), file in sizes.items())
        raise ValueError(f"the parts of the video {str(path)!r} have different sizes: {shown}")
    if len(files) == 1:
        os.replace(files[0], path)
        return path
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial.mp4")
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error"]
    command += ["-protocol_whitelist", "file,pipe", "-f", "concat", "-safe", "0", "-i", "pipe:0"]
    command += ["-c", "copy", "-movflags", "+faststart", str(partial)]
    escaped = [str(file.resolve()).replace("'", r"'\''") for file in files]
    listing = "".join(f"file 'file:{name}'\n" for name in escaped)
    done = subprocess.run(command, input=listing, capture_output=True, text=True)
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        raise RuntimeError(f"the parts of the video {path} could not be joined: {done.stderr.strip()}")
    os.replace(partial, path)
    for file in files:
        file.unlink()
    return path


def as_picture(frame: Any) -> np.ndarray:
    """What an environment rendered, if it is uint8 [H, W, 3] of at least one pixel. Raises ``ValueError`` if not."""
    if frame is None:
        raise ValueError("frame is None; make the environment with render_mode='rgb_array' to film it")
    frame = np.asarray(frame)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise ValueError(f"frame is {frame.dtype} of shape {frame.shape}, expected uint8 [height, width, 3]")
    if not frame.size:
        raise ValueError(f"frame has shape {frame.shape}, expected a picture of at least one pixel")
    return frame


def magnification(width: int) -> int:
    """The whole factor by which a picture of so many pixels in width is enlarged in a film."""
    return max(1, -(-_MIN_WIDTH // width))


def enlarged(picture: np.ndarray, factor: int) -> np.ndarray:
    """The picture [H, W, 3] with every pixel as a square of ``factor`` pixels a side."""
    return picture if factor == 1 else picture.repeat(factor, axis=0).repeat(factor, axis=1)


@lru_cache(maxsize=64)
def line_of_text(
    text: str, width: int, height: int, ink: Ink = INK, size: int | None = None, indent: int = 4
) -> np.ndarray:
    """A line of text as a picture, uint8 [height, width, 3]; one that is too long is set smaller, then cut.

    ``size`` is that of the letters in pixels (default: what suits the height), ``indent`` the margin on both sides.
    """
    strip = Image.new("RGB", (width, height), GROUND)
    draw = ImageDraw.Draw(strip)
    size, room = max(9, size or int(height * 0.62)), width - 2 * indent
    while size > 9 and draw.textlength(text, font=_font(size)) > room:
        size -= 1
    while text and draw.textlength(text, font=_font(size)) > room:
        text = text[:-2] + "…"
    draw.text((indent, height / 2), text, fill=ink, font=_font(size), anchor="lm")
    return np.asarray(strip)


def _even(size: int) -> int:
    return size + size % 2


@lru_cache(maxsize=64)
def _font(size: int) -> Any:
    return ImageFont.load_default(size)
