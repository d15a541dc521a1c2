"""ids in, what a checkpoint of `transformers` makes of them out: BERT and its kin, fine-tuned or as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from seqpipe.errors import UsageError
from seqpipe.nn.pretrained import longest, pretrained_model
from seqpipe.pretrained import Checkpoint
from seqpipe.vocabulary import BOS, EOS, SPECIALS

_LAYER = re.compile(r"\blayers?\.(\d+)\.")


class Pretrained(nn.Module):
    """A pretrained encoder, such as BERT (Devlin et al. 2019), with its first and last token around each text.

    x (B, T, D) holds the vectors of the text's own tokens, `state` (B, D) that of the first special one ([CLS]). A text
    that is longer than the window is read in overlapping windows, each with both special tokens; a token's vector is
    that of the window in which it stands farthest from an edge, and `state` is the mean over the windows.

    Args:
        checkpoint: A folder that `save_pretrained` wrote, or a name on the hub; the same as the tokenizer's.
        depth: How many of its layers are kept, counted from below; null for all.
        layers: The layers whose mean x is; -1 is the last, 0 what the first layer reads.
        dropout: Probability that a number is silenced in training, everywhere in the encoder; null for its own.
        layer_decay: What the learning rate is multiplied by from one layer to the one below it (Howard and Ruder 2018).
        recompute: Whether training computes each layer again for its gradient: a third slower, in far less memory.
        window: Tokens of a text that are read at once; null for as many as the checkpoint can read.
        overlap: Tokens that two neighbouring windows share; null for half a window.
    """

    returns: ClassVar = ("x", "state")

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        checkpoint: Checkpoint,
        depth: Annotated[int, Field(gt=0)] | None = None,
        layers: Annotated[tuple[int, ...], Field(min_length=1)] = (-1,),
        dropout: Annotated[float, Field(ge=0, lt=1)] | None = None,
        layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0,
        recompute: bool = False,
        window: Annotated[int, Field(ge=2)] | None = None,
        overlap: Annotated[int, Field(ge=1)] | None = None,
    ):
        super().__init__()
        self.model = pretrained_model(checkpoint, vocabulary, depth=depth, dropout=dropout)
        self.dim: int = self.model.config.hidden_size
        self.depth: int = self.model.config.num_hidden_layers
        for layer in layers:
            if not -self.depth - 1 <= layer <= self.depth:
                raise UsageError(f"pretrained.layers: there is no layer {layer} of {self.depth}")
        most = longest(self.model)
        if window is None:
            window = 512 - 2 if most is None else most - 2
        elif most is not None and window > most - 2:
            raise UsageError(f"pretrained.window: {checkpoint} reads {most} tokens, two of them special; not {window}")
        self.window, self.overlap = window, window // 2 if overlap is None else overlap
        if self.overlap >= window:
            raise UsageError(f"pretrained.overlap: it must be less than the window of {window} tokens")
        self.layers, self.layer_decay = layers, layer_decay
        self.example_length = 2 * window  # two windows and more: an example for export has no axis of 1
        if recompute:
            self.model.gradient_checkpointing_enable()

    def rate(self, name: str) -> float:
        """What the learning rate of the parameter of this name is multiplied by."""
        found = _LAYER.search(name)
        if found:
            return self.layer_decay ** (self.depth - 1 - int(found[1]))
        return self.layer_decay**self.depth if "embed" in name else 1.0

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T), (B, T) -> (B, T, D), (B, D)
        B, T = ids.shape
        step, width = self.window - self.overlap, torch.sym_min(T, self.window)
        starts = torch.arange(0, torch.sym_max(T - self.overlap, 1), step, device=ids.device)  # (n,)
        n = starts.shape[0]
        at = (starts[:, None] + torch.arange(width, device=ids.device)).flatten()  # (n * w,) places in the text
        inside, at = at < T, at.clamp(max=T - 1)
        given = ids.index_select(1, at).unflatten(1, (n, width)).flatten(0, 1)  # (B * n, w)
        real = (mask.index_select(1, at) & inside).unflatten(1, (n, width)).flatten(0, 1)
        made = self._read(given, real)  # (B * n, 1 + w + 1, D)
        lengths = mask.sum(1, keepdim=True)  # (B, 1)
        last = (lengths - self.overlap - 1).clamp(min=0) // step  # (B, 1) the last window that is needed
        t = torch.arange(T, device=ids.device)
        of = ((t - self.overlap // 2).clamp(min=0) // step).minimum(last)  # (B, T) each token's window
        window = torch.arange(B, device=ids.device)[:, None] * n + of  # (B, T)
        place = (window * (width + 2) + 1 + t - of * step).clamp(max=B * n * (width + 2) - 1)
        x = nn.functional.embedding(place, made.flatten(0, 1))  # (B, T, D) whole vectors: one Gather
        needed = (torch.arange(n, device=ids.device) <= last)[..., None]  # (B, n, 1)
        firsts = made[:, 0].unflatten(0, (B, n))
        state = torch.where(needed, firsts, 0.0).sum(1) / needed.sum(1)
        return {"x": torch.where(mask[..., None], x, 0.0), "state": state}

    def _read(self, ids: Tensor, mask: Tensor) -> Tensor:  # (R, w), (R, w) -> (R, 1 + w + 1, D)
        end = mask.sum(1, keepdim=True) + 1  # (R, 1)
        t = torch.arange(ids.shape[1] + 2, device=ids.device)
        ids = nn.functional.pad(torch.where(mask, ids, 0), (1, 1))
        ids = torch.where(t == 0, SPECIALS.index(BOS), torch.where(t == end, SPECIALS.index(EOS), ids))
        embedded = self.model.get_input_embeddings()(ids)
        wanted = self.layers != (-1,)
        made = self.model(inputs_embeds=embedded, attention_mask=(t <= end).long(), output_hidden_states=wanted)
        if not wanted:
            return made.last_hidden_state
        return torch.stack([made.hidden_states[layer] for layer in self.layers]).mean(0)
