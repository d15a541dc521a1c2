"""Explanation of one answer: attention weights or importances of words, origins of copied words, points.

The drawing is the package `seqpipe.explain`, which the runtime does not import.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np

from seqpipe.answers.base import AnswerKind, best_of
from seqpipe.answers.registry import part_of
from seqpipe.answers.text import MAX_LOGITS
from seqpipe.answers.types import Attended
from seqpipe.console import text_table, text_width
from seqpipe.errors import BundleError, UsageError
from seqpipe.features.document import Arrays, Doc, Record, join_docs
from seqpipe.features.kinds.base import PLACE_AXIS, SENTENCE_AXIS, TOKEN_AXIS
from seqpipe.features.kinds.registry import pixels
from seqpipe.features.sources import InputSource, NumericSource, sources_of, tokenizers_of
from seqpipe.features.vocabulary import MASK, SPECIALS, UNK
from seqpipe.files import Rows
from seqpipe.runtime.decode_options import MAX_LENGTH, MIN_LENGTH, PREFIX, Chosen, refuse_several, resolve_options
from seqpipe.runtime.predictor import RUN_TOKENS as MOST_TOKENS
from seqpipe.runtime.predictor import Predictor, batches, chunks
from seqpipe.runtime.session import GraphSession

Places = tuple[tuple[int, int], ...]
Method = Literal["attention", "occlusion"]
TOP, TOP_FEW = 10, 3  # lines of the table for each attention, if there are many parts; one per token for generated text


@dataclass(frozen=True)
class WordWeights:
    """Attention weights of one stage, or the importance of each word for a part of the answer.

    Args:
        name: The stage's key in the YAML, then the stage's name for them, such as `head.attention`; or the part.
        over: The units: words (N,), sentences (N,), pairs of words (heads, N, N) with queries as rows, or generated
            tokens as queries (1, M, N) over words.
        places: Start and end of each of the N in the text, in code points; of a picture or a sound the text is the
            numbers of its rows.
        weights: float32, without padding.
        written: The M generated tokens, if they are the queries.
        label: Label of the part; the word that is the part of a generated text; else the answer kind.
        measure: By occlusion, the score of the part whose drop without each word is its weight.
        grid: Rows and columns of the places of a picture, row by row; a sound has one row.
    """

    name: str
    over: str
    places: Places
    weights: np.ndarray
    written: tuple[str, ...] | None = None
    label: str = ""
    measure: str = ""
    grid: tuple[int, int] | None = None

    def place_names(self, text: str) -> list[str]:
        """Return a name for each of the N places: its text, or where it is in a picture or a sound."""
        if self.grid is None:
            return [_short(text[a:b]) for a, b in self.places]
        rows, columns = self.grid
        if rows == 1:
            return [f"part {i} of {columns}" for i in range(1, columns + 1)]
        return [f"row {i // columns + 1}, column {i % columns + 1}" for i in range(rows * columns)]

    @property
    def is_matrix(self) -> bool:
        """Return whether the weights are a matrix of rows and columns."""
        return self.over in ("pairs", "written")

    @property
    def mean(self) -> np.ndarray:
        """Mean over the heads, (N, N); the weights themselves without heads."""
        return np.asarray(self.weights.mean(0)) if self.is_matrix else self.weights

    def data(self) -> dict[str, Any]:
        weights = self.weights if self.written is None else self.weights[0]
        rounded = np.round(weights.astype(np.float64), 6).tolist()
        stated: dict[str, Any] = {"label": self.label, "measure": self.measure} if self.measure else {}
        stated |= {"grid": [*self.grid]} if self.grid else {}
        content = {"over": self.over, **stated, "places": [*map(list, self.places)], "weights": rounded}
        return content if self.written is None else content | {"written": [*self.written]}


def attention(
    attended: Attended, doc: Doc, weights: np.ndarray, sentences: np.ndarray | None, written: Sequence[str] = ()
) -> WordWeights:
    """Return the weights of one text, (N,), (heads, N, N) or (M, N), with their offsets; BundleError if shapes differ.

    `sentences` (S, W) has the position + 1 of each token of each sentence, 0 in the padding, and `written` the tokens
    of the answer's first text.
    """
    places: Sequence[tuple[int, int]] = ()
    if attended.axis == SENTENCE_AXIS:
        rows = [] if sentences is None else [row[row > 0] - 1 for row in sentences]
        places = [(doc.offsets[row[0]][0], doc.offsets[row[-1]][1]) for row in rows if len(row)]
    elif attended.axis != PLACE_AXIS:
        places = doc.offsets if attended.axis == TOKEN_AXIS else doc.word_offsets
    grid = (attended.grid or (1, weights.shape[-1] if weights.ndim else 0)) if attended.axis == PLACE_AXIS else None
    N = grid[0] * grid[1] if grid else len(places)
    if attended.over == "written":
        weights = weights[None, : len(written)]
    matrix = {"pairs": (*weights.shape[:1], N, N), "written": (1, len(written), N)}
    wanted = matrix.get(attended.over, (N,))
    if weights.shape != wanted:
        raise BundleError(f"the graph's {attended.output} has the shape {weights.shape}, not {wanted}; export it again")
    steps = tuple(written) if attended.over == "written" else None
    if grid:  # the places divide the rows of a picture, or the frames of a sound, evenly
        parts, times = grid if attended.grid else (N, 1)
        ends = [(len(doc) * i // parts, (len(doc) * (i + 1) - 1) // parts) for i in range(parts) for _ in range(times)]
        places = [(doc.offsets[first][0], doc.offsets[last][1]) for first, last in ends]
    return WordWeights(attended.key, attended.over, tuple((a, b) for a, b in places), weights, steps, grid=grid)


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
    are the importances of words, and `faithfulness` is their deletion curve (`Occlusion.deletion_curve`). `picture` has
    the pixels (H, W, 1 or 3) of an input that is a picture, or the spectrum of a sound, as bytes.
    """

    text: str
    answer: Any
    answer_lines: Sequence[str]  # for users
    attentions: tuple[WordWeights, ...]
    figure: Figure | None = None
    copied: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)
    faithfulness: Mapping[str, Any] | None = None
    picture: np.ndarray | None = field(default=None, compare=False, repr=False)

    def data(self) -> dict[str, Any]:
        """Return the explanation as JSON data, with weights rounded to 6 decimal places."""
        points = {} if self.figure is None else {"points": [*map(list, self.figure.points)]}
        attentions = {attention.name: attention.data() for attention in self.attentions}
        content = {"text": self.text, **points, "answer": self.answer, "attentions": attentions}
        if self.copied:
            content["copied"] = {name: [item.data() for item in origins] for name, origins in self.copied.items()}
        return content | ({"faithfulness": self.faithfulness} if self.faithfulness else {})

    def origin_rows(self, origins: Sequence[Origin]) -> list[tuple[str, str, str]]:
        """Return a row for each word: the word, its probability of being generated, and its position in the text."""
        rows = []
        for origin in origins:
            source = f"{self.text[slice(*origin.place)]!r} at {origin.place[0]}" if origin.place else ""
            rows.append((origin.token, f"{origin.generating:.4f}", source))
        return rows

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Return the answer and the greatest weights of each attention as a table; for generated text the alignment."""
        parts = [[*self.answer_lines]]
        for attention in self.attentions:
            units = "places" if attention.grid and attention.over == "words" else attention.over
            form, over, top = ".4f", f"over {units}", TOP
            if attention.measure:
                form, over = "+.4f", f"drop of its {attention.measure} without each word"
                top = TOP if len(self.attentions) < TOP else TOP_FEW
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

    def _greatest(self, attention: WordWeights, top: int) -> list[tuple[float, list[str]]]:
        weights = attention.mean
        if attention.written is not None and attention.places:
            places = list(enumerate(weights.argmax(1).tolist()))
        else:
            order = np.argsort(-np.abs(weights), axis=None, kind="stable")[:top]
            places = [np.unravel_index(i, weights.shape) for i in order.tolist()]
        words = attention.place_names(self.text)
        written = [visible_blanks(token) for token in attention.written or ()]
        axes = [words] if weights.ndim == 1 else [written or words, words]
        return [(float(weights[at]), [axis[i] for axis, i in zip(axes, at, strict=True)]) for at in places]


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


def explain_record(
    predictor: Predictor,
    graph: GraphSession,
    attended: Sequence[Attended],
    record: Record,
    options: Mapping[str, Any],
    method: Method | None = None,
    faithfulness: bool = True,
) -> Explanation:
    """Return the answer to one record with the weights of words by a method: see `Model.explain`.

    Raises:
        UsageError: for attention, if the bundle was exported without it, or reads several inputs; for occlusion, if
            several answers are requested.
    """
    kind, featurizer = predictor.kind, predictor.featurizer
    method = method or ("attention" if has_explanation(predictor, attended) else "occlusion")
    if method == "occlusion":
        refuse_several(options, "only the best answer is explained by occlusion")
    if method == "attention" and len(sources_of(featurizer)) > 1:
        raise UsageError("this bundle reads several inputs; attention weights need a single one")
    if method == "attention" and not has_explanation(predictor, attended):
        fix = "write `export: {explain: true}` in the YAML and run it, or export its run again"
        command = "seqpipe export RUN --set export.explain=true"
        raise UsageError(f"this bundle has no attention weights: {fix}: {command}")
    decoding = resolve_options(predictor.options, options, kind)
    (doc,) = predictor.docs([record])
    if not len(doc):
        answer = kind.empty_for(decoding.arrays)
        return Explanation(doc.text, answer, kind.lines(answer), ())
    if method == "occlusion":
        return occlude(predictor, doc, decoding, faithfulness)
    features = featurizer.collate([doc])
    decision = graph.run_all(features | decoding.of([doc]))
    # The tokens of each sentence, (S, W), if the bundle has sentences.
    per_sentence = (features[name][0] for name, feature in featurizer.features.items() if SENTENCE_AXIS in feature.axes)
    sentences, attentions, copied = next(per_sentence, None), [], {}
    for weights in attended:
        tokens, writer, array = list[str](), None, decision[weights.output][0]
        stage = weights.key.split(".")
        if stage[0] == "head":  # the head answers step by step
            name, part = [*kind.parts.items()][int(stage[1]) if len(kind.parts) > 1 else 0]
            head_decision, writer = part_of(decision, name), part.writer
            tokens = part.step_names(head_decision, doc)
        if weights.over != "steps":
            attentions.append(attention(weights, doc, array, sentences, tokens))
        elif writer and writer.copies:
            looks = decision[f"{weights.output.rpartition('.')[0]}.attention"][0]
            words, _ = writer.copies.read(doc)
            ids = writer.step_ids(head_decision["tokens"][0, 0].tolist())
            copied[weights.key] = origins(doc, ids, words, tokens, looks, array)
    answer = predictor.read([doc], decision, decoding)[0]
    drawn, picture = figure(kind, doc, answer), _picture(featurizer, doc)
    return Explanation(doc.text, answer, kind.lines(answer), tuple(attentions), drawn, copied, picture=picture)


def _picture(featurizer: InputSource, doc: Doc) -> np.ndarray | None:
    """Return the input as pixels, if it is one picture or sound."""
    if doc.rows is None or not isinstance(featurizer, NumericSource):
        return None
    return pixels(featurizer.feature, doc.rows)


# Occlusion: the importance of a word is the drop of the answer's score without it (Zeiler and Fergus 2014; Li, Monroe
# and Jurafsky 2016). For a linear model of n-grams that is the contribution of its n-grams.

MOST_UNITS = 256  # of an input: in a longer one neighbours are occluded together
LOG = "log-probability"
DELETION_STEPS, RANDOM_ORDERS = 10, 5  # of a deletion curve; random orders that it is compared with
Unit = tuple[int, range, tuple[int, int]]  # of an input: the number of its source, the tokens, their place in the text


def occlude(predictor: Predictor, doc: Doc, decoding: Chosen, faithfulness: bool) -> Explanation:
    """Return the answer to a text, and the importance of each word for each part of the answer."""
    occlusion = Occlusion(predictor, doc, decoding)
    scores = occlusion.scores([[], *([unit] for unit in occlusion.units)])  # (1 + N, parts)
    drops, places = scores[:1] - scores[1:], tuple(place for *_, place in occlusion.units)
    importances = tuple(
        WordWeights(name, "words", places, weights, None, label, measure)
        for (name, label, measure), weights in zip(occlusion.parts, drops.T, strict=True)
    )
    curve = occlusion.deletion_curve(drops.mean(1)) if faithfulness and drops.size else None
    lines = predictor.kind.lines(occlusion.answer)
    pixels_of_input = _picture(predictor.featurizer, doc)
    return Explanation(doc.text, occlusion.answer, lines, importances, faithfulness=curve, picture=pixels_of_input)


class Occlusion:
    """The scores of the parts of an answer, each with name, label and measure, in variants of its input."""

    def __init__(self, predictor: Predictor, doc: Doc, decoding: Chosen):
        kind = predictor.kind
        self.predictor, self.doc, self.decoding = predictor, doc, decoding
        self.whole = predictor.run(predictor.featurizer.collate([doc]) | self.decoding.of([doc]))
        self.answer = cast(Any, predictor.read([doc], self.whole, self.decoding)[0])
        self.heads = {head: (part, self.answer[head] if head else self.answer) for head, part in kind.parts.items()}
        self.parts, self.units, shift = list[tuple[str, str, str]](), list[Unit](), 0
        for number, text in enumerate(doc.parts or (doc,)):
            words = [word for word in _words(text) if MASK not in text.words[word.start : word.stop]]  # gaps stay
            for neighbours in chunks(words, max(1, -(-len(words) // MOST_UNITS))):
                tokens = range(neighbours[0].start, neighbours[-1].stop)
                place = text.offsets[tokens[0]][0] + shift, text.offsets[tokens[-1]][1] + shift
                self.units.append((number, tokens, place))
            shift += len(text.text) + 1
        # A generated text has a part for each word, if the graph gives its probability: not where words are copied.
        self.tokens, self.ends, only = list[int](), list[int](), kind.parts.get("")
        writer = only.writer if only else None
        is_forced = writer and not writer.copies and {PREFIX, MAX_LENGTH} <= predictor.options.keys()
        self.is_written = kind.is_generated or bool(is_forced)
        if self.is_written and writer:
            self.tokens = writer.step_ids(self.whole["tokens"][0, 0].tolist())
            texts = [writer.decode(self.tokens[:n], doc) for n in range(len(self.tokens) + 1)]
            blanks = [longer[len(shorter) :][:1].isspace() for shorter, longer in pairwise(texts)]
            self.ends = [n for n, text in enumerate(texts) if text.strip() and blanks[n : n + 1] != [False]]
            written = [texts[b][len(texts[a]) :].strip() for a, b in pairwise([0, *self.ends])]
            self.parts = [(f"word {n}: {word}", word, LOG) for n, word in enumerate(written, 1)]
            return
        for head, (part, answer) in self.heads.items():
            for item in answer if isinstance(answer, list) else [answer]:
                name = "; ".join(part.part_lines(item)) + (f" at {item['start']}" if part.tags_words else "")
                label = next((item[key] for key in ("label", "entity", "entity_group") if key in item), part.kind)
                self.parts.append((f"{head}: {name}" if head else name, label, part.measure))

    def scores(self, left_out: Sequence[Iterable[Unit]]) -> np.ndarray:  # (B, parts)
        """Return the scores of all parts in variants without these words, in batches of similar lengths."""
        docs, most = [*map(self._variant, left_out)], MOST_TOKENS
        scores = np.zeros((len(docs), len(self.parts)))
        if self.predictor.kind.is_generated:  # whose logits are the largest tensor
            most = max(1, min(most, MAX_LOGITS // tokenizers_of(self.predictor.featurizer)[""].get_vocab_size()))
        for rows in batches([len(doc) + len(self.tokens) for doc in docs], MOST_UNITS + 1, most):
            batch = [docs[i] for i in rows]
            features = self.predictor.featurizer.collate(batch)
            if self.is_written:
                scores[rows] = self._written_scores(batch, features)
                continue
            decision, columns = self.predictor.run(features | self.decoding.of(batch)), list[np.ndarray]()
            for head, (part, answer) in self.heads.items():
                head_decision, whole = part_of(decision, head), part_of(self.whole, head)
                columns.append(part.part_scores(batch, head_decision, answer, whole))
            scores[rows] = np.concatenate(columns, 1)
        return scores

    def _variant(self, units: Iterable[Unit]) -> Doc:
        hidden = defaultdict[int, set[int]](set)
        for number, tokens, _ in units:
            hidden[number].update(tokens)
        keeps_places = any(part.keeps_places for part, _ in self.heads.values())
        docs = [_without(part, hidden[i], keeps_places) for i, part in enumerate(self.doc.parts or (self.doc,))]
        return replace(join_docs(docs), columns=self.doc.columns) if self.doc.parts else docs[0]

    def _written_scores(self, docs: Sequence[Doc], features: Arrays) -> np.ndarray:  # (B, words)
        """Return the log-probability of each generated word given those before it, which the graph must write."""
        kind, known, totals = self.predictor.kind, self.predictor.options, np.zeros((len(docs), len(self.ends)))
        if kind.is_generated and (scorer := kind.scorer):  # the graph scores the tokens of a prompt
            rows = [scorer.scoring_rows(doc, None, "token")[0] for doc in docs]
            inputs = scorer.scoring_inputs([row._replace(ids=[*row.ids, *self.tokens]) for row in rows])
            options = resolve_options(known, scorer.scoring_options, kind).arrays
            log_p = self.predictor.run(features | options | inputs)["prompt_scores"]
            for i, doc in enumerate(docs):
                totals[i] = [log_p[i, len(doc) : len(doc) + end].sum() for end in self.ends]
            return np.diff(totals, prepend=0.0)
        for column, end in zip(totals.T, self.ends, strict=True):
            forced = {PREFIX: self.tokens[:end], MAX_LENGTH: end + 1, MIN_LENGTH: 0}
            forced = {name: value for name, value in forced.items() if name in known}
            options = resolve_options(known, forced, kind).of(docs)
            options[MAX_LENGTH] = options[MAX_LENGTH][:end]  # the text ends with its last forced token
            column[:] = self.predictor.run(features | options)["scores"][:, 0]
        return np.diff(totals, prepend=0.0)

    def deletion_curve(self, weights: np.ndarray) -> dict[str, Any]:
        """Return the mean score of the parts as words are deleted, the most important first; e^x of log-probabilities.

        The smaller the area under it beside that of random orders, the more faithful the importances are to the model
        (Samek et al. 2017; DeYoung et al. 2020). Keys: `deleted`, the shares of deleted words; `scores`, the curve;
        `area`; `random`, the mean area of 5 random orders.
        """
        random, n = np.random.default_rng(0), len(self.units)
        counts = sorted({round(n * step / DELETION_STEPS) for step in range(DELETION_STEPS + 1)})
        orders = [np.argsort(-weights, kind="stable"), *(random.permutation(n) for _ in range(RANDOM_ORDERS))]
        scores = self.scores([[self.units[i] for i in order[:count]] for order in orders for count in counts])
        is_log = [measure == LOG for *_, measure in self.parts]
        scores[:, is_log] = np.exp(scores[:, is_log])
        curves, shares = scores.mean(1).reshape(len(orders), -1).round(6), np.array(counts) / n
        area, *others = np.trapezoid(curves, shares, axis=1).round(6).tolist()
        curve = {"deleted": shares.round(6).tolist(), "scores": curves[0].tolist()}
        return {**curve, "area": area, "random": round(sum(others) / RANDOM_ORDERS, 6)}


def _words(doc: Doc) -> list[range]:
    """Return the tokens of each word of a text, without the token between two texts.

    Pieces that are not joined to words make one if letters or digits touch, except in Chinese, Japanese and Korean.
    """
    starts = doc.starts
    if starts is None:
        pairs = [doc.text[max(0, start - 1) : start + 1] for start, _ in doc.offsets]
        has_pieces = any(end - start > 1 for start, end in doc.offsets)
        joined = [has_pieces and pair.isalnum() and len(pair) == text_width(pair) == 2 for pair in pairs]
        starts = [i for i in range(len(doc)) if not joined[i] and (not i or doc.offsets[i - 1][1] <= doc.offsets[i][0])]
    return [range(*ends) for ends in pairwise([*starts, len(doc)]) if ends[1] != doc.second]


def _without(doc: Doc, hidden: Collection[int], keeps_places: bool) -> Doc:
    """Return a text without these tokens, or with unknown ones in their place if none would be left, or as required.

    A row of numbers becomes the mean of the rows.
    """
    if doc.rows is not None:
        rows = doc.rows.copy()
        rows[[*hidden]] = doc.rows.mean(0)
        return replace(doc, rows=rows)
    shown = [i for i in range(len(doc)) if i not in hidden]
    if keeps_places or all(i + 1 == doc.second for i in shown):
        ids = [SPECIALS.index(UNK) if i in hidden else number for i, number in enumerate(doc.ids)]
        return replace(doc, ids=ids, words=["\ufffd" if i in hidden else word for i, word in enumerate(doc.words)])
    numbers, starts, places = {i: number for number, i in enumerate(shown)}, doc.starts, doc.places
    if starts is not None and places is not None:  # words are hidden as a whole
        places = [place for start, place in zip(starts, places, strict=True) if start in numbers]
        starts = [numbers[start] for start in starts if start in numbers]
    words, offsets, ids = [doc.words[i] for i in shown], [doc.offsets[i] for i in shown], [doc.ids[i] for i in shown]
    second = None if doc.second is None else sum(i < doc.second for i in shown)
    return replace(doc, words=words, offsets=offsets, ids=ids, starts=starts, places=places, second=second)


def word_table(explanations: Iterable[Explanation], top: int) -> Rows:
    """Return rows of `label`, `word`, its mean `importance` and its `count`: for each label the `top` words by sum."""
    weights = defaultdict[str, dict[str, list[float]]](dict)
    for explanation in explanations:
        for part in explanation.attentions:
            for (start, end), weight in zip(part.places, part.weights.tolist(), strict=True):
                weights[part.label].setdefault(explanation.text[start:end], []).append(weight)
    rows = Rows()
    for label, words in sorted(weights.items()):
        for word, drops in sorted(words.items(), key=lambda item: -sum(item[1]))[:top]:
            mean = round(sum(drops) / len(drops), 6)
            rows.append({"label": label, "word": word, "importance": mean, "count": len(drops)})
    return rows
