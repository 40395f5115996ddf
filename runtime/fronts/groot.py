"""The Isaac-GR00T dialect: a REQ socket, one msgpack map each way, arrays as .npy files inside.

Both generations are answered, told apart by their messages: since N1.6 the data of ``get_action`` has an
``observation`` (nested: ``video``, ``state``, ``language``; or flat: ``video.CAMERA``) and ``options``; in N1.5 the
data *is* the flat observation. Arrays are [B, T, ...]; each row of the batch is an episode of its own.

A ``state`` is a vector of the observation space under its own key, a ``video`` the picture ``pixels`` or one of its
cameras. Actions go out by the components of the agent's interface card, or all together as ``action``.
"""

from __future__ import annotations

import hmac
import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from ...agents.agent import Call
from ..frame_codec import LIMITS, Buffer, Limits, WireError, read_msgpack, view_array, write_msgpack
from ..inference import Job
from .whole_chunks import Chunk, WholeChunks, fit_observation

if TYPE_CHECKING:
    from ..server import Client, PolicyServer

log = logging.getLogger(__name__)

_SILENCE_S = 600.0  # a REQ socket has no heartbeat: silence says little


class Groot:
    """Speaks the GR00T dialect; ``kill`` is not obeyed."""

    def __init__(self, server: PolicyServer):
        self._server = server
        self._warned: set[str] = set()

    def receive(self, client: Client, frames: Sequence[Buffer]) -> None:
        """Handle one request. Raises ``WireError`` for what is refused."""
        server = self._server
        envelope, payload = _open(frames)
        request = decode(payload, server.limits)
        if not isinstance(request, dict):
            raise WireError("BAD_HEADER", f"the request is a {type(request).__name__}, expected a map")
        token = request.get("api_token")
        if server.token is not None and not (
            isinstance(token, str) and hmac.compare_digest(server.token.encode(), token.encode("utf-8", "replace"))
        ):
            self._reply(client, envelope, {"error": "Unauthorized: Invalid API token"})
            return
        client.silence_s = _SILENCE_S
        server.admit(client)
        endpoint, data = request.get("endpoint", "get_action"), request.get("data")
        match endpoint:
            case "ping":
                self._reply(client, envelope, {"status": "ok", "message": "Server is running"})
            case "kill":
                self._reply(client, envelope, {"error": "kill is disabled"})
            case "get_modality_config":
                self._reply(client, envelope, self._modalities(client))
            case "reset":
                client.notes["resets"] = client.notes.get("resets", -1) + 1
                for number in list(client.sessions):
                    server.forget_session(client, number)
                self._reply(client, envelope, {})
            case "get_action" if isinstance(data, dict):
                self._act(client, envelope, data)
            case "get_action":
                raise WireError("BAD_HEADER", "get_action came without a map of data")
            case _:
                self._reply(client, envelope, {"error": f"Unknown endpoint: {str(endpoint)[:80]}"})

    def refuse(self, client: Client, frames: Sequence[Buffer], error: WireError) -> None:
        """Say what was wrong, as the dialect does."""
        try:
            envelope, _ = _open(frames)
        except WireError:
            envelope = [b""]
        self._reply(client, envelope, {"error": str(error)})

    # --- the one request that matters ---

    def _act(self, client: Client, envelope: list[bytes], data: dict[str, Any]) -> None:
        server, new = self._server, "observation" in data
        given = data["observation"] if new else data
        options = (data.get("options") if new else None) or {}
        if not isinstance(given, dict) or not isinstance(options, dict):
            raise WireError("BAD_HEADER", "observation and options are expected to be maps")
        nested = any(isinstance(given.get(kind), dict) for kind in ("video", "state", "language"))
        client.notes["n15"] = not new
        flat = _flatten(given) if nested else given
        if not isinstance(server.episode.action_space, spaces.Box):
            raise WireError("BAD_SCHEMA", "the actions of this agent are no arrays; GR00T clients take arrays only")
        rows, batched = self._rows(flat)
        committed = [self._frozen(client, row, options) for row in range(len(rows))]

        def done(result: list[Chunk] | WireError) -> None:
            if isinstance(result, WireError):
                self._reply(client, envelope, {"error": str(result)})
                return
            client.notes["last"] = [chunk.actions for chunk in result]
            actions = np.stack([chunk.actions for chunk in result]) if batched else result[0].actions
            groups = self._groups(actions, "" if nested else "action.")
            self._reply(client, envelope, [groups, {}] if new else groups)

        whole, jobs, seq = WholeChunks(done), [], 0
        for row, (observation, instruction) in enumerate(rows):
            session = client.sessions.get(row)
            if session is None or session.episode.instruction != instruction:
                seed = server.episode.seed + max(0, client.notes.get("resets", 0))
                session = server.begin_session(client, row, replace(server.episode, seed=seed, instruction=instruction))
                server.inference.submit(Job("reset", session, seq, whole))
            call = Call(observation, committed=committed[row])
            jobs.append(Job("plan", session, seq, whole, call=call, encode_first=True))
        whole.expect(jobs)
        for job in jobs:
            server.inference.submit(job)

    def _rows(self, flat: dict[str, Any]) -> tuple[list[tuple[Any, str | None]], bool]:
        """The observation and the instruction of every row of the batch, and whether there was a batch axis."""
        space = self._server.episode.observation_space
        parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
        wanted: dict[str, tuple[Any, tuple[str, ...]]] = {}
        for key, part in parts.items():
            if key == "pixels" and isinstance(part, spaces.Dict):
                for camera, picture in part.spaces.items():
                    wanted[f"video.{camera}"] = (picture, (key, camera))
            elif isinstance(part, spaces.Box):
                wanted[f"{'video' if key == 'pixels' else 'state'}.{key}"] = (part, (key,))
        texts = {name: value for name, value in flat.items() if isinstance(value, (str, list))}
        if unknown := set(flat) - set(wanted) - set(texts) - self._warned:
            self._warned |= set(list(unknown)[:100])
            log.warning("a GR00T client sends %s, which the agent does not take", sorted(map(str, unknown))[:10])
        sizes: set[int | None] = set()
        found: list[tuple[tuple[str, ...], np.ndarray, Any]] = []
        for name, (part, path) in wanted.items():
            array = flat.get(name)
            if not isinstance(array, np.ndarray):
                raise WireError("BAD_SCHEMA", f"{name!r} is missing, got {sorted(map(str, flat))[:40]}")
            extra = array.ndim - len(part.shape)
            if extra not in (1, 2):
                raise WireError(
                    "BAD_SCHEMA", f"{name!r}: got shape {list(array.shape)}, expected [B, T, *{list(part.shape)}]"
                )
            sizes.add(len(array) if extra == 2 else None)
            found.append((path, array if extra == 2 else array[None], part))
        if len(sizes) != 1 or sizes == {0}:
            raise WireError("BAD_SCHEMA", f"the batches are of sizes {sorted(map(str, sizes))}, expected one size")
        (size,) = sizes
        rows: list[tuple[Any, str | None]] = []
        for row in range(size or 1):
            given: dict[str, Any] = {}
            for path, array, part in found:
                frames = array[row]
                if len(frames) != 1:
                    raise WireError(
                        "BAD_SCHEMA", f"{'/'.join(path)}: got {len(frames)} times, expected T=1 of {list(part.shape)}"
                    )
                inner = given
                for key in path[:-1]:
                    inner = inner.setdefault(key, {})
                inner[path[-1]] = frames[0]
            instruction = _text(texts, row)
            rows.append((fit_observation(space, given, instruction), instruction))
        return rows, size is not None

    def _frozen(self, client: Client, row: int, options: Mapping[str, Any]) -> Any:
        """The first actions of the new chunk, where the client keeps them from the end of the last one."""
        overlap, frozen = (options.get(f"rtc_{name}_steps") or 0 for name in ("overlap", "frozen"))
        last = client.notes.get("last", ())
        if not frozen or row >= len(last):
            return ()
        if type(overlap) is not int or type(frozen) is not int or not 0 <= frozen <= overlap <= len(last[row]):
            raise WireError(
                "BAD_SCHEMA",
                f"rtc_overlap_steps={str(overlap)[:20]}, rtc_frozen_steps={str(frozen)[:20]}, expected "
                f"0 <= frozen <= overlap <= {len(last[row])}, the length of the last chunk",
            )
        first = len(last[row]) - overlap
        return last[row][first : first + frozen]

    def _groups(self, actions: np.ndarray, prefix: str) -> dict[str, np.ndarray]:
        return {prefix + name: actions[..., where] for name, where in self._slices().items()}

    def _slices(self) -> dict[str, slice]:
        card, size = self._server.episode.interface, int((self._server.episode.action_space.shape or (1,))[-1])
        if card is None or sum(component.size for component in card.action) != size:
            return {"action": slice(0, size)}
        slices, start = {}, 0
        for component in card.action:
            slices[component.name] = slice(start, start + component.size)
            start += component.size
        return slices

    def _modalities(self, client: Client) -> dict[str, Any]:
        """What the agent takes and gives, each at the present time; actions over its chunk."""
        space, card = self._server.episode.observation_space, self._server.agent.interface
        parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
        cameras = parts.get("pixels")
        video = list(cameras.spaces) if isinstance(cameras, spaces.Dict) else ["pixels"] if cameras else []
        state = [key for key, part in parts.items() if key != "pixels" and isinstance(part, spaces.Box)]
        horizon = (card.chunk if card else None) or 1
        kinds = {"video": video, "state": state, "action": list(self._slices()), "language": ["task"]}
        return {
            kind: _modality(keys, horizon if kind == "action" else 1, bool(client.notes.get("n15")))
            for kind, keys in kinds.items()
        }

    def _reply(self, client: Client, envelope: list[bytes], document: Any) -> None:
        frames = [*envelope, encode(document)]
        self._server.answer(client.identity, lambda lost: frames)


