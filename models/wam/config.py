"""The configuration of a world-action model: the variant, what it foresees and how much that counts, and its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..flow.config import FlowConfig
from .masks import Variant
from .scheduler import ShiftedFlow

Control = Literal["future", "present", "shuffled", "inverse"]


@dataclass(frozen=True)
class WamConfig(FlowConfig):
    """Shapes and hyperparameters; what is not explained here is as in :class:`FlowConfig`.

    ``width`` is that of the expert of actions and ``video_width`` that of video; both have ``depth`` layers of
    ``heads`` times ``head_dim``, and feed-forward halves ``expansion`` times as wide. ``hidden`` is the width of the
    condition, into which ``state`` goes, and the instruction: ``text`` is the size of its embedding under the key
    ``"instruction"`` (float32 [B, text], made outside; only its direction counts; 0: not read).

    ``picture`` is the key of ``pictures`` that is looked at and foreseen, square, in patches of ``patch`` pixels or,
    with ``latent`` above 0, so many principal components of them. ``future`` says which frames are foreseen, in ticks
    after the observation.

    With ``summary`` the expert of actions is also modulated by a vector that is read off the present frame's tokens
    after the last layer, and in training a linear map of it regresses the chunk, as in :class:`FlowPolicy`. It learns
    to see from few demonstrations what attention alone takes many for; ``False`` is as published.

    Each further action of a chunk counts ``discount`` times as much in the loss as the one before it: where the world
    is disturbed, far ones answer to what nobody can foresee, and only add noise to what near ones teach.

    ``variant`` is how acting and foreseeing go together, see :mod:`.masks`. ``video_weight`` is the share of the video
    in the loss (0: no co-training, for the fast variant alone). ``control`` replaces what is learned besides acting, to
    find out what helps: instead of the ``"future"``, ``"present"`` reconstructs the frame that is seen, ``"shuffled"``
    foresees the future of another sample of the batch, and ``"inverse"`` tells the actions from clean frames of the
    future. ``shift`` is that of the video's times, and ``weighted`` whether its loss is weighted by time, see
    :mod:`.scheduler`. The idm variant imagines in ``imagine_steps`` steps, and is trained with a share
    ``condition_noise`` of the futures that actions see being noisy. ``reuse_first`` computes the present frame once a
    plan, and not at every step of imagination as the publication does; what comes out is the same.

    Raises ``ValueError`` naming the field.
    """

    horizon: int = 12
    width: int = 48
    expansion: int = 3
    hidden: int = 64
    head_dim: int = 16
    video_width: int = 64
    picture: str = "pixels"
    patch: int = 5
    latent: int = 16
    future: tuple[int, ...] = (6, 12)
    text: int = 0
    summary: bool = True
    discount: float = 1.0
    variant: Variant = "fast"
    video_weight: float = 1.0
    control: Control = "future"
    shift: float = 1.0
    weighted: bool = False
    imagine_steps: int = 10
    condition_noise: float = 0.5
    reuse_first: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backbone != "transformer":
            raise ValueError(f"backbone={self.backbone!r}, expected 'transformer': the experts share an attention")
        for argument, known in (("variant", get_args(Variant)), ("control", get_args(Control))):
            if getattr(self, argument) not in known:
                raise ValueError(
                    f"{argument}={getattr(self, argument)!r} is not known; choose one of {', '.join(known)}"
                )
        for argument in ("head_dim", "video_width", "patch", "imagine_steps"):
            most = 1000 if argument == "imagine_steps" else 16_384
            if not _is_whole(getattr(self, argument), 1) or getattr(self, argument) > most:
                raise ValueError(f"{argument}={getattr(self, argument)!r}, expected an integer of 1 to {most}")
        if set(self.pictures) != {self.picture}:
            raise ValueError(
                f"picture={self.picture!r} and pictures has {sorted(self.pictures)}; expected that one key: a "
                "world-action model looks at one picture"
            )
        height, wide, channels = self.pictures[self.picture]
        if height != wide or height % self.patch:
            raise ValueError(
                f"patch={self.patch} does not cut pictures[{self.picture!r}] of {height} x {wide} into squares; "
                "expected a square picture whose size is divisible by patch"
            )
        if not _is_whole(self.latent, 0) or self.latent > self.patch**2 * channels:
            raise ValueError(
                f"latent={self.latent!r}, expected 0 for whole patches or up to {self.patch**2 * channels} components"
            )
        if (
            not self.future
            or any(not _is_whole(t, 1) for t in self.future)
            or list(self.future) != sorted(set(self.future))
        ):
            raise ValueError(f"future={self.future}, expected rising numbers of ticks, the first at least 1")
        if not _is_whole(self.text, 0) or self.text == 1:
            raise ValueError(f"text={self.text!r}, expected the size of an embedding, at least 2, or 0")
        if self.text and "instruction" in self.state:
            raise ValueError(f'text={self.text}, but state holds "instruction" too; leave one of them out')
        if not 0 < self.discount <= 1:
            raise ValueError(f"discount={self.discount}, expected a factor in (0, 1]")
        if not self.video_weight >= 0:
            raise ValueError(f"video_weight={self.video_weight}, expected a number of at least 0")
        if self.variant != "fast" and (not self.video_weight or self.control != "future"):
            raise ValueError(
                f"variant={self.variant!r} acts on the future that it imagines, so it must learn it: expected "
                f"video_weight above 0 and control='future', got {self.video_weight} and {self.control!r}"
            )
        if not 0 <= self.condition_noise <= 1:
            raise ValueError(f"condition_noise={self.condition_noise}, expected a share in [0, 1]")
        ShiftedFlow(self.shift)  # which checks it

    @property
    def cells(self) -> int:
        """Tokens of one frame."""
        return (self.pictures[self.picture][0] // self.patch) ** 2

    @property
    def latent_size(self) -> int:
        """Numbers of one token of a frame."""
        return self.latent or self.patch**2 * self.pictures[self.picture][2]

    @property
    def condition_size(self) -> int:
        """Numbers of the condition; 0 where only pictures are read."""
        return self.hidden if self.state or self.text else 0

    @property
    def video_shape(self) -> tuple[int, int, int]:
        """Frames, tokens of a frame and numbers of a token: the latents of a future, and the noise that begins one."""
        return len(self.future), self.cells, self.latent_size

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Every observation key that is read, with the shape of its array."""
        return super().inputs | ({"instruction": (self.text,)} if self.text else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WamConfig:
        """Read what :meth:`to_json` wrote. Raises ``ValueError`` naming what is unknown, missing or out of range."""
        try:
            lists = {"future": tuple(data["future"])} if "future" in data else {}
        except TypeError as error:
            raise ValueError(f"not a configuration of a world-action model: {error}") from None
        config = super().from_json({**data, **lists})
        assert isinstance(config, cls)
        return config


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
