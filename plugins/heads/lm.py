"""x of the tokens of a text so far in, the next one out, and so on: a language model, with its loop in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe import Size, Tokens, Uniform
from seqpipe.errors import UsageError
from seqpipe.nn.generate import walk
from seqpipe.nn.incremental import IncrementalStages, Prefix
from seqpipe.nn.loops import while_loop
from seqpipe.nn.search import BOS, EOS, PAD, UNK, State, best, is_any, search, stretched

NEVER = -1e4  # the logit of what no text holds


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
    is_language_model: ClassVar = True
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"output.weight": ("vocabulary",), "output.bias": ("vocabulary",)}
    never: Tensor

    def __init__(
        self,
        dim: int,
        vocabulary: Sequence[str],
        *,
        packed: bool = True,
        context: Annotated[int, Field(gt=0)] = 256,
        stateful: bool = False,
        tie: bool = True,
        label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        super().__init__()
        self.dim, self.adds_bos, self.label_smoothing = dim, not packed, label_smoothing
        self.output = None if tie else nn.Linear(dim, len(vocabulary))
        never = torch.zeros(len(vocabulary)).index_fill(0, torch.tensor([PAD, BOS]), NEVER)
        self.register_buffer("never", never, persistent=False)  # (V,)

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        """Whether [BOS] begins a text, and in windows of how many tokens a model is evaluated."""
        return {
            "adds_bos": not options["packed"],
            "context": options["context"],
            "stateful": options["stateful"],
        }

    def loss(
        self,
        x: Tensor,
        target_ids: Tensor,
        target_mask: Tensor,
        table: Tensor | None = None,
        table_bias: Tensor | None = None,
    ) -> Tensor:
        """Mean cross-entropy () of the token behind each of x (B, T, D)."""
        logits = self.logits(x[target_mask], table, table_bias)
        smooth = self.label_smoothing if self.training else 0.0
        return F.cross_entropy(logits, target_ids[target_mask], label_smoothing=smooth)

    def logits(
        self, x: Tensor, table: Tensor | None = None, table_bias: Tensor | None = None
    ) -> Tensor:  # (…, D) -> (…, V)
        if self.output is not None:
            return F.linear(x, self.output.weight, self.output.bias + self.never)
        if table is None or table.shape[1] != self.dim:
            width = "no embedding tells its vectors" if table is None else f"they have the width {table.shape[1]}"
            raise UsageError(
                f"tie: x has the width {self.dim}, and of token vectors {width}; make them equal, or set tie: false"
            )
        return F.linear(x, table, self.never if table_bias is None else self.never + table_bias)

    def decide(
        self,
        ids: Tensor,
        mask: Tensor,
        incremental: IncrementalStages,
        *,
        beams: Size = 1,
        n_best: Size = 1,
        max_length: Size = 100,
        min_length: Annotated[int, Field(ge=0)] = 0,
        length_penalty: Annotated[float, Field(ge=0)] = 0.0,
        early_stopping: bool = False,
        repetition_penalty: Annotated[float, Field(ge=1)] = 1.0,
        forbidden: Tokens = None,
        stop: Tokens = None,
        uniform: Uniform = None,
        temperature: Annotated[float, Field(ge=0)] = 1.0,
        top_k: Size = 50,
        top_p: Annotated[float, Field(gt=0, le=1)] = 1.0,
        score_prompt: bool = False,
    ) -> dict[str, Tensor]:
        """Continue the texts (B, T); return the tokens and the cache.

        `tokens` (B, n_best, max_length) and their log-probabilities `scores`, the best first; with `score_prompt` the
        log-probability of each token of the prompt given those before, `prompt_scores` (B, T') (T' = T, or T - 1 where
        no [BOS] stands before); `present.ids` (B, P) and `present.0` …: what a later call takes as `past.…` beside the
        last token, of a text that has not ended, from one beam.
        """
        prefix = incremental.prefill(ids, mask)
        first = _Telling(self, incremental, prefix, repetition_penalty).start(max_length)
        told = _Telling(self, incremental, incremental.repeated(prefix, beams), repetition_penalty)
        given = torch.full_like(prefix.last[:, None], UNK)
        forbidden = given if forbidden is None else torch.cat([given, stretched(forbidden, 0, ids.shape[0])], 1)
        draws = torch.full((), 0 if uniform is None else uniform.shape[2], device=ids.device) > 0
        searches = (torch.full((), beams, device=ids.device) > 1) & ~draws
        most = self._most(incremental, prefix, max_length)
        walked = walk(
            told,
            first,
            prefix.last,
            texts=beams,
            max_length=max_length,
            most=torch.where(searches, 0, most),
            min_length=min_length,
            forbidden=forbidden,
            stop=stop,
            uniform=uniform,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
        found, found_scores = search(
            told,
            first,
            beams=beams,
            n_best=beams,
            max_length=max_length,
            min_length=min_length,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            forbidden=forbidden,
            plain=False,
            first=prefix.last,
            most=torch.where(searches, most, 0),
            stop=stop,
        )
        _, order = best(walked.scores, beams)
        drawn = walked.tokens.gather(1, order[..., None].expand_as(walked.tokens))
        tokens, scores = torch.where(searches, found, drawn), walked.scores.gather(1, order)
        n = torch.sym_min(n_best, beams)
        B = ids.shape[0]
        ends = F.pad(given[:, :0] if stop is None else stretched(stop, 0, B), (1, 0), value=EOS)
        ended = is_any(walked.tokens[:, 0], ends).any(1)
        state = tuple(part.unflatten(0, (B, -1))[:, 0] for part in walked.state[1:])
        return {
            "tokens": tokens[:, :n],
            "scores": torch.where(searches, found_scores, scores)[:, :n],
            "prompt_scores": self._prompt_scores(incremental, prefix, score_prompt),
            **incremental.export_cache(prefix, walked.tokens[:, 0], walked.steps[:, 0], ended, state),
        }

    def score(self, ids: Tensor, mask: Tensor, incremental: IncrementalStages, tokens: Tensor) -> Tensor:
        """Log-probability (B,) of the first of the given texts (B, n, N) behind the prompts (B, T)."""
        log_p, following, behind = self._rated(ids, mask, incremental, tokens[:, 0])
        return torch.where(behind, log_p.gather(2, following[..., None])[..., 0], 0.0).sum(1)

    def _rated(
        self, ids: Tensor, mask: Tensor, incremental: IncrementalStages, tokens: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of prompts and what follows (B, T + N): log-probabilities (B, M, V), the tokens (B, M), which ones follow."""
        count, more = mask.sum(1, keepdim=True), (tokens != PAD).sum(1, keepdim=True)
        p = torch.arange(ids.shape[1] + tokens.shape[1], device=ids.device)
        order = torch.where(p < count, p, p - count + ids.shape[1]).clamp(max=len(p) - 1)
        prefix = incremental.prefill(torch.cat([ids, tokens], 1).gather(1, order), p < count + more)
        following = prefix.ids[:, 1:]
        place = torch.arange(following.shape[1], device=ids.device) + (0 if incremental.adds_bos else 1)
        log_p = self.logits(prefix.x, **incremental.told).log_softmax(2)
        return log_p, following, (place >= count) & (place < count + more)

    def _most(self, incremental: IncrementalStages, prefix: Prefix, max_length: int) -> Tensor:
        """How many tokens each row has room for (B,): of a context that is limited, what the prompt leaves."""
        lengths = (getattr(encoder, "max_length", None) for encoder in incremental.encoder)
        limits = [length for length in lengths if length is not None]
        most = torch.full_like(prefix.last, max_length)
        return most if not limits else most.minimum(min(limits) - prefix.length)

    def _prompt_scores(self, incremental: IncrementalStages, prefix: Prefix, wanted: bool | Tensor) -> Tensor:
        """Log-probabilities (B, n - 1) of the prompt's tokens, 0 where not wanted: a loop of one step or none."""
        ids, nothing = prefix.ids[:, 1:].contiguous(), prefix.x[..., 0] * 0.0
        x, real = prefix.x.clone(), prefix.inside.clone()

        def step(again: Tensor, scores: Tensor) -> State:
            log_p = self.logits(x, **incremental.told).log_softmax(2).gather(2, ids[..., None])[..., 0]
            return again & False, torch.where(real, log_p, 0.0)

        asked = torch.zeros((), dtype=torch.bool, device=ids.device) | wanted
        return while_loop(lambda again, scores: again & True, step, (asked, nothing))[1]


class _Telling(NamedTuple):
    """The model behind prompts that were read, as search asks for it."""

    head: LM
    incremental: IncrementalStages
    prefix: Prefix
    repetition_penalty: float | Tensor

    @property
    def mask(self) -> None:
        return None

    def start(self, max_length: int) -> State:
        """The state of the stages, and which tokens stand in the texts so far, (B, V)."""
        inside = self.prefix.inside
        ids = torch.cat([self.prefix.past_ids, self.prefix.ids[:, : inside.shape[1]] * inside], 1)
        seen = torch.zeros(ids.shape[0], self.head.never.shape[0], device=ids.device).scatter(1, ids, 1.0)
        return (seen, *self.incremental.start(self.prefix, max_length))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State, None]:
        seen, *rest = state
        x, after = self.incremental.step(tokens, self.prefix, tuple(rest))
        seen = seen.scatter(1, tokens[:, None], 1.0)
        logits = self.head.logits(x, **self.incremental.told)  # (R, V)
        p = self.repetition_penalty
        logits = torch.where(seen > 0, torch.where(logits > 0, logits / p, logits * p), logits)
        return logits.log_softmax(1), (seen, *after), None
