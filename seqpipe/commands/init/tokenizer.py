"""The line of a YAML's tokenizer, which follows from the scripts of the texts."""

from __future__ import annotations

from seqpipe.commands.init.summary import DataSummary


def tokenizer_line(summary: DataSummary, spaced: str, fields: str = "") -> str:
    """Return the line, with the reasons for what depends on the script.

    Args:
        summary: What the data is like.
        spaced: The tokenizer and its options for texts with spaces between words.
        fields: Further options of any tokenizer.
    """
    options, reasons = spaced, []
    if summary.unspaced:
        options = "use: chars"
        reasons.append("no spaces between words: each character is a token")
    elif summary.segmented:
        options = r"use: words, pattern: '\S+'"
        reasons.append("the words of the data; in use, texts need the same word segmentation")
    form = summary.scripts.normalization(generates=summary.label_kind == "Continuations")
    if form:
        options += f", normalize: {form[0]}"
        reasons.append(form[1])
    comment = f"  # {'; '.join(reasons)}" if reasons else ""
    return f"tokenizer: {{{options}{fields}}}{comment}"
