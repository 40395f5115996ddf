"""What the socket costs, and what streaming brings. Ratios of things measured in one run; servers are processes.

python tests/benchmarks/bench_serving.py [--requests 100] [--part ttfa|roundtrip|overload|clients]

ttfa       time to first action of a fake policy (encode 20 ms, step 5 ms, N=10): in process, and through the socket,
           with a schedule that finishes near actions first and with one that finishes all at the end
roundtrip  a 300 KB observation: native, against the openpi dialect as openpi serves it (inference on the event loop of
           a WebSocket server), and against a plain REP server with msgpack and .npy (as GR00T does), same function
overload   a client at 200 Hz and a policy at 20 Hz: age of the observation behind the newest action, against a
           server that answers first come, first served
clients    1, 4 and 16 clients of one policy: p50, p99 of a round trip, and the least and most served of them
"""

import argparse
import asyncio
import io
import json
import queue
import subprocess
import sys
import threading
import time

import msgpack
import numpy as np
import zmq
from gymnasium import spaces

from palaestra.agents.agent import ActionPart, Agent, Call, Episode
from palaestra.runtime.client import RemoteAgent
from palaestra.runtime.connection import Inbox
from palaestra.runtime.fronts import openpi as dialect
from palaestra.runtime.protocol import FINAL, OBSERVATION
from palaestra.runtime.server import PolicyServer

ENCODE_S, STEP_S, STEPS, HORIZON, WIDTH = 0.020, 0.005, 10, 50, 7
SMALL = spaces.Dict(agent_pos=spaces.Box(-1, 1, (WIDTH,)))
LARGE = spaces.Dict(
    base=spaces.Box(0, 255, (224, 224, 3), np.uint8),
    wrist=spaces.Box(0, 255, (224, 224, 3), np.uint8),
    agent_pos=spaces.Box(-1, 1, (WIDTH,)),
)
ACTIONS = spaces.Box(-1, 1, (WIDTH,))


class Fake(Agent):
    """A policy of known cost: sleeps as long as a GPU would work. ``streams``: near actions are final first."""

    def __init__(self, encode_s, step_s, steps, streams):
        self.encode_s, self.step_s, self.steps, self.streams = encode_s, step_s, steps, streams
        self.actions = np.zeros((HORIZON, WIDTH), np.float32)

    def plan(self, memory, call):
        time.sleep(self.encode_s)
        sent = 0
        for step in range(self.steps):
            if self.step_s:
                time.sleep(self.step_s)
            last = step == self.steps - 1
            upto = HORIZON if last else (step + 1) ** 2 * HORIZON // self.steps**2 + 1 if self.streams else 0
            yield ActionPart(sent, self.actions[sent:upto], encodes=step == 0, evaluations=1)
            sent = max(sent, upto)


def function(observation):
    """What every server of the round trip computes: actions that depend on every array."""
    value = sum(float(value.reshape(-1)[0]) + float(value.reshape(-1)[-1]) for value in observation.values())
    return np.full((HORIZON, WIDTH), value, np.float32)


class Function(Agent):
    """The same function as an agent."""

    def plan(self, memory, call):
        yield ActionPart(0, function(call.observation), evaluations=1)


AGENTS = {
    "stream": lambda: (Fake(ENCODE_S, STEP_S, STEPS, True), SMALL),
    "constant": lambda: (Fake(ENCODE_S, STEP_S, STEPS, False), SMALL),
    "slow": lambda: (Fake(0.0, 0.050, 1, True), SMALL),
    "quick": lambda: (Fake(0.0, 0.002, 1, True), SMALL),
    "function": lambda: (Function(), LARGE),
}


def episode(space):
    return Episode(0, "bench", space, ACTIONS, control_hz=200.0)


# --- servers, each in a process of its own ---


def serve_native(kind):
    agent, space = AGENTS[kind]()
    with PolicyServer(agent, episode(space), "tcp://127.0.0.1:*") as server:
        print(server.bind, flush=True)
        time.sleep(3600)


