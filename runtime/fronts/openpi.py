"""The openpi dialect: a WebSocket on which the server speaks first, then one observation, one chunk, in turn.

A connection is a client, and begins an episode with its first observation; another ``prompt`` begins the next. With
``streaming`` (the extension of FASTER) parts are sent as ``{"type": "partial"}`` before the whole chunk, which is
then ``{"type": "final"}``; a stock client does not know these, so it is off by default.
"""

from __future__ import annotations

import asyncio
import hmac
import http
import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from ...agents.agent import ActionPart, Call
from ..frame_codec import LIMITS, Limits, WireError, check_dtype, read_msgpack, view_array
from ..inference import Job, Session
from .whole_chunks import Chunk, WholeChunks, fit_observation

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection

    from ..server import PolicyServer

_MAX_CONNECTIONS = 256
_REASON = "Internal server error. Traceback included in previous frame."  # clients look for these words


class OpenpiServer:
    """Answers openpi clients on a port of its own, with the agent and the lanes of a :class:`PolicyServer`.

    ``host`` must be a loopback address unless ``insecure``: the dialect cannot be encrypted here (put a TLS proxy in
    front). ``api_key`` is the word that clients put into ``Authorization: Api-Key ...``. ``port`` 0 takes a free
    one; the attribute says which. Raises ``ValueError`` for an open address and ``OSError`` for one that is taken.
    """

    def __init__(
        self,
        server: PolicyServer,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        api_key: str | None = None,
        streaming: bool = False,
        insecure: bool = False,
    ):
        from ..server import require_private

        require_private(f"tcp://{host}:{port}", secured=False, insecure=insecure)
        self.host, self.port = host, port
        self._server, self._api_key, self._streaming = server, api_key, streaming
        self._numbers = itertools.count()
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="palaestra-openpi", daemon=True)
        self._sockets: Server | None = None

    def start(self) -> OpenpiServer:
        """Bind and begin to answer; returns itself."""
        self._thread.start()
        try:
            self._sockets = self._wait(self._listen())
        except BaseException:
            self._end_loop()
            raise
        self.port = next(iter(self._sockets.sockets)).getsockname()[1]
        return self

    def close(self) -> None:
        """Close all connections and end. A second call does nothing."""
        if self._sockets is None:
            return
        sockets, self._sockets = self._sockets, None
        sockets.close()
        self._wait(sockets.wait_closed())
        self._end_loop()

    def __enter__(self) -> OpenpiServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2.0)
        self._loop.close()

    # --- on the event loop ---

    async def _listen(self) -> Server:
        from websockets.asyncio.server import serve

        return await serve(
            self._converse,
            self.host,
            self.port,
            process_request=self._door,
            compression=None,
            max_size=self._server.limits.bytes,
            max_queue=2,
            ping_interval=20,
            ping_timeout=None,  # a slow first inference must not end the connection
        )

    def _door(self, connection: ServerConnection, request: Any) -> Any:
        """Plain HTTP: the health check, and who may come in."""
        if request.path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        given = request.headers.get("Authorization", "")
        if self._api_key and not hmac.compare_digest(f"Api-Key {self._api_key}".encode(), given.encode()):
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "the api key is wrong or missing\n")
        if self._connections >= _MAX_CONNECTIONS:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many clients\n")
        return None

    async def _converse(self, connection: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        server = self._server
        session = Session(b"openpi-%d" % next(self._numbers), 0, server.episode)
        self._connections += 1
        total_ms: float | None = None
        try:
            await connection.send(encode({"server": "palaestra", "env_id": server.episode.env_id}))
            async for frame in connection:
                began = time.monotonic()
                if isinstance(frame, str):
                    raise WireError("BAD_HEADER", "a text frame, expected a binary one with an observation")
                chunk, session = await self._plan(connection, session, decode(frame, server.limits))
                timing = {"infer_ms": (time.monotonic() - began) * 1000.0}
                if total_ms is not None:
                    timing["prev_total_ms"] = total_ms
                result: dict[str, Any] = {**chunk.extras, "actions": np.asarray(chunk.actions)}
                result |= {"policy_timing": {"infer_ms": chunk.infer_ms}, "server_timing": timing}
                await connection.send(encode({"type": "final", **result} if self._streaming else result))
                total_ms = (time.monotonic() - began) * 1000.0
        except WireError as error:
            await connection.send(str(error))
            await connection.close(1011, _REASON)
        except ConnectionClosed:
            pass
        finally:
            self._connections -= 1
            server.inference.cancel(session)

    async def _plan(self, connection: ServerConnection, session: Session, given: Any) -> tuple[Chunk, Session]:
        server, loop = self._server, asyncio.get_running_loop()
        if not isinstance(given, dict):
            raise WireError("BAD_HEADER", f"the observation is a {type(given).__name__}, expected a map")
        prompt = _text(given.pop("prompt", None))
        committed = _prefix(given)
        observation = fit_observation(server.episode.observation_space, given, prompt)
        answers: asyncio.Queue[ActionPart | list[Chunk] | WireError] = asyncio.Queue()

        def tell(answer: Any) -> None:
            loop.call_soon_threadsafe(answers.put_nowait, answer)

        whole = WholeChunks(tell, tell if self._streaming else None)
        instruction = server.episode.instruction if prompt is None else prompt
        if not session.ready or session.episode.instruction != instruction:
            again = session.number + bool(session.ready)
            episode = replace(server.episode, seed=server.episode.seed + again, instruction=instruction)
            session = Session(session.client, again, episode)
            server.inference.submit(Job("reset", session, 0, whole))
        job = Job("plan", session, 0, whole, call=Call(observation, committed=committed), encode_first=True)
        whole.expect([job])
        server.inference.submit(job)
        while isinstance(answer := await answers.get(), ActionPart):
            if len(answer.actions):
                await connection.send(encode({"type": "partial", "actions": np.asarray(answer.actions)}))
        if isinstance(answer, WireError):
            raise answer
        return answer[0], session


def encode(document: Any) -> bytes:
    """A document of the dialect; arrays are maps with keys of bytes. Raises ``WireError`` (BAD_SCHEMA)."""

    def array(value: Any) -> Any:
        if not isinstance(value, (np.ndarray, np.generic)):
            raise WireError("BAD_SCHEMA", f"a {type(value).__name__} does not travel")
        check_dtype(value.dtype.str, "an array")
        if isinstance(value, np.generic):
            return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}

    return msgpack.packb(document, default=array)


