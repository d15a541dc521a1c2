"""A document longer than its checkpoint can read: the spans of the whole beside those of its parts, one by one.

    python benchmarks/windows.py --run runs/bench-ncbi_disease-bert-1

The document is the first sentences of the NCBI-disease test set, in paragraphs of eight, up to 3,000 words. Its spans
are held against those of each window read as a text of its own, and against those of each paragraph. RUN is made by
`python benchmarks/classify.py quality ncbi_disease-bert --checkpoint FOLDER`. Its figures are recorded in
runs/results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import common

import seqpipe
from seqpipe.api.model import Model
from seqpipe.features.document import Doc

WORDS, SENTENCES = 3_000, 8
Span = tuple[str, int, int]


def paragraphs(data: Path | None) -> list[str]:
    """The first sentences of the test set, eight a paragraph, up to so many words."""
    blocks = common.data_path(data, "ncbi_disease/test.tsv").read_text(encoding="utf-8").strip().split("\n\n")
    sentences = [[line.split("\t")[0] for line in block.splitlines()] for block in blocks]
    totals = itertools.accumulate(map(len, sentences))
    kept = [" ".join(words) for words, total in zip(sentences, totals, strict=True) if total <= WORDS]
    return [" ".join(kept[at : at + SENTENCES]) for at in range(0, len(kept), SENTENCES)]


def spans(model: Model, docs: Sequence[Doc]) -> list[set[Span]]:
    """The spans of each text, each read alone."""
    kind, collate = model.predictor.kind, model.predictor.featurizer.collate
    answers: list[Any] = [kind.answers([doc], model.run(collate([doc])))[0] for doc in docs]
    return [{(span["entity_group"], span["start"], span["end"]) for span in answer} for answer in answers]


def part(doc: Doc, begin: int, end: int) -> Doc:
    """The tokens from `begin` to before `end` as a text of their own, with their places in the whole one."""
    starts, places = doc.starts or [], doc.places or []
    kept = [i for i, start in enumerate(starts) if begin <= start < end]
    return replace(
        doc,
        words=doc.words[begin:end],
        offsets=doc.offsets[begin:end],
        ids=doc.ids[begin:end],
        starts=[starts[i] - begin for i in kept],
        places=[places[i] for i in kept],
    )


def zones(length: int, window: int, margin: int) -> Iterator[tuple[int, int, int, int]]:
    """Of each window, where it begins and ends, and the tokens that it decides, but for the margin at each seam."""
    overlap = window // 2
    step = window - overlap
    count = max(1, -(-(length - overlap) // step))
    for w in range(count):
        first = 0 if w == 0 else w * step + overlap // 2 + margin
        last = length if w == count - 1 else (w + 1) * step + overlap // 2 - margin
        yield w * step, min(w * step + window, length), first, last


def within(candidates: set[Span], doc: Doc, first: int, last: int) -> set[Span]:
    """The spans between two tokens."""
    begin, end = doc.offsets[first][0], doc.offsets[last - 1][1]
    return {span for span in candidates if begin <= span[1] and span[2] <= end}


_ACROSS: Mapping[str, Callable[[set[Span], set[Span], set[Span]], set[Span]]] = {
    "stand in the whole": lambda whole, left, right: whole,
    "both windows have": lambda whole, left, right: left & right,
    "one window alone has": lambda whole, left, right: left ^ right,
}


def main(run: Path, window: int, margin: int, data: Path | None) -> None:
    model = seqpipe.load(run / "bundle", "cpu")
    texts = paragraphs(data)
    (doc,) = model.predictor.featurizer.docs([{"text": "\n\n".join(texts)}])
    (whole,) = spans(model, [doc])
    print(f"{sum(len(text.split()) for text in texts):,} words, {len(doc):,} tokens, {len(whole)} spans")
    same = differ = 0
    inside: set[Span] = set()
    parts = list(zones(len(doc), window, margin))
    read = [spans(model, [part(doc, begin, end)])[0] for begin, end, *_ in parts]
    for (_, _, first, last), alone in zip(parts, read, strict=True):
        mine, theirs = within(whole, doc, first, last), within(alone, doc, first, last)
        same, differ, inside = same + len(mine & theirs), differ + len(mine ^ theirs), inside | mine
    print(f"its windows one by one, {margin} tokens and more from a seam: {same} spans the same, {differ} differ")
    seams = [doc.offsets[last + margin][0] for _, _, _, last in parts[:-1]]
    across = {}
    for meaning, select in _ACROSS.items():
        over = [
            span
            for seam, left, right in zip(seams, read, read[1:], strict=False)
            for span in select(whole, left, right)
            if span[1] < seam < span[2]
        ]
        print(f"  across its {len(seams)} seams {meaning} {len(over)} spans")
        across[meaning] = len(over)
    starts = itertools.accumulate((len(text) + 2 for text in texts), initial=0)
    by_paragraph = spans(model, model.predictor.featurizer.docs([{"text": text} for text in texts]))
    moved = {(label, a + at, b + at) for some, at in zip(by_paragraph, starts, strict=False) for label, a, b in some}
    print(f"its {len(texts)} paragraphs one by one: {len(whole & moved)} spans the same, {len(whole ^ moved)} differ;")
    print(f"  of the {len(inside)} away from the seams {len(inside & moved)} are the same")
    counts = {
        "its windows one by one, away from a seam": (same, differ),
        "across a seam": (across["both windows have"], across["one window alone has"]),
        f"its {len(texts)} paragraphs one by one, whole document": (len(whole & moved), len(whole ^ moved)),
    }
    rows = [{"row": row, "figures": {"the same": a, "different": b}} for row, (a, b) in counts.items()]
    no_seams = {"the same": f"{len(inside & moved)} of {len(inside)}"}
    rows.append({"row": f"its {len(texts)} paragraphs one by one, away from a seam of windows", "figures": no_seams})
    common.record("classify", "windows", rows)


if __name__ == "__main__":
    parser = common.parser(__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--window", type=int, default=510, help="as the run's encoder has it")
    parser.add_argument("--margin", type=int, default=16, help="tokens at each side of a seam that are left out")
    common.add_data_option(parser)
    arguments = parser.parse_args()
    main(arguments.run, arguments.window, arguments.margin, arguments.data)
