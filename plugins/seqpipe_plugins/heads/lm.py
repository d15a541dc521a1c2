"""A language model, with its decoding loop in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn import search
from seqpipe.nn.incremental import IncrementalStages, Prompt, TokenPrefix
from seqpipe.nn.layers import BOS_ID, EOS_ID, PAD_ID, UNK_ID, RealRows, logit_mask
from seqpipe.nn.loops import State, run_if, while_loop
from seqpipe.plugin import Probability, Texts, UsageError


@dataclass(frozen=True, kw_only=True)
class LMOptions(search.GenerationOptions):
    """Decode options of a language model.

    Args:
        repetition_penalty: Above 1 makes tokens less probable that the text has already. Their logits are divided by
            it, or multiplied where they are negative (Keskar et al. 2019).
        stop: Texts before which the answer ends. Pieces that contain one of them, (1 or B, E) int64, [PAD] where there
            are fewer: they end a text as [EOS] does.
        score_prompt: Whether the log-probabilities of the prompt's tokens are returned too.
        keep_cache: Whether the graph returns the cache for a later run, which takes time.
    """

    repetition_penalty: Annotated[float, Field(ge=1)] = 1.0
    stop: Texts = None
    score_prompt: bool = False
    keep_cache: bool = True

    @property
    def of_search(self) -> search.SearchOptions:
        """Options of a beam search that returns all beams."""
        texts = {"forbidden": self.forbidden, "allowed": self.allowed}
        others = {name: getattr(self, name) for name in ("min_length", "early_stopping", "token_scores")}
        return search.SearchOptions.of(self, n_best=self.beams, **texts, **others)


class LM(nn.Module):
    """A causal language model: p(text) = Π p(token | tokens before) (Bengio et al. 2003; Radford et al. 2018).

    The logits of the next token are W x + b. With tied weights, W is the token embedding and b is 0 (Press and Wolf
    2017). The encoders must be causal: `transformer` with causal: true, or `lstm`, `gru`, `rnn` with direction:
    forward.

    With `packed`, all texts are concatenated and cut into windows of `context` tokens at any position; the model needs
    a prompt of at least one token. Otherwise each record is one training sequence, from [BOS] to [EOS].

    The graph processes the prompt once, then generates token by token with a cache. The cache is also an output and an
    optional input, so that a text can be generated in several runs.

    Args:
        packed: Whether records are concatenated to one text, with [EOS] between two.
        context: Number of tokens of a window of packed texts.
        stateful: Whether a window of packed texts begins, in training, with the final states of the one before it:
            truncated back-propagation through time (Williams and Peng 1990), for recurrent encoders.
        tie: Whether the output layer shares its weights with the token embedding.
        label_smoothing: The share of the target probability that is spread over all other tokens (Szegedy et al. 2016).
    """

    answer = "generation"
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"output.weight": ("vocabulary",), "output.bias": ("vocabulary",)}
    logit_mask: Tensor  # (V,)

    def __init__(
        self,
        dim: int,
        vocabulary: Sequence[str],
        *,
        packed: bool = True,
        context: PositiveInt = 256,
        stateful: bool = False,
        tie: bool = True,
        label_smoothing: Probability = 0.0,
    ):
        super().__init__()
        self.dim, self.adds_bos, self.label_smoothing = dim, not packed, label_smoothing
        self.output = None if tie else nn.Linear(dim, len(vocabulary))
        mask = logit_mask(len(vocabulary), [PAD_ID, BOS_ID])
        self.register_buffer("logit_mask", mask, persistent=False)

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        """Return whether [BOS] begins a text, and in windows of how many tokens a model is evaluated."""
        return {"adds_bos": not options["packed"], "context": options["context"], "stateful": options["stateful"]}

    @staticmethod
    def corpus(options: Mapping[str, Any]) -> dict[str, Any]:
        return {"packed": options["packed"], "context": options["context"], "stateful": options["stateful"]}

    def loss(
        self,
        x: Tensor,
        target_ids: Tensor,
        target_mask: Tensor,
        table: Tensor | None = None,
        table_bias: Tensor | None = None,
    ) -> Tensor:
        """Return the mean cross-entropy () of the token after each of x (B, T, D)."""
        rows, smooth = RealRows(target_mask), self.label_smoothing if self.training else 0.0
        return F.cross_entropy(self.logits(rows.of(x), table, table_bias), rows.ids(target_ids), label_smoothing=smooth)

    def loss_count(self, target_mask: Tensor) -> Tensor:
        return target_mask.sum()

    def distribution(
        self,
        x: Tensor,
        mask: Tensor,
        table: Tensor | None = None,
        table_bias: Tensor | None = None,
        *,
        temperature: float,
    ) -> Tensor:  # -> (N, V)
        """Return the log-probabilities of the token after each of x (B, T, D)."""
        return (self.logits(x[mask], table, table_bias) / temperature).log_softmax(1)

    def logits(
        self, x: Tensor, table: Tensor | None = None, table_bias: Tensor | None = None
    ) -> Tensor:  # (…, D) -> (…, V)
        if self.output is not None:
            return F.linear(x, self.output.weight, self.output.bias + self.logit_mask)
        if table is None or table.shape[1] != self.dim:
            width = "no embedding returns a table" if table is None else f"the table has {table.shape[1]}"
            raise UsageError(f"tie: x has the width {self.dim}, but {width}; make them equal, or set tie: false")
        return F.linear(x, table, self.logit_mask if table_bias is None else self.logit_mask + table_bias)

    def decide(
        self, ids: Tensor, mask: Tensor, incremental: IncrementalStages, *, options: LMOptions
    ) -> dict[str, Tensor]:
        """Continue the texts (B, T); return the tokens and the cache.

        `tokens` (B, n_best, max_length) and their log-probabilities `scores`, the best first; with `token_scores` the
        log-probability of each token, `token_log_p`, as of `seqpipe.nn.search.Found`; with `score_prompt` the
        log-probability of each token of the prompt given those before, `prompt_scores` (B, T') (T' = T, or T - 1 where
        no [BOS] stands before); `present.ids` (B, P) and `present.0` …: what a later call takes as `past.…` beside the
        last token, of a text that has not ended, from one beam.
        """
        scored = torch.zeros((), dtype=torch.bool, device=ids.device) | options.score_prompt
        prompt, B, K = incremental.prefill(ids, mask, scored), ids.shape[0], options.beams
        after, before = (
            _Continuation(self, incremental, prefix, options.repetition_penalty)
            for prefix in (prompt.prefix, prompt.before)
        )
        first = after.log_p(prompt.last_x, prompt.ids[:, :0])
        options = replace(options, forbidden=search.with_arcs(options.forbidden, [(-1, UNK_ID, -1)], ids.device))
        samples = 0 if options.uniform is None else options.uniform.shape[2]
        searches = (torch.full((), K, device=ids.device) > 1) & ~(torch.full((), samples, device=ids.device) > 0)
        stop, context, limits = options.stop, incremental.max_length, torch.full_like(prompt.last, options.max_length)
        if context is not None:
            limits = limits.minimum(context + 1 - prompt.prefix.real.sum(1))  # (B,) what a limited context has room for
        # The graph has both beam search, and sampling or greedy search, which copies no state; decode options select
        # one at run time. If it is beam search, the loop of the other has a limit of 0 tokens.
        generated = search.generate(
            after.repeated(K), first, options, row_limits=torch.where(searches, 0, limits), stop=stop
        )

        def search_beams() -> State:
            decoder, start, first_tokens = before.repeated(K), incremental.start(prompt.before), prompt.last
            rules = {"first_tokens": first_tokens, "row_limits": limits, "stop": stop}
            return search.beam_search(decoder, start, options.of_search, **rules)

        _, order = search.top_n(generated.scores, K)
        texts, token_log_p = (
            part.gather(1, order[..., None].expand_as(part)) for part in (generated.tokens, generated.token_log_p)
        )
        ranked = (texts, generated.scores.gather(1, order), token_log_p)
        tokens, scores, token_log_p = run_if(searches, search_beams, ranked)
        n = torch.sym_min(options.n_best, K)
        ended = search.is_among(generated.tokens[:, 0], search.prepend_token(EOS_ID, stop, B, ids.device)).any(1)
        return {
            "tokens": tokens[:, :n],
            "scores": scores[:, :n],
            "token_log_p": token_log_p[:, :n],
            "prompt_scores": self._token_scores(incremental, prompt, scored)[:, :-1],
            **incremental.export_cache(prompt.prefix.with_state(generated.memory), ended, options.keep_cache),
        }

    def score(self, ids: Tensor, mask: Tensor, incremental: IncrementalStages, tokens: Tensor) -> Tensor:
        """Return the log-probability (B,) of the first of the given texts (B, n, N) after the prompts (B, T)."""
        tokens = tokens[:, 0]  # (B, N)
        count, more = mask.sum(1, keepdim=True), (tokens != PAD_ID).sum(1, keepdim=True)
        p = torch.arange(ids.shape[1] + tokens.shape[1], device=ids.device)
        # The tokens move to the left, right after the prompt's last real one, and the padding between them to the end:
        # the stages read a text without gaps.
        order = torch.where(p < count, p, p - count + ids.shape[1]).clamp(max=len(p) - 1)
        prompt = incremental.prefill(torch.cat([ids, tokens], 1).gather(1, order), p < count + more)
        place = torch.arange(prompt.ids.shape[1], device=ids.device) + (0 if incremental.adds_bos else 1)
        behind = (place >= count) & (place < count + more)  # (B, M) mask of the text's tokens
        scores = self._token_scores(incremental, prompt, torch.ones_like(mask[0, 0]))
        return torch.where(behind, scores, 0.0).sum(1)

    def _token_scores(self, incremental: IncrementalStages, prompt: Prompt, wanted: Tensor) -> Tensor:
        """Return the log-probability of the token after each of a prompt's (B, n), 0 for the last or if not wanted."""

        def score() -> State:  # the logits (B, n, V) are the largest tensor of a call, and few callers need them
            ids, real = (F.pad(part, (0, 1))[:, 1:].contiguous() for part in (prompt.ids, prompt.real))
            places = torch.arange(ids.shape[1], device=ids.device).clamp(max=prompt.x.shape[1] - 1)  # all of them here
            log_p = self.logits(prompt.x.index_select(1, places), **incremental.logit_weights).log_softmax(2)
            return (torch.where(real, log_p.gather(2, ids[..., None])[..., 0], 0.0),)

        return run_if(wanted, score, (prompt.ids * 0.0,))[0]


