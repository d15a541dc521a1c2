"""The encoder of a pretrained T5, fine-tuned or frozen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe import Checkpoint, Probability
from seqpipe.nn.constants import EOS
from seqpipe.nn.pretrained import pretrained_seq2seq
from seqpipe.nn.t5 import FAMILIES, stack


class PretrainedSeq2Seq(nn.Module):
    """The encoder of a T5 (Raffel et al. 2020), for the head `pretrained-seq2seq` or any other head.

    Its input is the text with the end token. x (B, T, D) has the vectors of the tokens, `state` (B, D) that of the end
    token, and `table` (V, D) the token embeddings, which the decoder shares. Positions are relative, so a text may have
    any length; memory grows with the square of the length.

    Args:
        checkpoint: A folder written by `save_pretrained`, or a name on the hub; the same as for the tokenizer.
        dropout: Dropout probability in the whole encoder; null: that of the checkpoint.
        layer_decay: Factor of the learning rate from each layer to the one below it (Howard and Ruder 2018).
    """

    returns: ClassVar = {"x": "", "state": "", "table": "(V, D) float32"}
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"words.weight": ("vocabulary",)}

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        checkpoint: Checkpoint,
        dropout: Probability | None = None,
        layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0,
    ):
        super().__init__()
        config, state, ids = pretrained_seq2seq(checkpoint, vocabulary, FAMILIES)
        self.dim: int = config.d_model
        self.layer_decay = layer_decay
        self.words = nn.Embedding.from_pretrained(state["shared.weight"][ids], freeze=False)
        self.stack = stack(config, state, "encoder", dropout, checkpoint)

    def learning_rate_factor(self, name: str) -> float:
        """The factor of the learning rate of a parameter."""
        depth = len(self.stack.layers)
        layer = re.match(r"stack\.layers\.(\d+)\.", name)
        if layer:
            return self.layer_decay ** (depth - 1 - int(layer[1]))
        return 1.0 if name.startswith("stack.norm") else self.layer_decay**depth

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T) twice -> (B, T, D), (B, D), (V, D)
        end, t = mask.sum(1, keepdim=True), torch.arange(ids.shape[1] + 1, device=ids.device)
        ids = torch.where(t == end, EOS, F.pad(torch.where(mask, ids, 0), (0, 1)))
        states = self.stack(self.words(ids), t <= end)  # (B, T + 1, D)
        state = states.gather(1, end[..., None].expand(-1, -1, self.dim))[:, 0]
        x = torch.where(mask[..., None], states[:, :-1], 0.0)
        return {"x": x, "state": state, "table": self.words.weight}
