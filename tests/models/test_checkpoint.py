import json

import pytest
import torch

from palaestra.models import checkpoint
from palaestra.models.checkpoint import CheckpointError, amend, load, name_for, save, shipped


@pytest.fixture
def saved(tmp_path):
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([True, False]), "half": torch.ones(2).half()}
    return save(tmp_path / "flow.robosuite.Lift-v0", {"width": 3}, tensors, {"agent": "flow"}), tensors


def test_what_was_saved_is_loaded_from_either_file(saved):
    path, tensors = saved
    for name in (path, path.with_name("flow.robosuite.Lift-v0"), path.with_name("flow.robosuite.Lift-v0.json")):
        config, loaded, card = load(name)
        assert config == {"width": 3}
        assert card["agent"] == "flow"
        assert all(torch.equal(loaded[n], t) and loaded[n].dtype == t.dtype for n, t in tensors.items())
    assert sorted(p.name for p in path.parent.iterdir()) == [
        f"flow.robosuite.Lift-v0.{s}" for s in ("json", "safetensors")
    ]


def test_a_file_cut_anywhere_loads_nothing(saved):
    path, _ = saved
    card = path.with_name("flow.robosuite.Lift-v0.json")
    for file in (path, card):
        whole = file.read_bytes()
        for length in range(0, len(whole) - 1, 7):  # the card's last byte is a newline
            file.write_bytes(whole[:length])
            with pytest.raises(CheckpointError, match=file.name):
                load(path)
        file.write_bytes(whole)
    load(path)


def test_a_flipped_bit_anywhere_in_the_weights_loads_nothing(saved):
    path, _ = saved
    whole = bytearray(path.read_bytes())
    for position in range(0, len(whole), 3):
        whole[position] ^= 0x10
        path.write_bytes(whole)
        with pytest.raises(CheckpointError, match="SHA-256"):
            load(path)
        whole[position] ^= 0x10


def test_a_lying_header_is_refused_even_with_the_right_hash(saved, monkeypatch):
    path, _ = saved
    body = path.read_bytes()
    for lie in (b"\xff" * 8 + body[8:], body[:8] + b"[" + body[9:], b"\x00" * 4):
        path.write_bytes(lie)
        amend_weights(path, lie)
        with pytest.raises(CheckpointError, match="safetensors"):
            load(path)


def amend_weights(path, data):
    import hashlib

    card = path.with_name("flow.robosuite.Lift-v0.json")
    content = json.loads(card.read_text())
    content["weights"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    card.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.pop("format"), "format None"),
        (lambda c: c.pop("config"), "no object 'config'"),
        (lambda c: c["weights"].pop("sha256"), "weights.sha256 is None"),
        (lambda c: c["weights"].update(file="other.safetensors"), "describes 'other.safetensors'"),
        (lambda c: c["weights"].update(bytes="many"), "expected int"),
    ],
)
def test_a_card_that_is_not_one_is_named(saved, change, says):
    path, _ = saved
    card = path.with_name("flow.robosuite.Lift-v0.json")
    content = json.loads(card.read_text())
    change(content)
    card.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=says):
        load(path)


def test_missing_and_oversize_files_are_named(saved, monkeypatch):
    path, _ = saved
    with pytest.raises(CheckpointError, match=r"nowhere.safetensors: cannot be read: there is no such file"):
        load(path.with_name("nowhere"))
    monkeypatch.setattr(checkpoint, "MAX_WEIGHT_BYTES", 10)
    with pytest.raises(CheckpointError, match="more than the limit of 10"):
        load(path)
    monkeypatch.setattr(checkpoint, "MAX_CARD_BYTES", 10)
    with pytest.raises(CheckpointError, match=r"json: has .* more than the limit of 10"):
        load(path)
    path.with_name("flow.robosuite.Lift-v0.json").unlink()
    with pytest.raises(CheckpointError, match="useless without their card"):
        load(path)


def test_a_card_can_be_amended_and_keeps_its_weights(saved):
    path, _ = saved
    amend(path, {"scores": {"flow": 0.5}})
    assert load(path).card["scores"] == {"flow": 0.5}


def test_names_of_shipped_checkpoints():
    assert name_for("flow", "palaestra/BallIntercept-v0") == "flow.BallIntercept-v0"
    assert name_for("flow", "palaestra:palaestra/robosuite.Lift-v0:control_hz=10+sensor_noise:std=0.02") == (
        "flow.robosuite.Lift-v0"
    )
    assert name_for("flow", "gym_pusht/PushT-v0") == "flow.gym_pusht.PushT-v0"
    with pytest.raises(FileNotFoundError, match="palaestra train flow CartPole-v1"):
        shipped("flow", "CartPole-v1")
