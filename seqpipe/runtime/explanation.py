"""Explanation of one answer: attention weights over the text, origins of copied words, points; as JSON and a table.

The drawing is the package `seqpipe.explain`, which the runtime does not import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seqpipe.answers.base import AnswerKind, best_of
from seqpipe.answers.registry import part_of
from seqpipe.config.checks import Attended
from seqpipe.console import text_table
from seqpipe.errors import BundleError, UsageError
from seqpipe.features.document import Doc, Record
from seqpipe.features.kinds.base import SENTENCES, TOKENS
from seqpipe.features.sources import sources_of
from seqpipe.runtime.decode_options import resolve_options
from seqpipe.runtime.predictor import Predictor
from seqpipe.runtime.session import GraphSession

Places = tuple[tuple[int, int], ...]
TOP, FEW = 10, 3  # lines of the table for each attention, if there are many parts; one per token for generated text


@dataclass(frozen=True)
class Attention:
    """Attention weights of one stage, or the importance of each word for a part of the answer.

    Args:
        name: The stage's key in the YAML, then the stage's name for them, such as `head.attention`; or the part.
        over: The units: words (N,), sentences (N,), pairs of words (heads, N, N) with queries as rows, or generated
            tokens as queries (1, M, N) over words.
        places: Start and end of each of the N in the text, in code points.
        weights: float32, without padding.
        written: The M generated tokens, if they are the queries.
        label: Label of the part; the word that is the part of a generated text; else the answer kind.
        measure: By occlusion, the score of the part whose drop without each word is its weight.
    """

    name: str
    over: str
    places: Places
    weights: np.ndarray
    written: tuple[str, ...] | None = None
    label: str = ""
    measure: str = ""

    @property
    def is_matrix(self) -> bool:
        """Return whether the weights are a matrix of rows and columns."""
        return self.over in ("pairs", "written")

    @property
    def mean(self) -> np.ndarray:
        """Mean over the heads, (N, N); the weights themselves without heads."""
        return np.asarray(self.weights.mean(0)) if self.is_matrix else self.weights

    def data(self) -> dict[str, Any]:
        places = [list(place) for place in self.places]
        stated = {"label": self.label, "measure": self.measure} if self.measure else {}
        if self.written is None:
            return {"over": self.over, **stated, "places": places, "weights": round_weights(self.weights)}
        weights = round_weights(self.weights[0])
        return {"over": self.over, "places": places, "weights": weights, "written": [*self.written]}


def attention(
    attended: Attended, doc: Doc, weights: np.ndarray, sentences: np.ndarray | None, written: Sequence[str] = ()
) -> Attention:
    """Return the weights of one text, (N,), (heads, N, N) or (M, N), with their offsets; BundleError if shapes differ.

    `sentences` (S, W) has the position + 1 of each token of each sentence, 0 in the padding, and `written` the tokens
    of the answer's first text.
    """
    if attended.axis == SENTENCES:
        rows = [] if sentences is None else [row[row > 0] - 1 for row in sentences]
        places = [(doc.offsets[row[0]][0], doc.offsets[row[-1]][1]) for row in rows if len(row)]
    else:
        places = doc.offsets if attended.axis == TOKENS else doc.word_offsets
    N = len(places)
    if attended.over == "written":
        weights = weights[None, : len(written)]
    matrix = {"pairs": (*weights.shape[:1], N, N), "written": (1, len(written), N)}
    wanted = matrix.get(attended.over, (N,))
    if weights.shape != wanted:
        raise BundleError(f"the graph's {attended.output} has the shape {weights.shape}, not {wanted}; export it again")
    steps = tuple(written) if attended.over == "written" else None
    return Attention(attended.key, attended.over, tuple((a, b) for a, b in places), weights, steps)


@dataclass(frozen=True)
class Origin:
    """Origin of a word from a copying head: its probability of being generated, and its position in the source.

    Args:
        token: The word.
        generating: The probability of generating, not copying, at that step (See, Liu and Manning 2017).
        place: Start and end of the occurrence of the word in the text that got the most attention then; None if it does
            not occur.
    """

    token: str
    generating: float
    place: tuple[int, int] | None

    def data(self) -> dict[str, Any]:
        start, end = self.place or (None, None)
        return {"token": self.token, "generating": round(self.generating, 6), "start": start, "end": end}


def origins(
    doc: Doc, ids: Sequence[int], words: Sequence[int], tokens: Sequence[str], weights: np.ndarray, p: np.ndarray
) -> tuple[Origin, ...]:
    """Return the origin of each token of a generated text.

    `ids` are its M tokens, `tokens` their texts, and `words` the id of each token of the source among them; `weights`
    (M', S) is the attention of each step, with M' ≥ M, and `p` (M') the probability of generating.
    """
    origins = []
    for i, (number, token) in enumerate(zip(ids, tokens, strict=True)):
        same = np.array(words) == number
        place = doc.offsets[int(np.where(same, weights[i, : len(same)], -1.0).argmax())] if same.any() else None
        origins.append(Origin(token, float(p[i]), place))
    return tuple(origins)


@dataclass(frozen=True)
class Figure:
    """Points in one or two dimensions, and the positions in an answer.

    Args:
        points: Rows of numbers; points of one number are on a line.
        way: Their positions in the order of the answer.
        style: A line, or a filled polygon.
    """

    points: tuple[tuple[float, ...], ...]
    way: tuple[int, ...]
    style: str


def figure(kind: AnswerKind, doc: Doc, answer: Any) -> Figure | None:
    """Return the figure of an answer's first alternative; None if its kind has no figure.

    Rows of more than two numbers have none.
    """
    if kind.figure_style is None or doc.rows is None or doc.rows.shape[1] > 2:
        return None
    rows = tuple(tuple(float(f"{number:.7g}") for number in row) for row in doc.rows.tolist())  # the digits of float32
    return Figure(rows, tuple(best_of(answer)[kind.figure_key]), kind.figure_style)


@dataclass(frozen=True)
class Explanation:
    """Explanation of one answer: its input, attention weights, path through the points, and copied words.

    `copied` has the origins of words from copying heads, by the name of the probabilities. By occlusion `attentions`
    are the importances of words, and `faithfulness` is their deletion curve (`seqpipe.runtime.occlusion`).
    """

    text: str
    answer: Any
    answer_lines: Sequence[str]  # for users
    attentions: tuple[Attention, ...]
    figure: Figure | None = None
    copied: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)
    faithfulness: Mapping[str, Any] | None = None

    def data(self) -> dict[str, Any]:
        """Return the explanation as JSON data, with weights rounded to 6 decimal places."""
        attentions = {attention.name: attention.data() for attention in self.attentions}
        copied = {name: [origin.data() for origin in origins] for name, origins in self.copied.items()}
        points = {} if self.figure is None else {"points": [*map(list, self.figure.points)]}
        content = {"text": self.text, **points, "answer": self.answer, "attentions": attentions}
        more = {"copied": copied, "faithfulness": self.faithfulness}
        return content | {name: value for name, value in more.items() if value}

    def origin_rows(self, origins: Sequence[Origin]) -> list[tuple[str, str, str]]:
        """Return a row for each word: the word, its probability of being generated, and its position in the text."""
        rows = []
        for origin in origins:
            source = f"{self.text[slice(*origin.place)]!r} at {origin.place[0]}" if origin.place else ""
            rows.append((origin.token, f"{origin.generating:.4f}", source))
        return rows

    def table(self) -> str:
        """Return the answer and the greatest weights of each attention as a table; for generated text the alignment."""
        parts = [[*self.answer_lines]]
        for attention in self.attentions:
            form, over, top = ".4f", f"over {attention.over}", TOP
            if attention.measure:
                form, over = "+.4f", f"drop of its {attention.measure} without each word"
                top = TOP if len(self.attentions) < TOP else FEW
            rows = [[f"{weight:{form}}", *words] for weight, words in self._greatest(attention, top)]
            whole = attention.written is not None or not attention.weights.size
            left_out = 0 if whole else attention.mean.size - len(rows)
            more = [f"  … and {left_out:,} more"] if left_out else []
            parts.append([f"{attention.name}, {over}:", *_indent(rows), *more])
        for name, origins in self.copied.items():
            parts.append([f"{name}, each word's probability of being generated, and its source:"])
            parts[-1] += _indent(self.origin_rows(origins)) if origins else []
        if self.faithfulness:
            area, random = self.faithfulness["area"], self.faithfulness["random"]
            parts.append([f"area under the deletion curve: {area:.4f}, in random order {random:.4f}"])
        return "\n\n".join("\n".join(lines) for lines in parts)

    def _greatest(self, attention: Attention, top: int) -> list[tuple[float, list[str]]]:
        weights = attention.mean
        if attention.written is not None and attention.places:
            places = list(enumerate(weights.argmax(1).tolist()))
        else:
            order = np.argsort(-np.abs(weights), axis=None, kind="stable")[:top]
            places = [np.unravel_index(i, weights.shape) for i in order.tolist()]
        words = [_short(self.text[a:b]) for a, b in attention.places]
        written = [visible_blanks(token) for token in attention.written or ()]
        axes = [words] if weights.ndim == 1 else [written or words, words]
        return [(float(weights[at]), [axis[i] for axis, i in zip(axes, at, strict=True)]) for at in places]


def round_weights(weights: np.ndarray) -> Any:
    """Return the weights as nested lists, rounded to 6 decimal places."""
    return np.round(weights.astype(np.float64), 6).tolist()


def visible_blanks(token: str) -> str:
    """Return a token whose blanks at either end are drawn: a space as ␣, a line break as ↵, a tab as ⇥."""
    drawn = {"\n": "↵", "\t": "⇥"}
    return re.sub(r"^\s+|\s+$", lambda blanks: "".join(drawn.get(blank, "␣") for blank in blanks[0]), token)


def _short(text: str, most: int = 60) -> str:
    line = " ".join(visible_blanks(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _indent(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in text_table(rows)]


def has_explanation(predictor: Predictor, attended: Sequence[Attended]) -> bool:
    """Return whether the model has explanations."""
    is_single = len(sources_of(predictor.featurizer)) == 1
    return is_single and (bool(attended) or predictor.kind.figure_style is not None)


def explain(
    predictor: Predictor, graph: GraphSession, attended: Sequence[Attended], record: Record, options: Mapping[str, Any]
) -> Explanation:
    """Return the answer to one record with the attention weights of all stages, and a figure of points.

    Raises:
        UsageError: if the bundle was exported without them, or reads several inputs.
    """
    kind, featurizer = predictor.kind, predictor.featurizer
    if len(sources_of(featurizer)) > 1:
        raise UsageError("this bundle reads several inputs; attention weights need a single one")
    if not has_explanation(predictor, attended):
        raise UsageError(
            "this bundle has no attention weights: write `export: {explain: true}` in the YAML and run it, "
            "or export its run again: seqpipe export RUN --set export.explain=true"
        )
    decoding = resolve_options(predictor.options, options, kind)
    (doc,) = predictor.docs([record])
    if not len(doc):
        answer = kind.empty_for(decoding.arrays)
        return Explanation(doc.text, answer, kind.lines(answer), ())
    features = featurizer.collate([doc])
    decision = graph.run_all(features | decoding.of([doc]))
    # The tokens of each sentence, (S, W), if the bundle has sentences.
    of_sentences = (features[name][0] for name, feature in featurizer.features.items() if SENTENCES in feature.axes)
    sentences, attentions, copied = next(of_sentences, None), [], {}
    for weights in attended:
        writer, steps, array = None, [], decision[weights.output][0]
        stage = weights.key.split(".")
        if stage[0] == "head":  # the head answers step by step
            name, part = [*kind.parts.items()][int(stage[1]) if len(kind.parts) > 1 else 0]
            if part.step_output:
                writer, steps = part, part_of(decision, name)[part.step_output][0, 0].tolist()
        if weights.over != "steps":
            tokens = writer.step_names(steps, doc) if writer else []
            attentions.append(attention(weights, doc, array, sentences, tokens))
        elif writer and writer.copies:
            looks = decision[f"{weights.output.rpartition('.')[0]}.attention"][0]
            words, _ = writer.copies.read(doc)
            tokens = writer.step_names(steps, doc)
            copied[weights.key] = origins(doc, writer.step_ids(steps), words, tokens, looks, array)
    answer = predictor.read([doc], decision, decoding)[0]
    return Explanation(doc.text, answer, kind.lines(answer), tuple(attentions), figure(kind, doc, answer), copied)
