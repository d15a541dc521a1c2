"""A masked language model: fills the masks of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.corruption import BatchRandom, choose_tokens, guessable_tokens, replace_second_texts, word_starts
from seqpipe.nn.layers import ACTIVATIONS, LOG_ZERO, MASKED_LOGIT, PAD_ID, logit_mask
from seqpipe.nn.loops import while_loop
from seqpipe.nn.search import repeat_axis, top_n
from seqpipe.plugin import MASK, SPECIALS, Metric, Pieces, Size, Tokens, UsageError
from seqpipe_plugins.heads import Pool


class MaskedLM(nn.Module):
    """A masked language model (Devlin et al. 2019), with new masks in every epoch (Liu et al. 2019).

    No labels are needed. In each text a share of the tokens is selected; most of them are replaced by [MASK], some by a
    random token, and the others are unchanged. The original tokens are predicted from the encoder's x: p = softmax(E z
    + b), z = LN(g(W x + c)). The decision fills each [MASK] of a text independently; the n best fillings of several
    masks are those with the greatest product of probabilities. A text without a mask is returned unchanged.

    With `next_sentence` a record has two texts (`field: [text, text_pair]`). In half of the pairs the second text is
    replaced by that of another row of the batch, and a linear layer over the pooled pair, w · h + d, is trained to
    predict which.

    Args:
        share: Probability that a token is selected; at least one token of each text is.
        masked: Share of the selected tokens that is replaced by [MASK].
        random: Share of the selected tokens that is replaced by a random token.
        whole_words: Whole-word masking: all subwords of a word are selected together (with tokenizers of words or
            characters, each token is a word).
        activation: The function g.
        tie: Whether E is the token embedding, such as `lookup`, whose width must then equal that of x.
        next_sentence: Whether next sentence prediction is trained too.
        pool: Pooling of h (see the head `label`).
    """

    answer = "fill-mask"
    self_supervised: ClassVar = True
    score_types: ClassVar = {
        "perplexity": Metric(percent=False, more_is_better=False),
        "next_sentence_accuracy": Metric(),
    }
    special_tokens: ClassVar = (MASK,)
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"decoder.weight": ("vocabulary",), "bias": ("vocabulary",)}
    logit_mask: Tensor
    others: Tensor

    def __init__(
        self,
        dim: int,
        vocabulary: Sequence[str],
        *,
        share: Annotated[float, Field(gt=0, lt=1)] = 0.15,
        masked: Annotated[float, Field(ge=0, le=1)] = 0.8,
        random: Annotated[float, Field(ge=0, le=1)] = 0.1,
        whole_words: bool = False,
        activation: Literal["gelu", "relu", "silu"] = "gelu",
        tie: bool = False,
        next_sentence: bool = False,
        pool: Literal["mean", "max", "first", "state"] = "mean",
    ):
        super().__init__()
        if masked + random > 1:
            raise UsageError(f"mlm.random: the shares {masked:g} and {random:g} sum to more than 1; lower one")
        if MASK not in vocabulary:
            raise UsageError(f"mlm: the vocabulary has no {MASK}; use the tokenizer of another run, or train one")
        self.share, self.masked, self.random = share, masked, random
        self.gap, size = list(vocabulary).index(MASK), len(vocabulary)
        self.dense, self.norm = nn.Sequential(nn.Linear(dim, dim), ACTIVATIONS[activation]()), nn.LayerNorm(dim)
        self.decoder = None if tie else nn.Linear(dim, size, bias=False)
        self.bias = nn.Parameter(torch.zeros(size))
        self.pool = Pool(dim, pool, "dot") if next_sentence else None
        self.follows = nn.Linear(dim, 1) if next_sentence else None
        special = [*range(len(SPECIALS)), self.gap]
        self.register_buffer("logit_mask", logit_mask(size, special), persistent=False)  # (V,)
        others = torch.tensor([i for i in range(len(SPECIALS), size) if i != self.gap])
        self.register_buffer("others", others, persistent=False)  # ids of words

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the mask token, and the share of masked words in evaluation."""
        return {"token": MASK, "share": options["share"]}

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, Pieces]:
        return {"pieces": Pieces()} if options.get("whole_words") else {}

    @staticmethod
    def batch_dependent(options: Mapping[str, Any]) -> bool:
        return bool(options.get("next_sentence"))  # its second texts are those of other records

    @staticmethod
    def corrupted_inputs(options: Mapping[str, Any]) -> tuple[str, ...]:
        pairs = ("mask", "segments", "follows") if options.get("next_sentence") else ()
        return ("ids", "target_ids", "target_mask", *pairs)

    def corrupt_batch(
        self, ids: Tensor, mask: Tensor, pieces: Tensor | None = None, segments: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the text with gaps (B, T); the original ids and the mask of the tokens to predict, (B, T).

        With `next_sentence` other pairs, T then being their longest, and which of them are as they were given, (B,).
        """
        drawn, begins, pairs = BatchRandom(self.training, ids.device), word_starts(mask, pieces), {}
        if self.follows is not None:
            if segments is None:
                raise UsageError("mlm.next_sentence: it needs two texts; set tokenizer.field: [text, text_pair]")
            ids, mask, segments, begins, follows = replace_second_texts(ids, mask, segments, begins, drawn)
            pairs = {"mask": mask, "segments": segments, "follows": follows}
        guessed = choose_tokens(guessable_tokens(ids, mask, self.gap), mask, begins, self.share, drawn)
        how, substitute = drawn.uniform(*ids.shape), (drawn.uniform(*ids.shape) * len(self.others)).long()
        seen = torch.where(how < self.masked + self.random, self.others[substitute], ids)
        seen = torch.where(how < self.masked, self.gap, seen)
        return {"ids": torch.where(guessed, seen, ids), "target_ids": ids, "target_mask": guessed, **pairs}

    def loss(
        self,
        x: Tensor,
        mask: Tensor,
        target_ids: Tensor,
        target_mask: Tensor,
        table: Tensor | None = None,
        state: Tensor | None = None,
        follows: Tensor | None = None,
    ) -> Tensor:
        """Return the mean cross-entropy () of a masked token, plus that of a pair with next sentence prediction."""
        # The host waits for M, once: few tokens are masked, so that the logits of all would cost more.
        places = target_mask.flatten().nonzero()[:, 0]  # (M,)
        logits = self._logits(x.flatten(0, 1)[places], table)  # (M, V)
        missed = F.cross_entropy(logits, target_ids.flatten()[places], reduction="sum") / max(1, len(places))
        if follows is None:
            return missed
        return missed + F.binary_cross_entropy_with_logits(self._follows(x, mask, state), follows.to(x.dtype))

    def loss_count(self, target_mask: Tensor) -> Tensor:
        return target_mask.sum()

    def measures(
        self,
        x: Tensor,
        mask: Tensor,
        target_ids: Tensor,
        target_mask: Tensor,
        table: Tensor | None = None,
        state: Tensor | None = None,
        follows: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return, for dev, sum and count of the perplexity of masked tokens and of the accuracy of pairs."""
        log_p = self._logits(x[target_mask], table).log_softmax(1)
        lost = -log_p.gather(1, target_ids[target_mask][:, None])
        sums = {"perplexity": torch.stack([lost.sum(), target_mask.sum()])}
        if follows is not None:
            right = (self._follows(x, mask, state) > 0) == follows
            sums["next_sentence_accuracy"] = torch.stack([right.sum(), torch.ones_like(right).sum()]).float()
        return sums

    def decide(
        self,
        x: Tensor,
        mask: Tensor,
        ids: Tensor,
        table: Tensor | None = None,
        *,
        n_best: Size = 1,
        filling: Tokens = None,
    ) -> dict[str, Tensor]:
        """Return the text with its gaps filled (B, n_best, T) and the log-probabilities (B, n_best), best first.

        `filling` (1 or B, G) int64 are the tokens of the gaps in their order, instead of the likeliest: `scores` is
        then their log-probability. A gap whose token is [PAD] stays as it is and adds nothing to it.
        """
        V, gaps = len(self.bias), (ids == self.gap) & mask
        number = gaps.long().cumsum(1)  # (B, T) the number of each gap, from 1
        forced_tokens = torch.zeros_like(number)  # (B, T) the forced token of each gap, [PAD] if none
        if filling is not None:
            padded = F.pad(repeat_axis(filling, 0, number.shape[0]), (1, 1))  # (B, 1 + G + 1)
            forced_tokens = padded.gather(1, number.minimum(torch.full_like(number, padded.shape[1] - 1)))
        forced = (forced_tokens != PAD_ID).any(1, keepdim=True)  # (B, 1)
        most = number[:, -1].max()
        rank = torch.arange(n_best, device=x.device)
        filled = torch.where(mask, ids, 0)[:, None] + 0 * rank[:, None]  # (B, K, T)
        scores = torch.where(rank == 0, 0.0, LOG_ZERO) + 0.0 * number[:, :1]  # (B, K)

        # Gaps are filled independently, so the K best fillings of the first i gaps are among the K best of the first i
        # - 1 times the K best tokens of gap i: the loop over the gaps is exact, unlike beam search.

        def step(turn: Tensor, filled: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            gap = gaps & (number == turn)  # (B, T)
            there = gap.any(1, keepdim=True)  # (B, 1)
            at = torch.where(gap[..., None], x, 0.0).sum(1)  # (B, D)
            log_p = self._logits(at, table).log_softmax(1)  # (B, V)
            gains, tokens = top_n(log_p, torch.sym_min(filled.shape[1], V))
            wanted = torch.where(gap, forced_tokens, PAD_ID).sum(1, keepdim=True)  # (B, 1)
            gain = torch.where(wanted != PAD_ID, log_p.gather(1, wanted), 0.0)
            first = torch.arange(gains.shape[1], device=x.device) == 0
            gains = torch.where(forced, torch.where(first, gain, LOG_ZERO), gains)
            tokens = torch.where(forced, torch.where(wanted != PAD_ID, wanted, self.gap), tokens)
            gains = torch.where(gains > MASKED_LOGIT / 2, gains, LOG_ZERO)
            together = (scores[:, :, None] + gains[:, None]).flatten(1)  # (B, K * K')
            after, places = top_n(together, filled.shape[1])
            beams = (rank[:, None] + 0 * tokens[:, None]).flatten(1)  # (B, K * K')
            filled_rows = filled.gather(1, beams.gather(1, places)[..., None].expand(-1, -1, filled.shape[2]))
            new = (tokens[:, None] + 0 * rank[:, None]).flatten(1).gather(1, places)  # (B, K)
            filled_rows = torch.where(gap[:, None], new[..., None], filled_rows)
            return turn + 1, torch.where(there[..., None], filled_rows, filled), torch.where(there, after, scores)

        _, filled, scores = while_loop(
            lambda turn, filled, scores: turn <= most, step, (torch.ones_like(most), filled, scores)
        )
        return {"tokens": filled, "scores": scores}

    def score(self, x: Tensor, mask: Tensor, ids: Tensor, tokens: Tensor, table: Tensor | None = None) -> Tensor:
        """Return the log-probability (B,) of the first of the given fillings (B, n, T)."""
        gaps = (ids == self.gap) & mask
        log_p = self._logits(x[gaps], table).log_softmax(1)  # (M, V)
        each = torch.zeros_like(x[..., 0])
        each[gaps] = log_p.gather(1, tokens[:, 0][gaps][:, None])[:, 0]
        return each.sum(1)

    def margin(
        self, x: Tensor, mask: Tensor, ids: Tensor, tokens: Tensor, other_tokens: Tensor, table: Tensor | None = None
    ) -> Tensor:
        """Return the margin, (B,), of two fillings (B, n, T) in log-probability, at the first rank that differs."""
        rank = (tokens != other_tokens).any(2).long().argmax(1)
        rows = torch.arange(len(rank), device=x.device)
        first, second = (self.score(x, mask, ids, fill[rows, rank][:, None], table) for fill in (tokens, other_tokens))
        return (first - second).abs()

    def _logits(self, x: Tensor, table: Tensor | None) -> Tensor:  # (M, D) -> (M, V)
        z = self.norm(self.dense(x))
        if self.decoder is not None:
            return F.linear(z, self.decoder.weight, self.bias + self.logit_mask)
        if table is None or table.shape[1] != z.shape[1]:
            what = "no embedding gives one" if table is None else f"it is {table.shape[1]} wide, and x {z.shape[1]}"
            raise UsageError(f"mlm.tie: it needs a table of vectors as wide as x, and {what}; or set tie: false")
        return F.linear(z, table, self.bias + self.logit_mask)

    def _follows(self, x: Tensor, mask: Tensor, state: Tensor | None) -> Tensor:  # -> (B,)
        assert self.pool is not None
        assert self.follows is not None
        return self.follows(self.pool(x, mask, state)[0])[:, 0]
