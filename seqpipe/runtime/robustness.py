"""Robustness and fairness: answers to perturbed texts, and to texts with words swapped, such as he and she."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from seqpipe.answers.metrics.numbers import metric_of
from seqpipe.answers.types import PASSAGE
from seqpipe.errors import DataError, UsageError, did_you_mean
from seqpipe.features.document import Record, locate, location
from seqpipe.files import Rows
from seqpipe.runtime.evaluate import answered, evaluate, headline, score_answers
from seqpipe.runtime.predictor import Predictor

EXAMPLES = 5  # of each perturbation or pair
EMOJI = "🙂"
_WIDE = {code: code + 0xFEE0 for code in range(33, 127)}
Change = Callable[[str], str]


def _typos(text: str, draw: random.Random) -> Change:
    def mistype(match: re.Match[str]) -> str:
        word, i = match[0], draw.randrange(1, len(match[0]) - 2)
        return word if draw.random() < 0.8 else word[:i] + word[i + 1] + word[i] + word[i + 2 :]

    return lambda part: re.sub(r"\w{4,}", mistype, part)


def _case(text: str, draw: random.Random) -> Change:
    change = str.upper if text == text.lower() else str.lower
    return lambda part: "".join(change(c) if len(change(c)) == 1 else c for c in part)


PERTURBATIONS: Mapping[str, Callable[[str, random.Random], Change]] = {
    "typos": _typos,
    "case": _case,
    "width": lambda text, draw: lambda part: part.translate(_WIDE),
    "emoji": lambda text, draw: lambda part: part,
    "blanks": lambda text, draw: lambda part: re.sub(" ", lambda _: draw.choice("\u00a0\u2003\t"), part),
}


def _change(record: Record, fields: Sequence[str], change: Change, end: str = "") -> Record:
    """Return a record with changed texts and words, of which the last is followed by `end`."""
    texts = {field: record[field] for field in fields if isinstance(record.get(field), str)}
    changed = {**record, **{field: change(text) + (end and f" {end}") for field, text in texts.items()}}
    if "text" in fields and record.get("words"):
        words = [change(word) for word in record["words"]]
        changed["words"] = [*words[:-1], words[-1] + end]
        if text := texts.get("text"):
            places = [(0, 0), *locate(record["words"], text, location(record)), (len(text), len(text))]
            between = [change(text[a:b]) for (_, a), (b, _) in pairwise(places)]
            changed["text"] = "".join(map("".join, zip(between, [*changed["words"], ""], strict=True)))
    return changed


def _text(record: Record, fields: Sequence[str]) -> str:
    texts = [record[field] for field in fields if isinstance(record.get(field), str)]
    return "\n".join(texts) or " ".join(record.get("words") or ())


def robustness(predictor: Predictor, records: Sequence[Record], perturb: Sequence[str], seed: int = 1) -> Rows:
    """Return the headline score on records with references, and on perturbations of them.

    Texts keep their length up to an emoji at the end, and so references their offsets; of a question about a passage
    only the question changes. Typos and blanks depend on the seed and the text only.

    Returns:
        Rows of `perturbation` (`none` first), `metric`, `score`, `drop`, the loss of quality, `changed`, the number of
        changed records, `broken`, that of answers that are no longer right, and `examples` of these.
    """
    task, fields, rows = predictor.task, predictor.featurizer.fields, Rows()
    if any(part.subject == PASSAGE for part in task.parts.values()):
        fields = fields[:1]
    for name in {*perturb} - PERTURBATIONS.keys():
        hint = did_you_mean(name, PERTURBATIONS)
        raise UsageError(f"no perturbation {name!r}{hint} (there is: {', '.join(PERTURBATIONS)})")
    first: tuple[float, list[bool]] | None = None
    for name in ("none", *perturb):
        variants = [*records]
        if name != "none":
            for i, text in enumerate(_text(record, fields) for record in records):
                change = PERTURBATIONS[name](text, random.Random(f"{seed} {name} {text}"))
                variants[i] = _change(records[i], fields, change, EMOJI if name == "emoji" else "")
        pairs = [] if predictor.kind.is_generated else [*answered(predictor, variants)]
        metric, score = headline((score_answers(predictor, pairs) if pairs else evaluate(predictor, variants))[""])
        golds = [(task.gold(record), task.predicted(answer)) for record, answer in pairs]
        right = [task.is_comparable and task.is_right(*gold) for gold in golds]
        first = first or (score, right)
        broken = [i for i, is_right in enumerate(right) if first[1][i] and not is_right]
        examples = [
            {"text": _text(records[i], fields), "changed": _text(variants[i], fields), **task.mistakes(*golds[i])}
            for i in broken[:EXAMPLES]
        ]
        drop = first[0] - score if metric_of(metric, predictor.metric_types).more_is_better else score - first[0]
        row = {"perturbation": name, "metric": metric, "score": score, "drop": drop}
        row["changed"] = sum(a != b for a, b in zip(records, variants, strict=True))
        rows.append({**row, "broken": len(broken), "examples": examples})
    return rows


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of words of a file with two columns, separated by a tab; DataError for another line."""
    pairs = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        match line.split("\t"):
            case [one, other] if one.strip() and other.strip():
                pairs.append((one.strip(), other.strip()))
            case _ if line.strip():
                raise DataError(f"{path}:{number}: {line!r} is not a pair; write two words with a tab between them")
    return pairs