def decode(payload: bytes, limits: Limits = LIMITS) -> Any:
    """Read a document of the dialect, bounded. Raises ``WireError`` (BAD_HEADER, TOO_LARGE)."""

    def walk(value: Any, depth: int) -> Any:
        if depth > limits.depth:
            raise WireError("BAD_HEADER", f"the document is nested deeper than {limits.depth} levels")
        if isinstance(value, list):
            return [walk(item, depth + 1) for item in value]
        if not isinstance(value, Mapping):
            return value
        if b"__ndarray__" in value:
            return view_array(value.get(b"data"), value.get(b"dtype"), value.get(b"shape"), limits)
        if b"__npgeneric__" in value:
            return _number(value.get(b"data"), value.get(b"dtype"))
        return {key: walk(item, depth + 1) for key, item in value.items()}

    return walk(read_msgpack(payload, limits), 0)


def _number(data: Any, dtype: Any) -> np.generic:
    check_dtype(dtype, "a number", "BAD_HEADER")
    if not isinstance(data, (bool, int, float, str)):
        raise WireError("BAD_HEADER", f"the data of a number is a {type(data).__name__}")
    try:
        return np.dtype(dtype).type(data)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError("BAD_HEADER", f"{str(data)[:40]!r} is no {dtype}: {error}") from None


def _text(prompt: Any) -> str | None:
    if isinstance(prompt, np.ndarray) and prompt.size == 1:
        prompt = prompt.reshape(-1)[0]
    if prompt is not None and not isinstance(prompt, str):
        raise WireError("BAD_SCHEMA", f"the prompt is a {type(prompt).__name__}, expected text")
    return None if prompt is None else str(prompt)


def _prefix(given: dict[str, Any]) -> Any:
    """The actions that run anyway, where a client says so: ``action_prefix`` [d, D] and ``delay`` = d."""
    prefix, delay = given.pop("action_prefix", None), given.pop("delay", None)
    if prefix is None and delay is None:
        return ()
    if not isinstance(prefix, np.ndarray) or prefix.ndim < 1 or delay is None or np.ndim(delay) or len(prefix) != delay:
        raise WireError("BAD_SCHEMA", "action_prefix [d, D] and delay = d belong together")
    return prefix
