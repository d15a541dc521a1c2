"""How many padded tokens a batch of the first YAML has."""

from __future__ import annotations

from seqpipe.commands.init.summary import DataSummary

SMALL = 3000  # records: fewer make a smaller model, trained for longer
FEW, MORE, SPARSE = 512, 1024, 256  # tokens
RARE = 1 / 30  # spans a word; fewer leave most sentences without any


def batch_tokens(summary: DataSummary) -> tuple[int, str]:
    """The padded tokens of a batch, and why, as a comment says it.

    Where entities are rare, most of a large batch's gradient comes from words outside of them, and its mean has little
    of the few inside; smaller batches take more steps and give those words a larger part of some of them.
    """
    if entities_are_rare(summary):
        spans = sum(summary.labels.values())
        return SPARSE, f"padded tokens a batch; few, because entities are rare: {spans:,} in {summary.words:,} words"
    return FEW if summary.records < SMALL else MORE, "padded tokens a batch"


def entities_are_rare(summary: DataSummary) -> bool:
    """Whether fewer than one word in thirty begins an entity, in data whose words are known."""
    known = summary.label_kind == "Entities" and not summary.unspaced
    return known and sum(summary.labels.values()) < RARE * summary.words
