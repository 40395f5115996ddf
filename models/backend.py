"""Backends: the methods that change a model, chosen by a line of text and measured in closed loop.

``Backend.parse("adapter=cora:rank=8,quant=nvfp4+biloco,optim=foam+bred:bits=4")`` reads as: slot, ``=``, the
methods joined by ``+`` (applied from left to right), each with its options after a colon. Commas separate both
slots and options: a piece whose key is a slot begins the next slot, any other is an option of the method before.

A method is a frozen dataclass whose fields are its options, with a class variable ``name``::

    @dataclass(frozen=True)
    class Lora:                                        # a running method: changes a network
        name: ClassVar[str] = "lora"
        rank: int = 8
        def apply(self, module, calibration=None): ...    # -> module
        def finish(self, module, folder): ...             # only if it can be trained: keep it, merge it -> module

    @dataclass(frozen=True)
    class AdamW:                                       # a training method: builds an optimizer
        name: ClassVar[str] = "adamw"
        lr: float = 1e-3
        def build(self, module): ...                      # -> torch.optim.Optimizer
        def wrap(self, optimizer, module): ...            # only if it can stand after a "+"

A method that cannot do without another states ``partners: ClassVar = {"optim": "molf"}``: an empty slot is then
filled by the partner with its defaults, and a slot that holds something else is an error. To add a method, write
its file and one line in :data:`METHODS`, or offer it from another package under the entry point
``palaestra.backends`` (name ``SLOT.NAME``, value ``module:Class``).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import nn

from .spec import Value, format_value, nearest, parse_option, split_outside_quotes

RUNNING = ("adapter", "quant", "cache", "decode")
"""Slots that change how a trained network runs."""
TRAINING = ("optim", "fleet")
"""Slots that only training uses."""
SLOTS = RUNNING + TRAINING

METHODS: dict[str, dict[str, str]] = {
    "adapter": {"lora": "palaestra.models.adapters.peft_methods:Lora"},
    "quant": {},
    "cache": {},
    "decode": {},
    "optim": {"adamw": "palaestra.models.optim.adamw:AdamW"},
    "fleet": {},
}
"""Built-in methods: slot to name to ``module:Class``."""


class BackendError(ValueError):
    """A backend that cannot be read, built or used here; the message says which part and what to do."""


@runtime_checkable
class RunningMethod(Protocol):
    """Changes a network for running; ``calibration`` is a batch as the network's ``loss`` takes it, or None."""

    name: ClassVar[str]

    def apply(self, module: nn.Module, calibration: Mapping[str, Any] | None = None) -> nn.Module:
        """The changed network; may be ``module`` itself, changed in place."""


@runtime_checkable
class TrainingMethod(Protocol):
    """Builds what trains a network, and sorts the network's parameters itself."""

    name: ClassVar[str]

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        """An optimizer over the trainable parameters of ``module``, with a working ``state_dict``."""


@dataclass(frozen=True)
class Backend:
    """The methods of each slot, in the order in which they are applied. ``Backend()`` changes nothing.

    ``str(backend)`` is canonical: slots in the order of :data:`SLOTS`, options that differ from their default in
    the order of the fields; ``Backend.parse(str(backend)) == backend``. Raises :class:`BackendError` when two
    methods cannot stand together.
    """

    adapter: tuple[Any, ...] = ()
    quant: tuple[Any, ...] = ()
    cache: tuple[Any, ...] = ()
    decode: tuple[Any, ...] = ()
    optim: tuple[Any, ...] = ()
    fleet: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        for slot in SLOTS:
            wanted = "apply" if slot in RUNNING else "build"
            for method in getattr(self, slot):
                if not hasattr(method, wanted):
                    raise BackendError(f"{method!r} cannot fill the slot {slot!r}: it has no method {wanted}()")
        self.completed  # noqa: B018 - a clash of partners is found here, at the door

    @classmethod
    def parse(cls, text: str) -> Backend:
        """Read a backend; an empty text is ``Backend()``.

        Raises :class:`BackendError` for an unknown slot, method or option (naming the nearest ones), a value of
        the wrong type or out of range, a slot stated twice, and methods that clash.
        """
        try:
            return cls(**{slot: tuple(_method(slot, *m, text) for m in ms) for slot, ms in _slots(text).items()})
        except ValueError as error:
            raise error if isinstance(error, BackendError) else BackendError(str(error)) from None

    def __str__(self) -> str:
        chosen = ((slot, getattr(self, slot)) for slot in SLOTS)
        return ",".join(f"{slot}={'+'.join(map(_format, methods))}" for slot, methods in chosen if methods)

    @property
    def completed(self) -> Backend:
        """This backend with the slots filled that its methods need as partners."""
        missing: dict[str, tuple[str, str]] = {}
        for slot in SLOTS:
            for method in getattr(self, slot):
                for other, partner in getattr(method, "partners", {}).items():
                    present = [m.name for m in getattr(self, other)]
                    rival = missing.get(other)
                    if (present and partner not in present) or (rival and rival[0] != partner):
                        holds = "+".join(present) or f"{rival[0]} (which {rival[1]} needs)"  # type: ignore[index]
                        raise BackendError(
                            f"{slot}={method.name} needs {other}={partner}, but {other} holds {holds}; "
                            f"leave {other} out, or choose another {slot}"
                        )
                    if not present:
                        missing[other] = (partner, f"{slot}={method.name}")
        return replace(self, **{s: (_load(s, name)(),) for s, (name, _) in missing.items()}) if missing else self

    def require_running(self) -> Backend:
        """This backend, if it has nothing that only training uses. Raises :class:`BackendError` otherwise."""
        for slot in TRAINING:
            if getattr(self, slot):
                raise BackendError(
                    f"{slot}={'+'.join(map(_format, getattr(self, slot)))} is for training only; "
                    f"leave it out here, or give it to `palaestra train`"
                )
        return self

    def apply(self, module: nn.Module, calibration: Mapping[str, Any] | None = None) -> nn.Module:
        """Apply the running methods to a network, slot by slot; returns the changed network."""
        for slot in RUNNING:
            for method in getattr(self, slot):
                module = method.apply(module, calibration)
        return module

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer | None:
        """The optimizer that the slot ``optim`` describes, or None when nothing chose one.

        After a ``+`` a method wraps the optimizer before it. Raises :class:`BackendError` if it cannot.
        """
        optimizer: torch.optim.Optimizer | None = None
        for method in self.completed.optim:
            if optimizer is None:
                optimizer = method.build(module)
            elif hasattr(method, "wrap"):
                optimizer = method.wrap(optimizer, module)
            else:
                raise BackendError(f"optim={method.name} cannot follow another optimizer; state it first, or alone")
        return optimizer


