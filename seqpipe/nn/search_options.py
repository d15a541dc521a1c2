"""Decode options of heads that search for sequences: types, bounds and the only defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from seqpipe.types import Size, Tokens, Uniform


@dataclass(frozen=True, kw_only=True)
class BeamOptions:
    """Beam search, greedy with one beam.

    In a graph sizes are symbolic, and all other options tensors.

    Args:
        beams: How many sequences are kept at each step, K.
        n_best: How many are returned, at most K.
        max_length: The most tokens of a sequence, N, [EOS] included; one that reaches it may lack its [EOS].
        length_penalty: α ≥ 0: sequences of l tokens are ranked by score / ((5 + l) / 6)^α (Wu et al. 2016).
    """

    beams: Size = 1
    n_best: Size = 1
    max_length: Size = 100
    length_penalty: NonNegativeFloat = 0.0


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(BeamOptions):
    """Beam search, or sampling where uniform samples are given.

    Args:
        min_length: The least tokens of a sequence, [EOS] not included.
        early_stopping: Whether a row is done as soon as K sequences are finished.
        forbidden: Tokens that are never written, (1 or B, F) int64.
        uniform: A number from 0 up to but not 1 for each token of each beam, (1 or B, 1 or K, N'); no sequence gets
            longer than N'. N' = 0, or None: beam search.
        temperature: Of sampling: probabilities to the power of 1 / temperature; 0 takes the likeliest token.
        top_k: How many candidates a sampled token has, the likeliest ones (Fan et al. 2018).
        top_p: Of the candidates, the fewest that together have this share of their probability (Holtzman et al. 2020).
    """

    min_length: NonNegativeInt = 0
    early_stopping: bool = False
    forbidden: Tokens = None
    uniform: Uniform = None
    temperature: NonNegativeFloat = 1.0
    top_k: Size = 50
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


@dataclass(frozen=True, kw_only=True)
class SearchOptions(GenerationOptions):
    """All options of `seqpipe.nn.search.search`.

    Args:
        coverage_penalty: β ≥ 0: what is added to the rank of a sequence, β Σ log min(1, attention that a source token
            got), summed over the source tokens (Wu et al. 2016); nothing where the decoder attends to nothing.
        no_repeat_ngram_size: n > 0: no n tokens in a row are written twice (Paulus et al. 2018).
        prefix: Tokens that every sequence begins with, (1 or B, P) int64, [PAD] behind the shorter ones.
    """

    coverage_penalty: NonNegativeFloat = 0.0
    no_repeat_ngram_size: NonNegativeInt = 0
    prefix: Tokens = None
