"""The conformance kit for authors of plugins: checks of a component, given its class and options.

It is what seqpipe uses on its own components. In a test:

```python
from seqpipe.testing import check_encoder
from acme_conv.gated import GatedConv

def test_it_keeps_the_contract():
    check_encoder(GatedConv, hidden=8)
```

Each function takes the class and, by keyword, the options that a YAML would give; small ones make it quick. It builds
a whole pipeline around the component, with toys in the other places, trains, exports and compares it, and raises
AssertionError with every check that failed: what is wrong, and how such things are usually mended. Else it returns the
Report.

Checks of every kind:

- *options round-trip*: the options, written into the resolved YAML of a run, are read as the same again.
- *unknown option refused*: a misspelt option is an error.
- *import*: the module is imported in under a second (beyond torch), prints nothing, and, of a reader or tokenizer,
  imports no torch.
- *no file or network access*: while it is built, trained and used, its code opens no file but its package's own and
  those of its options, no address, and starts no process.

Of an embedding, encoder or head:

- *it is built*: with these options, in a pipeline that gives what it asks for.
- *shapes over a grid*: what is returned has the stated shape and dtype for every batch size and length from 1.
- *padding invariance*: NaN, huge numbers and other ids in the padding change nothing, the loss included.
- *batch invariance*: a row has the same answer alone, among others, and in another order.
- *determinism*: the same seed gives the same weights and losses; in evaluation the same answer twice.
- *gradient reaches every parameter*, but those with `requires_grad_(False)`.
- *save and load bit-equal*: the weights hold all that was learned.
- *resume bit-equal*: stopped in the middle of training and resumed, it ends with the same weights.
- *export with free axes*, *standard operators only*, *onnxruntime parity on ragged shapes*: the graph is one for every
  batch size and length, of operators of ai.onnx, and answers as PyTorch does.

Of an encoder or a head that answers in pieces (`export.streaming`) also:

- *answers in pieces are those of the whole text*: for ragged texts, which begin and end at different times.

Of a head also:

- *targets reach the loss*: it changes with what is to be learned.
- *decision as its answer kind states*: `decide` returns the outputs of the kind, and answers can be made of them.
- *score agrees with decide*: the log-probability that `score` gives to a decision is the one that `decide` states.
- *own metrics run*: `metrics` gives finite numbers under names of its own.
- *corruption as stated*: `corrupt_batch` is deterministic in evaluation, random in training, and seen in the loss.
- *what is chosen on dev stays*: what `calibrate` chooses is in the weights, and `calibration` says it as JSON.

Of a tokenizer: *learns a tokenizer*, *determinism*, *special tokens have ids 0 to 3*, *everything is in tokenizer.json*
(saved and loaded it splits and writes the same), *offsets point at the text* (in order, not overlapping), and *words
and whole text agree* (a word has one id, or the same pieces, split already or not).

Of a reader: *expected records*, *where is file:line*, *a bad line is a DataError* (with file and line), and *streams*
(the first record of a large file comes before the file is read).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqpipe.testing.report import Finding, Report, Subject, insist, inspected, table

__all__ = [
    "Finding",
    "Report",
    "check_embedding",
    "check_encoder",
    "check_head",
    "check_package",
    "check_reader",
    "check_tokenizer",
    "table",
]


def check_embedding(component: type, **options: Any) -> Report:
    """Checks an embedding: features to x (B, T, dim).

    Args:
        component: The class. The features that its `features` declares are made as in every pipeline.
        options: Its options, as a YAML would give them.

    Returns:
        The report, in which nothing failed.

    Raises:
        AssertionError: lists every check that failed, what is wrong, and the usual fix.
    """
    return insist(report(Subject("embedding", component, options)))


def check_encoder(component: type, **options: Any) -> Report:
    """Checks an encoder: x (B, T, D) and mask (B, T) to x of its own `dim`, and to whatever else its `returns` names.

    Args:
        component: The class. It is built on an x of 6 numbers a word, which holds NaN in the padding.
        options: Its options, as a YAML would give them.

    Returns:
        The report, in which nothing failed.

    Raises:
        AssertionError: lists every check that failed, what is wrong, and the usual fix.
    """
    return insist(report(Subject("encoder", component, options)))


def check_head(component: type, **options: Any) -> Report:
    """Checks a head: `loss` and `decide`, and `score` and `metrics` where it has them.

    Args:
        component: The class. Its `answer` says which targets it gets: tags over the labels PER and LOC, one of the
            labels a, b and c, a text through a small target vocabulary, or an answer within the second of two texts.
            Beside x (6 numbers a word) and mask it may ask for `state` (B, 6) and, to read pairs of texts, `segments`.
        options: Its options, as a YAML would give them.

    Returns:
        The report, in which nothing failed.

    Raises:
        AssertionError: lists every check that failed, what is wrong, and the usual fix.
    """
    return insist(report(Subject("head", component, options)))


def check_tokenizer(component: type, **options: Any) -> Report:
    """Checks a tokenizer: texts to a `tokenizers.Tokenizer` in which everything is data. Needs no torch.

    Args:
        component: The class. It is trained on a few texts of several scripts, each given three times.
        options: Its options, as a YAML would give them.

    Returns:
        The report, in which nothing failed.

    Raises:
        AssertionError: lists every check that failed, what is wrong, and the usual fix.
    """
    return insist(report(Subject("tokenizer", component, options)))


def check_reader(
    component: type, content: str | bytes, expected: Sequence[Mapping[str, Any]], /, **options: Any
) -> Report:
    """Checks a reader: a file to records, one at a time. Needs no torch.

    Args:
        component: The class.
        content: What stands in the file; best two records or more, so that it shows whether the reader streams.
        expected: The records that should come, in order, each without `where`.
        options: Its options, as a YAML would give them.

    Returns:
        The report, in which nothing failed.

    Raises:
        AssertionError: lists every check that failed, what is wrong, and the usual fix.
    """
    return insist(report(Subject("reader", component, options), content=content, expected=expected))


def check_package(package: str, settings: Mapping[str, Any]) -> list[Report]:
    """Checks every component of an installed distribution, and its entry points; what fails is in the reports.

    Options that have no default come from the settings, or from `Field(examples=[…])` in their annotation. Readers are
    read nothing: what a file should hold only a test of the package can say, with `check_reader`.

    Args:
        package: Name of the distribution, as pip knows it.
        settings: Options by `option` for every component that has it, or by `component.option` for one.

    Returns:
        A report for each entry point, then one for each component.

    Raises:
        UsageError: if there is no such plugin package, or a setting names none of its components.
    """
    from seqpipe.testing.package import check_installed

    return check_installed(package, settings)


def report(
    subject: Subject,
    name: str = "",
    content: str | bytes | None = None,
    expected: Sequence[Mapping[str, Any]] = (),
) -> Report:
    """The report of all checks of a component. What needs torch is imported here."""
    name = name or f"{subject.kind} {subject.cls.__name__}"
    with tempfile.TemporaryDirectory(prefix="seqpipe-testing-") as path:
        folder = Path(path)
        if subject.kind == "reader":
            from seqpipe.testing.readers import reader_checks

            return inspected(name, reader_checks(subject, content, expected, folder))
        if subject.kind == "tokenizer":
            from seqpipe.testing.tokenizers import tokenizer_checks

            return inspected(name, tokenizer_checks(subject))
        from seqpipe.testing.bench import Bench
        from seqpipe.testing.graphs import Graph
        from seqpipe.testing.heads import head_checks
        from seqpipe.testing.incremental import incremental_checks, streaming_checks
        from seqpipe.testing.stages import quiet, stage_checks

        bench = Bench(subject, folder)
        more = head_checks(bench) if subject.kind == "head" else incremental_checks(bench)
        with quiet():
            return inspected(name, [*stage_checks(bench), *more, *streaming_checks(bench), *Graph(bench).checks()])