def methods(slot: str) -> dict[str, str]:
    """The methods known for a slot, built in or from an entry point: name to ``module:Class``."""
    found = dict(METHODS[slot])
    for entry in entry_points(group="palaestra.backends"):
        its_slot, _, name = entry.name.partition(".")
        if its_slot == slot and name:
            found.setdefault(name, entry.value)
    return found


def _slots(text: str) -> dict[str, list[tuple[str, dict[str, Value]]]]:
    """Cut a text into slots, each a list of (method name, options)."""
    chosen: dict[str, list[tuple[str, dict[str, Value]]]] = {}
    if not text.strip():
        return chosen
    # Re-join the options that the comma cut off from their method: what is left is one piece a slot.
    pieces: list[str] = []
    for piece in split_outside_quotes(text, ","):
        key = piece.partition("=")[0].strip()
        if key in SLOTS or not pieces:
            pieces.append(piece)
        else:
            pieces[-1] += "," + piece
    for piece in pieces:
        slot, equals, rest = (part.strip() for part in piece.partition("="))
        if slot not in SLOTS or not equals:
            raise BackendError(
                f"{slot!r} in {text!r} is not a slot; {nearest(slot, SLOTS)}; write slot=method, as in adapter=lora"
            )
        if slot in chosen:
            raise BackendError(f"{text!r} states the slot {slot!r} twice; join its methods with '+'")
        chosen[slot] = []
        for part in split_outside_quotes(rest, "+"):
            name, colon, options = (s.strip() for s in part.partition(":"))
            if not name or "=" in name or "," in name or (colon and not options):
                raise BackendError(
                    f"{part!r} in {text!r} is not a method; write {slot}=name or {slot}=name:option=value"
                )
            read: dict[str, Value] = {}
            for option in split_outside_quotes(options, ",") if options else ():
                key, value = parse_option(option, of=text)
                if key in read:
                    raise BackendError(f"{text!r} states {key!r} of {slot}={name} twice; state it once")
                read[key] = value
            chosen[slot].append((name, read))
    return chosen


def _method(slot: str, name: str, options: Mapping[str, Value], text: str) -> Any:
    """Build one method, checking its options against the fields of its dataclass."""
    kind = _load(slot, name)
    hints = typing.get_type_hints(kind)
    known = [f.name for f in fields(kind) if f.init]
    checked = {}
    for key, value in options.items():
        if key not in known:
            raise BackendError(f"{slot}={name} has no option {key!r}; {nearest(key, known)} (in {text!r})")
        checked[key] = _coerce(value, hints[key], f"{slot}={name}: option {key}={format_value(value)}")
    try:
        return kind(**checked)
    except TypeError as error:  # a field without a default was not stated
        raise BackendError(f"{slot}={name} is not complete: {error}") from None
    except ValueError as error:
        raise BackendError(f"{slot}={name}: {error}") from None


@lru_cache
def _load(slot: str, name: str) -> Any:
    known = methods(slot)
    if name not in known:
        raise BackendError(f"{slot}={name!r} is not known; {nearest(name, known)}")
    module, _, attribute = known[name].partition(":")
    kind = getattr(import_module(module), attribute)
    if not is_dataclass(kind) or getattr(kind, "name", None) != name:
        raise BackendError(f"{known[name]} is registered as {slot}={name} but is not a dataclass with name={name!r}")
    return kind


def _coerce(value: Value, hint: Any, where: str) -> Value:
    """``value`` as the type of its field; an integer may stand for a float, and for a text."""
    allowed = [t for t in (typing.get_args(hint) if _is_union(hint) else (hint,)) if t is not type(None)]
    if type(value) in allowed:
        return value
    if float in allowed and type(value) is int:
        return float(value)
    if str in allowed and type(value) is int:
        return str(value)
    literals = [c for t in allowed if typing.get_origin(t) is typing.Literal for c in typing.get_args(t)]
    if value in literals:
        return value
    names = " or ".join(map(repr, literals)) if literals else " or ".join(t.__name__ for t in allowed)
    raise BackendError(f"{where} is {type(value).__name__}, expected {names}")


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _format(method: Any) -> str:
    stated = [(f.name, getattr(method, f.name)) for f in fields(method) if getattr(method, f.name) != f.default]
    options = ",".join(f"{key}={format_value(value)}" for key, value in stated)
    return f"{method.name}:{options}" if options else method.name
