"""The little language that names a thing and configures it: ``"flow:checkpoint=runs/a.safetensors,steps=4"``.

Agents, environments, perturbations and the methods of a backend are all written this way::

    spec    = name [":" option {"," option}]
    option  = key "=" value
    value   = true | false | integer | float | plain text | "text in double quotes"

A name may hold colons (``package.module:Class``): the options begin at the first colon that is followed by
``key=``. Plain text may hold anything but a comma or a double quote, so most paths need no quotes. Quoted text
is a JSON string, and is always text: ``"7"`` is not a number.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Value = bool | int | float | str
"""What an option can hold."""

_INTEGER = re.compile(r"-?[1-9]\d*|0")
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?|[+-]?inf|nan")
_KEY = re.compile(r"[A-Za-z_]\w*")
_OPTIONS_BEGIN = re.compile(r":(?=[A-Za-z_]\w*=)")
# Characters that mean something somewhere in the grammar of specs and backends; text that holds one is quoted.
_PLAIN = re.compile(r'[^",+\s=][^",+=]*(?<!\s)')


@dataclass(frozen=True)
class Spec:
    """A name and its options, as written. ``str(spec)`` reads back to an equal spec."""

    name: str
    options: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ",".join(f"{key}={format_value(value)}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name


def parse_spec(text: str) -> Spec:
    """Read ``"name:key=value,..."``. Raises ``ValueError`` with the piece that cannot be read."""
    begin = _OPTIONS_BEGIN.search(text)
    name, rest = (text[: begin.start()], text[begin.end() :]) if begin else (text, "")
    name = name.strip()
    if not name:
        raise ValueError(f"{text!r} has no name before its options; write name:key=value, as in flow:steps=4")
    if any(c in name for c in ',="'):
        raise ValueError(f"{text!r} cannot be read: {name!r} is not a name; write name:key=value, as in flow:steps=4")
    if name.endswith(":"):
        raise ValueError(f"{text!r} ends with a colon but states no option; write name:key=value or just the name")
    options: dict[str, Value] = {}
    for piece in split_outside_quotes(rest, ",") if rest else ():
        key, value = parse_option(piece, of=text)
        if key in options:
            raise ValueError(f"{text!r} states the option {key!r} twice; state it once")
        options[key] = value
    return Spec(name, options)


def parse_option(piece: str, of: str) -> tuple[str, Value]:
    """Read one ``key=value``; ``of`` is the whole text, for the message of the ``ValueError``."""
    key, equals, raw = piece.partition("=")
    key = key.strip()
    if not equals or not _KEY.fullmatch(key):
        raise ValueError(f"{piece!r} in {of!r} is not an option; write key=value")
    return key, parse_value(raw.strip(), of)


def parse_value(raw: str, of: str) -> Value:
    """Read a value; text that is neither a number nor true or false stays text."""
    if raw.startswith('"'):
        try:
            value = json.loads(raw)
        except json.JSONDecodeError as error:
            raise ValueError(f"{raw} in {of!r} is not a quoted text: {error}") from None
        return value
    if not raw:
        raise ValueError(f"{of!r} leaves a value empty after '='; write the value, or leave the option out")
    if raw in ("true", "True", "false", "False"):
        return raw in ("true", "True")
    if _INTEGER.fullmatch(raw):
        return int(raw)
    if _FLOAT.fullmatch(raw):
        return float(raw)
    return raw


def format_value(value: Value) -> str:
    """The shortest text that :func:`parse_value` reads back to an equal value of the same type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    plain = _PLAIN.fullmatch(value) and parse_value(value, value) == value
    return value if plain else json.dumps(value)


def split_outside_quotes(text: str, separator: str) -> list[str]:
    """``text.split(separator)``, leaving alone what stands in double quotes.

    A plus is special: it separates only before a letter or an underscore, so ``1e+5`` stays whole.
    """
    pieces, begin, quoted, position = [], 0, False, 0
    while position < len(text):
        character = text[position]
        if quoted and character == "\\":
            position += 1
        elif character == '"':
            quoted = not quoted
        elif character == separator and not quoted and (separator != "+" or _KEY.match(text, position + 1)):
            pieces.append(text[begin:position])
            begin = position + 1
        position += 1
    if quoted:
        raise ValueError(f"{text!r} opens a double quote and never closes it")
    return [*pieces, text[begin:]]


def nearest(name: str, known: Iterable[str]) -> str:
    """The sentence that helps after an unknown name: the names most like it, or all when they are few."""
    names = sorted(known)
    tail = {n.rpartition("/")[2].lower(): n for n in names}  # a namespace must not hide the likeness
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    close += [tail[t] for t in difflib.get_close_matches(name.rpartition("/")[2].lower(), tail, n=3, cutoff=0.5)]
    if close:
        return f"nearest: {', '.join(dict.fromkeys(close))}"
    return f"known: {', '.join(names)}" if len(names) <= 20 else "nothing known is like it"
