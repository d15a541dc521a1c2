"""Importance of each word of an input for its answer, by occlusion, and the faithfulness of these importances.

A word's importance is the drop of the answer's score without the word (Zeiler and Fergus 2014; Li, Monroe and Jurafsky
2016). For a linear model of n-grams that is the contribution of the word's n-grams, so it needs no method of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from seqpipe.answers.registry import part_of
from seqpipe.answers.text import Generation, Text
from seqpipe.console import text_width
from seqpipe.errors import UsageError
from seqpipe.features.document import Arrays, Doc, Record, join_sources
from seqpipe.features.vocabulary import MASK, SPECIALS, UNK
from seqpipe.files import Rows
from seqpipe.runtime.decode_options import resolve_options
from seqpipe.runtime.explanation import Attention, Explanation
from seqpipe.runtime.predictor import TOKENS, Predictor, batches, chunks

MOST_UNITS = 256  # of an input: in a longer one neighbours are occluded together
LOG = "log-probability"
STEPS, ORDERS = 10, 5  # of a deletion curve; random orders that it is compared with
Unit = tuple[int, range, tuple[int, int]]  # of an input: the number of its source, the tokens, their place in the text


def occlude(predictor: Predictor, record: Record, options: Mapping[str, Any], faithfulness: bool) -> Explanation:
    """Return the answer to one record, and the importance of each word for each part of the answer.

    With `faithfulness` it has a deletion curve. UsageError if several answers are requested.
    """
    if any(name.rpartition(".")[2] == "n_best" and value != 1 for name, value in options.items()):
        raise UsageError("n_best: only the best answer is explained by occlusion; leave it out")
    (doc,), kind = predictor.docs([record]), predictor.kind
    if not len(doc):
        answer = kind.empty_for(resolve_options(predictor.options, options, kind).arrays)
        return Explanation(doc.text, answer, kind.lines(answer), ())
    occlusion = Occlusion(predictor, doc, options)
    scores = occlusion.scores([[], *([unit] for unit in occlusion.units)])  # (1 + N, parts)
    drops, places = scores[:1] - scores[1:], tuple(place for *_, place in occlusion.units)
    importances = tuple(
        Attention(name, "words", places, weights, None, label, measure)
        for (name, label, measure), weights in zip(occlusion.parts, drops.T, strict=True)
    )
    curve = occlusion.deletion_curve(drops.mean(1)) if faithfulness and drops.size else None
    return Explanation(doc.text, occlusion.answer, kind.lines(occlusion.answer), importances, None, {}, curve)


class Occlusion:
    """The scores of the parts of an answer in variants of its input.

    Attributes:
        answer: The answer to the input itself.
        parts: The name, the label and the measure of each part.
        units: The words that are left out one by one.
    """

    def __init__(self, predictor: Predictor, doc: Doc, options: Mapping[str, Any]):
        kind, known = predictor.kind, predictor.options
        self.predictor, self.doc, self.decoding = predictor, doc, resolve_options(known, options, kind)
        self.whole = predictor.run(predictor.featurizer.collate([doc]) | self.decoding.of([doc]))
        self.answer: Any = predictor.read([doc], self.whole, self.decoding)[0]
        self.heads = {head: (part, self.answer[head] if head else self.answer) for head, part in kind.parts.items()}
        self.parts, self.units, shift = list[tuple[str, str, str]](), list[Unit](), 0
        for number, text in enumerate(doc.parts or (doc,)):
            words = [word for word in _words(text) if MASK not in text.words[word.start : word.stop]]  # gaps stay
            for some in chunks(words, max(1, -(-len(words) // MOST_UNITS))):
                tokens = range(some[0].start, some[-1].stop)
                place = text.offsets[tokens[0]][0] + shift, text.offsets[tokens[-1]][1] + shift
                self.units.append((number, tokens, place))
            shift += len(text.text) + 1
        # A generated text has a part for each word, if the graph gives its probability: not where words are copied.
        self.tokens, self.ends = list[int](), list[int]()
        is_forced = isinstance(kind, Text) and not kind.copies and {"prefix", "max_length"} <= known.keys()
        self.is_written = isinstance(kind, Generation) or is_forced
        if isinstance(kind, Text) and self.is_written:
            self.tokens = kind.step_ids(self.whole["tokens"][0, 0].tolist())
            texts = [kind.decode(self.tokens[:n], doc) for n in range(len(self.tokens) + 1)]
            blanks = [longer[len(shorter) :][:1].isspace() for shorter, longer in pairwise(texts)]
            self.ends = [n for n, text in enumerate(texts) if text.strip() and blanks[n : n + 1] != [False]]
            words = [texts[b][len(texts[a]) :].strip() for a, b in pairwise([0, *self.ends])]
            self.parts = [(f"word {n}: {word}", word, LOG) for n, word in enumerate(words, 1)]
            return
        for head, (part, answer) in self.heads.items():
            for item in answer if isinstance(answer, list) else [answer]:
                name = "; ".join(part.part_lines(item)) + (f" at {item['start']}" if part.tags_words else "")
                label = next((item[key] for key in ("label", "entity", "entity_group") if key in item), part.kind)
                self.parts.append((f"{head}: {name}" if head else name, label, part.measure))

    def scores(self, left_out: Sequence[Iterable[Unit]]) -> np.ndarray:  # (B, parts)
        """Return the scores of all parts in variants without these words, in batches of similar lengths."""
        docs = [*map(self._variant, left_out)]
        scores = np.zeros((len(docs), len(self.parts)))
        for rows in batches([len(doc) for doc in docs], MOST_UNITS + 1, TOKENS):
            batch = [docs[i] for i in rows]
            features = self.predictor.featurizer.collate(batch)
            if self.is_written:
                scores[rows] = self._written_scores(batch, features)
                continue
            decision, columns = self.predictor.run(features | self.decoding.of(batch)), list[np.ndarray]()
            for head, (part, answer) in self.heads.items():
                of_head, whole = part_of(decision, head), part_of(self.whole, head)
                columns.append(part.part_scores(batch, of_head, answer, whole))
            scores[rows] = np.concatenate(columns, 1)
        return scores

    def _variant(self, units: Iterable[Unit]) -> Doc:
        hidden = defaultdict[int, set[int]](set)
        for number, tokens, _ in units:
            hidden[number].update(tokens)
        keeps_places = any(part.keeps_places for part, _ in self.heads.values())
        docs = [_without(part, hidden[i], keeps_places) for i, part in enumerate(self.doc.parts or (self.doc,))]
        return replace(join_sources(docs), columns=self.doc.columns) if self.doc.parts else docs[0]

    def _written_scores(self, docs: Sequence[Doc], features: Arrays) -> np.ndarray:  # (B, words)
        """Return the log-probability of each generated word given those before it, which the graph must write."""
        kind, known, totals = self.predictor.kind, self.predictor.options, np.zeros((len(docs), len(self.ends)))
        if isinstance(kind, Generation):  # whose graph scores the tokens of a prompt
            rows = [kind.scoring_rows(doc, None, "token")[0] for doc in docs]
            inputs = kind.scoring_inputs([row._replace(ids=[*row.ids, *self.tokens]) for row in rows])
            options = resolve_options(known, kind.scoring_options, kind).arrays
            for row, doc, log_p in zip(
                totals, docs, self.predictor.run(features | options | inputs)["prompt_scores"], strict=True
            ):
                row[:] = [log_p[len(doc) : len(doc) + end].sum() for end in self.ends]
            return np.diff(totals, prepend=0.0)
        for column, end in zip(totals.T, self.ends, strict=True):
            forced = {"prefix": self.tokens[:end], "max_length": end + 1, "min_length": 0}
            options = resolve_options(known, {name: forced[name] for name in forced.keys() & known.keys()}, kind).of(
                docs
            )
            options["max_length"] = options["max_length"][:end]  # the text ends with its last forced token
            column[:] = self.predictor.run(features | options)["scores"][:, 0]
        return np.diff(totals, prepend=0.0)

    def deletion_curve(self, weights: np.ndarray) -> dict[str, Any]:
        """Return the mean score of the parts as words are deleted, the most important first; e^x of log-probabilities.

        The smaller the area under it beside that of random orders, the more faithful the importances are to the model
        (Samek et al. 2017; DeYoung et al. 2020). Keys: `deleted`, the shares of deleted words; `scores`, the curve;
        `area`; `random`, the mean area of 5 random orders.
        """
        random, n = np.random.default_rng(0), len(self.units)
        counts = sorted({round(n * step / STEPS) for step in range(STEPS + 1)})
        orders = [np.argsort(-weights, kind="stable"), *(random.permutation(n) for _ in range(ORDERS))]
        scores = self.scores([[self.units[i] for i in order[:count]] for order in orders for count in counts])
        is_log = [measure == LOG for *_, measure in self.parts]
        scores[:, is_log] = np.exp(scores[:, is_log])
        curves, shares = scores.mean(1).reshape(len(orders), -1).round(6), np.array(counts) / n
        area, *others = np.trapezoid(curves, shares, axis=1).round(6).tolist()
        curve = {"deleted": shares.round(6).tolist(), "scores": curves[0].tolist()}
        return {**curve, "area": area, "random": round(sum(others) / ORDERS, 6)}


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
    left = [i for i in range(len(doc)) if i not in hidden]
    if keeps_places or all(i + 1 == doc.second for i in left):
        ids = [SPECIALS.index(UNK) if i in hidden else number for i, number in enumerate(doc.ids)]
        return replace(doc, ids=ids, words=["\ufffd" if i in hidden else word for i, word in enumerate(doc.words)])
    numbers, starts, places = {i: number for number, i in enumerate(left)}, doc.starts, doc.places
    if starts is not None and places is not None:  # words are hidden as a whole
        places = [place for start, place in zip(starts, places, strict=True) if start in numbers]
        starts = [numbers[start] for start in starts if start in numbers]
    words, offsets, ids = [doc.words[i] for i in left], [doc.offsets[i] for i in left], [doc.ids[i] for i in left]
    second = None if doc.second is None else sum(i < doc.second for i in left)
    return replace(doc, words=words, offsets=offsets, ids=ids, starts=starts, places=places, second=second)


def word_table(explanations: Iterable[Explanation], top: int) -> Rows:
    """Return rows of `label`, `word`, its mean `importance` and its `count`: for each label the `top` words by sum."""
    weights = defaultdict[tuple[str, str], list[float]](list)
    for explanation in explanations:
        for part in explanation.attentions:
            for (start, end), weight in zip(part.places, part.weights.tolist(), strict=True):
                weights[part.label, explanation.text[start:end]].append(weight)
    rows, counts = Rows(), Counter[str]()
    for (label, word), drops in sorted(weights.items(), key=lambda item: (item[0][0], -sum(item[1]))):
        counts[label] += 1
        if counts[label] <= top:
            mean = round(sum(drops) / len(drops), 6)
            rows.append({"label": label, "word": word, "importance": mean, "count": len(drops)})
    return rows
