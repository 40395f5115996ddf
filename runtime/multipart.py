"""Frames into a ZeroMQ socket and out of it, without waiting and without pyzmq's detours.

pyzmq's own ``send_multipart`` and ``recv_multipart`` do arithmetic on enumerations and ask for an option at each frame,
which takes longer than the frames; on a round trip of a few hundred microseconds that shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from .frame_codec import Buffer

_DONTWAIT = int(zmq.DONTWAIT)
_MORE_DONTWAIT = int(zmq.DONTWAIT | zmq.SNDMORE)
_EVENTS, _POLLIN = zmq.EVENTS, int(zmq.POLLIN)
_UNCOPIED = 65_536  # bytes from which lending memory to ZeroMQ costs less than copying it
_KEPT = 256  # bytes from which a frame is worth keeping instead of copying it out


def send(socket: zmq.Socket, frames: Sequence[Buffer]) -> None:
    """Send a message; large frames are lent, not copied, so they must not be written to until they are gone.

    Raises ``zmq.Again`` when the queue is full, and then nothing was sent.
    """
    last = len(frames) - 1
    for n, frame in enumerate(frames):
        socket.send(frame, _DONTWAIT if n == last else _MORE_DONTWAIT, len(frame) < _UNCOPIED)


def receive(socket: zmq.Socket) -> list[Buffer] | None:
    """The next message, its large frames as views of what arrived; ``None`` when none waits."""
    buffers: list[Buffer] = []
    try:
        more = True
        while more:
            frame = socket.recv(_DONTWAIT, False)
            buffers.append(frame.buffer if len(frame) > _KEPT else frame.bytes)
            more = frame.more
    except zmq.Again:
        return None
    return buffers


def readable(socket: zmq.Socket) -> bool:
    """Whether a message waits.

    A thread that sleeps on the ``FD`` of a socket is woken once for what is new, by a signal that any use of the
    socket may take away. So whoever has used it asks here, and wakes the sleeper when there is something.
    """
    return bool(int(socket.get(_EVENTS)) & _POLLIN)
