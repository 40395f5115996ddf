"""CurveZMQ keys: who may talk to a server on another machine, and who the server is.

A pair is two files in ZeroMQ's own certificate format: ``NAME.key`` to give away and ``NAME.key_secret`` to keep. The
server holds its own secret and the public keys of its clients; a client holds its own secret and the server's public
key. Whoever comes with another key, or with none, gets no answer at all: that is how CURVE works, and why a wrong key
looks like a server that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.auth


@dataclass(frozen=True)
class KeyPair:
    """A public and a secret key, each 40 characters of Z85. The secret is not printed."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class ServerKeys:
    """What a server needs for CURVE: its own pair and the public keys that may connect."""

    own: KeyPair
    allowed: frozenset[bytes]

    @classmethod
    def read(cls, own: Path | str, allowed: Sequence[Path | str]) -> ServerKeys:
        """From files. Raises ``ValueError`` for one that cannot be read, and when nobody is allowed."""
        if not allowed:
            raise ValueError("nobody may connect: name the public key of at least one client (--allow CLIENT.key)")
        return cls(read_pair(own), frozenset(read_public(path) for path in allowed))


@dataclass(frozen=True)
class ClientKeys:
    """What a client needs for CURVE: its own pair and the server's public key."""

    own: KeyPair
    server: bytes

    @classmethod
    def read(cls, own: Path | str, server: Path | str) -> ClientKeys:
        """From files. Raises ``ValueError`` for one that cannot be read."""
        return cls(read_pair(own), read_public(server))


def new_key(path: Path | str) -> tuple[Path, Path]:
    """Make a pair ``PATH.key`` and ``PATH.key_secret`` (readable by its owner alone); returns both files.

    Raises ``ValueError`` where one of them is there already: a key that is in use is not overwritten.
    """
    path = Path(path)
    if path.suffix in (".key", ".key_secret"):
        path = path.with_suffix("")
    if taken := [file for file in _files(path) if file.exists()]:
        raise ValueError(f"{taken[0]} is there already; choose another name, or delete it if nobody uses it")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"the folder {path.absolute().parent} does not exist; make it first")
    public, secret = _files(path)
    secret.touch(mode=0o600)  # before there is anything in it to be read
    zmq.auth.create_certificates(path.absolute().parent, path.name)
    secret.chmod(0o600)
    return public, secret


def read_pair(path: Path | str) -> KeyPair:
    """The pair in a ``.key_secret`` file. Raises ``ValueError`` saying what is wrong with it."""
    public, secret = _load(path)
    if secret is None:
        raise ValueError(f"{path} holds only a public key; name the .key_secret file beside it")
    return KeyPair(public, secret)


def read_public(path: Path | str) -> bytes:
    """The public key in either file of a pair. Raises ``ValueError`` saying what is wrong with it."""
    return _load(path)[0]


def _files(path: Path) -> tuple[Path, Path]:
    return path.with_name(path.name + ".key"), path.with_name(path.name + ".key_secret")


def _load(path: Path | str) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a key file ({error}); make one with palaestra serve --new-key NAME") from None
    return public, secret
