"""A fine-tuned checkpoint of `transformers` with its own head, as `seqpipe convert` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from seqpipe.nn.layers import EOS_ID
from seqpipe.nn.pretrained import has_segment_embeddings, longest_input, pretrained_model
from seqpipe.plugin import Checkpoint, UsageError
from seqpipe_plugins.encoders.pretrained import PretrainedEncoder


class FineTuned(PretrainedEncoder):
    """A fine-tuned checkpoint as a whole: `seqpipe convert` makes a bundle of it.

    x (B, T, L) has what the checkpoint's own head gives for each token, `state` (B, L) what it gives for the whole
    text. Of a sentence encoder, without a `task`, x (B, T, D) are the last hidden states and `state` (B, D) is their
    mean over all tokens, special ones too, or that of the first one, divided by its length if `normalize`. Of a longer
    text than `max_tokens` the first tokens are read, as with `truncation=True` of `transformers`; a pair of texts is
    refused if it is longer.

    Args:
        checkpoint: A folder written by `save_pretrained`.
        task: What its head is for; null: it has none, and `pool` makes the vector of a text.
        pool: Pooling of the vectors of a sentence encoder (Reimers and Gurevych 2019).
        normalize: Whether its vectors of texts have length 1.
        longest: Maximum number of tokens of a text, special ones included; null: that of the checkpoint.
        pairs: Whether token types or separators alone distinguish the texts of a pair; null: it reads single texts.
    """

    returns: ClassVar = {"x": "", "state": ""}
    cuts_texts = True

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        checkpoint: Checkpoint,
        task: Literal["sequence-classification", "token-classification"] | None = None,
        pool: Literal["mean", "cls"] = "mean",
        normalize: bool = False,
        longest: Annotated[int, Field(ge=3)] | None = None,
        pairs: Literal["token-types", "separators"] | None = None,
    ):
        nn.Module.__init__(self)
        self.task, self.pool, self.normalize, self.pairs, self.cuts_texts = task, pool, normalize, pairs, pairs is None
        self._load(vocabulary, checkpoint, task)
        self.tells_apart = self.tells_apart and pairs == "token-types"
        most = longest_input(self.model.base_model)
        self.window = min(most or 512, longest or most or 512) - 2 - (self.separators if pairs else 0)
        self.max_tokens: int | None = self.window
        self.dim: int = self.model.config.num_labels if task else self.model.config.hidden_size
        self.example_length = None

    def _load(self, vocabulary: Sequence[str], checkpoint: Checkpoint, task: str | None) -> None:
        """Load the checkpoint with its head for a task."""
        name = None if task is None else task.title().replace("-", "")
        self.model, self.separators = pretrained_model(checkpoint, vocabulary, task=name)
        words = self.model.get_input_embeddings().weight
        self.rows = {name: ("vocabulary",) for name, weight in self.named_parameters() if weight is words}
        self.depth, self.layer_decay = self.model.config.num_hidden_layers, 1.0
        self.tells_apart = has_segment_embeddings(self.model.base_model)

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> dict[str, Tensor]:  # (B, T) each
        if (segments is None) != (self.pairs is None):
            raise UsageError("fine-tuned: with the option `pairs` it reads pairs of texts, else single texts")
        T = ids.shape[1]
        # A bundle never gives more tokens, but the random inputs of an export may be longer than a small checkpoint.
        n = torch.sym_min(T, self.window)
        ids, mask, second = ids[:, :n], mask[:, :n], None
        if segments is not None:
            # The first text ends in one separator, and some checkpoints have more of them between the texts.
            more, first = self.separators - 1, ((segments[:, :n] == 1) & mask).sum(1, keepdim=True)  # (B, 1)
            ids, mask = nn.functional.pad(ids, (0, 1)), nn.functional.pad(mask, (0, 1))  # an empty pair has no token
            place = torch.arange(n + 1 + more, device=ids.device)
            second = place >= first.clamp(min=1) + more  # (B, n + 1 + more)
            at = torch.where(second, place - more, place.clamp(max=n))
            ids = torch.where(second | (place < first), ids.gather(1, at), EOS_ID)
            mask = mask.gather(1, at) | ~second
        outputs = self._read(ids, mask, second)
        if self.task == "sequence-classification":
            state, x = outputs, outputs[:, None].expand(-1, n, -1)  # (B, L), (B, T, L)
        else:
            real = nn.functional.pad(mask, (2, 0), value=True)[..., None]  # both special tokens count
            mean = torch.where(real, outputs, 0.0).sum(1) / real.sum(1)  # (B, D)
            state = outputs[:, 0] if self.pool == "cls" else mean
            state = nn.functional.normalize(state, dim=1) if self.normalize else state
            x = torch.where(mask[..., None], outputs[:, 1:-1], 0.0)
        return {"x": nn.functional.pad(x, (0, 0, 0, T - n)), "state": state}

    def _output(self, inputs: dict[str, Tensor]) -> Tensor:
        outputs = self.model(**inputs)
        return outputs.last_hidden_state if self.task is None else outputs.logits


class FineTunedReader(FineTuned):
    """A checkpoint fine-tuned for extractive question answering: `seqpipe convert` makes a bundle of it.

    x (B, T, 2) has the logits of each token as start and as end of the answer, `state` (B, 2) those of the first
    special token, which stand for "no answer". Long passages are read in windows, as by the encoder `pretrained`; a
    question has at most 64 tokens.

    Args:
        checkpoint: A folder written by `save_pretrained`.
        token_types: Whether its tokenizer gives the two texts different token types.
    """

    returns: ClassVar = PretrainedEncoder.returns
    cuts_texts = False

    def __init__(self, vocabulary: Sequence[str], *, checkpoint: Checkpoint, token_types: bool = True):
        nn.Module.__init__(self)
        self._load(vocabulary, checkpoint, "question-answering")
        self.tells_apart = self.tells_apart and token_types
        self.window = min(longest_input(self.model.base_model) or 512, 512) - 2
        self.overlap, self.first_tokens = None, min(64, self.window // 2)
        self.dim, self.max_tokens, self.example_length = 2, None, 2 * self.window

    forward = PretrainedEncoder.forward

    def _output(self, inputs: dict[str, Tensor]) -> Tensor:
        outputs = self.model(**inputs)
        return torch.stack([outputs.start_logits, outputs.end_logits], 2)
