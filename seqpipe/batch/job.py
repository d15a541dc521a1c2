"""Settings of the answers to many inputs, and the share of one machine; the command line reads its options here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from typer import Option

from seqpipe.errors import UsageError


@dataclass(frozen=True)
class Shard:
    """The share of one of several machines or processes: every `count`-th part, from part `index` on."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard of `I/N`, such as 3/16; UsageError if it is none."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            raise UsageError(f"--shard {text}: must be I/N, such as 3/16: the third of 16 shares, counted from 1")
        return cls(int(index), int(count))


@dataclass(frozen=True)
class PredictJob:
    """The way in which inputs are read and answered; fields with an `Option` are options of `seqpipe predict`."""

    form: Annotated[
        str, Option("--format", help="text, jsonl, conll, csv, tsv, json, parquet, conllu; default: by the ending.")
    ] = "auto"
    names: Annotated[
        list[str] | None,
        Option("--field", metavar="NAME", help="Column or key of the text; repeated for a pair of texts."),
    ] = None
    documents: Annotated[
        bool, Option("--documents", help="Treat each text as a document, and split it into sentences.")
    ] = False
    on_error: Annotated[
        Literal["stop", "skip"],
        Option(metavar="ACTION", help="stop at an invalid line, or skip: its output is the error."),
    ] = "stop"
    shard: Annotated[
        Shard | None, Option(parser=Shard.parse, metavar="I/N", help="Answer the I-th of N shares, counted from 1.")
    ] = None
    resume: Annotated[bool, Option("--resume", help="Skip the parts that the folder --output has.")] = False
    options: Mapping[str, Any] = field(default_factory=dict)  # decode options, also those of each record
    media: bool = False  # whether the inputs are pictures or sounds