def serve_as_openpi_does(kind):
    from websockets.asyncio.server import serve

    async def handle(connection):
        await connection.send(dialect.encode({}))
        async for frame in connection:
            observation = _unpack(frame)
            began = time.monotonic()
            result = {"actions": function(observation), "server_timing": {"infer_ms": time.monotonic() - began}}
            await connection.send(_pack(result))

    async def main():
        async with serve(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
            print(server.sockets[0].getsockname()[1], flush=True)
            await server.wait_closed()

    asyncio.run(main())


def serve_as_groot_does(kind):
    socket = zmq.Context().socket(zmq.REP)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    print(f"tcp://127.0.0.1:{port}", flush=True)
    while True:
        request = msgpack.unpackb(socket.recv(), object_hook=_read_npy)
        socket.send(msgpack.packb([{"action": function(request["data"]["observation"])}, {}], default=_npy))


def serve_in_order(kind):
    """First come, first served: a PULL of observations, each of which is answered after 50 ms."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    print(f"tcp://127.0.0.1:{port}", flush=True)
    while True:
        client, stamp = socket.recv_multipart()
        time.sleep(0.050)
        socket.send_multipart([client, stamp])


SERVERS = {
    "native": serve_native,
    "openpi": serve_as_openpi_does,
    "groot": serve_as_groot_does,
    "fifo": serve_in_order,
}


class Server:
    """A server in a process; its address is what it prints first."""

    def __init__(self, name, kind="function"):
        command = [sys.executable, __file__, "--serve", name, "--kind", kind]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()

    def __enter__(self):
        return self.address

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def _npy(value):
    stream = io.BytesIO()
    np.save(stream, value, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": stream.getvalue()}


def _read_npy(m):
    return np.load(io.BytesIO(m["as_npy"]), allow_pickle=False) if "__ndarray_class__" in m else m


def _pack(document):
    """openpi's own packer where it is installed, else ours, which writes the same bytes."""
    try:
        from openpi_client import msgpack_numpy

        return msgpack_numpy.packb(document)
    except ImportError:
        return dialect.encode(document)


def _unpack(frame):
    try:
        from openpi_client import msgpack_numpy

        return msgpack_numpy.unpackb(frame)
    except ImportError:
        return dialect.decode(frame)


# --- measurements ---


def quantiles(values):
    p50, p99 = np.quantile(np.asarray(values) * 1000.0, [0.5, 0.99])
    return float(p50), float(p99)


def first_action_s(agent, memory, observation):
    """Time to the first action."""
    began = time.perf_counter()
    for part in agent.plan(memory, Call(observation)):
        if len(part.actions):
            return time.perf_counter() - began


def first_action_remote_s(remote, memory, observation):
    """Time to the first action through the socket, and how much of it was not the agent's."""
    began = time.perf_counter()
    request = remote.connection.request(OBSERVATION, *remote._observation(memory, Call(observation)))
    _, message = request.inbox.get()
    first = time.perf_counter() - began
    in_agent = (message.header["t_tx_ns"] - message.header["t_start_ns"]) / 1e9
    while message.kind != FINAL:
        _, message = request.inbox.get()
    return first, first - in_agent


def ttfa(requests):
    seen = {"agent_pos": np.zeros(WIDTH, np.float32)}
    p50 = {}
    for kind in ("constant", "stream"):
        local, space = AGENTS[kind]()
        with Server("native", kind) as url:
            remote = RemoteAgent(url)
            memory = remote.reset(episode(space))
            ours, theirs = [], []
            for _ in range(requests):
                ours.append(first_action_s(local, None, seen))
                theirs.append(first_action_remote_s(remote, memory, seen))
            remote.close()
        total, added = zip(*theirs, strict=True)
        p50[kind] = quantiles(total)[0]
        print(
            f"ttfa {kind:8}: in process {quantiles(ours)[0]:.2f} ms, through the socket {p50[kind]:.2f} ms, of which "
            f"the socket adds {quantiles(added)[0]:.2f} ms (p99 {quantiles(added)[1]:.2f}) to what the agent took there"
        )
    measured = p50["constant"] / p50["stream"]
    predicted = (ENCODE_S + STEPS * STEP_S) / (ENCODE_S + STEP_S)
    print(
        f"ttfa constant / streamed: measured {measured:.3f}, predicted {predicted:.3f}, "
        f"{100 * (measured / predicted - 1):+.1f} %"
    )


def roundtrip(requests):
    draw = np.random.default_rng(0)
    seen = {key: draw.integers(0, 256, (224, 224, 3), np.uint8) for key in ("base", "wrist")}
    seen["agent_pos"] = draw.uniform(-1, 1, WIDTH).astype(np.float32)
    expected = function(seen)
    times: dict[str, list[float]] = {"native": [], "openpi": [], "groot": []}
    with Server("native") as native, Server("openpi") as openpi, Server("groot") as groot:
        remote = RemoteAgent(native)
        memory = remote.reset(episode(LARGE))
        socket: zmq.Socket = zmq.Context.instance().socket(zmq.REQ)
        socket.connect(groot)
        ask_openpi = _openpi_client(int(openpi))

        def ask_native():
            (part,) = (part for part in remote.plan(memory, Call(seen)) if len(part.actions))
            return part.actions

        def ask_groot():
            socket.send(msgpack.packb({"endpoint": "get_action", "data": {"observation": seen}}, default=_npy))
            return msgpack.unpackb(socket.recv(), object_hook=_read_npy)[0]["action"]

        asks = {"native": ask_native, "openpi": lambda: ask_openpi(seen), "groot": ask_groot}
        for n in range(requests + 10):  # in turn, so that all meet the same load
            for name, ask in asks.items():
                began = time.perf_counter()
                actions = ask()
                if n >= 10:
                    times[name].append(time.perf_counter() - began)
                assert np.array_equal(actions, expected)
        remote.close()
        socket.close(0)
    base = quantiles(times["native"])[0]
    for name, values in times.items():
        p50, p99 = quantiles(values)
        print(f"roundtrip of 300 KB, {name:6}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {p50 / base:.1f} x native")


def _openpi_client(port):
    try:
        from openpi_client.websocket_client_policy import WebsocketClientPolicy

        client = WebsocketClientPolicy("127.0.0.1", port)
        return lambda seen: client.infer(seen)["actions"]
    except ImportError:
        from websockets.sync.client import connect

        socket = connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None).__enter__()
        socket.recv()

        def ask(seen):
            socket.send(_pack(seen))
            return _unpack(socket.recv())["actions"]

        return ask


