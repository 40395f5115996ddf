"""The servers that the study ``serving`` compares, ours among them, and clients of the other dialects.

Each runs in a process of its own and is written from the wire format of what it stands for. This module is what those
processes import, so it imports little.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from multiprocessing.connection import Connection as Pipe
from typing import Any

import msgpack
import numpy as np
import zmq
from gymnasium import spaces

from ...agents.agent import ActionPart, Agent, Call, Episode

HORIZON, WIDTH = 50, 7  # of a chunk
SLOW_S = 0.050  # an inference of the policy that is overloaded
PATIENCE_S = 60.0
SMALL = spaces.Dict(agent_pos=spaces.Box(-1, 1, (WIDTH,)))
LARGE = spaces.Dict(
    base=spaces.Box(0, 255, (224, 224, 3), np.uint8),
    wrist=spaces.Box(0, 255, (224, 224, 3), np.uint8),
    agent_pos=spaces.Box(-1, 1, (WIDTH,)),
)
ACTIONS = spaces.Box(-1, 1, (WIDTH,))


# Policies ----------------------------------------------------------------------------------------------------------


class Paced(Agent):
    """A policy of known cost, which sleeps as long as a GPU would work.

    What an episode costs stands in its options: ``encode_s``, ``step_s``, and in ``ready`` how many actions become
    final with each step. An episode without them is planned by :func:`function`, with noise of its seed if ``noisy``.
    """

    def reset(self, episode: Episode) -> tuple[Mapping[str, Any], np.random.Generator]:
        """Its memory: the options, and a source of noise."""
        return episode.options, np.random.default_rng(episode.seed)

    def plan(self, memory: tuple[Mapping[str, Any], np.random.Generator], call: Call) -> Iterator[ActionPart]:
        """Encode, then step by step."""
        options, noise = memory
        if "ready" not in options:
            actions = function(call.observation)
            if options.get("noisy"):
                actions = actions + noise.normal(size=actions.shape).astype(np.float32)
            yield ActionPart(0, actions, evaluations=1)
            return
        actions, sent = np.zeros((HORIZON, WIDTH), np.float32), 0
        time.sleep(options["encode_s"])
        for step, count in enumerate(options["ready"]):
            time.sleep(options["step_s"])
            yield ActionPart(sent, actions[sent : sent + count], encodes=step == 0, evaluations=1)
            sent += count


def function(observation: Mapping[str, np.ndarray]) -> np.ndarray:
    """Actions [50, 7] that depend on every array of an observation; what all servers compute."""
    ends = (float(value.reshape(-1)[0]) + float(value.reshape(-1)[-1]) for value in observation.values())
    return np.full((HORIZON, WIDTH), sum(ends), np.float32)


def paced(step_s: float, ready: list[int], encode_s: float = 0.0) -> Episode:
    """An episode that costs so much, with small observations."""
    options = {"encode_s": encode_s, "step_s": step_s, "ready": ready}
    return Episode(0, "serving", SMALL, ACTIONS, control_hz=200.0, options=options)


def computed(noisy: bool = False) -> Episode:
    """An episode that is planned by :func:`function`, with observations of 300 KB."""
    return Episode(0, "serving", LARGE, ACTIONS, control_hz=200.0, options={"noisy": noisy})


def small() -> dict[str, np.ndarray]:
    """An observation."""
    return {"agent_pos": np.zeros(WIDTH, np.float32)}


def large(draw: np.random.Generator) -> dict[str, np.ndarray]:
    """An observation of 300 KB: two pictures and a state."""
    pictures = {key: draw.integers(0, 256, (224, 224, 3), np.uint8) for key in ("base", "wrist")}
    return {**pictures, "agent_pos": draw.uniform(-1, 1, WIDTH).astype(np.float32)}


# Servers, each in a process of its own -----------------------------------------------------------------------------


class Server:
    """A process that serves; it starts at once, and whoever asks for its ``address`` waits for it."""

    def __init__(self, serve: Callable[..., None], *arguments: str):
        spawn = multiprocessing.get_context("spawn")
        self._told, tell = spawn.Pipe(duplex=False)
        self.process = spawn.Process(target=serve, args=(tell, *arguments), daemon=True)
        self.process.start()
        tell.close()

    @cached_property
    def address(self) -> str:
        """What the server told: an endpoint, or a port. Raises ``TimeoutError`` when it does not start."""
        try:
            if self._told.poll(PATIENCE_S):
                return self._told.recv()
        except EOFError:
            pass
        raise TimeoutError(f"a server process did not start within {PATIENCE_S:g} s")

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.join()


def serve_native(tell: Pipe, bind: str = "tcp://127.0.0.1:*") -> None:
    """Ours, with its openpi port behind the endpoint."""
    from ..fronts.openpi import OpenpiServer
    from ..server import PolicyServer

    logging.disable()  # what mutants say is not news
    with PolicyServer(Paced(), computed(), bind) as server, OpenpiServer(server, port=0) as front:
        tell.send(f"{server.bind} {front.port}")
        threading.Event().wait()


def _serve_as_openpi(tell: Pipe) -> None:
    """Inference on the event loop of a WebSocket server."""
    from websockets.asyncio.server import ServerConnection, serve

    async def converse(connection: ServerConnection) -> None:
        await connection.send(openpi_bytes({}))
        async for frame in connection:
            began = time.monotonic()
            result: dict[str, Any] = {"actions": function(openpi_read(frame))}
            result["server_timing"] = {"infer_ms": 1000 * (time.monotonic() - began)}
            await connection.send(openpi_bytes(result))

    async def main() -> None:
        async with serve(converse, "127.0.0.1", 0, compression=None, max_size=None) as server:
            tell.send(str(next(iter(server.sockets)).getsockname()[1]))
            await server.wait_closed()

    asyncio.run(main())


def _serve_as_groot(tell: Pipe) -> None:
    """Requests one after the other on a REP socket."""
    socket = zmq.Context().socket(zmq.REP)
    tell.send(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}")
    while True:
        request = msgpack.unpackb(socket.recv(), object_hook=groot_array)
        answer = [{"action": function(request["data"]["observation"])}, {}]
        socket.send(msgpack.packb(answer, default=groot_map))


def _serve_echo(tell: Pipe) -> None:
    """The least that a server with a worker thread can do: frames in, to the worker, frames of a chunk out."""
    context = zmq.Context()
    router, inside, worker = context.socket(zmq.ROUTER), context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    inside.bind("inproc://worker")
    worker.connect("inproc://worker")
    chunk = bytes(HORIZON * WIDTH * 4)

    def work() -> None:
        while True:
            worker.send_multipart([worker.recv(), chunk])

    threading.Thread(target=work, daemon=True).start()
    tell.send(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(inside, zmq.POLLIN)
    while True:
        for socket, _ in poller.poll():
            if socket is router:
                inside.send(router.recv_multipart(copy=False)[0].bytes)
            else:
                router.send_multipart(inside.recv_multipart())


def _serve_in_order(tell: Pipe) -> None:
    """First come, first served, each after an inference time."""
    router = zmq.Context().socket(zmq.ROUTER)
    router.setsockopt(zmq.RCVHWM, 0)
    tell.send(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    while True:
        frames = router.recv_multipart()
        time.sleep(SLOW_S)
        router.send_multipart(frames)


SERVERS: dict[str, Callable[..., None]] = {
    "native": serve_native,
    "openpi": _serve_as_openpi,
    "groot": _serve_as_groot,
    "echo": _serve_echo,
    "in order": _serve_in_order,
}
Servers = dict[str, Server]


# Clients of the other dialects, written from their wire formats ----------------------------------------------------


def openpi_bytes(document: Any) -> bytes:
    """A document as openpi packs it."""

    def plain(array: np.ndarray) -> dict[bytes, Any]:
        return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": array.shape}

    return msgpack.packb(document, default=plain)


def openpi_read(frame: bytes | str) -> Any:
    """The document in a frame. Raises ``RuntimeError`` for a text, which is an error."""

    def array(m: dict[Any, Any]) -> Any:
        return np.ndarray(m[b"shape"], np.dtype(m[b"dtype"]), m[b"data"]) if b"__ndarray__" in m else m

    if isinstance(frame, str):
        raise RuntimeError(f"Error in inference server:\n{frame}")
    return msgpack.unpackb(frame, object_hook=array)


class OpenpiClient:
    """The published client where it is installed (it asks for numpy 1), else one that writes the same bytes."""

    published = importlib.util.find_spec("openpi_client") is not None

    def __init__(self, port: int):
        self._stack = ExitStack()
        if self.published:
            from openpi_client.websocket_client_policy import WebsocketClientPolicy

            self.infer: Callable[[Any], Any] = WebsocketClientPolicy("127.0.0.1", port).infer
            return
        from websockets.sync.client import connect

        socket = self._stack.enter_context(connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None))
        openpi_read(socket.recv())  # the server speaks first

        def infer(observation: Any) -> Any:
            socket.send(openpi_bytes(observation))
            return openpi_read(socket.recv())

        self.infer = infer

    def close(self) -> None:
        """End the connection."""
        self._stack.close()


def groot_map(array: np.ndarray) -> dict[str, Any]:
    """An array as GR00T packs it."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": stream.getvalue()}


def groot_array(m: dict[str, Any]) -> Any:
    """The array of such a map; any other map as it is."""
    return np.load(io.BytesIO(m["as_npy"]), allow_pickle=False) if "__ndarray_class__" in m else m


class GrootClient:
    """A REQ socket that asks as a stock client does."""

    def __init__(self, url: str):
        self._socket: zmq.Socket = zmq.Context.instance().socket(zmq.REQ)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, int(1000 * PATIENCE_S))
        self._socket.connect(url)

    def act(self, observation: Any) -> dict[str, np.ndarray]:
        """Actions by the names of their groups."""
        request = {"endpoint": "get_action", "data": {"observation": observation}}
        self._socket.send(msgpack.packb(request, default=groot_map))
        answer = msgpack.unpackb(self._socket.recv(), object_hook=groot_array)
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"Server error: {answer['error']}")
        return answer[0]

    def close(self) -> None:
        """End the connection."""
        self._socket.close()
