"""Acts through a server: :class:`RemoteAgent` is an agent like any other."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..agents.agent import ActionPart, Agent, Call, Context, Episode, Memory, Observation, Transition
from ..envs.interface import Interface
from .connection import Connection, Exchange, Inbox, ServerLost, as_error
from .frame_codec import WireError
from .keys import ClientKeys
from .protocol import CANCEL, DROPPED, ENCODE, ERROR, FINAL, OBSERVATION, PART, RESET, Message, describe_episode

log = logging.getLogger(__name__)


@dataclass(eq=False)
class RemoteMemory:
    """An episode that is remembered by a server. ``steps`` are what it has not been told of yet."""

    episode: Episode
    number: int
    generation: int = -1
    observed: Observation = None
    steps: list[Transition] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)  # slow and fast calls may miss the server at once


class RemoteAgent(Agent):
    """An agent behind a socket: plans where ``palaestra serve`` runs.

    Options (``remote:url=tcp://127.0.0.1:5600``): ``token``; ``key`` and ``server_key``, files of CURVE keys;
    ``timeout_s``, the longest silence of an agent whose server is there; ``silence_s``, after which a server that does
    not answer pings is gone; ``patience_s``, how long a plan waits for its return. A plan of which some actions have
    arrived ends with them when the server is lost; one that has none is asked for again from the new server, whose
    memory of the episode begins anew (``reconnects`` counts that).

    ``max_age_s`` is how old an observation may be when its plan is begun; a plan from an older one ends without actions
    (``stale`` counts that), and whoever runs in real time asks again with what is seen now. The default has no limit,
    for worlds that wait. ``served`` says who acts over there. An observation must not be written to before its plan has
    begun to arrive: it is sent without being copied.

    Of a multi-rate agent the contexts stay with the server, for ``ttl_s`` (0.001 to 86400 s) after they were made. One
    that is gone (it was older, or the server has restarted) is made anew there from the observation of the call that
    needs it, which takes that call the time of a slow pass (``renewed`` counts that, and ``encodes`` of its plan).

    Raises ``ServerLost`` when there is no server, ``WireError`` for what it refuses (``POLICY_FAILED`` when the agent
    there raised an error), ``ValueError`` for options that contradict each other.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        key: str | Path | None = None,
        server_key: str | Path | None = None,
        timeout_s: float = 60.0,
        patience_s: float = 10.0,
        silence_s: float = 1.5,
        max_age_s: float | None = None,
        ttl_s: float = 60.0,
    ):
        if (key is None) != (server_key is None):
            raise ValueError("key and server_key belong together: your own secret key and the server's public one")
        for name, value in (("timeout_s", timeout_s), ("patience_s", patience_s), ("silence_s", silence_s)):
            if not value > 0:
                raise ValueError(f"{name}={value}, expected more than 0 s")
        if max_age_s is not None and not max_age_s >= 0.001:
            raise ValueError(f"max_age_s={max_age_s}, expected 0.001 s or more, or none for any age")
        if not 0.001 <= ttl_s <= 86_400.0:
            raise ValueError(f"ttl_s={ttl_s}, expected 0.001 to 86400 s: how long the server keeps a slow pass")
        keys = ClientKeys.read(key, server_key) if key is not None and server_key is not None else None
        self.connection = Connection(url, token=token, keys=keys, connect_s=patience_s, silence_s=silence_s)
        self.timeout_s, self.patience_s, self.max_age_s = timeout_s, patience_s, max_age_s
        self.ttl_s = ttl_s
        self.reconnects = self.stale = self.renewed = 0
        self._served = _served(self.connection)
        self._generation = self.connection.generation
        described, card = self._served
        self.interface = Interface.from_json(card) if card is not None else None
        self.encode_every = int(described["encode_every"])
        self.max_delay = described.get("max_delay")
        self.imagines = _imagines(described.get("imagines"))
        self._learns = bool(described["learns"])
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        weakref.finalize(self, self.connection.close)

    @property
    def learns(self) -> bool:
        """Whether the agent behind the socket does."""
        return self._learns

    @property
    def served(self) -> Mapping[str, Any]:
        """Who acts over there, as the server describes it: ``name``, ``env_id``, ``checkpoint``, ``max_delay`` ..."""
        header = self.connection.welcome.header
        about = {key: header.get(key) for key in ("H", "D", "dt")}
        return {"url": self.connection.url, **about, **self._served[0]}

    def close(self) -> None:
        """End the connection."""
        self.connection.close()

    def reset(self, episode: Episode) -> RemoteMemory:
        """Let the agent behind the socket begin an episode, which ends when the memory is dropped."""
        memory = RemoteMemory(episode, next(self._numbers))
        self._remember(memory)
        weakref.finalize(memory, self.connection.bid_farewell, memory.number)
        return memory

    def encode(self, memory: RemoteMemory, observation: Observation) -> Context:
        """The slow pass, over there. The context is its number."""
        number = next(self._numbers)
        header = {"episode": memory.number, "context": number, "ttl_ms": self._ttl_ms}
        self._ask(memory, ENCODE, header, {"observation": observation})
        return number

    def plan(self, memory: RemoteMemory, call: Call) -> Iterator[ActionPart]:
        """Parts as they arrive. A reader that stops early cancels the rest over there."""
        for _, part in self.plan_many([(memory, call)]):
            yield part

    def plan_many(self, jobs: Sequence[tuple[Memory, Call]]) -> Iterator[tuple[int, ActionPart]]:
        """Plans of several episodes, asked for at once and yielded in the order of arrival."""
        inbox: Inbox = queue.SimpleQueue()
        asked: dict[Exchange, int] = {}
        renewed: set[int] = set()
        seen_s = time.monotonic()

        def ask(index: int) -> None:
            memory, call = jobs[index]
            if not self._remembered(memory):
                self._find_again(memory)
                if self.max_age_s is not None and time.monotonic() - seen_s > self.max_age_s:
                    self.stale += 1
                    return
            header, tree = self._observation(memory, call)
            if index in renewed:
                header |= {"encode": True, "ttl_ms": self._ttl_ms}
            asked[self.connection.request(OBSERVATION, header, tree, inbox)] = index

        try:
            for index in range(len(jobs)):
                ask(index)
            while asked:
                exchange, message = self._next(inbox)
                if exchange not in asked:
                    continue
                index = asked[exchange]
                if message is not None and message.kind == PART and not self._begun_late(message, seen_s):
                    yield index, _part(message)
                    continue
                del asked[exchange]
                if message is None:
                    if not exchange.parts:
                        ask(index)
                elif message.kind == PART:
                    self.stale += 1
                    self.connection.tell(CANCEL, {"seq": exchange.seq})
                elif message.kind == ERROR:
                    if message.header.get("code") != "NO_CONTEXT" or index in renewed:
                        raise as_error(message)
                    log.info("the slow pass of a plan is gone on the server and made anew")
                    self.renewed += 1
                    renewed.add(index)
                    ask(index)
                elif message.kind == DROPPED:
                    self.stale += message.header.get("reason") == "late"
                elif message.kind == FINAL:
                    if lost := message.header.get("lost"):
                        log.warning("%s parts of a plan were dropped, because we read too slowly", lost)
                    if (rest := _rest(message)) is not None:
                        yield index, rest
        finally:
            for exchange in asked:
                self.connection.tell(CANCEL, {"seq": exchange.seq})

    def learn(self, memory: RemoteMemory, transition: Transition) -> None:
        """Remember the step; it travels with the next observation."""
        if self._learns:
            memory.steps.append(transition)

    # --- what they are made of ---

    @property
    def _ttl_ms(self) -> int:
        return round(1000 * self.ttl_s)

    def _observation(self, memory: RemoteMemory, call: Call) -> tuple[dict[str, Any], dict[str, Any]]:
        header: dict[str, Any] = {
            "episode": memory.number,
            "tick": call.tick,
            "t_cap_ns": time.monotonic_ns(),
            "need": call.need,
        }
        if self.max_age_s is not None:
            header["deadline_ms"] = round(1000 * self.max_age_s)
        if call.context is not None:
            header["context"] = call.context
        tree = {"observation": call.observation, "committed": _plain(call.committed)}
        if memory.steps:
            last = len(memory.steps) - 1
            tree["steps"] = [
                {
                    "action": step.action,
                    "reward": step.reward,
                    "terminated": step.terminated,
                    "truncated": step.truncated,
                    **({} if n == last else {"observation": step.next_observation}),
                }
                for n, step in enumerate(memory.steps)
            ]
            memory.steps.clear()
        return header, tree

    def _begun_late(self, part: Message, seen_s: float) -> bool:
        """Whether the observation was too old when the server turned to it, however long it had been on the way."""
        error_ns = self.connection.clock_error_ns
        if self.max_age_s is None or not error_ns:  # nothing is known of the server's clock yet
            return False
        begun_s = (part.integer("t_start_ns") - self.connection.clock_offset_ns) / 1e9
        return begun_s - seen_s > self.max_age_s + error_ns / 1e9

    def _next(self, inbox: Inbox) -> tuple[Exchange, Message | None]:
        try:
            return inbox.get(timeout=self.timeout_s)
        except queue.Empty:
            busy = self.connection.worker_busy_ms
            raise WireError(
                "POLICY_HUNG" if busy else "NO_ANSWER",
                f"the server is there, but nothing came for {self.timeout_s:g} s"
                + (f"; its agent has been at one step for {busy:.0f} ms" if busy else ""),
                "ask again, or with a longer timeout_s",
            ) from None

    def _ask(self, memory: RemoteMemory, kind: bytes, header: dict[str, Any], tree: Any) -> None:
        """A request that is answered once; asked again where the server was lost on the way."""
        message = None
        while message is None:
            if not self._remembered(memory):
                self._find_again(memory)
            _, message = self._next(self.connection.request(kind, header, tree).inbox)
        if message.kind == ERROR:
            raise as_error(message)

    def _remembered(self, memory: RemoteMemory) -> bool:
        """Whether there is a server, and it is the one that knows the episode."""
        return self.connection.state == "READY" and memory.generation == self.connection.generation

    def _remember(self, memory: RemoteMemory) -> None:
        """Begin the episode on the server that is there now."""
        tree = {"episode": describe_episode(memory.episode)}
        with memory.lock:
            while memory.generation != self.connection.generation:
                self.connection.wait_ready(self.patience_s)
                generation = self.connection.generation
                self._recognise(generation)
                exchange = self.connection.request(RESET, {"episode": memory.number}, tree)
                _, message = self._next(exchange.inbox)
                if message is not None and message.kind == ERROR:
                    raise as_error(message)
                if message is not None:
                    memory.generation = generation

    def _find_again(self, memory: RemoteMemory) -> None:
        """Wait for the server's return and begin the episode there anew. Raises ``ServerLost``."""
        if self.connection.state != "READY":
            log.warning("%s does not answer; waiting for it for up to %g s", self.connection.url, self.patience_s)
        self.connection.wait_ready(self.patience_s)
        self._remember(memory)

    def _recognise(self, generation: int) -> None:
        """Count a server that was lost and is back. Raises ``ServerLost`` where it serves something else now."""
        with self._lock:
            if generation == self._generation:
                return
            if (now := _served(self.connection)) != self._served:
                raise ServerLost(f"{self.connection.url} came back with another agent: {now[0]}, was {self._served[0]}")
            self._generation = generation
            self.reconnects += 1
        log.warning("%s was lost and is back; its memory of episodes begins anew", self.connection.url)


