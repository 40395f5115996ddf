"""The slow pass of FAVLA: pictures, words, state and the history of force to a cache, and a forecast.

It stands where the paper has a vision-language model, with the same contract: a prefix [pictures | words | state |
force | one variance token], of which each layer's keys and values are kept for the same layer of the fast expert, and
a head that reads from the variance token how much the force will vary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..flow.encoder import PictureEncoder
from ..kv_cache import KVCache
from .config import FavlaConfig
from .force_tokenizer import ForceTokenizer

_BYTES_A_TOKEN = 8


@dataclass(frozen=True)
class SlowContext:
    """What the slow pass leaves for the fast ones: ``cache``, and its forecast of the force's variance.

    ``y_hat`` [B] in [0, 1] is for acting on; ``raw`` [B] is what the head said, for training it.
    """

    cache: KVCache
    y_hat: Tensor
    raw: Tensor

    def __len__(self) -> int:
        return len(self.y_hat)

    @staticmethod
    def stack(contexts: Sequence[SlowContext]) -> SlowContext:
        """Contexts as one, batch after batch; they are of one policy. Raises ``ValueError`` when they do not fit."""
        return SlowContext(
            KVCache.stack([c.cache for c in contexts]),
            torch.cat([c.y_hat for c in contexts]),
            torch.cat([c.raw for c in contexts]),
        )


class VarianceHead(nn.Module):
    """A hidden state [B, W] to a forecast [B], through layers of ``hidden`` features and GELU; nothing bounds it."""

    def __init__(self, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for features in hidden:
            layers += [nn.Linear(width, features), nn.GELU()]
            width = features
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, h: Tensor) -> Tensor:
        """The forecast."""
        return self.layers(h)[..., 0]


class TextTokens(nn.Module):
    """UTF-8 bytes [B, n] to tokens [B, n / 8, W]: an embedding a byte and one token every eight (zeros pad)."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.count = -(-size // _BYTES_A_TOKEN)
        self.size = size
        self.embed = nn.Embedding(256, width // 4 or 1, padding_idx=0)
        self.mix = nn.Linear(_BYTES_A_TOKEN * self.embed.embedding_dim, width)
        self.position = nn.Parameter(torch.zeros(self.count, width))

    def forward(self, text: Tensor) -> Tensor:
        """Tokens of a batch of texts."""
        padded = functional.pad(text.long(), (0, self.count * _BYTES_A_TOKEN - self.size))
        return self.mix(self.embed(padded).view(len(text), self.count, -1)) + self.position


class SlowBlock(nn.Module):
    """One layer over all tokens [B, T, width], attending with ``heads`` of ``inner / heads`` features."""

    def __init__(self, width: int, inner: int, heads: int, expansion: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_feed_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * inner)
        self.out = nn.Linear(inner, width)
        self.up = nn.Linear(width, expansion * width)
        self.down = nn.Linear(expansion * width, width)

    def forward(self, x: Tensor, wanted: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The last ``wanted`` tokens (``None``: all) after this layer, and the keys and values of all."""
        batch, count, _ = x.shape
        pieces = self.qkv(self.before_attention(x)).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = pieces.unbind(0)
        if wanted is not None:
            q, x = q[:, :, -wanted:], x[:, -wanted:]
        h = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.before_feed_forward(x)), approximate="tanh")), k, v


class SlowEncoder(nn.Module):
    """The encoder: tokens through ``depth`` bidirectional layers, and the forecast of the last, the variance token."""

    def __init__(self, config: FavlaConfig) -> None:
        super().__init__()
        width = config.slow_width
        self.cameras = nn.ModuleDict({key: PictureEncoder(shape, width) for key, shape in config.pictures.items()})
        self.text = TextTokens(config.text, width) if config.text else None
        self.state = nn.ModuleDict({key: nn.Linear(config.features[key], width) for key in config.state})
        self.force = (
            ForceTokenizer(*config.wrench, config.force_tokens, config.force_width, width) if config.feels else None
        )
        self.variance = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList(
            SlowBlock(width, config.width, config.heads, config.expansion) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = VarianceHead(width, config.variance_hidden)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight, generator=generator)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
            elif isinstance(layer, nn.Embedding):
                nn.init.normal_(layer.weight[1:], generator=generator)
            elif isinstance(layer, PictureEncoder | TextTokens | ForceTokenizer):
                nn.init.normal_(layer.position, std=0.02, generator=generator)
        nn.init.normal_(self.variance, std=0.02, generator=generator)

    def forward(self, inputs: Mapping[str, Tensor]) -> SlowContext:
        """Encode a batch: normalised state and ``"wrench"``, pictures and ``"instruction"`` by their keys."""
        tokens = []
        for key, camera in self.cameras.items():
            places, summary = camera(inputs[key])
            tokens += [places, summary[:, None]]
        if self.text is not None:
            tokens.append(self.text(inputs["instruction"]))
        tokens += [read(inputs[key])[:, None] for key, read in self.state.items()]
        if self.force is not None:
            tokens.append(self.force(inputs["wrench"]))
        tokens.append(self.variance.expand(len(tokens[0]), -1, -1))
        x = torch.cat(tokens, dim=1)
        keys, values = [], []
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            # Of the last layer the cache needs no more than keys and values, and the head one token.
            x, k, v = block(x, 1 if index == last else None)
            keys.append(k)
            values.append(v)
        raw = self.head(self.norm(x[:, -1]))
        return SlowContext(KVCache(tuple(keys), tuple(values)), raw.detach().clamp(0, 1), raw)
