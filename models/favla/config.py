"""The configuration of a FAVLA policy: what each of its two passes reads, how force enters, and how often they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..flow.config import FlowConfig

Fusion = Literal["none", "prefix", "input", "adapter", "gated"]


@dataclass(frozen=True)
class FavlaConfig(FlowConfig):
    """Shapes and hyperparameters; what is not explained here is as in :class:`FlowConfig`.

    ``width``, ``depth``, ``heads`` and ``expansion`` are the fast expert's; the slow encoder has the same depth and
    heads and tokens of ``slow_width``, so that each layer of the expert reads one of its own. ``hidden`` is the width
    of what reads the fast state.

    Inputs: all of ``state`` and ``pictures`` go to the slow pass, and to the expert the newest of the keys ``fast``.
    ``wrench`` (samples, axes) is the window under the observation key ``"wrench"``, newest sample last; its six axes
    are normalised each for itself, so ``normalization`` has an entry for it. ``text`` is the number of bytes under the
    key ``"instruction"`` (uint8, UTF-8, padded with zeros; 0: not read).

    ``fusion`` says where force enters: ``"none"``; ``"prefix"``: tokens of the slow pass; and, besides that, the newest
    force among the expert's input tokens (``"input"``), or in every layer by a plain cross-attention (``"adapter"``)
    or by one that is balanced against vision (``"gated"``; a ``fixed_gate`` in [0, 1] does not learn).
    ``force_tokens`` are made of a window, by a network of ``force_width`` features.

    ``slow_every`` is the slow period in ticks, and ``late`` how many ticks a slow pass may take: together, how old a
    context may be. ``label_window`` are the ticks over which the variance of the force is
    foreseen, by a head with layers of ``variance_hidden``; ``variance_weight`` is the share of its error in the loss.

    Raises ``ValueError`` naming the field.
    """

    width: int = 64
    hidden: int = 64
    fast: tuple[str, ...] = ("agent_pos",)
    wrench: tuple[int, int] = (10, 6)
    text: int = 0
    fusion: Fusion = "gated"
    fixed_gate: float | None = None
    force_tokens: int = 4
    force_width: int = 32
    slow_width: int = 64
    slow_every: int = 16
    late: int = 8
    label_window: int = 16
    variance_hidden: tuple[int, ...] = (64, 32)
    variance_weight: float = 0.1

    def __post_init__(self) -> None:
        if self.fusion not in get_args(Fusion):
            raise ValueError(f"fusion={self.fusion!r} is not known; choose one of {', '.join(get_args(Fusion))}")
        if "wrench" in self.state or "wrench" in self.pictures:
            raise ValueError('state and pictures must not hold "wrench": fusion says where force enters')
        if len(self.wrench) != 2 or self.wrench[0] < 1 or self.wrench[1] != 6:
            raise ValueError(f"wrench={self.wrench}, expected (samples, 6) with at least one sample")
        if self.feels and "wrench" not in self.normalization:
            raise ValueError(
                f'normalization states no kind for "wrench", which fusion={self.fusion!r} reads; '
                "give one of mean_std, min_max, quantile"
            )
        super().__post_init__()
        if self.backbone != "transformer":
            raise ValueError(f"backbone={self.backbone!r}, expected 'transformer': only attention can read a cache")
        if not self.fast or (unknown := [key for key in self.fast if key not in self.state]):
            raise ValueError(
                f"fast={self.fast} names {unknown if self.fast else 'nothing'}, expected keys of state, which has "
                f"{list(self.state)}: the expert needs to know where the robot is now"
            )
        for argument in ("force_tokens", "force_width", "slow_width", "slow_every", "label_window"):
            value = getattr(self, argument)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 16_384:
                raise ValueError(f"{argument}={value!r}, expected an integer of 1 to 16384")
        if isinstance(self.late, bool) or not isinstance(self.late, int) or self.late < 0:
            raise ValueError(f"late={self.late!r}, expected a number of ticks, or 0")
        if self.force_tokens > self.wrench[0]:
            raise ValueError(
                f"force_tokens={self.force_tokens}, expected at most the {self.wrench[0]} samples of wrench"
            )
        if isinstance(self.text, bool) or not isinstance(self.text, int) or not 0 <= self.text <= 16_384:
            raise ValueError(f"text={self.text!r}, expected a number of bytes, or 0")
        if any(isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 16_384 for n in self.variance_hidden):
            raise ValueError(f"variance_hidden={self.variance_hidden}, expected integers of 1 to 16384")
        if not self.variance_weight >= 0:
            raise ValueError(f"variance_weight={self.variance_weight}, expected a number of at least 0")
        if self.width % self.heads:
            raise ValueError(f"width={self.width} is not a multiple of heads={self.heads}")
        if self.fixed_gate is not None and not 0 <= self.fixed_gate <= 1:
            raise ValueError(f"fixed_gate={self.fixed_gate}, expected a share in [0, 1], or None for one that learns")
        if self.fixed_gate is not None and self.fusion != "gated":
            raise ValueError(
                f"fixed_gate={self.fixed_gate}, but fusion={self.fusion!r} has no gate; leave it out or choose 'gated'"
            )

    @property
    def feels(self) -> bool:
        """Whether anything reads the wrench."""
        return self.fusion != "none"

    @property
    def feels_now(self) -> bool:
        """Whether the expert reads the newest wrench, not only the one of the last slow pass."""
        return self.fusion in ("input", "adapter", "gated")

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Every observation key that is read, with the shape of its array."""
        felt = {"wrench": self.wrench} if self.feels else {}
        return super().inputs | felt | ({"instruction": (self.text,)} if self.text else {})

    @property
    def features(self) -> dict[str, int]:
        """Key to how many numbers are normalised, and seen, of it; of the wrench those of one sample."""
        return super().features | ({"wrench": self.wrench[1]} if self.feels else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FavlaConfig:
        """Read what :meth:`to_json` wrote. Raises ``ValueError`` naming what is unknown, missing or out of range."""
        try:
            lists = {key: tuple(data[key]) for key in ("fast", "wrench", "variance_hidden") if key in data}
        except TypeError as error:
            raise ValueError(f"not a configuration of FAVLA: {error}") from None
        config = super().from_json({**data, **lists})
        assert isinstance(config, cls)
        return config
