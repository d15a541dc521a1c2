"""The conformance kit for authors of plugins: checks of a component, given its class and options.

seqpipe checks its own components with it. In a test:

```python
from seqpipe.testing import check_encoder
from acme_conv.gated import GatedConv

def test_it_fulfils_the_contract():
    check_encoder(GatedConv, hidden=8)
```

Each function takes the class and, by keyword, the options that a YAML would give; choose small sizes, so that the
checks are quick. It builds a whole pipeline of toy components around the component, trains, exports and compares it. It
returns the Report, or raises AssertionError with every failed check, what is wrong and the usual fix.

For every kind of component:

- *options round-trip*: the options are unchanged after they are written to the resolved YAML of a run and read.
- *unknown option refused*: a misspelt option is an error.
- *import*: the module is imported in under a second (without torch) and prints nothing; that of a reader or tokenizer
  does not import torch.
- *no file or network access*: while it is built, trained and used, its code opens only the files of its package and
  of its options, opens no connection, and starts no process.

For an embedding, encoder or head:

- *it is built*: with these options, in a pipeline that provides its inputs.
- *shapes over a grid*: the outputs have the declared shape and dtype for every batch size and length from 1.
- *padding invariance*: NaN, huge numbers and other ids in the padding change nothing, the loss included.
- *batch invariance*: a row has the same answer alone, in a batch, and in another order.
- *a decision in float64*: a copy in float64 decides in float64, for the comparison of graphs at export.
- *determinism*: the same seed gives the same weights and losses; evaluation gives the same answer twice.
- *gradient reaches every parameter*, except those with `requires_grad_(False)`.
- *save and load bit-equal*: everything learned is in the weights.
- *resume bit-equal*: training that is stopped and resumed ends with the same weights.
- *export with free axes*, *standard operators only*, *onnxruntime parity on ragged shapes*: one graph works
  for every batch size and length, has operators of ai.onnx only, and gives the answers of PyTorch.

For an encoder or a head that answers a text in chunks (`export.streaming`) also:

- *answers in chunks are those of the whole text*: for ragged texts, which begin and end at different times.

For a head also:

- *targets reach the loss*: the loss changes with the targets.
- *decision as its answer kind declares*: `decide` returns the outputs of the kind, which can be made into answers.
- *score agrees with decide*: `score` gives a decision the log-probability that `decide` gives it.
- *own metrics run*: `metrics` returns finite numbers under names that the answer kind does not use.
- *corruption as declared*: `corrupt_batch` is deterministic in evaluation, random in training, and changes the loss.
- *calibration is saved*: the values that `calibrate` chooses are in the weights, and `calibration` returns them as
  JSON.

For a tokenizer: *trains a tokenizer*, *determinism*, *special tokens have ids 0 to 3*, *everything is in
tokenizer.json* (saved and loaded, it encodes and decodes alike), *offsets point at the text* (in order, not
overlapping), and *words and whole text agree* (a word has the same id or pieces in a whole text and in a text already
split into words).

For a reader: *expected records*, *where is file:line*, *a bad line is a DataError* (with file and line), and *streams*
(yields the first record of a large file before it has read the whole file).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqpipe.testing.package import check_component, check_installed
from seqpipe.testing.report import Finding, Report, Subject, require_success, table

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
        component: The class. The features that it declares are computed as in every pipeline.
        options: Its options, as a YAML would give them.

    Returns:
        The report, in which nothing failed.

    Raises:
        AssertionError: lists every check that failed, what is wrong, and the usual fix.
    """
    return require_success(check_component(Subject("embedding", component, options)))


def check_encoder(component: type, **options: Any) -> Report:
    """Checks an encoder: x (B, T, D) and mask (B, T) to x of width `dim`, and the other names in its `returns`.

    Args:
        component: The class. Its input is an x of 6 numbers per word, with NaN in the padding.
        options: Its options, as a YAML would give them.

    Returns:
        The report, in which nothing failed.

    Raises:
        AssertionError: lists every check that failed, what is wrong, and the usual fix.
    """
    return require_success(check_component(Subject("encoder", component, options)))


def check_head(component: type, **options: Any) -> Report:
    """Checks a head: `loss` and `decide`, and `score` and `metrics` if it has them.

    Args:
        component: The class. Its `answer` determines the targets: tags over the labels PER and LOC, one of the
            labels a, b and c, a text in a small target vocabulary, or a span of the second of two texts.
            Beside x (6 numbers per word) and mask it may ask for `state` (B, 6) and, for pairs of texts, `segments`.
        options: Its options, as a YAML would give them.

    Returns:
        The report, in which nothing failed.

    Raises:
        AssertionError: lists every check that failed, what is wrong, and the usual fix.
    """
    return require_success(check_component(Subject("head", component, options)))


def check_tokenizer(component: type, **options: Any) -> Report:
    """Checks a tokenizer: texts to a `tokenizers.Tokenizer` without custom Python code. Needs no torch.

    Args:
        component: The class. It is trained on a few texts in several scripts, each three times.
        options: Its options, as a YAML would give them.

    Returns:
        The report, in which nothing failed.

    Raises:
        AssertionError: lists every check that failed, what is wrong, and the usual fix.
    """
    return require_success(check_component(Subject("tokenizer", component, options)))


def check_reader(
    component: type, content: str | bytes, expected: Sequence[Mapping[str, Any]], /, **options: Any
) -> Report:
    """Checks a reader: a file to records, one at a time. Needs no torch.

    Args:
        component: The class.
        content: Content of the file, with at least two records, so that streaming can be checked.
        expected: The expected records in order, without `where`.
        options: Its options, as a YAML would give them.

    Returns:
        The report, in which nothing failed.

    Raises:
        AssertionError: lists every check that failed, what is wrong, and the usual fix.
    """
    return require_success(check_component(Subject("reader", component, options), content=content, expected=expected))


def check_package(package: str, settings: Mapping[str, Any]) -> list[Report]:
    """Checks every component of an installed distribution and its entry points; failures are in the reports.

    Options without a default come from the settings, or from `Field(examples=[…])` in their annotation. Readers get no
    file: only a test of the package knows the content of one, and calls `check_reader`.

    Args:
        package: Name of the distribution, as in `pip install`.
        settings: Options by name: `option` for every component that has it, or `component.option` for one.

    Returns:
        A report per entry point, then one per component.

    Raises:
        UsageError: if there is no such plugin package, or a setting matches none of its components.
    """
    return check_installed(package, settings)
