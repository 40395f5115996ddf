"""Wakes a thread that sleeps in a poller: whoever has something for it rings."""

from __future__ import annotations

import os
from contextlib import suppress


class Bell:
    """A pipe with at most a few bytes in it. ``ring`` may be called from any thread; register the bell for POLLIN."""

    def __init__(self) -> None:
        self._ear, self._rope = os.pipe()
        os.set_blocking(self._ear, False)
        os.set_blocking(self._rope, False)

    def fileno(self) -> int:
        """What a poller watches."""
        return self._ear

    def ring(self) -> None:
        """Wake the sleeper; does nothing after ``close``."""
        with suppress(OSError):  # it rings already, or there is nobody any more
            os.write(self._rope, b"\0")

    def hush(self) -> None:
        """Stop ringing, before looking for what there is to do."""
        with suppress(BlockingIOError):
            os.read(self._ear, 4096)

    def close(self) -> None:
        """Take the bell down. A second call does nothing."""
        ear, rope, self._ear, self._rope = self._ear, self._rope, -1, -1
        for end in (ear, rope):
            if end >= 0:
                os.close(end)
