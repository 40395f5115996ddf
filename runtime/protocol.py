"""The native protocol: what a client and a server say to each other, as messages of frames.

A message is ``[b"EVS1", kind, header, buffer, ...]``: the header is a msgpack map, and under its key ``tree`` stands
a tree whose arrays are the buffers (:mod:`~.frame_codec`).

====  ======  =========================================  =================================================
kind  from    header                                     meaning
====  ======  =========================================  =================================================
H     client  proto, client, token                       hello; answered W
R     client  seq, episode, tree                         begin an episode; answered F or E
O     client  seq, episode, tick, t_cap_ns, need, ...    an observation to plan from; answered A... then F, X or E
K     client  seq, episode, context, ttl_ms, tree        a slow encode, kept as a context; answered F, X or E
C     client  seq                                        cancel; the request itself is answered X
D     client                                             describe; answered S
P     client  t0                                         ping; answered Q
B     client  episode (absent: all of them)              bye; not answered
W     server  proto, server, agent, limits, tree         welcome
A     server  seq, episode, tick, start, count, ...      actions for the ticks tick+start, ...: final, usable now
F     server  seq, n_final, lost, queue_ms, step_ms ...  the request is done
X     server  seq, reason                                dropped: superseded, cancelled, late
E     server  seq, code, message, hint                   refused or failed
S     server  the welcome again
Q     server  t0, t1, t2, worker_busy_ms                 pong
====  ======  =========================================  =================================================

Every R, O and K carries a ``seq`` of its own and is answered by exactly one of F, X and E with that ``seq``. Times
ending in ``_ns`` are monotonic on the machine of whoever states them.

Slow and fast calls of a multi-rate agent share the socket and overlap on the server: K makes a *context* under a
number that the client chooses, and each O names the number that it wants to be planned with. A context lives for
``ttl_ms`` (a minute by default), and the newest four of an episode are kept; an O whose context is gone is answered
NO_CONTEXT. With ``encode: true`` an O lets the server encode its own observation before it plans, and keeps the result
under its ``context`` for ``ttl_ms``; so does an O without ``context``, of which nothing is kept. Either is counted in
``encodes``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ..agents.agent import Episode
from ..envs.interface import Interface
from .frame_codec import LIMITS, Buffer, Limits, WireError, check_dtype, flatten, read_msgpack, unflatten, write_msgpack

MAGIC = b"EVS1"
VERSION = 1

HELLO, RESET, OBSERVATION, ENCODE, CANCEL, DESCRIBE, PING, BYE = b"H", b"R", b"O", b"K", b"C", b"D", b"P", b"B"
WELCOME, PART, FINAL, DROPPED, ERROR, SCHEMA, PONG = b"W", b"A", b"F", b"X", b"E", b"S", b"Q"

CODES = {
    "BAD_MAGIC": "the first frame names no dialect that is spoken here",
    "BAD_VERSION": "the two sides speak different versions of the protocol",
    "BAD_HEADER": "the message is malformed",
    "BAD_SCHEMA": "a value is not what the spaces of the episode say",
    "TOO_LARGE": "the message exceeds a limit of the welcome",
    "UNAUTHORIZED": "the token is wrong",
    "NO_HELLO": "the server does not know this client: it restarted, or the client was silent for too long",
    "NO_EPISODE": "the episode was not begun, or was given up",
    "NO_CONTEXT": "the context of an encode is unknown or has expired",
    "UNKNOWN_TYPE": "there is no such kind of message",
    "POLICY_FAILED": "the agent raised an error or planned something impossible",
    "POLICY_HUNG": "the agent has not answered for longer than the server waits",
    "BUSY": "the server takes no more work now",
    "NO_ANSWER": "the server is there, but this request was not answered in time",
    "SHUTTING_DOWN": "the server is about to end",
}

ADVICE = {
    "BAD_MAGIC": f"begin every message with the frame {MAGIC.decode()}",
    "BAD_VERSION": "update the older of the two",
    "BAD_HEADER": "send what the table of this protocol says",
    "BAD_SCHEMA": "send members of the spaces that the reset of the episode described",
    "TOO_LARGE": "send smaller pictures, or let the server take more",
    "UNAUTHORIZED": "ask whoever runs the server for the token",
    "NO_HELLO": "say hello first, and begin the episodes anew",
    "NO_EPISODE": "reset it and wait for the answer",
    "NO_CONTEXT": "ask again with encode: true, and for a longer ttl_ms if this happens often",
    "UNKNOWN_TYPE": "send one of H, R, O, K, C, D, P and B",
    "POLICY_FAILED": "the log of the server has the traceback; other requests are answered as before",
    "POLICY_HUNG": "ask again later; if it lasts, whoever runs the server has to restart it",
    "BUSY": "ask again later",
    "NO_ANSWER": "ask again, or with a longer timeout",
    "SHUTTING_DOWN": "connect again; another server may take its place",
}
"""What to do about each of the ``CODES``, for refusals that say nothing better."""


@dataclass(frozen=True)
class Message:
    """One message: its kind, its header without the tree, and the tree (``None`` where there is none)."""

    kind: bytes
    header: Mapping[str, Any]
    tree: Any = None

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of the header, 0 or more. Raises ``WireError`` (BAD_HEADER) naming key and value."""
        value = self.header.get(key, default)
        if type(value) is not int or value < 0:
            raise WireError("BAD_HEADER", f"{key}={str(value)[:80]!r} in a message {self.kind!r}, expected 0 or more")
        return value

    def __getitem__(self, key: str) -> Any:
        """A part of the tree. Raises ``WireError`` (BAD_HEADER) where it is missing."""
        if not isinstance(self.tree, dict) or key not in self.tree:
            raise WireError("BAD_HEADER", f"the tree of a message {self.kind!r} has no {key!r}")
        return self.tree[key]


