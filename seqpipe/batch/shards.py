"""Answer many or large files in parts: one output file each, which processes and machines share and a kill spares."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from glob import glob
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from seqpipe.batch.files import Span, input_format, output_format, predict_file
from seqpipe.batch.job import PredictJob
from seqpipe.batch.tables import ENDINGS, ending
from seqpipe.console import Console
from seqpipe.errors import DataError, SeqpipeError, SkippedError, UsageError
from seqpipe.files import PACKED, download, input_sha256, json_bytes, make_folder, open_file, sha256_file, write
from seqpipe.runtime.decode_options import options_of, resolve_options
from seqpipe.runtime.opened import OpenedBundle

MIN_PART_BYTES, MAX_PART_BYTES, USUAL_PARTS = 1 << 16, 1 << 26, 256  # so many parts, within these sizes
MEDIA_PER_PART = 64  # pictures or sounds of a part
PARTS_MANIFEST = "manifest.json"
FILES = {"text": "jsonl", "jsonl": "jsonl", "conll": "conll"}  # endings of output files by their format
_KEYS = {"number", "file", "records", "skipped", "sha256"}  # of the description of a complete part that are read
_LINES = ("text", "jsonl")  # formats whose files are divided at the ends of lines


@dataclass(frozen=True)
class InputPart:
    """A file, the lines of a file between two bytes (`span`), or pictures or sounds: the input of one output file."""

    number: int
    sources: tuple[Path, ...]
    form: str
    span: Span | None

    @property
    def name(self) -> str:
        """Name of its files without their ending, such as part-00012."""
        return f"part-{self.number:05d}"

    def describe(self) -> dict[str, Any]:
        """Return the part as JSON data: its place among the inputs, and the sha256 of all of its files.

        Raises UsageError and DataError as `input_sha256`.
        """
        about = {"number": self.number, "sources": [*map(str, self.sources)]}
        about |= {"source_sha256": [input_sha256(source) for source in self.sources]}
        return {**about, "format": self.form, "span": self.span and [*self.span]}


def input_files(inputs: Sequence[str], media: bool = False) -> list[Path]:
    """Return the files of paths, patterns such as in/*.jsonl, folders and URLs; UsageError if one has none.

    Of a folder the data files directly in it, or with `media` all files in it, the hidden ones left out.
    """
    files: list[Path] = []
    for name in inputs:
        if "://" in name:
            files += download(name)
            continue
        path = Path(name)
        if path.is_dir():
            endings = {*ENDINGS, ".txt"}
            within = path.rglob("[!.]*") if media else (file for file in path.iterdir() if ending(file) in endings)
            matches = [file for file in within if file.is_file()]
        elif path.exists():
            matches = [path]
        elif any(sign in name for sign in "*?["):
            matches = [file for file in map(Path, glob(name, recursive=True)) if file.is_file()]
        else:
            with open_file(path):  # DataError, which names what is like it
                matches = [path]
        if not matches:
            fix = "name files that exist; files of a folder are read if their names end in .txt, .jsonl, .csv, …"
            raise UsageError(f"--input {name}: there is no such file; {fix}")
        files += sorted(matches)
    return list(dict.fromkeys(files))


def plan(files: Sequence[Path], formats: Sequence[str]) -> list[InputPart]:
    """Return the parts of files; the same for every shard, since it depends only on the files and their sizes."""
    sizes = [file.stat().st_size for file in files]
    size = min(MAX_PART_BYTES, max(MIN_PART_BYTES, sum(sizes) // USUAL_PARTS))
    parts: list[InputPart] = []
    for file, form, total in zip(files, formats, sizes, strict=True):
        spans: list[Span | None] = [None]
        if form in _LINES and file.suffix not in PACKED and total > size:
            ends = [*_line_ends(file, range(size, total, size)), total]
            spans = [(start, end) for start, end in zip([0, *ends], ends, strict=False) if start < end]
        parts += [InputPart(len(parts) + number, (file,), form, span) for number, span in enumerate(spans, 1)]
    return parts


def media_plan(files: Sequence[Path]) -> list[InputPart]:
    """Return the parts of pictures or sounds."""
    groups = (tuple(files[start : start + MEDIA_PER_PART]) for start in range(0, len(files), MEDIA_PER_PART))
    return [InputPart(number, group, "media", None) for number, group in enumerate(groups, 1)]


def _line_ends(file: Path, places: Sequence[int]) -> Iterator[int]:
    """Yield the end of the line that contains the byte before each place."""
    with file.open("rb") as stream:
        for place in places:
            stream.seek(place - 1)
            while (line := stream.readline(MIN_PART_BYTES)) and not line.endswith(b"\n"):
                pass
            yield stream.tell()


@dataclass(frozen=True)
class PartWriter:
    """Answers parts with one model into a folder; pickled, it opens the model again."""

    model: OpenedBundle
    job: PredictJob
    folder: Path

    def __call__(self, part: InputPart, about: Mapping[str, Any]) -> dict[str, Any]:
        """Write the answers of a part, and then its description `about` with their count, size and hash; return it.

        Raises:
            DataError: for the first input that cannot be answered.
            UsageError: if the file is no longer the one of `about`; the part is then incomplete.
        """
        job = replace(self.job, form=part.form)
        target = self.folder / f"{part.name}.{FILES[output_format(self.model, job, part.form)]}"
        skipped = 0
        try:
            count = predict_file(self.model, job, part.sources, target, part.span, progress=False)
        except SkippedError as error:
            count, skipped = error.count, error.skipped
        description = self.folder / f"{part.name}.json"
        _compare(description, about, part.describe())
        entry = {**about, "file": target.name, "records": count, "skipped": skipped}
        entry |= {"bytes": target.stat().st_size, "sha256": sha256_file(target)}
        write(description, json_bytes(entry, 1) + b"\n")
        return entry


Descriptions = Mapping[InputPart, Mapping[str, Any]]
Engine = Callable[[PartWriter, Descriptions], Iterator[dict[str, Any]]]  # yields the completed descriptions of parts


def answer_here(writer: PartWriter, parts: Descriptions) -> Iterator[dict[str, Any]]:
    """Answer parts in this process, one after the other; yield their completed descriptions."""
    return (writer(part, about) for part, about in parts.items())


def answer_in_processes(count: int, writer: PartWriter, parts: Descriptions) -> Iterator[dict[str, Any]]:
    """Answer parts in at most `count` processes with one model each; yield their completed descriptions.

    The first error, and the end of the process that started them, end all; SeqpipeError if one is killed.
    """
    context, items, running = multiprocessing.get_context("spawn"), [*parts.items()], dict[Any, Any]()
    with contextlib.ExitStack() as stack:
        for index in range(min(count, len(items))):
            receiver, sender = context.Pipe(duplex=False)
            arguments = sender, pickle.dumps((writer, dict(items[index::count]))), gc.get_threshold()
            process = running[receiver] = context.Process(target=_answer_share, args=arguments)
            process.start()
            sender.close()
            stack.callback(process.join)
            stack.callback(process.terminate)  # without effect on one that has ended
        while running:
            for receiver in list[Any](wait([*running])):
                try:
                    entry = receiver.recv()
                except EOFError:
                    process = running.pop(receiver)
                    process.join()
                    if not process.exitcode:
                        continue
                    entry = SeqpipeError(f"a process ended with exit code {process.exitcode}")
                if isinstance(entry, Exception):
                    Console().say("a process failed, and the others are stopped; continue with --resume")
                    raise entry
                yield entry


def _answer_share(sender: Any, content: bytes, threshold: tuple[int, int, int]) -> None:
    """Answer parts in a process; send their completed descriptions, or the error that ends it."""
    gc.set_threshold(*threshold)  # of the command; Python's default is a tenth slower
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # which removes a file that is half-written
    try:
        for entry in answer_here(*pickle.loads(content)):
            sender.send(entry)
    except SystemExit:
        os._exit(1)  # Python would wait for runs of the graph
    except (SeqpipeError, OSError, MemoryError) as error:
        sender.send(error)


def answer_parts(
    model: OpenedBundle, job: PredictJob, files: Sequence[Path], folder: Path, engine: Engine = answer_here
) -> None:
    """Write the answers of the job's shard to `folder`: part-00001.jsonl, …, and beside each a description of it.

    The concatenated parts are the answers to the concatenated inputs. A part appears when it is complete; `job.resume`
    skips those that exist. When all parts of all shards exist, `manifest.json` lists them with their counts and hashes.
    `engine` answers the parts that are missing, in any order.

    Inputs are compared by their sha256: those of the shard before it is answered, and all before `manifest.json` is
    written. A file is read once for that, and complete parts remain.

    Raises:
        UsageError: if there are answers already and the job does not resume, if they are those of other inputs or
            options or of another bundle, if a file changes while it is answered, or is a pipe.
        DataError: for the first input that cannot be answered or read; complete parts remain.
        SkippedError: at the end, if the job skips errors and inputs of the shard have an error in place of an answer.
    """
    predictor, names = model.predictor, job.names or ()
    resolve_options(predictor.options, options_of({}, job.options, predictor.options), predictor.kind)
    if job.media:
        parts = media_plan(files)
    else:
        parts = plan(files, [input_format(model, job.form, file, names or model.fields) for file in files])
    shared = {"bundle": model.sha256, "options": {**job.options}, "documents": job.documents, "on_error": job.on_error}
    shared |= {"field": [*names], "parts": len(parts)}
    selected = parts[job.shard.index - 1 :: job.shard.count] if job.shard else parts
    sources = {source for part in selected for source in part.sources}
    # Other shards have parts of the same files; a file that they answered before it was changed is found at once.
    entries = {part: _read_entry(folder, part) for part in parts if not sources.isdisjoint(part.sources)}
    if not job.resume and any(entries[part] for part in selected):
        raise UsageError(f"{folder}: has answers already; add --resume to continue, or name another folder")
    about = {part: {**part.describe(), **shared} for part in entries}
    for part, entry in entries.items():
        _compare(folder / f"{part.name}.json", entry or about[part], about[part])
    make_folder(folder)
    complete = [entry for part in selected if (entry := entries[part]) and _is_intact(folder, entry)]
    numbers = {entry["number"] for entry in complete}
    missing = {part: about[part] for part in selected if part.number not in numbers}
    with Console().progress("parts", len(selected)) as tick:
        for entry in engine(PartWriter(model, job, folder), missing) if missing else ():
            complete.append(entry)
            tick(len(complete))
    every = [entry for part in parts if (entry := _read_entry(folder, part))]
    if len(every) == len(parts):
        for part, entry in zip(parts, every, strict=True):
            _compare(folder / f"{part.name}.json", entry, {**part.describe(), **shared})
        write(folder / PARTS_MANIFEST, json_bytes({"parts": every}, 1) + b"\n")
    if skipped := sum(entry["skipped"] for entry in complete):
        raise SkippedError.of(folder, sum(entry["records"] for entry in complete), skipped)


def _compare(path: Path, entry: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Raise UsageError if a part with the description `entry` was not answered from what `about` states."""
    differs = next((key for key, value in about.items() if entry.get(key) != value), None)
    fix = "name another folder, or remove this one"
    if differs == "source_sha256" and differs in entry:
        hashes = zip(about["sources"], about[differs], entry[differs], strict=True)
        changed = next(name for name, current, before in hashes if current != before)
        problem = f"has changed since it was answered: its sha256 is not the one in {path}"
        raise UsageError(f"{changed}: {problem}; restore it, or answer it into another folder")
    if differs:
        problem = "differs from that of this command" if differs in entry else "is not stated"
        raise UsageError(f"{path}: {differs!r} {problem}; {fix}")


def _is_intact(folder: Path, entry: Mapping[str, Any]) -> bool:
    file = folder / entry["file"]
    return file.is_file() and sha256_file(file) == entry["sha256"]


def _read_entry(folder: Path, part: InputPart) -> dict[str, Any] | None:
    """Return the description of a complete part, or None."""
    path = folder / f"{part.name}.json"
    return read_description(path, _KEYS, "remove it, and continue with --resume") if path.exists() else None


def read_description(path: Path, keys: Set[str], fix: str) -> dict[str, Any]:
    """Return the description of a file of answers, which has these keys; DataError with the fix if it is damaged."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: damaged: {error}; {fix}") from error
    if not (isinstance(content, dict) and keys <= content.keys()):
        raise DataError(f"{path}: damaged: it must have {', '.join(sorted(keys))}; {fix}")
    return content
