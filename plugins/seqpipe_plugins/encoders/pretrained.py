"""A checkpoint of `transformers` as an encoder: BERT-family models, fine-tuned or frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from seqpipe.nn.layers import BOS_ID, EOS_ID
from seqpipe.nn.pretrained import has_segment_embeddings, layer_decay_factor, longest_input, pretrained_model
from seqpipe.plugin import Checkpoint, Probability, UsageError

_MAX_WINDOW_TOKENS = 512  # tokens of a window with both special ones; one of 8,192 takes gigabytes per layer
# Families of `transformers` that accept the mask which is added to attention scores: it needs no row per query.
_ADDED_MASK = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")


class PretrainedEncoder(nn.Module):
    """A pretrained encoder, such as BERT (Devlin et al. 2019), with its special tokens around each text.

    x (B, T, D) has the vectors of the text's tokens, `state` (B, D) that of the first special token ([CLS]). A text
    that is longer than the window is encoded in overlapping windows, each with both special tokens; a token's vector is
    taken from the window in which it is farthest from an edge, and `state` is the mean over the windows. For a pair of
    texts each window contains the whole first text and a part of the second, with the separators of the checkpoint.
    `window` (B, T) is the index of each token's window, and `other_x` (B, T, D) its vector in `other_window` (B, T), a
    neighbouring window that also contains it, or the same window: a head can compare the decisions of both windows.

    Args:
        checkpoint: A folder written by `save_pretrained`, or a name on the hub; the same as for the tokenizer.
        depth: Number of layers to use, from the bottom; null: all.
        layers: The layers whose mean is x; -1 is the last, 0 the input of the first.
        dropout: Dropout probability in the whole encoder; null: that of the checkpoint.
        layer_decay: Factor of the learning rate from each layer to the one below it (Howard and Ruder 2018).
        recompute: Gradient checkpointing: training recomputes each layer for its gradient, a third slower and in far
            less memory.
        window: Number of tokens of a window; null: the maximum of the checkpoint, or 510 if that is less.
        overlap: Number of tokens that two neighbouring windows share; null: half a window.
        first: Maximum number of tokens of the first text of a pair, which is in every window; null: half a window.
    """

    length_cost: ClassVar = "quadratic"
    returns: ClassVar = {
        "x": "",
        "state": "",
        "window": "(B, T) int64",
        "other_window": "(B, T) int64",
        "other_x": "(B, T, D) float32",
    }

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        checkpoint: Checkpoint,
        depth: PositiveInt | None = None,
        layers: Annotated[tuple[int, ...], Field(min_length=1)] = (-1,),
        dropout: Probability | None = None,
        layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0,
        recompute: bool = False,
        window: Annotated[int, Field(ge=2)] | None = None,
        overlap: Annotated[int, Field(ge=1)] | None = None,
        first: Annotated[int, Field(ge=1)] | None = None,
    ):
        super().__init__()
        self.model, self.separators = pretrained_model(checkpoint, vocabulary, depth=depth, dropout=dropout)
        words = self.model.get_input_embeddings().weight
        self.rows = {name: ("vocabulary",) for name, weight in self.named_parameters() if weight is words}
        self.dim: int = self.model.config.hidden_size
        self.depth: int = self.model.config.num_hidden_layers
        for layer in layers:
            if not -self.depth - 1 <= layer <= self.depth:
                raise UsageError(f"pretrained.layers: there is no layer {layer} of {self.depth}")
        most = longest_input(self.model)
        if window is None:
            window = (_MAX_WINDOW_TOKENS if most is None else min(most, _MAX_WINDOW_TOKENS)) - 2
        elif most is not None and window > most - 2:
            limit = f"{checkpoint} reads {most} tokens, two of them special"
            raise UsageError(f"pretrained.window: {limit}; not {window}")
        self.window, self.overlap, self.first_tokens = window, overlap, first or window // 2
        if overlap is not None and overlap >= window:
            raise UsageError(f"pretrained.overlap: it must be less than the window of {window} tokens")
        self.tells_apart = has_segment_embeddings(self.model)
        self.layers, self.layer_decay = layers, layer_decay
        self.example_length: int | None = 2 * window  # over one window: an example for export has no axis of 1
        if recompute:
            # transformers 5.23 renames this method and warns about the old name, the only one in earlier versions.
            if hasattr(self.model, "activation_checkpointing_enable"):
                self.model.activation_checkpointing_enable()
            else:
                self.model.gradient_checkpointing_enable()

    def learning_rate_factor(self, name: str) -> float:
        """Return the factor of the learning rate of a parameter."""
        return layer_decay_factor(name, self.layer_decay, self.depth, is_on_top="embed" not in name)

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> dict[str, Tensor]:  # (B, T) each
        T = ids.shape[1]
        first, room, overlap, more = self._layout(mask, segments)
        step, width = room - overlap, torch.sym_min(T, self.window - more) + more
        starts = torch.arange(0, torch.sym_max(T - overlap, 1), step, device=ids.device)  # (n,)
        n, j, lengths = starts.shape[0], torch.arange(width, device=ids.device), mask.sum(1, keepdim=True)  # (B, 1)
        if segments is None:
            second, at = None, j + starts[:, None]  # (n, w) places in the text
            window_ids = ids.index_select(1, at.clamp(max=T - 1).flatten()).reshape(-1, width)  # (B * n, w)
            real = at < lengths[..., None]  # (B, n, w)
        else:
            moving_place = j - first - more  # (B, w) places in the moving part; repeated tokens are below 0
            stays, moves = (j < first)[:, None], (moving_place >= 0)[:, None]  # (B, 1, w)
            at = torch.where(stays, j, j - more + starts[:, None])  # (B, n, w)
            real = ~moves | ((moving_place < room)[:, None] & (at < lengths[..., None]))  # (B, n, w)
            window_ids = ids.gather(1, at.clamp(max=T - 1).flatten(1)).unflatten(1, (n, width))
            window_ids = torch.where(stays | moves, window_ids, EOS_ID).flatten(0, 1)
            second = moves.expand(-1, n, -1).flatten(0, 1)
        outputs = self._read(window_ids, real.flatten(0, 1), second)  # (B * n, 1 + w + 1, D)
        last = (lengths - first - overlap - 1).clamp(min=0) // step  # (B, 1) the last window that is needed
        t, rows = torch.arange(T, device=ids.device), outputs.flatten(0, 1)  # (B * n * (w + 2), D)
        u = t[None] - first  # (B or 1, T) places in the moving part
        begins = torch.arange(ids.shape[0], device=ids.device)[:, None] * n  # (B, 1) the first window of each text

        def read_in(window: Tensor) -> Tensor:  # (B, T) -> (B, T, D)
            place = t + more - window * step if segments is None else torch.where(u < 0, t, t + more - window * step)
            place = place + (begins + window) * (width + 2) + 1
            x = nn.functional.embedding(place.clamp(max=rows.shape[0] - 1), rows)  # whole vectors: one Gather
            return torch.where(mask[..., None], x, 0.0)

        window = ((u - overlap // 2).clamp(min=0) // step).minimum(last)
        nearer = torch.where(2 * (u - window * step) >= room, 1, -1)  # the neighbour at the nearer edge
        neighbour = (window + nearer).clamp(min=0).minimum(last)
        neighbour = torch.where((u >= neighbour * step) & (u < neighbour * step + room), neighbour, window)
        needed = (torch.arange(n, device=ids.device) <= last)[..., None]  # (B, n, 1)
        firsts = outputs[:, 0].unflatten(0, (-1, n))
        state = torch.where(needed, firsts, 0.0).sum(1) / needed.sum(1)
        others = {"window": window, "other_window": neighbour, "other_x": read_in(neighbour)}
        return {"x": read_in(window), "state": state, **others}

    def _layout(self, mask: Tensor, segments: Tensor | None) -> tuple[Tensor | int, int, int, int]:
        """Return a window's repeated tokens by row (B, 1) or 0, its room for others, overlap and extra separators."""
        if segments is None:
            return 0, self.window, self.overlap or self.window // 2, 0
        more = self.separators - 1
        room = self.window - self.first_tokens - 1 - more
        overlap = room // 2 if self.overlap is None else self.overlap
        if not 0 < overlap < room:
            problem = f"a window of {self.window} leaves {room} tokens for the second text of a pair"
            raise UsageError(f"pretrained.overlap: {problem}; it must be less, and at least 1: lower it, or `first`")
        return ((segments == 1) & mask).sum(1, keepdim=True).clamp(max=self.first_tokens + 1), room, overlap, more

    def _read(self, ids: Tensor, mask: Tensor, second: Tensor | None) -> Tensor:  # (R, w) each -> (R, 1 + w + 1, D)
        end = mask.sum(1, keepdim=True) + 1  # (R, 1)
        t = torch.arange(ids.shape[1] + 2, device=ids.device)
        ids = nn.functional.pad(torch.where(mask, ids, 0), (1, 1))
        ids = torch.where(t == 0, BOS_ID, torch.where(t == end, EOS_ID, ids))
        embedded, seen = self.model.get_input_embeddings()(ids), t <= end
        added = torch.where(seen[:, None, None], 0.0, torch.finfo(embedded.dtype).min)  # (R, 1, 1, w)
        accepts = self.model.config.model_type in _ADDED_MASK
        inputs = {"inputs_embeds": embedded, "attention_mask": added if accepts else seen.long()}
        if second is None and self.tells_apart:
            inputs["token_type_ids"] = torch.zeros_like(ids)  # the default of `transformers`, in fewer operators
        elif second is not None and self.tells_apart:
            inputs["token_type_ids"] = torch.where(t == end, 1, nn.functional.pad(second, (1, 1)).long())
        return self._output(inputs)

    def _output(self, inputs: dict[str, Tensor]) -> Tensor:  # of `transformers` -> (R, w, D)
        wanted = self.layers != (-1,)
        outputs = self.model(**inputs, output_hidden_states=wanted)
        if not wanted:
            return outputs.last_hidden_state
        return torch.stack([outputs.hidden_states[layer] for layer in self.layers]).mean(0)
