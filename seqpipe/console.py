"""Output for a person: lines and progress on stderr, text without control characters, tables of text."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

EVERY = 30.0  # seconds between lines, at least, if there is no terminal
PARTS = 10  # lines about a step of known length, at most, if there is no terminal
BAR_WIDTH = 10  # columns of a bar
LineKind = Literal["message", "warning", "detail", "result"]
RED_CODE, YELLOW_CODE, BOLD_CODE = "31", "33", "1"


def printable(text: str) -> str:
    """Return the text with each control character except line breaks replaced by its code."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def text_table(table: Sequence[Sequence[object]], numbers: bool = False) -> list[str]:
    """Format rows of cells as lines in columns; with `numbers`, all columns except the first are right-aligned."""
    rows = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row] for row in table]
    widths = [max(map(text_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            gap = " " * (width - text_width(cell))
            cells.append(gap + cell if numbers and column else cell + gap)
        lines.append("  ".join(cells).rstrip())
    return lines


def text_width(text: str) -> int:
    """Return the number of columns on a terminal: two for each Chinese or Japanese character."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def with_relative_paths(text: str) -> str:
    """Return a text in which places, such as `data.csv:12`, are relative to the working folder, if they are in it."""
    folder = os.getcwd()
    return text if folder == os.sep else re.sub(rf"(?<![\w/.-]){re.escape(folder + os.sep)}(?=[^\s:]*:\d)", "", text)


def write_error(text: str, style: str = "") -> None:
    """Write a line to standard error; on a terminal wrapped at words, and in a style unless NO_COLOR is set."""
    text = with_relative_paths(text)
    if sys.stderr.isatty():
        width, lines = shutil.get_terminal_size().columns, []
        for line in text.split("\n"):
            indent = line[: len(line) - len(line.lstrip())] + "  "
            if text_width(line) > width and "seqpipe " not in line:  # a command to copy stays on one line
                line = textwrap.fill(
                    line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
                )
            lines.append(line)
        text = "\n".join(lines)
        if style and text and not os.environ.get("NO_COLOR"):
            text = f"\x1b[{style}m{text}\x1b[0m"
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@dataclass(frozen=True)
class Progress:
    """One report on the work of a pipeline, for a callback.

    Attributes:
        kind: `message`, `warning`, `detail` (with --verbose) or `result` (a score): a line of text. `step`: progress of
            a long step. `end`: that step has ended, or failed.
        text: The line, or the name of the step, such as `training`.
        done: Completed amount of the step, such as batches.
        total: Total amount of the step; None if it is unknown.
        note: Remark on the step, such as the epoch and the loss.
    """

    kind: LineKind | Literal["step", "end"]
    text: str
    done: int = 0
    total: int | None = None
    note: str = ""


class Tick(Protocol):
    def __call__(self, done: int, note: str = "") -> None: ...


class Console:
    """Messages at one of three verbosity levels: -1 quiet, 0 normal, 1 verbose. As a callback it prints reports."""

    on_epoch: Callable[[list[dict[str, Any]]], Any] | None = None  # receives the history; a true result ends training

    def __init__(self, volume: int = 0, tables: bool = False):
        self.volume, self._has_tables = volume, tables  # whether tables go to standard output
        self._step = contextlib.ExitStack()
        self._tick: Tick | None = None

    def __call__(self, progress: Progress) -> None:
        """Print a line, advance the progress of a step, or end it."""
        if progress.kind == "step":
            if self._tick is None:
                self._tick = self._step.enter_context(self.progress(progress.text, progress.total))
            if progress.done:
                self._tick(progress.done, progress.note)
        elif progress.kind == "end":
            self._tick = None
            self._step.close()
        else:
            self.report(progress.kind, progress.text)

    def report(self, kind: LineKind, text: str) -> None:
        """Print a line of this kind, if it is not too verbose."""
        if kind == "result":
            write_error(text, BOLD_CODE)
        elif self.volume >= (1 if kind == "detail" else 0):
            write_error(text, YELLOW_CODE if text.lstrip().startswith(("note:", "warning:")) else "")

    def say(self, text: str = "") -> None:
        """Print a line, unless quiet."""
        self.report("message", text)

    def table(self, text: str) -> None:
        """Print a table of results, or a line that sums it up; to standard output, if it has nothing else."""
        if self._has_tables and self.volume >= 0:
            sys.stdout.write(printable(with_relative_paths(text)) + "\n")
        else:
            self.say(text)

    def warn(self, text: str, indent: str = "") -> None:
        """Print a warning about a probable mistake."""
        self.report("warning", f"{indent}warning: {text}")

    def result(self, text: str) -> None:
        """Print a requested line at any verbosity."""
        self.report("result", text)

    def detail(self, text: str) -> None:
        """Print a line only if verbose."""
        self.report("detail", text)

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Tick]:
        """Yield a function to call with the completed amount."""
        if self.volume >= 0 and sys.stderr.isatty():
            with self._bar(what, total) as tick:
                yield tick
            return
        last = start = time.monotonic()
        first = part = 0  # the amount at the first tick, which is not 0 in a resumed run

        def line(done: int, note: str = "") -> None:
            nonlocal last, first, part
            first, now = first or done, time.monotonic()
            if now - last >= EVERY and not (total and PARTS * done // total == part):
                last, amount, part = now, f"{done:,}", PARTS * done // (total or done)
                if total:
                    seconds = (now - start) * (total - done) / max(1, done - first)
                    amount += f" of {total:,}, {timedelta(seconds=round(seconds))} left"
                self.say(f"  {what}: {amount}; {note}".removesuffix("; "))

        yield line

    @contextlib.contextmanager
    def _bar(self, what: str, total: int | None) -> Iterator[Tick]:
        from rich import console, progress

        text = progress.TextColumn
        amount: tuple[progress.ProgressColumn, ...] = (progress.TaskProgressColumn(), progress.TimeRemainingColumn())
        if total is None:
            amount = (text("{task.fields[count]}"), progress.TimeElapsedColumn())
        columns = (text("{task.description}"), progress.BarColumn(BAR_WIDTH), *amount, text("{task.fields[note]}"))
        screen = console.Console(stderr=True)
        with progress.Progress(*columns, console=screen, transient=True) as bar:
            task = bar.add_task(what, total=total, note="", count="")

            def tick(done: int, note: str = "") -> None:
                # The last parts of a note that is too long for the line are left out: nothing is cut.
                room, parts = screen.width - len(what) - BAR_WIDTH - len(f" {done:,}  0:00:00 ") - 4, note.split(", ")
                while parts and text_width(", ".join(parts)) > room:
                    parts.pop()
                bar.update(task, completed=done, note=", ".join(parts), count=f"{done:,}")

            yield tick


def in_notebook() -> bool:
    """Return whether this code runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class ProgressBar(Console):
    """A callback that shows a bar of tqdm for each step, in a notebook as a widget; of the rest nothing, if quiet."""

    def report(self, kind: LineKind, text: str) -> None:
        super().report("message" if kind == "result" else kind, text)

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Tick]:
        """Show a bar, which disappears when the step is complete."""
        from tqdm.auto import tqdm  # text with a warning where ipywidgets is missing

        with tqdm(total=total, desc=what, leave=False) as bar:

            def tick(done: int, note: str = "") -> None:
                bar.set_postfix_str(note, refresh=False)
                bar.update(done - bar.n)

            yield tick


class CallbackConsole(Console):
    """A console that prints nothing: all messages go to a callback; True: a `ProgressBar`, as None is in a notebook."""

    def __init__(self, callback: Callable[[Progress], None] | bool | None):
        super().__init__()
        if callback is True or (callback is None and in_notebook()):
            callback = ProgressBar(-1)
        self.callback = callback or (lambda progress: None)
        self.warnings: list[str] = []

    def report(self, kind: LineKind, text: str) -> None:
        self.callback(Progress(kind, text))

    def warn(self, text: str, indent: str = "") -> None:
        self.warnings.append(text)
        super().warn(text, indent)

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Tick]:
        """Report the start and the end of a step; yield a function to call with the completed amount."""
        self.callback(Progress("step", what, 0, total))

        def tick(done: int, note: str = "") -> None:
            self.callback(Progress("step", what, done, total, note))

        try:
            yield tick
        finally:
            self.callback(Progress("end", what, 0, total))
