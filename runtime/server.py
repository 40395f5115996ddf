"""Serves an agent over ZeroMQ: one ROUTER port for the native protocol and the GR00T dialect.

Two kinds of threads. The I/O thread here listens to the socket and never waits for the agent; the lanes of
:class:`~.inference.Inference` run the agent and put answers into the outbox. Whoever has the turn (a lock) may use the
socket and what is known of clients: the I/O thread, or a lane that sends its answers itself when nobody else is about
it. What a message means is the business of a front (:mod:`.fronts`).

A client that does not read for long loses parts of plans, never their ends; one that is silent for ten seconds is
forgotten.
"""

from __future__ import annotations

import ipaddress
import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import zmq
from zmq.auth.thread import ThreadAuthenticator

from ..agents.agent import Agent, Call, Episode
from ..agents.holding import zero_action
from .bell import Bell
from .connection import keep_alive
from .frame_codec import LIMITS, Buffer, Limits, WireError
from .fronts.groot import Groot
from .fronts.native import Native
from .inference import MOST_PARTS, Inference, Session
from .keys import ServerKeys
from .multipart import readable, receive, send
from .protocol import MAGIC

log = logging.getLogger(__name__)

MAX_CLIENTS = 1024
MAX_SESSIONS = 256  # of one client; the oldest makes room
_OWED = 1024  # answers kept for a client that does not read, before it is given up
_OWED_BYTES = 4 << 20  # and of parts among them: a moment of inattention costs nobody a part
_TURN_S = 0.1  # how often the house is kept


@dataclass(eq=False)
class Client:
    """What the server knows of a peer."""

    identity: bytes
    heard: float = field(default_factory=time.monotonic)
    silence_s: float = 10.0  # after which it is forgotten
    sessions: dict[int, Session] = field(default_factory=dict)  # by episode number, oldest first
    notes: dict[str, Any] = field(default_factory=dict)  # a front's own
    owed: deque[_Answer] = field(default_factory=deque)
    owed_bytes: int = 0  # of parts


@dataclass(eq=False)
class _Answer:
    """Frames on their way out. ``key`` joins the answers to one request, of which ``last`` is never dropped."""

    client: bytes
    build: Callable[[int], Sequence[Buffer]]  # given the number of parts that were dropped
    key: Hashable = None
    last: bool = True

    @property
    def size(self) -> int:
        """Bytes of a part; the rest is small."""
        return 0 if self.last else sum(map(len, self.build(0)))


