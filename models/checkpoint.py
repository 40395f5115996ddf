"""Checkpoints: ``NAME.safetensors`` with the tensors, and beside it the card ``NAME.json`` that says what they are.

The card is JSON: ``format``, ``config`` (what builds the network), ``weights`` (file name, size in bytes, SHA-256)
and whatever whoever trained it has to say: interface, seed, data, scores, times, the command. Loading checks the
card and the hash before a single tensor is made, so a corrupt, truncated or exchanged file loads nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from .spec import parse_spec

FORMAT = "palaestra.checkpoint/1"
MAX_CARD_BYTES = 1 << 20
MAX_HEADER_BYTES = 8 << 20
MAX_WEIGHT_BYTES = 8 << 30

_SUFFIXES = (".safetensors", ".json")


class CheckpointError(ValueError):
    """A checkpoint that is missing, corrupt, truncated, oversize or not what its card says. Nothing was loaded."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class Checkpoint(NamedTuple):
    """What a checkpoint holds. ``card`` is the whole JSON card; ``config`` is its entry of that name."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    card: dict[str, Any]


def save(path: Path | str, config: Mapping[str, Any], tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> Path:
    """Write a checkpoint; returns the path of its weights. ``path`` may name either file, or neither suffix.

    Each file appears whole or not at all, weights first; a crash between the two is found by the hash. Raises
    ``ValueError`` for a card that uses a name of ours or is not JSON.
    """
    weights_path, card_path = _paths(path)
    taken = {"format", "config", "weights"} & set(card)
    if taken:
        raise ValueError(f"card holds {sorted(taken)}, which save() writes itself; rename them")
    data = safetensors.torch.save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    whole = {
        "format": FORMAT,
        "config": dict(config),
        "weights": {"file": weights_path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        **card,
    }
    try:
        text = json.dumps(whole, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"card and config must be plain JSON data without NaN or infinity: {error}") from None
    weights_path.parent.mkdir(parents=True, exist_ok=True)
    _write(weights_path, data)
    _write(card_path, text.encode())
    return weights_path


def load(path: Path | str) -> Checkpoint:
    """Read a checkpoint, from the path of either file. Raises :class:`CheckpointError`; nothing is then loaded."""
    weights_path, _ = _paths(path)
    card = load_card(path)
    stated = card["weights"]
    data = _read(weights_path, MAX_WEIGHT_BYTES)
    if len(data) != stated["bytes"]:
        raise CheckpointError(
            weights_path,
            f"has {len(data)} bytes, its card says {stated['bytes']}: truncated or exchanged; copy it again",
        )
    if hashlib.sha256(data).hexdigest() != stated["sha256"]:
        raise CheckpointError(
            weights_path, "does not have the SHA-256 on its card: corrupt or exchanged; copy it again"
        )
    # The library bounds the header at 100 MB; ours are far smaller, and a huge one is an attack on memory.
    if len(data) < 8 or struct.unpack("<Q", data[:8])[0] > min(MAX_HEADER_BYTES, len(data) - 8):
        raise CheckpointError(weights_path, "has no safetensors header of a sane size")
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(weights_path, f"is not a safetensors file: {error}") from None
    return Checkpoint(card["config"], tensors, card)


def load_card(path: Path | str) -> dict[str, Any]:
    """Read and check the card alone, from the path of either file. Raises :class:`CheckpointError`."""
    weights_path, card_path = _paths(path)
    if not card_path.exists() and not weights_path.exists():
        raise CheckpointError(weights_path, "cannot be read: there is no such file")
    if not card_path.exists():
        raise CheckpointError(card_path, f"is missing; the weights {weights_path.name} are useless without their card")
    try:
        card = json.loads(_read(card_path, MAX_CARD_BYTES))
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(card_path, f"is not JSON: {error}") from None
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        got = card.get("format") if isinstance(card, dict) else type(card).__name__
        raise CheckpointError(card_path, f"has format {got!r}, expected {FORMAT!r}")
    for key, inside in (("config", ()), ("weights", (("file", str), ("bytes", int), ("sha256", str)))):
        if not isinstance(card.get(key), dict):
            raise CheckpointError(card_path, f"has no object {key!r}")
        for name, kind in inside:
            if not isinstance(card[key].get(name), kind):
                raise CheckpointError(card_path, f"{key}.{name} is {card[key].get(name)!r}, expected {kind.__name__}")
    if card["weights"]["file"] != weights_path.name:
        raise CheckpointError(card_path, f"describes {card['weights']['file']!r}, not {weights_path.name!r}")
    return card


def name_for(agent: str, env_id: str) -> str:
    """The name under which a checkpoint of ``agent`` for ``env_id`` is kept: ``flow.BallIntercept-v0``.

    Our namespace, options and perturbations are dropped (a perturbed world is met with the same weights), and the
    slash of another namespace becomes a dot.
    """
    world = parse_spec(env_id.split("+")[0]).name.rpartition(":")[2]  # Gymnasium allows module:namespace/Name-v0
    return f"{agent}.{world.removeprefix('palaestra/').replace('/', '.')}"


def shipped(agent: str, env_id: str) -> Path:
    """The weights that come with the package for an agent in an environment; a variant is ``flow-constant``.

    Raises ``FileNotFoundError`` naming what is available and how to train one.
    """
    path = _folder() / (name_for(agent, env_id) + _SUFFIXES[0])
    if not path.is_file():
        have = [f"{agent_} for {world}" for agent_, world in shipped_names()]
        name, _, variant = agent.partition("-")
        option = f" --variant {variant}" if variant else ""
        raise FileNotFoundError(
            f"no checkpoint {path.name} comes with the package (it has: {', '.join(have) or 'none'}); train one with "
            f"`palaestra train {name} {env_id}{option}` and pass {name}:checkpoint=PATH"
        )
    return path


def _folder() -> Path:
    return Path(str(files(__name__.partition(".")[0]) / "assets" / "checkpoints"))


def shipped_names() -> list[tuple[str, str]]:
    """The agent, as it is named in a call, and the world of every checkpoint that comes with the package.

    As in ``("flow", "BallIntercept-v0")`` and ``("flow:variant=constant", "BallIntercept-v0")``.
    """
    names = sorted(path.name.removesuffix(_SUFFIXES[0]) for path in _folder().glob(f"*{_SUFFIXES[0]}"))
    pairs = sorted((agent, world) for agent, _, world in (name.partition(".") for name in names))
    return [(agent.replace("-", ":variant=", 1), world) for agent, world in pairs]


def versions(*packages: str) -> dict[str, str | None]:
    """The versions of packages that are installed, for a card; ``None`` for one that is not."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def amend(path: Path | str, entries: Mapping[str, Any]) -> None:
    """Add to the card of a checkpoint what was learned after it was written, such as its scores."""
    _, card_path = _paths(path)
    card = {**load_card(path), **entries}
    _write(card_path, (json.dumps(card, indent=2, allow_nan=False) + "\n").encode())


def _paths(path: Path | str) -> tuple[Path, Path]:
    # Not Path.with_suffix: a name like flow.robosuite.Lift-v0 already has what it would take for a suffix.
    stem = str(path)
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return Path(stem + _SUFFIXES[0]), Path(stem + _SUFFIXES[1])


def _read(path: Path, limit: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > limit:
            raise CheckpointError(path, f"has {size} bytes, more than the limit of {limit}")
        with path.open("rb") as file:
            return file.read(limit + 1)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror or error}") from None


def _write(path: Path, data: bytes) -> None:
    """Write through a temporary file of the same folder, so that ``path`` is never half a file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