def pack(kind: bytes, header: Mapping[str, Any], tree: Any = None, limits: Limits = LIMITS) -> list[Buffer]:
    """The frames of a message. Raises ``WireError``: TOO_LARGE, or BAD_SCHEMA for what cannot travel."""
    buffers: list[Buffer] = []
    if tree is not None:
        plain, buffers = flatten(tree, limits)
        header = {**header, "tree": plain}
    try:
        packed = write_msgpack(header)
    except UnicodeEncodeError as error:
        raise WireError("BAD_SCHEMA", f"a text is not valid Unicode: {error}") from None
    if len(packed) > limits.header_bytes or len(buffers) + 4 > limits.frames:
        raise WireError("TOO_LARGE", f"a header of {len(packed)} bytes with {len(buffers)} arrays")
    if (size := sum(map(len, buffers))) > limits.bytes:
        raise WireError("TOO_LARGE", f"arrays of {size} bytes, the server takes at most {limits.bytes}")
    return [MAGIC, kind, packed, *buffers]


def unpack(frames: Sequence[Buffer], limits: Limits = LIMITS) -> Message:
    """The message of these frames. Raises ``WireError``: BAD_MAGIC, BAD_HEADER or TOO_LARGE."""
    if not frames or bytes(frames[0][:8]) != MAGIC:
        raise WireError("BAD_MAGIC", f"the first frame is {bytes(frames[0][:8]) if frames else b''!r}, not {MAGIC!r}")
    if not 3 <= len(frames) <= limits.frames or len(frames[1]) != 1:
        raise WireError("BAD_HEADER", f"{len(frames)} frames, expected magic, one byte of kind, header and buffers")
    if (size := sum(map(len, frames))) > limits.bytes + limits.header_bytes:
        raise WireError("TOO_LARGE", f"a message of {size} bytes, expected at most {limits.bytes}")
    header = read_msgpack(frames[2], limits, limits.header_bytes)
    if not isinstance(header, dict) or not set(map(type, header)) <= {str}:
        raise WireError("BAD_HEADER", "the header is not a map with text keys")
    plain = header.pop("tree", None)
    return Message(bytes(frames[1]), header, unflatten(plain, frames[3:], limits))


