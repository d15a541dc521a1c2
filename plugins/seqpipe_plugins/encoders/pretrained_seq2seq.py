"""The encoder of a pretrained T5, BART, mBART or Marian, fine-tuned or frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.layers import EOS_ID, UNK_ID
from seqpipe.nn.pretrained import layer_decay_factor
from seqpipe.nn.pretrained_seq2seq import pretrained_encoder_parts
from seqpipe.plugin import Checkpoint, Probability


class PretrainedSeq2SeqEncoder(nn.Module):
    """The encoder of a pretrained T5, BART, mBART or Marian, for the head `pretrained-seq2seq` or any other head.

    (Raffel et al. 2020; Lewis et al. 2020; Liu et al. 2020; Junczys-Dowmunt et al. 2018.) It reads a text with the
    checkpoint's special tokens around it. x (B, T, D) has the vectors of the text's tokens, `around` (B, E, D) those of
    the special tokens, `state` (B, D) that of the end token, and `table` (V, D) the token embeddings, which the decoder
    shares. In a T5 positions are relative, and a text may have any length; in the others it has at most `max_tokens`
    tokens, and a longer one is an error before training and at deployment. Memory grows with the square of the length.

    Args:
        checkpoint: A folder written by `save_pretrained`, or a name on the hub; the same as for the tokenizer.
        dropout: Dropout probability in the whole encoder; null: that of the checkpoint.
        layer_decay: Factor of the learning rate from each layer to the one below it (Howard and Ruder 2018).
        language: The language of the texts, of an mBART, such as en_XX; null: the source language of its tokenizer.
    """

    length_cost: ClassVar = "quadratic"
    returns: ClassVar = {"x": "", "state": "", "table": "(V, D) float32", "around": "(B, E, D) float32"}
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"words.weight": ("vocabulary",)}

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        checkpoint: Checkpoint,
        dropout: Probability | None = None,
        layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0,
        language: str | None = None,
    ):
        super().__init__()
        parts = pretrained_encoder_parts(checkpoint, vocabulary, dropout, language)
        self.dim: int = parts.table.shape[1]
        self.layer_decay, self.known = layer_decay, parts.known
        self.before, self.behind = [*parts.before], [*parts.behind]
        around = len(self.before) + len(self.behind)
        self.max_tokens = None if parts.positions is None else parts.positions - around
        self.words = nn.Embedding.from_pretrained(parts.table, freeze=False)
        self.stack = parts.stack

    def learning_rate_factor(self, name: str) -> float:
        """Return the factor of the learning rate of a parameter."""
        is_on_top = name.startswith("stack.norm")
        return layer_decay_factor(name, self.layer_decay, len(self.stack.layers), is_on_top=is_on_top)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T) twice -> (B, T, D), (B, D), (V, D)
        before, behind, T = len(self.before), len(self.behind), ids.shape[1]
        ids = F.pad(torch.where(mask, self._known_ids(ids), 0), (before, behind))
        t, end = torch.arange(before + T + behind, device=ids.device), before + mask.sum(1, keepdim=True)  # (B, 1)
        for place, token in enumerate(self.before):
            ids = torch.where(t == place, token, ids)
        for place, token in enumerate(self.behind):
            ids = torch.where(t == end + place, token, ids)
        states = self.stack(self.words(ids), t < end + behind)  # (B, before + T + behind, D)
        places = [t[:before].expand(ids.shape[0], -1), end + t[:behind]]
        around = states.gather(1, torch.cat(places, 1)[..., None].expand(-1, -1, self.dim))  # (B, E, D)
        x = torch.where(mask[..., None], states[:, before : before + T], 0.0)
        state = around[:, before + self.behind.index(EOS_ID)]
        return {"x": x, "state": state, "table": self.words.weight, "around": around}

    def _known_ids(self, ids: Tensor) -> Tensor:
        return ids if self.known == len(self.words.weight) else torch.where(ids < self.known, ids, UNK_ID)