def _served(connection: Connection) -> tuple[dict[str, Any], Any]:
    """Who acts over there: its description with the world that it is served for, and its interface card."""
    header = connection.welcome.header
    return {**header["agent"], "env_id": header.get("env_id")}, connection.welcome["interface"]


def _imagines(described: Any) -> tuple[str, tuple[int, ...]] | None:
    """Which picture the agent over there foresees, and when. Raises ``WireError`` for what does not say that."""
    match described:
        case None:
            return None
        case [str(key), [*ahead]] if len(ahead) <= 64 and all(type(n) is int and 0 <= n <= 1_000_000 for n in ahead):
            return key, tuple(ahead)
    raise WireError("BAD_HEADER", f"imagines={described!r:.200}, expected a key and up to 64 numbers of ticks")


def _part(message: Message) -> ActionPart:
    header = message.header
    return ActionPart(
        start=message.integer("start"),
        actions=message["actions"],
        encodes=message.integer("encodes"),
        evaluations=message.integer("evaluations"),
        replan_in=header.get("replan_in"),
        extras=message["extras"],
    )


def _rest(message: Message) -> ActionPart | None:
    """The work that was done after the last part with actions."""
    work = message.integer("encodes"), message.integer("evaluations")
    replan_in = message.header.get("replan_in")
    return ActionPart(encodes=work[0], evaluations=work[1], replan_in=replan_in) if any(work) or replan_in else None


def _plain(actions: Any) -> Any:
    """Committed actions as they travel: an array, or a list of members."""
    return actions if isinstance(actions, np.ndarray) else list(actions)
