import pytest
import torch
from torch import nn

from palaestra.models.adapters.peft_methods import Lora, merge, save_adapter

pytest.importorskip("peft")


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.SiLU(), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)))


X = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))


def train_adapter(module):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(2))


def test_untrained_it_is_the_identity_and_alone_trainable():
    plain, adapted = network(), Lora(rank=3).apply(network())
    torch.testing.assert_close(adapted(X), plain(X), rtol=0, atol=0)
    trainable = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert len(trainable) == 6
    assert all("lora_" in name for name in trainable)


def test_trained_it_adds_b_a_times_alpha_over_rank_and_merges_to_plain_layers():
    adapted = Lora(rank=2, alpha=6.0).apply(network())
    train_adapter(adapted)
    a, b = (getattr(adapted[0], f"lora_{m}")["default"].weight for m in "AB")
    expected = network()[0].weight + (6.0 / 2) * b @ a
    y = adapted(X)
    merged = merge(adapted)
    torch.testing.assert_close(merged[0].weight, expected)
    torch.testing.assert_close(merged(X), y)
    assert [type(layer) for layer in merged[2]] == [nn.Linear, nn.Linear]


def test_saved_adapters_load_with_their_own_rank(tmp_path):
    adapted = Lora(rank=2, alpha=6.0).apply(network())
    train_adapter(adapted)
    save_adapter(adapted, tmp_path)
    for method in (Lora(path=str(tmp_path)), Lora(path=str(tmp_path), merge=True)):
        torch.testing.assert_close(method.apply(network())(X), adapted(X))


def test_an_adapter_of_another_network_is_refused(tmp_path):
    save_adapter(Lora(rank=2).apply(network()), tmp_path)
    other = nn.Sequential(nn.Linear(5, 9), nn.SiLU(), nn.Sequential(nn.Linear(9, 8), nn.Linear(8, 2)))
    with pytest.raises(ValueError, match="does not fit Sequential"):
        Lora(path=str(tmp_path)).apply(other)
    longer = nn.Sequential(nn.Linear(5, 8), nn.SiLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="does not fit Sequential"):
        Lora(path=str(tmp_path)).apply(longer)


def test_targets_select_whole_names_and_bad_ones_are_named(tmp_path):
    adapted = Lora(targets=r"2\.\d").apply(network())
    assert isinstance(adapted[0], nn.Linear)
    assert not isinstance(adapted[2][0], nn.Linear)
    with pytest.raises(ValueError, match=r"matches none of the 3 linear layers"):
        Lora(targets="nothing").apply(network())
    with pytest.raises(FileNotFoundError, match=r"holds no adapter_config.json"):
        Lora(path=str(tmp_path)).apply(network())
    (tmp_path / "adapter_config.json").write_text("{")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="not an adapter"):
        Lora(path=str(tmp_path)).apply(network())


def test_the_global_generator_is_left_alone():
    module = network()
    before = torch.get_rng_state()
    Lora().apply(module)
    assert torch.equal(torch.get_rng_state(), before)
