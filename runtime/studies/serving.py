"""Serving: near actions leave first, the socket costs little, and nobody is harmed by overload, crowds or accidents.

Claimed by the design of our policy server, which streams as FASTER (arXiv 2603.19199) does and speaks the wire formats
of openpi and Isaac-GR00T. Measured on this machine, servers in processes of their own, all rivals in turn so that
they meet the same load:

1. what clients of three dialects get, bit for bit, against the agent in process;
2. the time to the first action of a policy that encodes in 20 ms and takes 10 steps of 5 ms for 50 actions: with a
   schedule that finishes near actions first against one that finishes all at the end, predicted (20 + 50) / (20 + 5);
   and what the socket adds to the same call in process;
3. the round trip of an observation of 300 KB, against openpi's server and client and against a REP server with
   msgpack and .npy as GR00T has it, all computing the same function;
4. a client at 200 Hz and a policy at 20 Hz: the age of the observation behind the executed action, against a server
   that answers first come, first served; and whether every observation is answered;
5. 1, 4 and 16 clients at once; kill -9 of the server in the middle of a plan; mutated messages in every dialect.

The table of (3) also says where a native round trip spends its time, and has the round trip of a bare ZeroMQ echo with
one worker thread, which no server on ZeroMQ can beat.

Refuted where an action differs in a bit, the ratio of (2) is off by more than 10 %, the socket adds 2 ms or more, a
round trip is less than five times faster than a rival's, the age reaches two inference times or grows, a request stays
without an answer, a client starves, recovery takes 4 s, or a message ends the server. Times are judged by ratios and
paired differences with bootstrap intervals; one that reaches across its limit decides nothing.
"""

from __future__ import annotations

import os
import queue
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
import zmq

