"""The client's end of the wire: a connection to a server, and the requests on it.

The connection has a thread of its own, which listens, greets, pings, and starts over when the server is gone::

    GREETING --welcome--> READY --pings unanswered, or the server does not know us--> GREETING (a new socket)

and each request on it is an :class:`Exchange`::

    WAITING --part--> STREAMING --final--> OVER
        +----------------+------ dropped, error, or the connection lost --> OVER
"""

from __future__ import annotations

import itertools
import logging
import math
import queue
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import zmq

from .bell import Bell
from .frame_codec import LIMITS, Limits, WireError
from .keys import ClientKeys
from .multipart import readable, receive, send
from .protocol import BYE, HELLO, PART, PING, VERSION, WELCOME, Message, pack, unpack

log = logging.getLogger(__name__)

_PING_S = 0.5
_GREET_S = 0.5  # between two attempts to be welcomed
_QUEUED = 1000  # requests that wait for the socket
_LOST = ("NO_HELLO", "SHUTTING_DOWN")  # what a server says that is no longer, or not yet, ours


class ServerLost(ConnectionError):
    """The server does not answer: it ended, the network is cut, or a key is wrong (CURVE refuses in silence)."""


@dataclass(eq=False)
class Exchange:
    """One request; its answers arrive in ``inbox`` as ``(exchange, message)``, with ``None`` for a lost server."""

    seq: int
    inbox: Inbox
    state: Literal["WAITING", "STREAMING", "OVER"] = "WAITING"
    parts: int = 0


Inbox = queue.SimpleQueue[tuple[Exchange, Message | None]]
"""Where the answers to one or several requests arrive."""


