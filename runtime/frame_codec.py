"""Plain data and arrays to bytes and back, for every dialect that the server speaks.

A *tree* is what observations and actions are made of: dicts with text keys, lists, tuples, text, numbers, ``None``
and numpy arrays. :func:`flatten` takes the arrays out, so that each travels as a frame of its own and is never
copied; :func:`unflatten` puts them back as read-only views of the bytes that arrived.

Nothing from a socket is believed. :func:`read_msgpack` bounds size, depth and number of things *before* they exist
in memory (a list header of five bytes may claim four thousand million members), and :func:`view_array` admits
only plain numbers and text whose shape and bytes agree: an object array over received bytes would be a set of
pointers chosen by the sender. There is no pickle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np

Buffer = bytes | memoryview
"""The bytes of an array, uncopied."""


@dataclass(frozen=True)
class Limits:
    """What a message may be at most: bytes in all, of a header and of one text; depth; members; frames.

    ``items`` bounds one list or map, ``nodes`` all of them together, ``ndim`` the axes of an array.
    """

    bytes: int = 64 << 20
    header_bytes: int = 1 << 20
    text: int = 64 << 10
    depth: int = 32
    items: int = 4096
    nodes: int = 65_536
    ndim: int = 8
    frames: int = 1024


LIMITS = Limits()


class WireError(RuntimeError):
    """What was refused, with a code for machines and a sentence for people; it travels as it is.

    ``code`` is one of the codes that :mod:`~.protocol` lists, ``hint`` says what to do about it.
    """

    def __init__(self, code: str, message: str, hint: str = ""):
        super().__init__(f"{code}: {message}" + (f" ({hint})" if hint else ""))
        self.code, self.message, self.hint = code, message, hint


def flatten(tree: Any, limits: Limits = LIMITS) -> tuple[Any, list[Buffer]]:
    """A tree as plain msgpack data and the buffers of its arrays, in the order of their numbers.

    An array becomes ``{"__nd__": k, "dtype": "<f4", "shape": [11]}``, where ``k`` numbers its buffer; a numpy scalar
    the same with ``"scalar": True``; a tuple ``{"__tuple__": [...]}``. Raises ``WireError`` (BAD_SCHEMA) that names
    the place of what cannot travel.
    """
    buffers: list[Buffer] = []

    def walk(value: Any, path: str, depth: int) -> Any:
        if depth > limits.depth:
            raise WireError("BAD_SCHEMA", f"{path or 'the tree'} is nested deeper than {limits.depth} levels")
        is_array = isinstance(value, np.ndarray)
        if value is None or (not is_array and isinstance(value, (bool, str, bytes))):
            return value
        if is_array or isinstance(value, np.generic):
            array = np.asarray(value)
            dtype = array.dtype.str
            check_dtype(dtype, path)
            buffers.append(_bytes_of(array))
            described = {"__nd__": len(buffers) - 1, "dtype": dtype, "shape": array.shape}
            if not is_array:
                described["scalar"] = True
            return described
        if isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                raise WireError("BAD_SCHEMA", f"{path}={value} does not fit into 64 bits")
            return value
        if isinstance(value, float):
            return value
        if isinstance(value, Mapping):
            if odd := [key for key in value if not isinstance(key, str) or key.startswith("__")]:
                raise WireError("BAD_SCHEMA", f"{path or 'the tree'} has the key {odd[0]!r}, expected plain text")
            return {str(key): walk(item, f"{path}/{key}", depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [walk(item, f"{path}/{n}", depth + 1) for n, item in enumerate(value)]
            return items if isinstance(value, list) else {"__tuple__": items}
        raise WireError(
            "BAD_SCHEMA",
            f"{path or 'the tree'} is a {type(value).__name__}, which does not travel",
            "use numbers, text, numpy arrays, and lists, tuples and dicts of them",
        )

    return walk(tree, "", 0), buffers


def unflatten(plain: Any, buffers: Sequence[Buffer], limits: Limits = LIMITS) -> Any:
    """The tree that :func:`flatten` took apart; arrays are read-only. Raises ``WireError`` (BAD_HEADER)."""

    def walk(value: Any, depth: int) -> Any:
        if depth > limits.depth:
            raise WireError("BAD_HEADER", f"the tree is nested deeper than {limits.depth} levels")
        if isinstance(value, list):
            return [walk(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        if "__nd__" in value:
            index = value["__nd__"]
            if type(index) is not int or not 0 <= index < len(buffers):
                raise WireError("BAD_HEADER", f"an array refers to buffer {index!r}, {len(buffers)} came with it")
            array = view_array(buffers[index], value.get("dtype"), value.get("shape"), limits)
            if not value.get("scalar"):
                return array
            if array.ndim:
                raise WireError("BAD_HEADER", f"a scalar has the shape {list(array.shape)}")
            return array[()]
        if "__tuple__" in value:
            items = value["__tuple__"]
            if not isinstance(items, list):
                raise WireError("BAD_HEADER", "a tuple is not a list of members")
            return tuple(walk(item, depth + 1) for item in items)
        if odd := [key for key in value if not isinstance(key, str)]:
            raise WireError("BAD_HEADER", f"the tree has the key {odd[0]!r}, expected text")
        return {key: walk(item, depth + 1) for key, item in value.items()}

    return walk(plain, 0)


def view_array(data: Any, dtype: Any, shape: Any, limits: Limits = LIMITS) -> np.ndarray:
    """Received bytes as a read-only array; copied only where they are not aligned for their type.

    Raises ``WireError`` (BAD_HEADER) unless the dtype is bool, integer, float or text, every axis is at least 0, and
    the bytes are exactly as many as shape and dtype say.
    """
    check_dtype(dtype, "an array", code="BAD_HEADER")
    if not isinstance(data, (bytes, memoryview)):
        raise WireError("BAD_HEADER", f"the data of an array is a {type(data).__name__}, expected bytes")
    if not isinstance(shape, (list, tuple)) or len(shape) > limits.ndim:
        raise WireError(
            "BAD_HEADER", f"the shape of an array is {str(shape)[:80]}, expected at most {limits.ndim} axes"
        )
    kind, size = _dtype(dtype), len(data)
    expected = kind.itemsize
    for axis in shape:
        if type(axis) is not int or not 0 <= axis < 2**31:
            raise WireError("BAD_HEADER", f"the shape of an array is {str(shape)[:80]}, expected axes of 0 or more")
        expected *= axis
    if expected != size:
        raise WireError("BAD_HEADER", f"an array of {dtype} {list(shape)} came with {size} bytes")
    if not size:
        return _read_only(np.zeros(_small(shape), kind))
    array: np.ndarray = np.ndarray(shape, kind, data)
    if kind.kind == "b" and array.view(np.uint8).max() > 1:
        raise WireError("BAD_HEADER", "an array of bool holds something other than 0 and 1")
    return _read_only(array if array.flags.aligned else array.copy())


def read_msgpack(data: Any, limits: Limits = LIMITS, max_bytes: int | None = None) -> Any:
    """One msgpack document, bounded. Raises ``WireError``: TOO_LARGE, or BAD_HEADER for anything malformed."""
    max_bytes = limits.bytes if max_bytes is None else max_bytes
    if len(data) > max_bytes:
        raise WireError("TOO_LARGE", f"{len(data)} bytes of msgpack, expected at most {max_bytes}")
    hooks: dict[str, Any] = {}
    if len(data) > limits.nodes:  # a member takes a byte at least, so that smaller ones need not be counted
        counted = _counter(limits.nodes)
        hooks = {"list_hook": counted, "object_pairs_hook": lambda pairs: dict(counted(pairs))}
    try:
        return msgpack.unpackb(
            data,
            **hooks,
            max_str_len=limits.text,
            max_bin_len=max_bytes,
            max_array_len=limits.items,
            max_map_len=limits.items,
            max_ext_len=0,
        )
    except WireError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise WireError("BAD_HEADER", f"not a msgpack document: {str(error)[:200] or type(error).__name__}") from None


def write_msgpack(plain: Any) -> bytes:
    """Plain data as msgpack; arrays and other objects are refused with ``TypeError``."""
    return msgpack.packb(plain)


_DTYPE = re.compile(r"[<>|]([biu][1248]|f[248]|[US]\d{1,5})")


def check_dtype(dtype: Any, where: str, code: str = "BAD_SCHEMA") -> None:
    """Raise ``WireError`` with ``code`` unless ``dtype`` spells bool, integer, float or text, such as ``"<f4"``."""
    if not isinstance(dtype, str) or not _is_plain(dtype):
        raise WireError(code, f"{where} has the dtype {str(dtype)[:40]!r}, expected bool, integer, float or text")


@lru_cache(64)
def _is_plain(dtype: str) -> bool:
    return bool(_DTYPE.fullmatch(dtype)) and dtype[1:] not in ("b2", "b4", "b8", "U0", "S0")


_dtype = lru_cache(64)(np.dtype)  # of what has been checked


def _bytes_of(array: np.ndarray) -> Buffer:
    if not array.size:
        return b""
    if array.flags.c_contiguous:
        return array.data.cast("B")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _small(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without elements; numpy refuses huge axes even beside an empty one."""
    if math.prod(axis or 1 for axis in shape) > 2**40:
        raise WireError("BAD_HEADER", f"the shape of an empty array is {list(shape)}")
    return tuple(shape)


def _counter(limit: int) -> Callable[[list[Any]], list[Any]]:
    """Counts members of lists and maps while they are decoded, and stops where there are too many."""
    left = limit

    def count(members: list[Any]) -> list[Any]:
        nonlocal left
        left -= len(members) + 1
        if left < 0:
            raise WireError("TOO_LARGE", f"more than {limit} members of lists and maps in one message")
        return members

    return count