def swap(predictor: Predictor, records: Sequence[Record], pairs: Sequence[tuple[str, str]]) -> Rows:
    """Return the share of answers that change when the words of a pair are swapped, as none should.

    Whole words are swapped in both directions, and their case is kept. Answers are the same if they differ only in
    swapped words, scores and offsets; numbers if they have the same two leading digits. References are not needed.

    Returns:
        Rows of `pair` (`all` first), `texts`, the number of texts with one of its words, `changed`, that of answers
        that change, `share`, and `examples` of these.
    """
    if predictor.kind.is_generated:
        raise UsageError("a language model has no answers to compare; score it on minimal pairs")
    fields, rows, total = predictor.featurizer.fields, Rows(), {"texts": 0, "changed": 0}
    for pair in pairs:
        change = partial(_swap_words, *pair)
        variants = [(record, _change(record, fields, change)) for record in records]
        variants = [both for both in variants if both[0] != both[1]]
        answers = [*predictor.stream(record for both in variants for record in both)]
        examples = []
        for both, before, after in zip(variants, answers[::2], answers[1::2], strict=True):
            first, second = _comparable(predictor, before), _comparable(predictor, after)
            if second not in (first, change(first)):
                texts = {"text": _text(both[0], fields), "changed": _text(both[1], fields)}
                examples.append({**texts, "before": before, "after": after})
        row = {"pair": " ↔ ".join(pair), "texts": len(variants), "changed": len(examples)}
        rows.append({**row, "share": len(examples) / max(1, len(variants)), "examples": examples[:EXAMPLES]})
        total = {key: total[key] + int(row[key]) for key in total}
    rows.insert(0, {"pair": "all", **total, "share": total["changed"] / max(1, total["texts"]), "examples": []})
    return rows


def _swap_words(one: str, other: str, text: str) -> str:
    def partner(match: re.Match[str]) -> str:
        word = other if match[0].casefold() == one.casefold() else one
        if match[0].islower():
            return word.lower()
        return word.upper() if match[0].isupper() and len(match[0]) > 1 else word[:1].upper() + word[1:]

    return re.sub(rf"(?<!\w)(?:{re.escape(one)}|{re.escape(other)})(?!\w)", partner, text, flags=re.IGNORECASE)


def _comparable(predictor: Predictor, answer: Any) -> str:
    """Return each head's answer without scores and offsets as text."""
    parts: dict[str, Any] = {}
    for head, part in predictor.task.parts.items():
        of_head = answer[head] if head else answer
        if part.kind.tags_words:
            parts[head] = [(item[part.kind.label_key], item["word"]) for item in of_head]
        else:
            parts[head] = part.predicted(of_head)[:1] if part.has_candidates else part.predicted(of_head)
            if isinstance(parts[head], float):
                parts[head] = f"{parts[head]:.2g}"
    return json.dumps(parts, ensure_ascii=False)