class _Continuation(NamedTuple):
    """The model after the prompts, as a `Decoder` for search and a `Continuation` for generation."""

    head: LM
    incremental: IncrementalStages
    prefix: TokenPrefix
    repetition_penalty: float | Tensor

    @property
    def mask(self) -> None:
        return None

    def repeated(self, times: int) -> _Continuation:
        return self._replace(prefix=self.prefix.repeated(times))

    @property
    def memory(self) -> State:
        return self.prefix.state

    def at(self, memory: State) -> _Continuation:
        return self._replace(prefix=self.prefix.with_state(memory))

    def start(self) -> State:
        return self.incremental.start(self.prefix)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State, None]:
        x, after = self.incremental.step(tokens, self.prefix, state)
        return self.log_p(x, after[1]), after, None

    def extended(self, state: State) -> State:
        return self.incremental.extended(self.prefix, state).state

    def log_p(self, x: Tensor, read: Tensor) -> Tensor:
        """Return the log-probabilities (R, V) of the token after x (R, D) and the tokens (R, n) after the prefix."""
        ids, p = torch.cat([self.prefix.ids, read], 1), self.repetition_penalty

        def penalize(steps: Tensor, logits: Tensor) -> State:
            old = logits.gather(1, ids)
            return steps - 1, logits.scatter(1, ids, torch.where(old > 0, old / p, old * p))

        # This loop takes one step, or none without a penalty.
        steps = (torch.zeros((), device=x.device) + p != 1).long()
        logits = self.head.logits(x, **self.incremental.logit_weights)
        return while_loop(lambda steps, logits: steps > 0, penalize, (steps, logits))[1].log_softmax(1)