def overload(requests):
    period_s, seconds = 0.005, max(3.0, requests * 0.05)
    seen = {"agent_pos": np.zeros(WIDTH, np.float32)}
    ages, endings, sent = [], {}, {}
    with Server("native", "slow") as url:
        remote = RemoteAgent(url)
        memory = remote.reset(episode(SMALL))
        inbox: Inbox = queue.SimpleQueue()
        newest, began, tick = None, time.perf_counter(), 0
        while tick < seconds / period_s:
            time.sleep(max(0.0, began + tick * period_s - time.perf_counter()))
            request = remote.connection.request(OBSERVATION, *remote._observation(memory, Call(seen, tick=tick)), inbox)
            sent[request.seq] = time.perf_counter()
            while not inbox.empty():
                exchange, message = inbox.get()
                if message.kind == b"A":
                    newest = exchange.seq
                else:
                    endings[exchange.seq] = message.kind
            if newest is not None:  # what a robot would execute at this tick
                ages.append(time.perf_counter() - sent[newest])
            tick += 1
        while len(endings) < tick:
            exchange, message = inbox.get(timeout=5)
            if message.kind != b"A":
                endings[exchange.seq] = message.kind
        remote.close()
    fifo = []
    with Server("fifo") as url:
        socket: zmq.Socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.connect(url)
        newest, began = None, time.perf_counter()
        for n in range(tick):
            time.sleep(max(0.0, began + n * period_s - time.perf_counter()))
            socket.send(json.dumps(time.perf_counter()).encode())
            while socket.poll(0):
                newest = json.loads(socket.recv())
            if newest is not None:
                fifo.append(time.perf_counter() - newest)
        socket.close(0)
    kinds = list(endings.values())
    print(
        f"overload, 200 Hz against 20 Hz: {tick} observations, all answered: {kinds.count(b'F')} planned, "
        f"{kinds.count(b'X')} superseded\n"
        f"overload, age of the executed observation: mean {np.mean(ages) / 0.05:.2f}, max {np.max(ages) / 0.05:.2f} "
        f"inference times; first come, first served: mean {np.mean(fifo) / 0.05:.1f}, max {np.max(fifo) / 0.05:.1f}"
    )


def clients(requests):
    seen = {"agent_pos": np.zeros(WIDTH, np.float32)}
    for count in (1, 4, 16):
        with Server("native", "quick") as url:
            remotes = [RemoteAgent(url) for _ in range(count)]
            memories = [remote.reset(episode(SMALL)) for remote in remotes]
            served, until = [0] * count, time.perf_counter() + max(2.0, requests * 0.02)
            times: list[float] = []

            def act(n, remotes=remotes, memories=memories, served=served, times=times, until=until):
                while time.perf_counter() < until:
                    began = time.perf_counter()
                    assert list(remotes[n].plan(memories[n], Call(seen)))
                    times.append(time.perf_counter() - began)
                    served[n] += 1

            threads = [threading.Thread(target=act, args=(n,)) for n in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for remote in remotes:
                remote.close()
        p50, p99 = quantiles(times)
        fair = count * 2.0  # one policy that takes 2 ms serves each of them once in this time
        print(
            f"clients, {count:2}: p50 {p50:.1f} ms, p99 {p99:.1f} ms ({p99 / fair:.1f} x the policy's {fair:.0f} ms), "
            f"served least {min(served)}, most {max(served)}"
        )


PARTS = {"ttfa": ttfa, "roundtrip": roundtrip, "overload": overload, "clients": clients}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=AGENTS, default="function", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        SERVERS[arguments.serve](arguments.kind)
    else:
        for part in arguments.part or PARTS:
            PARTS[part](arguments.requests)
