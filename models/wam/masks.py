"""Who may look at whom in a world-action model, which is all that sets its variants apart (Fast-WAM, Section 3).

Tokens are, in this order, f0 of the present frame, F of the noisy future frames and A of the noisy actions. f0 sees
itself alone. So does an action of the fast variant, besides the other actions; hence F may be left out without a
change to any action, and is, at test time.

=============  ======  ====  ====
query \\ key    f0      F     A
=============  ======  ====  ====
f0             yes
F              yes     yes
A, fast        yes           yes
A, joint       yes     yes   yes
=============  ======  ====  ====

In the idm variant, which imagines before it acts, the video stands there twice: a noisy copy that is learned from,
and a condition copy that actions see. The copies do not see each other.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Variant = Literal["fast", "joint", "idm"]


def wam_mask(n_first: int, n_future: int, n_action: int, variant: Variant = "fast") -> Tensor:
    """Boolean mask [n, n], true where the token of the row may attend to that of the column.

    n is ``n_first + n_future + n_action``; of the idm variant, whose tokens are [noisy copy | condition copy |
    actions], ``2 * (n_first + n_future) + n_action``. Raises ``ValueError`` for an unknown variant and for numbers
    below 0 (``n_first``: below 1).
    """
    if variant not in get_args(Variant):
        raise ValueError(f"variant={variant!r} is not known; choose one of {', '.join(get_args(Variant))}")
    for argument, value, least in (("n_first", n_first, 1), ("n_future", n_future, 0), ("n_action", n_action, 0)):
        if value < least:
            raise ValueError(f"{argument}={value}, expected at least {least}")
    video = torch.ones(n_first + n_future, n_first + n_future, dtype=torch.bool)
    video[:n_first, n_first:] = False
    seen = torch.ones(len(video), dtype=torch.bool)  # by the actions
    if variant == "fast":
        seen[n_first:] = False
    elif variant == "idm":
        seen = torch.cat([torch.zeros_like(seen), seen])
        video = torch.block_diag(video, video)
    mask = torch.ones(len(video) + n_action, len(video) + n_action, dtype=torch.bool)
    mask[: len(video), : len(video)] = video
    mask[: len(video), len(video) :] = False
    mask[len(video) :, : len(video)] = seen
    return mask