class Connection:
    """A DEALER socket to a server, with everything that keeps it alive. Its methods may be called from any thread.

    ``url`` is the server's endpoint. ``state`` is GREETING or READY; ``generation`` counts the welcomes, so that
    whoever keeps something on the server knows when it is gone. ``clock_offset_ns`` is the server's monotonic clock
    minus ours, right within ``clock_error_ns``. ``worker_busy_ms`` is how long the agent has been at one step, as of
    the last pong. A server that answers no ping for ``silence_s`` counts as gone.

    Raises ``ValueError`` for an ``url`` that is none, ``ServerLost`` when no server answers within ``connect_s``,
    and ``WireError`` when it refuses (another version, a wrong token).
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        keys: ClientKeys | None = None,
        connect_s: float = 10.0,
        silence_s: float = 1.5,
        limits: Limits = LIMITS,
    ):
        self.url, self.limits = url, limits
        self.state: Literal["GREETING", "READY", "CLOSED"] = "GREETING"
        self.generation = 0
        self.welcome: Message = Message(WELCOME, {})
        self.clock_offset_ns, self.clock_error_ns, self.worker_busy_ms = 0, 0, 0.0
        self._token, self._keys = token, keys
        self._refused: WireError | None = None
        self._changed = threading.Condition()
        self._open: dict[int, Exchange] = {}
        self._seqs = itertools.count(1)
        self._missed = max(1, math.ceil(silence_s / _PING_S))  # pings, and the server is gone
        self._pings: deque[int] = deque(maxlen=self._missed + 1)  # t0 of those without an answer
        self._round_trips: deque[tuple[int, int]] = deque(maxlen=16)  # (round trip, offset)
        self._timer = 0.0
        self._farewells: deque[int] = deque()
        self._requests: deque[Sequence[Any]] = deque()
        self._bell = Bell()
        self._turn = threading.Lock()  # to use the socket
        self._context = zmq.Context()
        try:
            self._socket = self._connect()
        except zmq.ZMQError as error:
            self._context.destroy(0)
            self._bell.close()
            raise ValueError(f"url={url!r} is not an endpoint ({error.strerror}); write tcp://HOST:5600") from None
        self._thread = threading.Thread(target=self._run, name="palaestra-connection", daemon=True)
        self._thread.start()
        try:
            self.wait_ready(connect_s)
        except Exception:
            self.close()
            raise

    def wait_ready(self, patience_s: float) -> None:
        """Return once the server has welcomed us.

        Raises ``ServerLost`` after ``patience_s``, and ``WireError`` when it refuses us.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.state != "GREETING" or self._refused, patience_s)
            if self._refused:
                raise self._refused
            if self.state != "READY":
                reason = "was closed" if self.state == "CLOSED" else f"got no answer within {patience_s:g} s"
                raise ServerLost(
                    f"the connection to {self.url} {reason}; is the server running there, and are both keys right? "
                    f"A server refuses a wrong key in silence"
                )

    def request(
        self,
        kind: bytes,
        header: Mapping[str, Any],
        tree: Any = None,
        inbox: Inbox | None = None,
    ) -> Exchange:
        """Send a request; its answers arrive in the exchange's inbox.

        Raises ``WireError`` for what cannot travel or is larger than the server takes, before anything is sent.
        """
        exchange = Exchange(next(self._seqs), inbox or queue.SimpleQueue())
        frames = pack(kind, {"seq": exchange.seq, **header}, tree, self.limits)
        with self._changed:
            ready = self.state == "READY"
            if ready:
                self._open[exchange.seq] = exchange
        if not ready or not self._push(frames):
            self._end(exchange)
            exchange.inbox.put((exchange, None))
        return exchange

    def tell(self, kind: bytes, header: Mapping[str, Any]) -> None:
        """Send something that is not answered; lost where there is no server."""
        if self.state == "READY":
            self._push(pack(kind, header))

    def bid_farewell(self, episode: int) -> None:
        """Let the server forget an episode, at the next ping. Safe in a finalizer: takes no lock."""
        self._farewells.append(episode)

    def close(self) -> None:
        """End the connection; what is open ends as lost."""
        with self._changed:
            if self.state == "CLOSED":
                return
            self.state = "CLOSED"
            self._changed.notify_all()
        self._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(2.0)

    # --- the thread that listens ---

    def _connect(self) -> zmq.Socket:
        """A fresh socket with a fresh identity: to the server a client that was lost is a new one."""
        socket = self._context.socket(zmq.DEALER)
        socket.identity = b"P" + secrets.token_bytes(15)  # libzmq keeps those that begin with 0 to itself
        socket.linger, socket.immediate, socket.ipv6 = 0, 1, "[" in self.url
        socket.sndhwm, socket.rcvhwm = 32, 1000
        socket.maxmsgsize = self.limits.bytes
        socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 500
        socket.handshake_ivl = 2000  # a network that is cut during the handshake would else cost half a minute
        keep_alive(socket)
        if self._keys:
            socket.curve_serverkey = self._keys.server
            socket.curve_publickey, socket.curve_secretkey = self._keys.own.public, self._keys.own.secret
        socket.connect(self.url)
        return socket

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        line = self._socket.FD
        poller.register(line, select.POLLIN)
        while self.state != "CLOSED":
            with self._turn:
                while self._requests and self._send(self._requests[0]):
                    self._requests.popleft()
                self._receive()
                if time.monotonic() >= self._timer and not self._keep_alive():
                    poller.unregister(line)
                    self._socket.close(0)
                    self._socket = self._connect()
                    line = self._socket.FD
                    poller.register(line, select.POLLIN)
                wait_s = 0.002 if self._requests else max(0.0, self._timer - time.monotonic())
                if readable(self._socket):  # any use of it may have taken the signal that wakes this thread
                    wait_s = 0.0
            for awake, _ in poller.poll(math.ceil(wait_s * 1000.0)):
                if awake == self._bell.fileno():
                    self._bell.hush()
        with self._turn:
            self._lose()
            if self.generation:
                self._send(pack(BYE, {}))
            self._socket.close(50)
        self._context.term()
        self._bell.close()

    def _send(self, frames: Sequence[Any]) -> bool:
        try:
            send(self._socket, frames)
            return True
        except zmq.ZMQError:
            return False

    def _receive(self) -> None:
        while readable(self._socket) and (frames := receive(self._socket)) is not None:
            try:
                self._hear(unpack(frames, self.limits))
            except Exception as error:  # nothing that a server sends may end this thread
                log.warning("a message from %s is ignored: %s", self.url, error)

    def _hear(self, message: Message) -> None:
        match message.kind:
            case b"A" | b"F" | b"X":
                self._deliver(message.integer("seq"), message)
            case b"E":
                seq, code = message.header.get("seq"), message.header.get("code")
                if self.state == "GREETING" and seq is None and code not in _LOST:
                    with self._changed:
                        self._refused = as_error(message)
                        self._changed.notify_all()
                elif code in _LOST:
                    self._timer, self._pings = 0.0, deque([0] * self._missed, maxlen=self._missed + 1)
                elif seq is not None:
                    self._deliver(message.integer("seq"), message)
                else:
                    log.warning("the server says: %s", as_error(message))
            case b"Q":
                self._pong(message)
            case b"W":
                with self._changed:
                    self.welcome, self._refused = message, None
                    theirs = int(message.header.get("limits", {}).get("max_bytes", self.limits.bytes))
                    self.limits = replace(self.limits, bytes=min(self.limits.bytes, theirs))
                    if self.state == "GREETING":
                        self.state, self.generation = "READY", self.generation + 1
                        self._pings.clear()
                        self._timer = 0.0
                    self._changed.notify_all()

    def _deliver(self, seq: int, message: Message) -> None:
        exchange = self._open.get(seq)
        if exchange is None:
            return  # given up by us
        if message.kind == PART:
            exchange.state, exchange.parts = "STREAMING", exchange.parts + 1
        else:
            self._end(exchange)
        exchange.inbox.put((exchange, message))

    def _end(self, exchange: Exchange) -> None:
        with self._changed:
            self._open.pop(exchange.seq, None)
        exchange.state = "OVER"

    def _pong(self, message: Message) -> None:
        t3 = time.monotonic_ns()
        t0, t1, t2 = (message.integer(key) for key in ("t0", "t1", "t2"))
        if t0 not in self._pings:
            return
        self._pings.clear()
        self._round_trips.append((t3 - t0 - (t2 - t1), ((t1 - t0) + (t2 - t3)) // 2))
        round_trip, self.clock_offset_ns = min(self._round_trips)
        self.clock_error_ns = round_trip // 2
        self.worker_busy_ms = float(message.header.get("worker_busy_ms", 0.0))

    def _keep_alive(self) -> bool:
        """Greet or ping; false when the socket has to be made anew."""
        if self.state == "GREETING":
            if self._refused is None:
                sent = self._send(pack(HELLO, {"proto": VERSION, "client": "palaestra", "token": self._token}))
                self._timer = time.monotonic() + (_GREET_S if sent else 0.05)
            else:
                self._timer = time.monotonic() + _GREET_S
            return True
        if len(self._pings) >= self._missed:
            self._lose()
            return False
        while self._farewells:
            self._send(pack(BYE, {"episode": self._farewells.popleft()}))
        self._pings.append(time.monotonic_ns())
        self._send(pack(PING, {"t0": self._pings[-1]}))
        self._timer = time.monotonic() + _PING_S
        return True

    def _lose(self) -> None:
        """The server is gone: everything that is open ends."""
        with self._changed:
            if self.state == "READY":
                self.state = "GREETING"
            lost, self._open = list(self._open.values()), {}
            self._changed.notify_all()
        self._pings.clear()
        self._round_trips.clear()
        self._farewells.clear()
        self._requests.clear()
        self._timer = 0.0
        for exchange in lost:
            exchange.state = "OVER"
            exchange.inbox.put((exchange, None))

    def _push(self, frames: Sequence[Any]) -> bool:
        """Send frames, or leave them to the socket's thread; false when it has fallen behind."""
        # To wake the other thread would take longer than to send.
        if self._turn.acquire(blocking=False):
            try:
                if not self._requests and not self._socket.closed and self._send(frames):
                    if readable(self._socket):
                        self._bell.ring()
                    return True
            finally:
                self._turn.release()
        if len(self._requests) >= _QUEUED:
            return False
        self._requests.append(frames)
        self._bell.ring()
        return True


def keep_alive(socket: zmq.Socket) -> None:
    """Let the operating system find out about lines that are dead.

    Not by ZMTP heartbeats: libzmq 4.3.5 ends the whole process (``Assertion failed: !_io_error``) when their timer
    fires on a connection whose peer has hung up while its queue was full. Any client could bring that about. That
    the other side is alive and well, both sides learn from pings anyway.
    """
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 2)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)


def as_error(message: Message) -> WireError:
    """What the server refused, as it said it."""
    header = message.header
    return WireError(*(str(header.get(key) or "") for key in ("code", "message", "hint")))
