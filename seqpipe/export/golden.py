"""The golden examples of a bundle: short records with PyTorch's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqpipe.export.parity.answers import Comparison
from seqpipe.export.parity.generated_records import probe_records
from seqpipe.export.parity.trial_options import with_short_texts
from seqpipe.features.document import Record
from seqpipe.features.sources import TextSource, columns
from seqpipe.runtime.limits import TRAINED
from seqpipe.runtime.model import TOLERANCE, same_answer

EXAMPLES, TOKENS = 8, 40  # that a bundle carries, and of the longest of them
SEVERAL = 3  # answers, and beams, of the last example


def golden_examples(comparison: Comparison, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Short records, spread over the data, with PyTorch's answers; of the first also several, if it can have several.

    Where all records are long, the shortest is cut; where none has a token, a probe stands in. Left out is what another
    machine may answer otherwise: ties, and scores that are already rounded otherwise here.

    Raises:
        ParityError: if the bundle answers one of them differently.
    """
    source = comparison.featurizer
    chosen = _short(comparison, records)
    alternate = isinstance(source, TextSource) and source.fields == ("text",)
    inputs: list[dict[str, Any]] = []
    for record in chosen:
        words = len(inputs) % 2 and alternate and record.get("words") is not None
        keys = (*columns(source), *(("words", "text") if words else source.fields))
        inputs.append({key: record[key] for key in keys})
    examples = _answered(comparison, inputs, {})
    several = [name for name in comparison.options if name.rpartition(".")[2] in ("beams", "n_best")]
    if examples and several:
        options = with_short_texts(comparison.options, dict.fromkeys(several, SEVERAL))
        examples += _answered(comparison, [examples[0]["record"]], options)
    return examples


def _answered(
    comparison: Comparison, records: Sequence[dict[str, Any]], options: dict[str, Any]
) -> list[dict[str, Any]]:
    expected, got = comparison.answer_both(records, **options)
    return [
        {"record": record, **({"options": options} if options else {}), "answer": answer}
        for record, answer, theirs in zip(records, expected, got, strict=True)
        if same_answer(theirs, answer, TOLERANCE / 2)
    ]


def _short(comparison: Comparison, records: Sequence[Record]) -> list[Record]:
    """Some records of at least one token and at most `TOKENS`, none longer than the inputs of training."""
    most = min(TOKENS, comparison.limits.get(TRAINED, TOKENS))
    without_targets = [comparison.kind.question(record) for record in records]
    lengths = [len(doc) for doc in comparison.docs(without_targets)]
    short = [i for i, length in enumerate(lengths) if 0 < length <= most]
    if short:
        return [without_targets[i] for i in short[:: max(1, len(short) // EXAMPLES)][:EXAMPLES]]
    if any(lengths):
        shortest = min((i for i, length in enumerate(lengths) if length), key=lengths.__getitem__)
        return [_cut(comparison, without_targets[shortest], most)]
    return [next(iter(probe_records(comparison.featurizer, most)))]


def _cut(comparison: Comparison, record: Record, most: int) -> Record:
    """The beginning of a long record: each of its fields is halved, at a blank if there is one, until it is short."""
    record = {key: value for key, value in record.items() if key != "words" or "text" not in record}
    while len(comparison.docs([record])[0]) > most:
        read = [name for name in (*comparison.featurizer.fields, "words") if record.get(name) is not None]
        halved = {**record, **{name: _half(record[name]) for name in read}}
        if halved == record or not len(comparison.docs([halved])[0]):
            break
        record = halved
    return record


def _half(value: Any) -> Any:
    half = value[: (len(value) + 1) // 2]
    return half.rpartition(" ")[0] or half if isinstance(half, str) else half
