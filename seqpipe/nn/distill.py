"""Static vectors distilled from a sentence encoder, as by Model2Vec (Tulkens and van Dongen 2024)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from seqpipe.errors import DataError, UsageError
from seqpipe.features.checkpoint_tokenizer import pretrained_tokenizer
from seqpipe.features.encoding import encode_batch
from seqpipe.features.vocabulary import MASK, SPECIALS, vocabulary_of
from seqpipe.nn.constants import BOS, EOS, UNK
from seqpipe.nn.pretrained import longest, pretrained_model

BATCH = 256
SIF = 1e-4  # a in a / (a + p), the weight of a word of probability p (Arora et al. 2017)
_UNUSED = re.compile(r"\[unused\d+\]")  # rows of BERT's table that no text has


class Distiller:
    """A sentence encoder that makes a vector of each token of its vocabulary, or of each word of a list.

    Args:
        checkpoint: A folder, or a name on the hub.
        device: Where the encoder runs.

    Raises:
        DataError: The checkpoint has no tokenizer or no weights, or is no encoder.
        EnvError: It is a name on the hub, and the hub cannot be reached or has no such checkpoint.
    """

    def __init__(self, checkpoint: str, device: str = "cpu"):
        self.checkpoint, self.device = checkpoint, device
        self.tokenizer = pretrained_tokenizer(checkpoint).tokenizer
        self.model, _ = pretrained_model(checkpoint, vocabulary_of(self.tokenizer))
        family = self.model.config.model_type
        if family not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
            cure = "choose a checkpoint of an encoder, such as sentence-transformers/all-MiniLM-L6-v2"
            raise DataError(f"{checkpoint}: {family} is no BERT-family encoder; {cure}")
        self.model.to(device).eval()
        self.dim: int = self.model.config.hidden_size

    def tokens(self) -> dict[str, list[int]]:
        """The ids of each token of the vocabulary, the most frequent first; special and unused tokens are left out."""
        vocabulary = vocabulary_of(self.tokenizer)
        ids = {token: [i] for i, token in enumerate(vocabulary) if i >= len(SPECIALS)}
        return {token: i for token, i in ids.items() if token != MASK and not _UNUSED.fullmatch(token)}

    def words(self, words: Sequence[str]) -> dict[str, list[int]]:
        """The ids of the subwords of each word; words that the tokenizer does not know at all are left out."""
        encodings = encode_batch(self.tokenizer, words, lambda i: f"word {i + 1}: ")
        ids = {word: encoding.ids for word, encoding in zip(words, encodings, strict=True)}
        return {word: subwords for word, subwords in ids.items() if {*subwords} - {UNK}}

    @torch.no_grad()
    def encode(self, ids: Mapping[str, Sequence[int]], tick: Callable[[int], None]) -> np.ndarray:
        """The vectors (N, D): the mean of the last hidden states of [CLS] subwords [SEP], all of them.

        That is the sentence vector of the text that has only this word, where the encoder pools by the mean. What is
        longer than the encoder can read is cut.
        """
        most = longest(self.model)
        sequences = [torch.tensor([BOS, *subwords[: most and most - 2], EOS]) for subwords in ids.values()]
        by_length = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        rows = np.zeros((len(sequences), self.dim), np.float32)
        for start in range(0, len(by_length), BATCH):
            batch = by_length[start : start + BATCH]
            rows[batch] = self._pooled([sequences[i] for i in batch]).cpu().numpy()
            tick(start + len(batch))
        return rows

    def _pooled(self, sequences: Sequence[torch.Tensor]) -> torch.Tensor:  # (b, D)
        padded = pad_sequence([*sequences], batch_first=True, padding_value=-1).to(self.device)  # (b, t)
        mask = padded >= 0
        embeddings = self.model.get_input_embeddings()(padded.clamp(min=0))
        outputs: Any = self.model(inputs_embeds=embeddings, attention_mask=mask.long())
        states = torch.where(mask[..., None], outputs.last_hidden_state, 0.0)
        pooled: torch.Tensor = states.sum(1) / mask.sum(1, keepdim=True)
        return pooled


def principal_components(rows: np.ndarray, dim: int) -> np.ndarray:
    """The rows (N, D) centred and projected on their first principal components (N, dim).

    The largest weight of a component is positive, so that the signs are always the same.
    """
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    _, axes = np.linalg.eigh(centred.T @ centred)  # ascending
    axes = axes[:, ::-1][:, :dim]  # (D, dim)
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(dim)])
    return np.asarray(centred @ axes, np.float32)


def check_dim(dim: int, width: int, count: int) -> None:
    """UsageError if vectors of this width, so many of them, have fewer than `dim` principal components."""
    most = min(width, count - 1)
    if dim > most:
        problem = f"{count:,} vectors of the encoder's width {width} have at most {most} principal components"
        raise UsageError(f"--dim {dim}: {problem}; lower it")


def zipf_weights(count: int) -> np.ndarray:
    """The SIF weights (count, 1) of words, the most frequent first, whose frequencies follow Zipf's law."""
    frequencies = 1 / np.arange(2, count + 2)
    weights: np.ndarray = SIF / (SIF + frequencies / frequencies.sum())
    return weights[:, None].astype(np.float32)
