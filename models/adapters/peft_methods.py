"""Adapters that the library peft brings. ``adapter=lora``: Hu et al., "LoRA: Low-Rank Adaptation"."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Lora:
    """Adds ``B A * alpha / rank`` to linear layers; the identity until trained, since B starts at zero.

    ``rank`` >= 1; ``alpha`` > 0 (default: the rank, a scale of 1); ``targets`` is a regular expression that the
    full name of a linear layer must match (default: every linear layer); ``path`` is a folder in peft's format
    (``adapter_config.json`` and ``adapter_model.safetensors``), whose own rank and alpha then hold;
    ``merge=true`` folds the result into the weights, so that it costs nothing at run time. ``seed`` draws A.

    Everything but the adapter stops requiring a gradient. Raises ``ModuleNotFoundError`` without peft,
    ``FileNotFoundError`` or ``ValueError`` for a folder that is not such an adapter, and ``ValueError`` when no
    layer matches.
    """

    name: ClassVar[str] = "lora"

    rank: int = 8
    alpha: float | None = None
    path: str | None = None
    targets: str | None = None
    merge: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank={self.rank}, expected at least 1")
        if self.alpha is not None and not self.alpha > 0:
            raise ValueError(f"alpha={self.alpha}, expected a number above 0")
        if self.targets is not None:
            try:
                re.compile(self.targets)
            except re.error as error:
                raise ValueError(f"targets={self.targets!r} is not a regular expression: {error}") from None

    def apply(self, module: nn.Module, calibration: Mapping[str, Any] | None = None) -> nn.Module:
        """Put the adapter into ``module``, in place; returns it."""
        peft = _peft()
        if self.path is not None:
            config, weights = _read(Path(self.path), peft)
        else:
            config, weights = self._config(module, peft), None
        with torch.random.fork_rng(devices=[]):  # peft draws A from the global generator
            torch.manual_seed(self.seed)
            try:
                peft.inject_adapter_in_model(config, module)
            except ValueError as error:
                raise ValueError(f"adapter=lora does not fit {type(module).__name__}: {error}") from None
        if weights is not None:
            try:
                result = peft.set_peft_model_state_dict(module, weights)
            except RuntimeError as error:
                raise ValueError(f"the adapter in {self.path} does not fit {type(module).__name__}: {error}") from None
            # peft loads what it recognises; an adapter of another network would silently be the identity.
            missing = [key for key in result.missing_keys if "lora_" in key]
            if missing or result.unexpected_keys:
                raise ValueError(
                    f"the adapter in {self.path} does not fit {type(module).__name__}: it lacks {missing[:3]} and "
                    f"holds {result.unexpected_keys[:3]}; use the adapter that was trained on this network"
                )
        return merge(module) if self.merge else module

    def finish(self, module: nn.Module, folder: Path) -> nn.Module:
        """After training: keep the adapter in ``folder`` and return ``module`` with it merged."""
        save_adapter(module, folder)
        return merge(module)

    def _config(self, module: nn.Module, peft: Any) -> Any:
        linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        chosen = [name for name in linear if self.targets is None or re.fullmatch(self.targets, name)]
        if not chosen:
            raise ValueError(
                f"targets={self.targets!r} matches none of the {len(linear)} linear layers of "
                f"{type(module).__name__}; they are named like {', '.join(linear[:4]) or '(there are none)'}"
            )
        # One anchored pattern: peft would also match any layer whose name only ends like a listed one.
        pattern = "|".join(re.escape(name) for name in chosen)
        return peft.LoraConfig(r=self.rank, lora_alpha=self.alpha or self.rank, target_modules=pattern)


def merge(module: nn.Module) -> nn.Module:
    """Fold every peft layer into the layer that it wraps, in place; returns ``module`` without adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, layer in list(module.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge(safe_merge=True)
            parent, _, child = name.rpartition(".")
            setattr(module.get_submodule(parent), child, layer.get_base_layer())
    return module


def save_adapter(module: nn.Module, folder: Path) -> None:
    """Write the adapter of ``module`` in peft's format. Raises ``ValueError`` when it has none."""
    peft = _peft()
    config = getattr(module, "peft_config", {}).get("default")
    if config is None:
        raise ValueError(f"{type(module).__name__} has no adapter to save; apply adapter=lora first")
    folder.mkdir(parents=True, exist_ok=True)
    weights = {k: v.detach().cpu().contiguous() for k, v in peft.get_peft_model_state_dict(module).items()}
    save_file(weights, folder / _WEIGHTS)
    config.save_pretrained(str(folder))


def _read(folder: Path, peft: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"path={str(folder)!r} holds no {name}; expected a folder saved in peft's format")
    try:
        config = peft.LoraConfig.from_peft_type(**json.loads((folder / _CONFIG).read_text(encoding="utf-8")))
        weights = load_file(folder / _WEIGHTS)
    except (ValueError, TypeError, KeyError, SafetensorError) as error:
        raise ValueError(f"path={str(folder)!r} is not an adapter in peft's format: {error}") from None
    if not isinstance(config, peft.LoraConfig):
        raise ValueError(f"path={str(folder)!r} holds a {type(config).__name__}, expected LoRA")
    return config, weights


def _peft() -> Any:
    try:
        import peft
    except ModuleNotFoundError:
        raise ModuleNotFoundError("adapter=lora needs the library peft; install palaestra[adapters]") from None
    return peft
