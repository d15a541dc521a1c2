"""The tree of the exceptions of seqpipe, each with its exit code.

SeqpipeError
├── UsageError          2   an invalid command or call
│   └── ConfigError     2   a YAML with errors, all of them listed
├── PluginError         2   a component that is missing or cannot be loaded
├── DataError           3   an invalid data file or input
│   ├── OpenChoiceError 3   data that can be learned from in two ways, which are as good
│   └── SkippedError    8   inputs without an answer, which were skipped with --on-error skip
├── TrainingError       4   training that cannot continue
├── ExportError         5   a pipeline that cannot be exported
│   └── ParityError     5   a graph whose answers differ from PyTorch
├── BundleError         6   a damaged, manipulated or incompatible bundle
├── EnvError            7   something that this machine lacks
└── InterruptedRunError 130   a signal, after a checkpoint was saved (128 + its number)
"""

from __future__ import annotations

import difflib
import itertools
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")

LFS_POINTER = b"version https://git-lfs"  # first bytes of the file that Git LFS puts in place of a large one
LFS_FIX = "is a pointer of Git LFS, not the file itself; run `git lfs pull` where it was cloned"
MAX_NAME = 100  # characters of a name or value that a message repeats


class SeqpipeError(Exception):
    """Base class of the exceptions of seqpipe; the message names the fix."""

    exit_code = 1


class UsageError(SeqpipeError):
    exit_code = 2


@dataclass(frozen=True)
class Problem:
    """One mistake in a YAML: its place (line and column from 1; 0: command line), its key, and the message."""

    file: str
    line: int
    column: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class ConfigError(UsageError):
    """A YAML that cannot be run; `problems` lists every mistake."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems = sorted(problems, key=lambda problem: (problem.line, problem.column))
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> Any:  # a pool of processes pickles the exceptions of its workers
        return type(self), (self.problems,)


class PluginError(SeqpipeError):
    exit_code = 2


class DataError(SeqpipeError):
    exit_code = 3

    @classmethod
    def at(cls, record: Mapping[str, Any], message: str) -> Self:
        """Return the error of one record; the message begins with the record's place."""
        return cls(f"{record.get('where', 'record')}: {message}")


def attempts(function: Callable[..., T], *columns: Iterable[Any]) -> list[T | DataError]:
    """Return the function's value for each row of these columns, or the DataError about the row.

    The last column may be the result of other attempts: its errors stay.
    """
    results: list[T | DataError] = []
    for row in zip(*columns, strict=True):
        try:
            results.append(row[-1] if isinstance(row[-1], DataError) else function(*row))
        except DataError as error:
            results.append(error)
    return results


class OpenChoiceError(DataError):
    """Two readings of a data file that are equally good; `readings` has the options of `seqpipe init` for each."""

    def __init__(self, data: object, question: str, readings: Sequence[Sequence[str]]):
        self.data, self.question, self.readings = data, question, [list(options) for options in readings]
        self.commands = [shlex.join(["seqpipe", "init", str(data), *options]) for options in readings]
        super().__init__("\n".join([f"{data}: {question}; nothing was written. Choose one:", *self.commands]))

    def __reduce__(self) -> Any:
        return type(self), (self.data, self.question, self.readings)


class SkippedError(DataError):
    """Inputs with an error in place of an answer: `skipped` of `count`."""

    exit_code = 8

    def __init__(self, message: str, count: int = 0, skipped: int = 0):
        self.count, self.skipped = count, skipped
        super().__init__(message)

    @classmethod
    def of(cls, source: object, count: int, skipped: int) -> Self:
        """Return the error about the inputs of a source."""
        fix = "each has an error in its place; correct these and run them again"
        return cls(f"{source}: {skipped:,} of {count:,} inputs have no answer; {fix}", count, skipped)


class TrainingError(SeqpipeError):
    exit_code = 4


class ExportError(SeqpipeError):
    exit_code = 5


class ParityError(ExportError):
    """The graph, or the bundle, does not answer as PyTorch does.

    Attributes:
        input: Input of the graph, if the bundle reads it differently from training.
        evidence: Arrays of the first batch that differs, by names for a file.
        outputs: Names of the outputs that differ.
    """

    input = ""
    evidence: Mapping[str, Any] = {}
    outputs: Sequence[str] = ()


class BundleError(SeqpipeError):
    exit_code = 6


class EnvError(SeqpipeError):
    exit_code = 7


class InterruptedRunError(SeqpipeError):
    """A signal ended the run after its state was saved."""

    def __init__(self, signal_number: int, message: str):
        self.exit_code = 128 + signal_number
        super().__init__(message)

    def __reduce__(self) -> Any:
        return type(self), (self.exit_code - 128, str(self))


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the hint for a misspelt name: `; did you mean 'x'?`, or "" if no name is similar.

    A name of more than 100 characters is similar to none: the comparison would take time with the square of its length.
    It is compared with the first 1,000 names.
    """
    if len(str(name)) > MAX_NAME:
        return ""
    short = [candidate for candidate in itertools.islice(names, 1_000) if len(candidate) <= MAX_NAME]
    close = difflib.get_close_matches(str(name), short, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def install_command(*extras: str) -> str:
    """Return the command that installs the packages of extras of seqpipe, quoted for sh, cmd and PowerShell.

    It names the packages, not seqpipe, so it works wherever seqpipe was installed from. Where no metadata of seqpipe
    lists them, as in a source tree on the path of Python, it names the folder of the tree.
    """
    from importlib.metadata import distributions

    from packaging.requirements import Requirement

    metadata = next(iter(distributions(name="seqpipe-nlp")), None)
    needs = map(Requirement, (metadata and metadata.requires) or ())  # the build has resolved extras of extras
    chosen = [need for need in needs if need.marker and any(need.marker.evaluate({"extra": extra}) for extra in extras)]
    packages = " ".join(f'"{str(need).partition(";")[0]}"' for need in chosen)
    return f"pip install {packages}" if packages else f'pip install "{Path(__file__).parents[1]}[{",".join(extras)}]"'


def is_failed_allocation(error: Exception) -> bool:
    """Return whether memory could not be allocated; PyTorch raises RuntimeError for that of a CPU."""
    known = ("can't allocate memory", "bad_alloc")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in known)
    )
