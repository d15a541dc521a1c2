"""Untrained heads that generate text, and random sources for them."""

from typing import Any

import torch
from exported_graphs import ragged_mask
from torch import Tensor

from seqpipe.nn.layers import EOS_ID
from seqpipe_plugins.heads.copy_seq2seq import CopySeq2Seq
from seqpipe_plugins.heads.seq2seq import Seq2Seq
from seqpipe_plugins.heads.transformer_decoder import TransformerDecoder

WORDS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *"abcdefghijklmnop"]
V, D = len(WORDS), 6
RECURRENT: dict[str, dict[str, Any]] = {
    "fixed": {"attention": "none", "layers": 2},
    "additive": {"cell": "lstm"},
    "dot": {"attention": "dot", "hidden": 6, "embedding_dim": 6, "input_feeding": False, "layers": 2, "tie": True},
    "multi-head": {"attention": "multi-head", "heads": 3, "cell": "rnn", "layers": 2},
    "bilinear": {"attention": "bilinear", "cell": "lstm", "layers": 2, "input_feeding": False},
    "location": {"attention": "location", "positions": 64, "cell": "lstm"},
    "every step": {"attention": "none", "context": "every-step", "layers": 2, "tie": True},
    "intra": {"intra_attention": True},
    "intra alone": {"attention": "none", "intra_attention": True, "layers": 2},
    "hard": {"hard_attention": "straight-through", "attention": "bilinear", "input_feeding": False},
    "hard intra": {"hard_attention": "straight-through", "intra_attention": True, "cell": "lstm", "layers": 2},
}
SAMPLED: dict[str, dict[str, Any]] = {  # positions are sampled in training
    "reinforce": {"hard_attention": "reinforce", "intra_attention": True},
    "reinforce bilinear": {"hard_attention": "reinforce", "attention": "bilinear", "input_feeding": False},
}
COPYING: dict[str, dict[str, Any]] = {
    "coverage": {},
    "copying": {"coverage": False, "attention": "bilinear", "cell": "gru", "layers": 2, "tie": True},
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "pre": {"tie": True},
    "post": {"norm": "post", "positions": "learned", "tie": False, "activation": "gelu"},
    "plain": {"positions": "none", "scale": False, "hidden": 12, "heads": 4, "layers": 1},
}
KINDS = [*RECURRENT, *SAMPLED, *COPYING, *TRANSFORMERS]
# Factors of all weights but those of the vocabulary, so that what is read makes a difference. At 7 two layers with
# bilinear attention are chaotic: behind 25 steps the scores of PyTorch in float32 differ by 3e-3 from those in float64;
# at 2 by 1e-5.
SCALES = {"additive": 9, "coverage": 7, "copying": 2}


def build(kind: str, **options: Any) -> Any:
    """A head as it is before training."""
    if kind in TRANSFORMERS:
        return TransformerDecoder((D,), WORDS, **{"heads": 2, **TRANSFORMERS[kind], **options})
    options = {"hidden": 12, "embedding_dim": 7, **(RECURRENT | SAMPLED | COPYING)[kind], **options}
    return CopySeq2Seq(D, WORDS, **{"units": 9, **options}) if kind in COPYING else Seq2Seq((D,), WORDS, **options)


def output_bias(head: Any) -> Tensor:
    """The bias of each token's logit."""
    return head.vocabulary.bias if head.vocabulary.output is None else head.vocabulary.output.bias


def writer(kind: str, ending: float | None = None, **options: Any) -> Any:
    """An untrained head that generates various texts and ends some of them, with `ending` added to the end's logit."""
    torch.manual_seed(3)
    head = build(kind, **options).eval()
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if kind not in TRANSFORMERS:
                parameter.mul_(4 if "vocabulary" in name else SCALES.get(kind, 4))
            elif parameter.dim() > 1:
                parameter.mul_(3)
        default = 0 if kind in TRANSFORMERS else -1 if kind in COPYING else 1
        output_bias(head)[EOS_ID] += default if ending is None else ending
    return head


def sources(*lengths: int, seed: int = 0, unknown: float | None = 0.5) -> dict[str, Tensor]:
    """Texts of which about so large a fraction of words is in no vocabulary, or just the last; words repeat."""
    torch.manual_seed(seed)
    mask = ragged_mask(*lengths)
    x = torch.where(mask[..., None], torch.randn(*mask.shape, D), torch.nan)
    state = torch.randn(len(mask), D)
    copy = torch.randint(4, 10, mask.shape)
    for row, n in zip(copy, lengths, strict=True):
        new: dict[int, int] = {}
        for t in range(n):
            if t + 1 == n if unknown is None else torch.rand(()) < unknown:
                word = int(torch.randint(0, 1 + n // 2, ()))
                row[t] = V + new.setdefault(word, len(new))
    return {"x": x, "mask": mask, "state": state, "copy": torch.where(mask, copy, 0)}


def rows_of(source: dict[str, Tensor], b: int) -> dict[str, Tensor]:
    """One row of the sources without its padding."""
    n = int(source["mask"][b].sum())
    return {name: array[b : b + 1] if name == "state" else array[b : b + 1, :n] for name, array in source.items()}