def encode(document: Any) -> bytes:
    """A document of the dialect: arrays become .npy files inside it."""

    def walk(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            stream = io.BytesIO()
            np.save(stream, value, allow_pickle=False)
            return {"__ndarray_class__": True, "as_npy": stream.getvalue()}
        if isinstance(value, Mapping):
            return {key: walk(item) for key, item in value.items()}
        return [walk(item) for item in value] if isinstance(value, (list, tuple)) else value

    return write_msgpack(walk(document))


def decode(payload: Any, limits: Limits = LIMITS) -> Any:
    """Read a document of the dialect, bounded. Raises ``WireError`` (BAD_HEADER, TOO_LARGE)."""

    def walk(value: Any, depth: int) -> Any:
        if depth > limits.depth:
            raise WireError("BAD_HEADER", f"the document is nested deeper than {limits.depth} levels")
        if isinstance(value, list):
            return [walk(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        if "__ndarray_class__" in value:
            return _read_npy(value.get("as_npy"), limits)
        return {key: walk(item, depth + 1) for key, item in value.items()}

    return walk(read_msgpack(payload, limits), 0)


def _read_npy(data: Any, limits: Limits) -> np.ndarray:
    """A .npy file in memory. Its header is read first: numpy would allocate whatever it claims."""
    if not isinstance(data, bytes):
        raise WireError("BAD_HEADER", f"an array is a {type(data).__name__}, expected the bytes of a .npy file")
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, by_column, dtype = read(stream)
    except Exception as error:  # whatever numpy makes of a stranger's header
        raise WireError("BAD_HEADER", f"not a .npy file: {type(error).__name__}: {str(error)[:80]}") from None
    shape = shape[::-1] if by_column else shape
    array = view_array(memoryview(data)[stream.tell() :], dtype.str, list(shape), limits)
    return array.T if by_column else array


def _open(frames: Sequence[Buffer]) -> tuple[list[bytes], Buffer]:
    """The envelope that has to go back, up to the empty frame, and the payload."""
    end = next((n for n, frame in enumerate(frames) if len(frame) == 0), None)
    if end is None or len(frames) != end + 2:
        raise WireError("BAD_HEADER", f"{len(frames)} frames, expected an empty one and one with the request")
    return [bytes(frame) for frame in frames[: end + 1]], frames[-1]


def _flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for kind, values in nested.items():
        if isinstance(values, dict):
            flat.update({f"{kind}.{name}": value for name, value in values.items()})
        else:
            flat[kind] = values
    return flat


def _text(texts: Mapping[str, Any], row: int) -> str | None:
    """The instruction of a row: the first text of its list, however deep the lists are."""
    for value in texts.values():
        if isinstance(value, list):
            value = value[min(row, len(value) - 1)] if value else None
        while isinstance(value, list):
            value = value[0] if value else None
        if isinstance(value, str):
            return value
    return None


def _modality(keys: list[str], horizon: int, n15: bool) -> dict[str, Any]:
    known = {"delta_indices": list(range(horizon)), "modality_keys": keys}
    if n15:
        return {"__ModalityConfig_class__": True, "as_json": json.dumps(known)}
    unknown = dict.fromkeys(("sin_cos_embedding_keys", "mean_std_embedding_keys", "action_configs"))
    return {"__ModalityConfig_class__": True, "as_json": {**known, **unknown}}