def describe_space(space: Space) -> dict[str, Any]:
    """A space as a tree; :func:`read_space` reads it back. Raises ``WireError`` for kinds that do not travel."""
    match space:
        case spaces.Box():
            return {
                "space": "Box",
                "dtype": np.dtype(space.dtype).str,
                "shape": list(space.shape),
                "low": _uniform(space.low),
                "high": _uniform(space.high),
            }
        case spaces.Discrete():
            return {"space": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {"space": "MultiDiscrete", "nvec": space.nvec, "start": space.start}
        case spaces.MultiBinary():
            return {"space": "MultiBinary", "shape": list(space.shape)}
        case spaces.Text():
            characters = "".join(sorted(space.character_set))
            return {"space": "Text", "least": space.min_length, "most": space.max_length, "characters": characters}
        case spaces.Dict():
            return {"space": "Dict", "parts": {key: describe_space(part) for key, part in space.spaces.items()}}
        case spaces.Tuple():
            return {"space": "Tuple", "parts": [describe_space(part) for part in space.spaces]}
        case spaces.Sequence():
            return {"space": "Sequence", "part": describe_space(space.feature_space), "stack": space.stack}
    raise WireError("BAD_SCHEMA", f"the space {space} does not travel", "flatten it with a gymnasium wrapper")


def read_space(tree: Any) -> Space:
    """The space that :func:`describe_space` described. Raises ``WireError`` (BAD_HEADER)."""
    try:
        match tree["space"]:
            case "Box":
                check_dtype(tree["dtype"], "a Box", "BAD_HEADER")
                shape, dtype = _shape(tree["shape"]), np.dtype(tree["dtype"])
                low, high = (np.broadcast_to(np.asarray(tree[end], dtype), shape) for end in ("low", "high"))
                return spaces.Box(low, high, shape, dtype.type)
            case "Discrete":
                return spaces.Discrete(tree["n"], start=tree["start"])
            case "MultiDiscrete":
                return spaces.MultiDiscrete(np.array(tree["nvec"]), start=np.array(tree["start"]))
            case "MultiBinary":
                return spaces.MultiBinary(_shape(tree["shape"]))
            case "Text":
                return spaces.Text(tree["most"], min_length=tree["least"], charset=tree["characters"])
            case "Dict":
                return spaces.Dict({key: read_space(part) for key, part in tree["parts"].items()})
            case "Tuple":
                return spaces.Tuple([read_space(part) for part in tree["parts"]])
            case "Sequence":
                return spaces.Sequence(read_space(tree["part"]), stack=bool(tree["stack"]))
            case other:
                raise ValueError(f"the kind {str(other)[:40]!r}")
    except WireError:
        raise
    except Exception as error:  # whatever gymnasium or numpy make of a stranger's numbers
        raise WireError("BAD_HEADER", f"not a space: {type(error).__name__}: {str(error)[:200]}") from None


def describe_episode(episode: Episode) -> dict[str, Any]:
    """What an agent may know of an episode, as a tree. Raises ``WireError`` naming what cannot travel."""
    return {
        "seed": int(episode.seed),
        "env_id": episode.env_id,
        "observation_space": describe_space(episode.observation_space),
        "action_space": describe_space(episode.action_space),
        "interface": episode.interface.to_json() if episode.interface else None,
        "control_hz": episode.control_hz,
        "instruction": episode.instruction,
        "options": dict(episode.options),
    }


def read_episode(tree: Any) -> Episode:
    """The episode that :func:`describe_episode` described. Raises ``WireError`` (BAD_HEADER)."""
    try:
        hz, instruction = tree["control_hz"], tree["instruction"]
        if not (hz is None or (isinstance(hz, (int, float)) and math.isfinite(hz) and hz > 0)):
            raise ValueError(f"control_hz={hz!r}")
        if not (instruction is None or isinstance(instruction, str)):
            raise ValueError(f"an instruction that is a {type(instruction).__name__}")
        if type(tree["seed"]) is not int or tree["seed"] < 0:
            raise ValueError(f"seed={str(tree['seed'])[:40]}")
        return Episode(
            seed=tree["seed"],
            env_id=str(tree["env_id"]),
            observation_space=read_space(tree["observation_space"]),
            action_space=read_space(tree["action_space"]),
            interface=Interface.from_json(tree["interface"]) if tree["interface"] is not None else None,
            control_hz=hz,
            instruction=instruction,
            options=dict(tree["options"]),
        )
    except WireError:
        raise
    except Exception as error:
        raise WireError("BAD_HEADER", f"not an episode: {type(error).__name__}: {str(error)[:200]}") from None


def check_member(space: Space, value: Any, path: str = "observation") -> None:
    """Check keys, dtype and shape of a value against its space, not its bounds.

    Raises ``WireError`` (BAD_SCHEMA) that names the key, what was expected and what came: a field of another shape is
    the usual reason for a policy that works in process and fails behind a socket.
    """
    match space:
        case spaces.Dict():
            keys = set(value) if isinstance(value, Mapping) else set()
            if keys != set(space.spaces):
                raise WireError(
                    "BAD_SCHEMA", f"{path} has the keys {sorted(map(str, keys))}, expected {sorted(space.spaces)}"
                )
            for key, part in space.spaces.items():
                check_member(part, value[key], f"{path}/{key}")
        case spaces.Tuple():
            if not isinstance(value, tuple) or len(value) != len(space.spaces):
                raise WireError("BAD_SCHEMA", f"{path} is not a tuple of {len(space.spaces)} members")
            for n, (part, item) in enumerate(zip(space.spaces, value, strict=True)):
                check_member(part, item, f"{path}/{n}")
        case spaces.Box() | spaces.MultiBinary() | spaces.MultiDiscrete():
            is_array = isinstance(value, np.ndarray)
            if not (is_array and value.dtype == space.dtype and value.shape == space.shape):
                got = f"{value.dtype} {list(value.shape)}" if is_array else type(value).__name__
                expected = f"{np.dtype(space.dtype)} {list(space.shape)}"
                raise WireError("BAD_SCHEMA", f"{path}: got {got}, expected {expected}")
        case _:
            if not space.contains(value):
                raise WireError("BAD_SCHEMA", f"{path}: got {str(value)[:80]!r}, expected a member of {space}")


_SPACE_BYTES = 16 << 20  # no stranger makes the server allocate more than this for the bounds of a Box


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > LIMITS.ndim or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"the shape {str(shape)[:80]}")
    if math.prod(shape) * 8 > _SPACE_BYTES:
        raise ValueError(f"the shape {shape} of more than {_SPACE_BYTES} bytes")
    return tuple(shape)


def _uniform(bounds: np.ndarray) -> np.ndarray:
    """The bounds, as a single number where they are all the same (an image has many)."""
    flat = bounds.reshape(-1)
    return flat[0].reshape(()) if flat.size and (flat == flat[0]).all() else bounds