from ...agents.agent import Agent, Call, Episode
from ...models.flow.schedules import ConstantSchedule, HorizonAwareSchedule, ready_after
from ..client import RemoteAgent, RemoteMemory
from ..connection import Connection, Inbox
from ..fronts.openpi import OpenpiServer
from ..protocol import FINAL, HELLO, OBSERVATION, PART, RESET, VERSION, describe_episode, pack
from ..server import PolicyServer
from ..statistics import Estimate
from ..study import Claim, Lab, Scale, Study, Table
from ._servers import (
    HORIZON,
    PATIENCE_S,
    SERVERS,
    SLOW_S,
    WIDTH,
    GrootClient,
    OpenpiClient,
    Paced,
    Server,
    Servers,
    computed,
    function,
    groot_map,
    large,
    openpi_bytes,
    paced,
    serve_native,
    small,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYSTEM = "policy-serving"
CLAIM = "Near actions leave first; a round trip beats rivals five times; overload, crowds and kill -9 harm nobody."

ENCODE_S, STEP_S, STEPS = 0.020, 0.005, 10
CROWD_S = 0.002  # an inference of the policy that serves a crowd


@dataclass(frozen=True)
class Size:
    """How much is measured: requests, rounds, seconds, accidents, messages."""

    conversations: int
    rounds: int
    trips: int
    overload_s: float
    crowd_s: float
    kills: int
    mutants: int


QUICK = Size(conversations=20, rounds=20, trips=150, overload_s=2.5, crowd_s=1.0, kills=1, mutants=500)
FULL = Size(conversations=100, rounds=100, trips=1000, overload_s=10.0, crowd_s=5.0, kills=5, mutants=10_000)


def run(scale: Scale, lab: Lab) -> Study:
    """Measure all of it: about half a minute at ``quick``, about two at ``full``; a GPU changes nothing."""
    size = QUICK if scale == "quick" else FULL
    draw = np.random.default_rng(lab.seed)
    parts = (_interop, _first_action, _round_trip, _overload, _crowd, _mutants, _accidents)
    found: list[Part] = []
    servers = {name: Server(serve) for name, serve in SERVERS.items()}
    try:
        for n, part in enumerate(parts):
            lab.tell(part.__name__.strip("_").replace("_", " "), n, len(parts))
            found.append(part(size, draw, servers))
    finally:
        for server in servers.values():
            server.kill()
    return Study(
        "serving",
        scale,
        claims=tuple(claim for part in found for claim in part.claims),
        tables=tuple(part.table for part in found if part.table),
        pictures={
            "timeline": partial(_draw_timeline, found[1].data),
            "latency": partial(_draw_latency, found[2].data, found[4].data),
        },
    )


@dataclass(frozen=True)
class Part:
    """What one part of the study found; ``data`` is for the pictures."""

    claims: tuple[Claim, ...]
    table: Table | None = None
    data: dict[str, Any] = field(default_factory=dict)


def _none(text: str, count: int, reason: str = "") -> Claim:
    """A claim that something does not happen."""
    return Claim(text, 0, count, holds=count == 0, reason=reason)


# 1: the same bits --------------------------------------------------------------------------------------------------


def _interop(size: Size, draw: np.random.Generator, servers: Servers) -> Part:
    seen = [large(draw) for _ in range(size.conversations)]
    agent, episode = Paced(), computed(noisy=True)
    memory = agent.reset(episode)
    expected = [next(iter(agent.plan(memory, Call(observation)))).actions for observation in seen]
    differ: dict[str, int] = {}
    with ExitStack() as stack:
        # A server each: the noise of a client's episode must not depend on who else was there.
        serve = partial(PolicyServer, Paced(), episode, "tcp://127.0.0.1:*", warmup=False)
        remote = stack.enter_context(closing(RemoteAgent(stack.enter_context(serve()).bind)))
        ours = remote.reset(episode)
        groot = stack.enter_context(closing(GrootClient(stack.enter_context(serve()).bind)))
        front = stack.enter_context(OpenpiServer(stack.enter_context(serve()), port=0))
        openpi = stack.enter_context(closing(OpenpiClient(front.port)))
        asks: dict[str, Callable[[Any], np.ndarray]] = {
            "native": lambda observation: _plan(remote, ours, observation),
            "GR00T": lambda observation: groot.act(_for_groot(observation))["action"][0],
            "openpi": lambda observation: openpi.infer(observation)["actions"],
        }
        for name, ask in asks.items():
            differ[name] = sum(not _same_bits(ask(o), e) for o, e in zip(seen, expected, strict=True))
    double = "asked by a double that writes the published wire format"
    who = {
        "native": "",
        "GR00T": double,
        "openpi": "asked by openpi-client"
        if OpenpiClient.published
        else f"{double}: openpi-client 0.1.2 is not installed; it needs numpy 1",
    }
    return Part(
        tuple(
            _none(f"{name}: chunks of {len(seen)} that differ in a bit from those in process", count, who[name])
            for name, count in differ.items()
        )
    )


def _for_groot(observation: dict[str, np.ndarray]) -> dict[str, Any]:
    """Batch and time axes, and the names of the dialect."""
    return {
        "state": {key: value[None, None] for key, value in observation.items()},
        "video": {},
        "language": {"task": [["serve"]]},
    }


def _plan(agent: Agent, memory: Any, observation: Any) -> np.ndarray:
    """A whole chunk."""
    parts = [part.actions for part in agent.plan(memory, Call(observation)) if len(part.actions)]
    return np.concatenate(parts) if parts else np.zeros((0, WIDTH), np.float32)


def _same_bits(a: np.ndarray, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# 2: time to the first action ---------------------------------------------------------------------------------------


def _first_action(size: Size, draw: np.random.Generator, servers: Servers) -> Part:
    kinds = ("constant", "streamed")
    first: dict[str, list[float]] = {f"{where} {kind}": [] for kind in kinds for where in ("in process", "served")}
    arrivals: dict[str, list[tuple[float, int, int]]] = {}
    with closing(_remote(servers["native"])) as remote:
        local, agents = Paced(), dict[str, tuple[Agent, Any]]()
        for kind in kinds:
            agents[f"in process {kind}"] = local, local.reset(_chunk(kind))
            agents[f"served {kind}"] = remote, remote.reset(_chunk(kind))
        for n in range(size.rounds + 2):
            for name, (agent, memory) in agents.items():
                began, times = time.perf_counter(), []
                for part in agent.plan(memory, Call(small())):
                    if len(part.actions):
                        times.append((time.perf_counter() - began, part.start, len(part.actions)))
                if n >= 2:  # the first ones pay for caches
                    first[name].append(times[0][0])
                    arrivals[name] = times
    ms = {name: 1000 * np.array(values) for name, values in first.items()}
    predicted = (ENCODE_S + STEPS * STEP_S) / (ENCODE_S + STEP_S)
    gain = _ratio(ms["served constant"], ms["served streamed"], draw)
    added = {kind: _median(ms[f"served {kind}"] - ms[f"in process {kind}"], draw) for kind in kinds}
    claims = (
        Claim.judge(
            "Time to first action, constant schedule / streamed, within 10 % of the predicted",
            gain,
            at_least=0.9 * predicted,
            at_most=1.1 * predicted,
            paper=f"{predicted:.2f} predicted",
        ),
        Claim.judge(
            "ms that the socket adds to the time to first action of the call in process",
            added["streamed"],
            at_most=2.0,
            paper="< 2",
        ),
    )
    rows: tuple[tuple[Any, ...], ...] = tuple((name, *_quantiles(values), len(values)) for name, values in ms.items())
    rows += tuple((f"added, {kind}", None, added[kind], None, None) for kind in kinds)
    columns = ("time to first action, ms", "p10", "p50", "p99", "n")
    return Part(claims, Table("Time to first action", columns, rows), {"arrivals": arrivals})


def _chunk(kind: str) -> Episode:
    """An episode whose chunks are made by the constant schedule, or by the one that finishes near actions first."""
    schedule: ConstantSchedule | HorizonAwareSchedule = ConstantSchedule(HORIZON, STEPS)
    if kind == "streamed":
        schedule = HorizonAwareSchedule(HORIZON, STEPS)
    return paced(STEP_S, [len(actions) for actions in ready_after(schedule.taus(0))], ENCODE_S)


# 3: round trip -----------------------------------------------------------------------------------------------------


def _round_trip(size: Size, draw: np.random.Generator, servers: Servers) -> Part:
    seen = large(draw)
    expected = function(seen)
    buffers = [value.reshape(-1).view(np.uint8).data for value in seen.values()]
    with ExitStack() as stack:
        remote = stack.enter_context(closing(_remote(servers["native"])))
        memory = remote.reset(computed())
        openpi = stack.enter_context(closing(OpenpiClient(int(servers["openpi"].address))))
        groot = stack.enter_context(closing(GrootClient(servers["groot"].address)))
        dealer = stack.enter_context(_dealer(servers["echo"].address))

        def ask_echo() -> np.ndarray:
            dealer.send_multipart(buffers, copy=False)
            dealer.recv_multipart()
            return expected

        asks: dict[str, Callable[[], np.ndarray]] = {
            "native": lambda: _plan(remote, memory, seen),
            "openpi's server and client": lambda: openpi.infer(seen)["actions"],
            "REP and msgpack, as GR00T": lambda: groot.act(seen)["action"],
            "bare ZeroMQ echo, one worker": ask_echo,
        }
        ms: dict[str, Any] = {name: [] for name in asks}
        order = list(asks)
        for n in range(size.trips + 10):
            for name in order[n % 4 :] + order[: n % 4]:  # in turn, and nobody always after the same one
                began = time.perf_counter()
                actions = asks[name]()
                if n >= 10:
                    ms[name].append(1000 * (time.perf_counter() - began))
                if not np.array_equal(actions, expected):
                    raise AssertionError(f"{name} answered with other actions than its function gives")
        stages = _stages(remote.connection, memory, seen, size.trips)
    ms = {name: np.array(values) for name, values in ms.items()}
    ratios = {name: _ratio(values, ms["native"], draw) for name, values in ms.items() if name != "native"}
    floor = ratios["bare ZeroMQ echo, one worker"].mean
    claims = tuple(
        Claim.judge(
            f"Round trip of 300 KB, {name} / native",
            ratios[name],
            at_least=5.0,
            paper=paper,
            reason=f"no server on ZeroMQ could reach more than {ratios[name].mean / floor:.1f} here, which is what the "
            "bare echo has",
        )
        for name, paper in (("openpi's server and client", "≥ 5"), ("REP and msgpack, as GR00T", "≥ 5"))
    )
    rows = tuple((name, *_quantiles(values), ratios.get(name), len(values)) for name, values in ms.items())
    rows += tuple((name, *_quantiles(values), None, len(values)) for name, values in stages.items())
    columns = ("round trip of 300 KB, ms", "p10", "p50", "p99", "/ native", "n")
    return Part(claims, Table("Round trip", columns, rows), ms)


def _stages(connection: Connection, memory: RemoteMemory, observation: Any, count: int) -> dict[str, np.ndarray]:
    """Where a native round trip spends its time, in ms; the server's stamps are monotonic on this very machine."""
    names = ("packed and sent", "on its way and read", "to the agent's thread", "in the agent", "back", "its end")
    times = []
    for _ in range(count):
        moments = [time.monotonic_ns()]
        header = {"episode": memory.number, "tick": 0, "t_cap_ns": 0, "need": 0}
        tree = {"observation": observation, "committed": []}
        inbox = connection.request(OBSERVATION, header, tree).inbox
        moments.append(time.monotonic_ns())
        _, part = inbox.get(timeout=PATIENCE_S)
        assert part is not None and part.kind == PART
        moments += [part.integer(stamp) for stamp in ("t_rx_ns", "t_start_ns", "t_tx_ns")] + [time.monotonic_ns()]
        inbox.get(timeout=PATIENCE_S)
        times.append([*moments, time.monotonic_ns()])
    spent = np.diff(np.array(times), axis=1) / 1e6
    return {f"  native: {name}": spent[:, n] for n, name in enumerate(names)}


# 4: overload -------------------------------------------------------------------------------------------------------


def _overload(size: Size, draw: np.random.Generator, servers: Servers) -> Part:
    ticks = int(200 * size.overload_s)
    ours, endings, asked = _ages_native(_url(servers["native"]), ticks)
    theirs = _ages_in_order(servers["in order"].address, ticks)
    age, growth = _blocks(ours[:, 1] / SLOW_S, draw), _growth(ours, draw)
    growth_in_order = _growth(theirs, draw)
    claims = (
        Claim.judge(
            "Overload: mean age of the observation behind the executed action, in inference times",
            age,
            at_most=2.0,
            paper="< 2",
            reason=f"oldest {ours[:, 1].max() / SLOW_S:.2f}; two and the wait for the next tick are the least there is",
        ),
        Claim.judge(
            "Overload: growth of that age, s per s, is below 0.1",
            growth,
            at_most=0.1,
            paper=None,
            reason=f"first come, first served grows by {growth_in_order.mean:.2f}",
        ),
        _none(f"Overload: requests of {asked} left without an answer", asked - len(endings)),
    )
    planned = sum(kind == FINAL for kind in endings.values())
    rows = tuple(
        (name, _blocks(a[:, 1] / SLOW_S, draw), float(a[:, 1].max() / SLOW_S), slope, planned_)
        for name, a, slope, planned_ in (
            ("newest observation wins", ours, growth, f"{planned} of {asked}"),
            ("first come, first served", theirs, growth_in_order, "all, too late"),
        )
    )
    columns = ("200 Hz against 20 Hz", "mean age, inference times", "oldest", "growth, s per s", "planned")
    return Part(claims, Table("Overload", columns, rows))


def _ages_native(url: str, ticks: int) -> tuple[np.ndarray, dict[int, bytes], int]:
    """Per tick: time and age, both in s, of the observation behind the newest action; the last answers, by request."""
    connection = Connection(url)
    inbox: Inbox = queue.SimpleQueue()
    connection.request(RESET, {"episode": 1}, {"episode": describe_episode(paced(SLOW_S, [HORIZON]))}, inbox)
    inbox.get(timeout=PATIENCE_S)
    sent: dict[int, float] = {}
    endings: dict[int, bytes] = {}
    ages: list[tuple[float, float]] = []
    newest = 0

    def hear(patience_s: float = 0.0) -> None:
        nonlocal newest
        exchange, message = inbox.get(timeout=patience_s) if patience_s else inbox.get_nowait()
        if message is not None and message.kind == PART:
            newest = exchange.seq
        elif message is not None:
            endings[exchange.seq] = message.kind

    for tick, now in _at_hz(200.0, ticks):
        header = {"episode": 1, "tick": tick, "t_cap_ns": time.monotonic_ns(), "need": 0}
        request = connection.request(OBSERVATION, header, {"observation": small(), "committed": []}, inbox)
        sent[request.seq] = time.perf_counter()
        with suppress(queue.Empty):
            while True:
                hear()
        if newest:
            ages.append((now, time.perf_counter() - sent[newest]))
    with suppress(queue.Empty):
        while len(endings) < len(sent):
            hear(5.0)
    connection.close()
    return np.array(ages), endings, len(sent)


def _ages_in_order(url: str, ticks: int) -> np.ndarray:
    """The same, of a server that plans from every observation."""
    socket = _dealer(url)
    ages, newest = [], 0.0
    for _, now in _at_hz(200.0, ticks):
        socket.send(struct.pack("d", time.perf_counter()))
        while socket.poll(0):
            (newest,) = struct.unpack("d", socket.recv())
        if newest:
            ages.append((now, time.perf_counter() - newest))
    socket.close()
    return np.array(ages)


def _at_hz(hz: float, ticks: int) -> Iterator[tuple[int, float]]:
    """Ticks at absolute deadlines, with the time since the first."""
    began = time.perf_counter()
    for tick in range(ticks):
        time.sleep(max(0.0, began + tick / hz - time.perf_counter()))
        yield tick, time.perf_counter() - began


# 5: crowds, accidents, mutants -------------------------------------------------------------------------------------


def _crowd(size: Size, draw: np.random.Generator, servers: Servers) -> Part:
    rows, data, shares = [], {}, {}
    for count in (1, 4, 16):
        times = _crowded(servers["native"], count, size.crowd_s)
        served = [len(one) for one in times]
        ms = 1000 * np.concatenate(times)
        fair = 1000 * count * CROWD_S  # one policy serves each of them once in this time
        shares[count] = min(served) / max(served)
        rows.append((count, *_quantiles(ms), float(np.quantile(ms, 0.99) / fair), min(served), max(served)))
        data[f"{count} client{'s' * (count > 1)}"] = ms
    p99 = rows[-1][3]
    claim = Claim(
        "16 clients: requests served to the least / to the most served of them",
        "no starvation",
        shares[16],
        holds=shares[16] >= 0.5,
        reason=f"p99 {p99:.3g} ms; the policy serves each of them once in {1000 * 16 * CROWD_S:g} ms",
    )
    columns = ("clients", "p10, ms", "p50, ms", "p99, ms", "p99 / fair share", "least served", "most")
    return Part((claim,), Table("Crowd", columns, tuple(rows)), data)


def _crowded(server: Server, count: int, seconds: float) -> list[list[float]]:
    """Times of the round trips of each client, in s."""
    remotes = [_remote(server) for _ in range(count)]
    memories = [remote.reset(paced(CROWD_S, [HORIZON])) for remote in remotes]
    times: list[list[float]] = [[] for _ in range(count)]
    until = time.perf_counter() + seconds

    def act(n: int) -> None:
        while (began := time.perf_counter()) < until:
            _plan(remotes[n], memories[n], small())
            times[n].append(time.perf_counter() - began)

    threads = [threading.Thread(target=act, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for remote in remotes:
        remote.close()
    return times


def _accidents(size: Size, draw: np.random.Generator, servers: Servers) -> Part:
    recoveries, broken = zip(*(_killed(servers) for _ in range(size.kills)), strict=True)
    slowest = max(recoveries)
    text = f"kill -9 in the middle of a plan: s from the server's return to the next action, slowest of {size.kills}"
    return Part(
        (
            Claim(text, "< 4", slowest, holds=slowest < 4.0),
            _none("kill -9: plans that ended with anything but the actions that were final", sum(broken)),
        )
    )


def _killed(servers: Servers) -> tuple[float, bool]:
    """Seconds to recover, and whether the broken plan was anything but the beginning of a whole one."""
    url, acted = _url(servers["native"]), []
    with closing(_remote(servers["native"])) as remote:
        memory = remote.reset(paced(0.1, [HORIZON // STEPS] * STEPS))  # slow enough to be killed in the middle
        parts = []
        for part in remote.plan(memory, Call(small())):
            parts.append(part)
            servers["native"].kill()
        ends = np.cumsum([0, *(len(part.actions) for part in parts)])
        broken = ends[-1] >= HORIZON or any(p.start != e for p, e in zip(parts, ends, strict=False) if len(p.actions))

        def act() -> None:
            for part in remote.plan(memory, Call(small())):
                if len(part.actions):
                    acted.append(time.perf_counter())

        thread = threading.Thread(target=act)
        thread.start()  # a robot asks again at once, and waits
        servers["native"] = Server(serve_native, url)
        assert servers["native"].address
        back = time.perf_counter()
        thread.join(PATIENCE_S)
    return (acted[0] - back if acted else float("inf")), broken


def _mutants(size: Size, draw: np.random.Generator, servers: Servers) -> Part:
    rough = random.Random(int(draw.integers(2**32)))
    seen = large(draw)
    small = {key: value for key, value in seen.items() if key == "agent_pos"}
    expected = function(seen)
    server = servers["native"]
    url, port = server.address.split()
    with closing(_remote(server)) as remote:
        memory = remote.reset(computed())
        before_kb = _resident_kb(server.process.pid)
        harmed = 0
        for attack in (_attack_native, _attack_groot, partial(_attack_openpi, port=int(port))):
            attack(url, size.mutants, rough, small)
            with suppress(Exception):
                harmed -= np.array_equal(_plan(remote, memory, seen), expected)
            harmed += 1
        grown = None if before_kb is None else (_resident_kb(server.process.pid) or 0) - before_kb
        crashed = not server.process.is_alive()
    text = f"{size.mutants} mutated messages in each of three dialects: times that the server ended or others got wrong"
    size_text = "... and MB by which the server grew"
    if grown is None:
        bounded = Claim(size_text, "bounded", None, reason="this system does not tell the memory of a process")
    else:
        bounded = Claim(size_text, "bounded", grown / 1024, holds=grown < 64 * 1024)
    return Part((_none(text, harmed + crashed), bounded))


def _attack_native(url: str, count: int, rough: random.Random, observation: Any) -> None:
    begin = (
        pack(HELLO, {"proto": VERSION, "client": "mutant", "token": None}),
        pack(RESET, {"seq": 0, "episode": 1}, {"episode": describe_episode(paced(CROWD_S, [HORIZON]))}),
    )
    header = {"seq": 1, "episode": 1, "tick": 0, "need": 0}
    good = pack(OBSERVATION, header, {"observation": observation, "committed": []})
    socket = _dealer(url)
    for n in range(count):
        if n % 100 == 0:  # a mutant may have ended what was begun
            for message in begin:
                socket.send_multipart(message)
        frames = [bytes(frame) for frame in good]
        at = rough.randrange(len(frames))
        frames[at] = _mutated(frames[at], rough)
        socket.send_multipart(frames)
        while socket.poll(0):
            socket.recv_multipart()
    socket.close()


def _attack_groot(url: str, count: int, rough: random.Random, observation: Any) -> None:
    request = {"endpoint": "get_action", "data": {"observation": _for_groot(observation)}}
    good = msgpack.packb(request, default=groot_map)
    socket = _dealer(url)
    for _ in range(count):
        socket.send_multipart([b"", _mutated(good, rough)])
        while socket.poll(0):
            socket.recv_multipart()
    socket.close()


def _attack_openpi(url: str, count: int, rough: random.Random, observation: Any, *, port: int) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    good, sent = openpi_bytes(observation), 0
    while sent < count:  # an error ends the connection, so there are many of them
        with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) as socket, suppress(ConnectionClosed):
            socket.recv()
            while sent < count:
                sent += 1
                socket.send(_mutated(good, rough))
                if isinstance(socket.recv(timeout=5.0), str):
                    break


def _url(server: Server) -> str:
    return server.address.split()[0]


def _remote(server: Server) -> RemoteAgent:
    return RemoteAgent(_url(server), patience_s=PATIENCE_S)


def _dealer(url: str) -> zmq.Socket:
    socket: zmq.Socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger, socket.sndhwm = 0, 0  # nothing is held back
    socket.connect(url)
    return socket


def _mutated(message: bytes, rough: random.Random) -> bytes:
    """A message with bytes changed, cut out, or put in."""
    data = bytearray(message)
    for _ in range(rough.randint(1, 4)):
        at = rough.randrange(len(data) + 1)
        match rough.randrange(3):
            case 0:
                data[at : at + 1] = rough.randbytes(1)
            case 1:
                del data[at : at + rough.randint(1, 8)]
            case _:
                data[at:at] = rough.randbytes(rough.randint(1, 8))
    return bytes(data)


def _resident_kb(pid: int | None) -> int | None:
    """Memory of a process in KB; ``None`` where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


# Intervals ---------------------------------------------------------------------------------------------------------

_RESAMPLES = 2000


def _ratio(a: np.ndarray, b: np.ndarray, draw: np.random.Generator) -> Estimate:
    """The ratio of two medians; rounds are resampled, because both met the same load in a round."""
    rows = draw.integers(len(a), size=(_RESAMPLES, len(a)))
    ratios = np.median(a[rows], axis=1) / np.median(b[rows], axis=1)
    return Estimate(float(np.median(a) / np.median(b)), *_interval(ratios), len(a))


def _median(values: np.ndarray, draw: np.random.Generator) -> Estimate:
    rows = draw.integers(len(values), size=(_RESAMPLES, len(values)))
    return Estimate(float(np.median(values)), *_interval(np.median(values[rows], axis=1)), len(values))


def _blocks(values: np.ndarray, draw: np.random.Generator, length: int = 40) -> Estimate:
    """A mean over neighbours that resemble each other: blocks of them are resampled."""
    blocks = values[: len(values) // length * length].reshape(-1, length).mean(axis=1)
    rows = draw.integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    return Estimate(float(values.mean()), *_interval(blocks[rows].mean(axis=1)), len(values))


def _growth(ages: np.ndarray, draw: np.random.Generator) -> Estimate:
    """The slope of the age over time, from pairs of moments."""
    fit = float(np.polyfit(ages[:, 0], ages[:, 1], 1)[0])
    resampled = (ages[draw.integers(len(ages), size=len(ages))] for _ in range(200))
    slopes = np.array([np.polyfit(a[:, 0], a[:, 1], 1)[0] for a in resampled])
    return Estimate(fit, *_interval(slopes), len(ages))


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _quantiles(values: np.ndarray) -> tuple[float, float, float]:
    p10, p50, p99 = np.quantile(values, [0.1, 0.5, 0.99])
    return float(p10), float(p50), float(p99)


# Pictures ----------------------------------------------------------------------------------------------------------


def _draw_timeline(data: dict[str, Any], figure: Figure) -> None:
    """When the actions of one chunk became executable, streamed against all at the end."""
    axes = figure.subplots()
    axes.axvspan(0, 1000 * ENCODE_S, color="0.92")
    axes.text(500 * ENCODE_S, HORIZON * 0.97, "encoding", ha="center", va="top", color="0.4")
    for name, color in (("served constant", "tab:gray"), ("served streamed", "tab:blue")):
        times = [1000 * at for at, _, _ in data["arrivals"][name]]
        ends = [start + count for _, start, count in data["arrivals"][name]]
        axes.step([0, *times, 85], [0, *ends, ends[-1]], where="post", color=color, label=name.partition(" ")[2])
        axes.plot(times, ends, "o", color=color, markersize=4)
        axes.annotate(
            f"first action\n{times[0]:.1f} ms",
            (times[0], 0),
            (times[0] - 1, 12),
            color=color,
            ha="right",
            arrowprops={"arrowstyle": "-", "color": color, "alpha": 0.5},
        )
    axes.set(
        xlabel="ms since the observation was sent",
        ylabel="actions that the client may execute",
        title=f"One chunk of {HORIZON} actions: {STEPS} steps of {1000 * STEP_S:g} ms",
        xlim=(0, 85),
        ylim=(0, HORIZON + 4),
    )
    axes.legend(loc="center left", frameon=False)


def _draw_latency(trips: dict[str, np.ndarray], crowd: dict[str, np.ndarray], figure: Figure) -> None:
    """Round trips: against the rivals, and in a crowd; each curve says which share took at most so long."""
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, series, title in (
        (left, trips, "Observation of 300 KB"),
        (right, crowd, f"Clients of one policy of {1000 * CROWD_S:g} ms"),
    ):
        for name, values in series.items():
            axes.step(np.sort(values), np.linspace(0, 1, len(values)), where="post", label=name)
        axes.set(xlabel="round trip, ms", title=title, xscale="log", ylim=(0, 1))
        low, high = (float(np.quantile(np.concatenate(list(series.values())), q)) for q in (0.0, 0.995))
        ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low / 2 < t < 2 * high]
        axes.set_xlim(0.9 * low, 1.2 * high)
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes.set_xticks([], minor=True)
        axes.grid(True, alpha=0.3)
        axes.legend(loc="lower right", fontsize="small")
    left.set_ylabel("share of requests")