class PolicyServer:
    """An agent behind a socket. Use it in a ``with`` block, or call ``start`` and ``close``.

    ``episode`` says what the agent is served for: its spaces, rate and instruction are told to clients, and clients
    that have no notion of episodes act in it. ``bind`` is a ZeroMQ endpoint; an address that other machines can reach
    needs ``keys`` (CURVE), or ``insecure=True`` from someone who means it. ``token`` is a word that native and GR00T
    clients must know. ``preempt`` stops a plan at its next step when a newer observation comes. ``batch_window_ms``:
    see :class:`Inference`. After ``hang_s`` at one step the agent counts as hung and its clients are told.
    ``warmup`` plans once on a sample observation before the port opens.

    Raises ``ValueError`` for a privileged agent, an address that would be open to strangers, and numbers out of range;
    ``OSError`` when the address is taken.
    """

    def __init__(
        self,
        agent: Agent,
        episode: Episode,
        bind: str = "tcp://127.0.0.1:5600",
        *,
        keys: ServerKeys | None = None,
        token: str | None = None,
        insecure: bool = False,
        preempt: bool = False,
        batch_window_ms: float = 0.0,
        client_timeout_s: float = 10.0,
        hang_s: float = 60.0,
        warmup: bool = True,
        limits: Limits = LIMITS,
    ):
        if agent.privileged:
            raise ValueError(
                f"{type(agent).__name__} reads the simulator's state, which no client has; it is not served"
            )
        for name, value in (("client_timeout_s", client_timeout_s), ("hang_s", hang_s)):
            if not value > 0:
                raise ValueError(f"{name}={value}, expected more than 0 s")
        require_private(bind, secured=keys is not None, insecure=insecure)
        self.agent, self.episode, self.limits, self.token = agent, episode, limits, token
        self.bind = bind
        self.warmup_ms = _warm_up(agent, episode) if warmup else 0.0
        self.inference = Inference(agent, batch_window_s=batch_window_ms / 1000.0, preempt=preempt)
        self.clients: dict[bytes, Client] = {}
        self.counts = {"messages": 0, "refused": 0, "parts_lost": 0, "forgotten": 0}
        self._keys, self._client_timeout_s, self._hang_s = keys, client_timeout_s, hang_s
        self._native, self._groot = Native(self), Groot(self)
        self._outbox: deque[_Answer] = deque()
        self._owing: set[Client] = set()
        self._lost: dict[Hashable, int] = {}
        self._stopping = False
        self._bell = Bell()
        self._turn = threading.Lock()  # to use the socket, and what is known of clients
        self._context = zmq.Context()
        self._thread = threading.Thread(target=self._run, name="palaestra-serve", daemon=True)

    # --- the owner's side ---

    def start(self) -> PolicyServer:
        """Bind and begin to answer; returns itself."""
        context = self._context
        self._authenticator: ThreadAuthenticator | None = None
        self._router = context.socket(zmq.ROUTER)
        router = self._router
        if self._keys:
            self._authenticator = ThreadAuthenticator(context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(credentials_provider=_Allowed(self._keys.allowed))
            router.curve_server = True
            router.curve_publickey, router.curve_secretkey = self._keys.own.public, self._keys.own.secret
        router.linger = 0
        router.router_mandatory = 1
        router.sndhwm, router.rcvhwm = 32, 256
        router.maxmsgsize = self.limits.bytes
        keep_alive(router)
        router.ipv6 = "[" in self.bind
        try:
            router.bind(self.bind)
        except zmq.ZMQError as error:
            self._end()
            raise OSError(error.errno, f"cannot bind {self.bind}: {error.strerror}") from None
        self.bind = router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._thread.start()
        return self

    def close(self) -> None:
        """Answer what is open with SHUTTING_DOWN, and end. A second call does nothing."""
        if self._stopping:
            return
        self.inference.close()
        self._stopping = True
        self._bell.ring()
        if self._thread.ident:
            self._thread.join(5.0)

    def __enter__(self) -> PolicyServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for fronts and lanes: answers, from any thread ---

    def answer(
        self, client: bytes, build: Callable[[int], Sequence[Buffer]], *, key: Hashable = None, last: bool = True
    ) -> None:
        """Send frames. Answers with the same ``key`` belong together; only the ``last`` of them is sure to be sent.

        ``build`` makes the frames when it is their turn, and is told how many parts were dropped before.
        """
        self._outbox.append(_Answer(client, build, key, last))
        if threading.current_thread() is self._thread:
            return
        # To wake the I/O thread for it would take longer than to send it.
        if not self._turn.acquire(blocking=False):
            self._bell.ring()
            return
        try:
            if not self._router.closed:
                self._flush()
                if readable(self._router):
                    self._bell.ring()
        finally:
            self._turn.release()

    def forget_session(self, client: Client, number: int) -> None:
        """End an episode of a client."""
        session = client.sessions.pop(number, None)
        if session:
            self.inference.cancel(session)

    def begin_session(self, client: Client, number: int, episode: Episode) -> Session:
        """A new episode of a client; the oldest goes where it has too many."""
        self.forget_session(client, number)
        while len(client.sessions) >= MAX_SESSIONS:
            self.forget_session(client, next(iter(client.sessions)))
        session = client.sessions[number] = Session(client.identity, number, episode)
        return session

    # --- the I/O thread ---

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._router.FD, select.POLLIN)
        poller.register(self._bell, select.POLLIN)
        kept, more = time.monotonic(), False
        while not self._stopping:
            for awake, _ in poller.poll(0 if more else 10 if self._owing else 100):
                if awake == self._bell.fileno():
                    self._bell.hush()
            with self._turn:
                self._flush()
                for _ in range(32):  # then it is the lanes' turn again
                    if not (more := readable(self._router)) or not self._receive():
                        break
                    self._flush()
                if time.monotonic() - kept > _TURN_S:
                    kept = time.monotonic()
                    self._keep_house(kept)
        with self._turn:
            self._flush()
            self._end(linger_ms=200)

    def _receive(self) -> bool:
        frames = receive(self._router)
        if frames is None:
            return False
        identity, buffers = bytes(frames[0]), frames[1:]
        self.counts["messages"] += 1
        client = self.clients.get(identity) or Client(identity, silence_s=self._client_timeout_s)
        client.heard = time.monotonic()
        front: Any = self._groot if _is_groot(buffers) else self._native
        try:
            try:
                front.receive(client, buffers)
            except WireError as error:
                self.counts["refused"] += 1
                front.refuse(client, buffers, error)
        except Exception:  # whatever a stranger sends must not end the service for everybody else
            log.exception("a message could not be handled")
            self.counts["refused"] += 1
        return True

    def admit(self, client: Client) -> None:
        """Remember a client that has introduced itself. Raises ``WireError`` (BUSY) where there are too many."""
        if client.identity not in self.clients and len(self.clients) >= MAX_CLIENTS:
            quietest = min(self.clients.values(), key=lambda other: other.heard)
            if time.monotonic() - quietest.heard < self._client_timeout_s:
                raise WireError("BUSY", f"{MAX_CLIENTS} clients are connected", "try again later")
            self._forget(quietest)
        self.clients[client.identity] = client

    def _flush(self) -> None:
        """Send what is in the outbox, after what is owed."""
        for client in list(self._owing):
            while client.owed:
                answer = client.owed.popleft()
                if not self._send(answer):
                    client.owed.appendleft(answer)
                    break
                client.owed_bytes -= answer.size
            if not client.owed:
                self._owing.discard(client)
        while self._outbox:
            answer = self._outbox.popleft()
            client_ = self.clients.get(answer.client)
            torn = not answer.last and answer.key in self._lost  # after a hole the rest of a plan is of no use
            if not torn and (client_ is None or not client_.owed) and self._send(answer):
                continue
            if client_ is None:
                self._lost.pop(answer.key, None)
            elif answer.last or (not torn and self._may_wait(client_, answer)):
                client_.owed.append(answer)
                client_.owed_bytes += answer.size
                self._owing.add(client_)
                if len(client_.owed) > _OWED:
                    self._forget(client_)
            elif answer.key is not None:
                self._lost[answer.key] = self._lost.get(answer.key, 0) + 1
                self.counts["parts_lost"] += 1

    def _may_wait(self, client: Client, part: _Answer) -> bool:
        """Whether a part is kept for a client whose queue is full."""
        if part.key is None:
            return False
        return len(client.owed) < _OWED // 2 and client.owed_bytes + part.size <= _OWED_BYTES

    def _send(self, answer: _Answer) -> bool:
        """False when the client's queue is full."""
        try:
            send(self._router, [answer.client, *answer.build(self._lost.get(answer.key, 0))])
        except zmq.Again:
            return False
        except zmq.ZMQError:  # EHOSTUNREACH: it is gone
            if client := self.clients.get(answer.client):
                self._forget(client)
        if answer.last:
            self._lost.pop(answer.key, None)
        return True

    def _keep_house(self, now: float) -> None:
        for client in list(self.clients.values()):
            if now - client.heard > client.silence_s:
                self._forget(client)
        self.inference.give_up_after(self._hang_s)

    def _forget(self, client: Client) -> None:
        self.clients.pop(client.identity, None)
        self.counts["forgotten"] += 1
        for answer in client.owed:
            self._lost.pop(answer.key, None)
        client.owed.clear()
        client.owed_bytes = 0
        self._owing.discard(client)
        for number in list(client.sessions):
            self.forget_session(client, number)

    def _end(self, linger_ms: int = 0) -> None:
        if self._authenticator:
            self._authenticator.stop()
        self._router.close(linger_ms)
        self._context.term()
        self._bell.close()


