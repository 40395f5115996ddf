"""The native dialect on the server: from messages to jobs, and from answers to messages (:mod:`..protocol`)."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from ...agents.agent import ActionPart, Agent, Call, Transition
from ..frame_codec import Buffer, WireError, read_msgpack
from ..inference import Dropped, Final, Job, Session
from ..protocol import (
    ADVICE,
    BYE,
    CANCEL,
    DESCRIBE,
    DROPPED,
    ENCODE,
    ERROR,
    FINAL,
    HELLO,
    OBSERVATION,
    PART,
    PING,
    PONG,
    RESET,
    SCHEMA,
    VERSION,
    WELCOME,
    Message,
    check_member,
    describe_space,
    pack,
    read_episode,
    unpack,
)

if TYPE_CHECKING:
    from ..server import Client, PolicyServer

log = logging.getLogger(__name__)


class Native:
    """Speaks the native protocol; the methods run on the I/O thread, the answers on the lanes."""

    def __init__(self, server: PolicyServer):
        self._server = server
        self._handlers: dict[bytes, Callable[[Client, Message], None]] = {
            HELLO: self._hello,
            RESET: self._reset,
            OBSERVATION: self._observation,
            ENCODE: self._encode,
            CANCEL: self._cancel,
            DESCRIBE: self._describe,
            PING: self._ping,
            BYE: self._bye,
        }

    def receive(self, client: Client, frames: Sequence[Buffer]) -> None:
        """Handle one message. Raises ``WireError`` for what is refused."""
        message = unpack(frames, self._server.limits)
        handler = self._handlers.get(message.kind)
        if handler is None:
            raise WireError("UNKNOWN_TYPE", f"there is no message of kind {message.kind!r}")
        if message.kind != HELLO and client.identity not in self._server.clients:
            raise WireError("NO_HELLO", "this server does not know you (yet, or any more)", "say hello first")
        handler(client, message)

    def refuse(self, client: Client, frames: Sequence[Buffer], error: WireError) -> None:
        """Say what was wrong, with the number of the request where it can be read."""
        limits = self._server.limits
        try:  # the header alone: what is wrong may well be the tree
            header = read_msgpack(frames[2], limits, limits.header_bytes)
            seq = header.get("seq") if isinstance(header, dict) else None
        except (WireError, IndexError):
            seq = None
        self._error(client.identity, seq if type(seq) is int else None, error)

    # --- messages ---

    def _hello(self, client: Client, message: Message) -> None:
        if (proto := message.header.get("proto")) != VERSION:
            raise WireError(
                "BAD_VERSION",
                f"the client speaks version {str(proto)[:20]}, this server {VERSION}",
            )
        token, given = self._server.token, message.header.get("token")
        if token is not None and not (
            isinstance(given, str) and hmac.compare_digest(token.encode(), given.encode("utf-8", "replace"))
        ):
            raise WireError("UNAUTHORIZED", "the token is wrong or missing", "ask whoever runs the server")
        self._server.admit(client)
        self._send(client.identity, WELCOME, *self._welcome())

    def _describe(self, client: Client, message: Message) -> None:
        self._send(client.identity, SCHEMA, *self._welcome())

    def _welcome(self) -> tuple[dict[str, Any], dict[str, Any]]:
        server, agent, episode = self._server, self._server.agent, self._server.episode
        card = agent.interface
        size = int(np.prod(episode.action_space.shape)) if isinstance(episode.action_space, spaces.Box) else None
        header = {
            "proto": VERSION,
            "server": "palaestra",
            "env_id": episode.env_id,
            "agent": _described(agent),
            "H": card.chunk if card else None,
            "D": size,
            "dt": 1.0 / episode.control_hz if episode.control_hz else None,
            "limits": {"max_bytes": server.limits.bytes},
            "warmup_ms": server.warmup_ms,
        }
        return header, {
            "interface": card.to_json() if card else None,
            "observation_space": describe_space(episode.observation_space),
            "action_space": describe_space(episode.action_space),
        }

    def _ping(self, client: Client, message: Message) -> None:
        t0, t1 = message.integer("t0"), time.monotonic_ns()
        busy_ms = self._server.inference.busy_s * 1000.0

        def pong(lost: int) -> list[Buffer]:
            return pack(PONG, {"t0": t0, "t1": t1, "t2": time.monotonic_ns(), "worker_busy_ms": busy_ms})

        self._server.answer(client.identity, pong, last=False)

    def _reset(self, client: Client, message: Message) -> None:
        seq, number = message.integer("seq"), message.integer("episode")
        session = self._server.begin_session(client, number, read_episode(message["episode"]))
        self._server.inference.submit(Job("reset", session, seq, self))

    def _observation(self, client: Client, message: Message) -> None:
        seq, session = message.integer("seq"), self._session(client, message)
        space = session.episode.observation_space
        observation, committed = message["observation"], message["committed"]
        check_member(space, observation)
        self._check_committed(session, committed)
        deadline = message.header.get("deadline_ms")
        context = None if message.header.get("context") is None else message.integer("context")
        job = Job(
            "plan",
            session,
            seq,
            self,
            call=Call(observation, None, message.integer("tick"), committed, message.integer("need", 0)),
            context=context,
            ttl_s=_ttl_s(message),
            encode_first=context is None or message.header.get("encode") is True,
            deadline_s=message.integer("deadline_ms") / 1000.0 if deadline is not None else None,
            steps=self._steps(session, message, observation),
        )
        session.observed = observation
        self._server.inference.submit(job)

    def _encode(self, client: Client, message: Message) -> None:
        if not self._server.agent.encode_every:
            raise WireError("UNKNOWN_TYPE", "this agent has no slow pass of its own", "send observations (O) only")
        seq, session = message.integer("seq"), self._session(client, message)
        observation = message["observation"]
        check_member(session.episode.observation_space, observation)
        context = message.integer("context")
        job = Job("encode", session, seq, self, call=Call(observation), context=context, ttl_s=_ttl_s(message))
        self._server.inference.submit(job)

    def _cancel(self, client: Client, message: Message) -> None:
        seq = message.integer("seq")
        for session in client.sessions.values():
            self._server.inference.cancel(session, seq)

    def _bye(self, client: Client, message: Message) -> None:
        numbers = [message.integer("episode")] if "episode" in message.header else list(client.sessions)
        for number in numbers:
            self._server.forget_session(client, number)

    # --- what they are made of ---

    def _session(self, client: Client, message: Message) -> Session:
        number = message.integer("episode")
        session = client.sessions.get(number)
        if session is None:
            raise WireError("NO_EPISODE", f"episode {number} has not begun, or has ended")
        return session

    def _check_committed(self, session: Session, committed: Any) -> None:
        space = session.episode.action_space
        if isinstance(committed, np.ndarray) and isinstance(space, spaces.Box):
            if committed.shape[1:] != space.shape or committed.dtype.kind not in "fiu":
                raise WireError(
                    "BAD_SCHEMA",
                    f"committed: got {committed.dtype} {list(committed.shape)}, expected [d, *{list(space.shape)}]",
                )
        elif not isinstance(committed, (list, tuple)):
            raise WireError("BAD_SCHEMA", f"committed: got a {type(committed).__name__}, expected actions")

    def _steps(self, session: Session, message: Message, observation: Any) -> list[Transition]:
        """What happened since the last observation: all but the newest step bring what was seen after them."""
        steps = message.tree.get("steps", [])
        if not steps or not self._server.agent.learns:
            return []
        learnt, before = [], session.observed
        try:
            for step in steps:
                after = step.get("observation", observation)
                flags = bool(step["terminated"]), bool(step["truncated"])
                learnt.append(Transition(before, step["action"], step["reward"], after, *flags))
                before = after
        except (KeyError, TypeError, AttributeError) as error:
            raise WireError("BAD_HEADER", f"steps: {type(error).__name__}: {error}") from None
        return learnt

    # --- answers ---

    def part(self, job: Job, part: ActionPart) -> None:
        """A: actions that are final."""
        header = {
            "seq": job.seq,
            "episode": job.session.number,
            "tick": job.call.tick,
            "start": int(part.start),
            "count": len(part.actions),
            "step": int(job.evaluations),
            "encodes": int(part.encodes),
            "evaluations": int(part.evaluations),
            "replan_in": _integer(part.replan_in),
            "t_rx_ns": job.received_ns,
            "t_start_ns": job.started_ns,
            "t_tx_ns": time.monotonic_ns(),
        }
        tree = {"actions": part.actions, "extras": dict(part.extras)}
        frames = pack(PART, header, tree, self._server.limits)
        self._server.answer(job.session.client, lambda lost: frames, key=_key(job), last=False)

    def end(self, job: Job, ending: Final | Dropped | WireError) -> None:
        """F, X or E."""
        if isinstance(ending, WireError):
            self._error(job.session.client, job.seq, ending, key=_key(job))
        elif isinstance(ending, Dropped):
            header = {"seq": job.seq, "episode": job.session.number, "reason": ending.reason}
            self._send(job.session.client, DROPPED, header, key=_key(job))
        else:
            header = {
                "seq": job.seq,
                "episode": job.session.number,
                "n_final": len(job.call.committed) + ending.actions,
                "encodes": int(ending.encodes),
                "evaluations": int(ending.evaluations),
                "replan_in": _integer(ending.replan_in),
                "queue_ms": ending.queue_ms,
                "infer_ms": ending.infer_ms,
                "step_ms": ending.step_ms[:64],
            }
            self._server.answer(job.session.client, lambda lost: pack(FINAL, {**header, "lost": lost}), key=_key(job))

    def _error(self, client: bytes, seq: int | None, error: WireError, key: Any = None) -> None:
        hint = error.hint or ADVICE.get(error.code, "")
        header = {"seq": seq, "code": error.code, "message": error.message, "hint": hint}
        self._send(client, ERROR, header, key=key)

    def _send(self, client: bytes, kind: bytes, header: dict[str, Any], tree: Any = None, key: Any = None) -> None:
        frames = pack(kind, header, tree, self._server.limits)
        self._server.answer(client, lambda lost: frames, key=key)


def _described(agent: Agent) -> dict[str, Any]:
    """What a client is told of the agent: what it needs to act through it, and to tell it from another one."""
    schedule = getattr(agent, "schedule", None)
    return {
        "name": type(agent).__name__,
        "encode_every": agent.encode_every,
        "learns": agent.learns,
        "checkpoint": getattr(agent, "checkpoint", None),
        "schedule": None if schedule is None else str(schedule)[:200],
        "max_delay": _integer(agent.max_delay),
        "imagines": agent.imagines,
    }


def _ttl_s(message: Message) -> float:
    """For how long a context that this message asks for is kept."""
    return message.integer("ttl_ms", 60_000) / 1000.0


def _integer(ticks: int | None) -> int | None:
    """A plain number, also where an agent counts with those of numpy."""
    return None if ticks is None else int(ticks)


def _key(job: Job) -> tuple[bytes, int]:
    return job.session.client, job.seq
