from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from palaestra.models import backend as backend_module
from palaestra.models.adapters.peft_methods import Lora
from palaestra.models.backend import Backend, BackendError
from palaestra.models.optim.adamw import AdamW


@dataclass(frozen=True)
class Halve:
    """A running method that halves the weights; two of them quarter."""

    name: ClassVar[str] = "halve"
    keep: float = 0.5
    window: int | None = None
    path: str = ""

    def apply(self, module, calibration=None):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(self.keep)
        return module


@dataclass(frozen=True)
class Slow:
    """A training method that wraps another."""

    name: ClassVar[str] = "slow"
    factor: float = 0.1

    def build(self, module):
        return torch.optim.SGD(module.parameters(), lr=self.factor)

    def wrap(self, optimizer, module):
        for group in optimizer.param_groups:
            group["lr"] *= self.factor
        return optimizer


@dataclass(frozen=True)
class NeedsSlow(Halve):
    """A running method that needs ``optim=slow``."""

    name: ClassVar[str] = "needy"
    partners: ClassVar[dict[str, str]] = {"optim": "slow"}


@pytest.fixture(autouse=True)
def methods(monkeypatch):
    table = {slot: dict(known) for slot, known in backend_module.METHODS.items()}
    table["quant"] |= {"halve": f"{__name__}:Halve"}
    table["adapter"] |= {"needy": f"{__name__}:NeedsSlow"}
    table["optim"] |= {"slow": f"{__name__}:Slow"}
    monkeypatch.setattr(backend_module, "METHODS", table)
    monkeypatch.setattr(backend_module, "import_module", lambda name: _Here if name == __name__ else _import(name))
    backend_module._load.cache_clear()
    yield
    backend_module._load.cache_clear()


_import = backend_module.import_module


class _Here:
    Halve, NeedsSlow, Slow = Halve, NeedsSlow, Slow


LORAS = st.builds(
    Lora,
    rank=st.integers(1, 64),
    alpha=st.none() | st.floats(0.1, 1e6),
    path=st.none() | st.text(min_size=1),
    targets=st.none() | st.sampled_from(["blocks.*", "a,b", "x+y", "0"]),
    merge=st.booleans(),
)
ADAMS = st.builds(AdamW, lr=st.floats(1e-300, 1e300), weight_decay=st.floats(0, 1))
HALVES = st.builds(Halve, keep=st.floats(allow_nan=False), window=st.none() | st.integers(), path=st.text())


@given(
    st.builds(
        Backend,
        adapter=st.lists(LORAS, max_size=2).map(tuple),
        quant=st.lists(HALVES, max_size=2).map(tuple),
        optim=st.tuples() | st.tuples(ADAMS) | st.tuples(ADAMS, st.builds(Slow, st.floats(1e-3, 1))),
    )
)
def test_a_written_backend_reads_back_to_itself(backend):
    assert Backend.parse(str(backend)) == backend
    assert str(Backend.parse(str(backend))) == str(backend)


def test_commas_separate_slots_and_options():
    backend = Backend.parse("optim=adamw:lr=1e-4,weight_decay=0,adapter=lora:path=out/a-1.v2,rank=4,quant=halve+halve")
    assert backend == Backend(
        adapter=(Lora(rank=4, path="out/a-1.v2"),),
        quant=(Halve(), Halve()),
        optim=(AdamW(lr=1e-4, weight_decay=0.0),),
    )
    assert str(backend).startswith("adapter=lora:rank=4,path=out/a-1.v2,quant=halve+halve,optim=adamw:lr=0.0001")
    assert Backend.parse("") == Backend()
    assert str(Backend()) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("adaptor=lora", "not a slot; nearest: adapter"),
        ("adapter=lorra", "nearest: lora"),
        ("adapter=lora:rnak=8", "no option 'rnak'; nearest: rank"),
        ("adapter=lora:rank=8.5", "is float, expected int"),
        ("adapter=lora:merge=1", "is int, expected bool"),
        ("adapter=lora:rank=0", "at least 1"),
        ("adapter=lora,adapter=lora", "twice"),
        ("adapter=lora:rank=1,rank=2", "twice"),
        ("adapter=", "not a method"),
        ("lora", "not a slot"),
        ("optim=adamw:lr=-1", "lr=-1.0"),
        ("optim=adamw+adamw,", "not a method"),
        ("adapter=needy,optim=adamw", "needs optim=slow, but optim holds adamw"),
    ],
)
def test_bad_backends_are_refused_with_what_to_do(text, says):
    with pytest.raises(BackendError, match=says):
        Backend.parse(text)


def test_methods_of_a_slot_compose_from_left_to_right():
    module = nn.Linear(2, 2, bias=False)
    before = module.weight.detach().clone()
    Backend.parse("quant=halve+halve:keep=0.25").apply(module)
    torch.testing.assert_close(module.weight, before / 8)


def test_an_optimizer_is_wrapped_by_the_method_after_it():
    optimizer = Backend.parse("optim=adamw:lr=0.5+slow:factor=0.5").optimizer(nn.Linear(2, 2))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups[0]["lr"] == 0.25
    with pytest.raises(BackendError, match="cannot follow"):
        Backend.parse("optim=slow+adamw").optimizer(nn.Linear(2, 2))


def test_a_partner_fills_its_slot_only_for_training():
    backend = Backend.parse("adapter=needy")
    assert isinstance(backend.optimizer(nn.Linear(2, 2)), torch.optim.SGD)
    assert str(backend.require_running()) == "adapter=needy"


def test_training_methods_are_refused_where_agents_run():
    with pytest.raises(BackendError, match="optim=adamw is for training only"):
        Backend.parse("adapter=lora,optim=adamw").require_running()