class ServerFailed(RuntimeError):
    """An agent that cannot be served; the message says why."""


def require_private(bind: str, *, secured: bool, insecure: bool) -> None:
    """Raise ``ValueError`` for an endpoint that other machines can reach, unless secured or meant to be insecure."""
    parts = urlsplit(bind)
    if parts.scheme not in ("tcp", "ipc", "inproc") or not (parts.netloc or parts.path):
        raise ValueError(f"bind={bind!r} is not an endpoint; write tcp://127.0.0.1:5600 or ipc:///path/of/a/socket")
    if parts.scheme == "tcp":
        port = parts.netloc.rpartition(":")[2] if ":" in parts.netloc else ""
        if port != "*" and not (port.isdecimal() and int(port) < 2**16):
            raise ValueError(f"bind={bind!r} has the port {port!r}, expected 0 to 65535 (0 or *: any that is free)")
    if parts.scheme != "tcp" or secured or insecure:
        return
    host = parts.netloc.rpartition(":")[0].strip("[]")
    try:
        private = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        private = False  # a star, or the name of a network card
    if not private:
        raise ValueError(
            f"bind={bind!r} can be reached from other machines, and whoever reaches it can use the agent; "
            f"give the server keys (palaestra serve --new-key NAME), or say that this is meant (--insecure)"
        )


@dataclass(frozen=True)
class _Allowed:
    """Tells the authenticator which public keys may connect."""

    keys: frozenset[bytes]

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self.keys


def _is_groot(buffers: Sequence[Buffer]) -> bool:
    """A REQ socket puts an empty frame before its payload, and with REQ_CORRELATE four bytes before that."""
    if not buffers or bytes(buffers[0][:4]) == MAGIC:
        return False
    return len(buffers[0]) == 0 or (len(buffers) > 1 and len(buffers[0]) == 4 and len(buffers[1]) == 0)


def _warm_up(agent: Agent, episode: Episode) -> float:
    """Plan once on a sample observation, so that no client pays for the first time; returns how long it took, in ms."""
    began = time.monotonic()
    try:
        memory = agent.reset(episode)
        observation = zero_action(episode.observation_space)
        context = agent.encode(memory, observation) if agent.encode_every else None
        for _ in zip(agent.plan(memory, Call(observation, context)), range(MOST_PARTS), strict=False):
            pass
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"
        raise ServerFailed(f"{type(agent).__name__} fails on a sample observation, {said}; mend it first") from error
    return (time.monotonic() - began) * 1000.0
