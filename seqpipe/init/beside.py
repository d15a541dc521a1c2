"""Readings of several files: parallel files, a file for each label, and folders."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from seqpipe.errors import DataError
from seqpipe.files import PACKED, open_file
from seqpipe.init.datafile import DataFile
from seqpipe.init.decide import BESIDE
from seqpipe.init.evidence import CAP, Fact, Facts, Reading, repeats, similar_lengths
from seqpipe.init.fields import Field, spread
from seqpipe.init.labels import textual
from seqpipe.init.objects import set_offsets, summarise_annotations
from seqpipe.init.summary import DataSummary, count, spread_records
from seqpipe.init.tags import set_scheme

MAX_FILES = 300  # files of a folder that are looked at
MAX_BESIDE_BYTES = 30_000_000
EXAMINED_LINES = 3_000
FEW_FILES = 12  # in a folder, in which any two may belong together
PAIRS = 1_000  # targets that are examined
SLOT_FILES = ("seq.in", "seq.out", "label")
_WORDS = re.compile(
    r"texts?|labels?|tags?|words?|source|target|src|tgt|x|y|data|sentences?|inputs?|outputs?|in|out", re.I
)
_POLAR = re.compile("pos(itive)?|neg(ative)?|neu(tral)?|spam|ham|(sub|ob)j(ective)?", re.I)  # labels as endings
_OTHER_ENDINGS = {"txt", "md", "vec", "gold", "train", "dev", "test", "ann", "out"}  # that name no label
_LABELS = re.compile(r"(.*[-_.])?(labels?|y|class(es)?|targets?|intents?)([-_.].*)?", re.I)
_TEXTS = re.compile(r"(.*[-_.])?(texts?|sentences?|sents|data|x|src|source|in|inputs?)([-_.].*)?", re.I)
_SOUNDS = (".wav", ".mp3", ".flac", ".ogg")
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_UNLABELLED = {"unsup", "unlabeled", "unlabelled", "unsupervised"}  # names of folders of texts without a label


def _bare(file: Path) -> str:
    """Return the name of a file without the ending of its compression."""
    return file.name.removesuffix(file.suffix) if file.suffix in PACKED else file.name


def _lines_of(file: Path) -> list[str]:
    """Return the lines of a file; none for a file that is not text."""
    try:
        with open_file(file) as source:
            text = source.read(MAX_BESIDE_BYTES).decode("utf-8", "replace")
    except DataError:
        return []
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _likeness(data: Path, other: Path, is_small: bool, lines: int) -> float:
    """Return the bits by which the names of two files belong together: they differ in an ending, or in a usual word."""
    first, second = _bare(data), _bare(other)
    if first == second or other.suffix in (".py", ".yaml", ".json", ".md", ".spacy") or second.startswith("README"):
        return 0.0
    if first in SLOT_FILES and second in SLOT_FILES:
        return 25.0
    if "." in first and first.rpartition(".")[0] == second.rpartition(".")[0]:
        return 15.0
    if _WORDS.search(first) and _WORDS.sub("", first) == _WORDS.sub("", second):
        return 15.0
    return 1.0 if is_small and lines > 50 and other.suffix == data.suffix else 0.0


def read_beside(file: DataFile) -> Iterator[Reading]:
    """Files beside this one with as many lines, by chance one in as many as there are lines."""
    if file.is_folder or file.json or not file.text or file.is_binary_table:
        return
    data, mine = file.path, _lines_of(file.path)
    if sum("\t" in line for line in mine) > 0.5 * len(mine) or len(mine) < 5:
        return
    folder = [path for path in sorted(data.parent.iterdir())[:MAX_FILES] if path.is_file() and path != data]
    is_small = len(folder) < FEW_FILES
    names = {path: bits for path in folder if (bits := _likeness(data, path, is_small, len(mine)))}
    near = {path: _lines_of(path) for path in names if path.stat().st_size < MAX_BESIDE_BYTES}
    same = {path: lines for path, lines in near.items() if len(lines) == len(mine)}
    facts: Facts = {Fact(BESIDE): math.log2(len(mine)) + 5}
    facts[Fact("names belong together")] = max((names[path] for path in same), default=0.0)
    files = {path: _field(path, lines) for path, lines in {data: mine, **same}.items()}
    if data.name in SLOT_FILES:
        yield from _slots(file, facts, {path.name: field for path, field in files.items()})
        return
    for path in same:
        yield from _pair(file, facts, files[data], files[path], path, names[path], len(same))
    yield from _by_label(file, near, names)
    odd = [path for path, lines in near.items() if names[path] > 1 and lines and len(lines) != len(mine)]
    for path in odd if not same else ():
        size = len(near[path])
        if abs(size - len(mine)) <= max(2, 0.1 * len(mine)) and not _is_polar(data, path):
            problem = f"has {len(mine):,} lines, and {path.name} beside it {size:,}"
            fix = f"{problem}; if they are parallel, give both the same number of lines"
            facts = {Fact("nearly as many lines"): 27.0, Fact("names belong together"): names[path]}
            yield Reading("a file of parallel lines", None, {}, facts, fix=fix)
            return


def _field(path: Path, lines: list[str]) -> Field:
    return Field(path.name, spread(lines, EXAMINED_LINES))


def _is_polar(data: Path, path: Path) -> bool:
    return all(_POLAR.fullmatch(_bare(file).rpartition(".")[2]) for file in (data, path))


def _parallel(file: DataFile, name: str, facts: Facts, fields: dict[str, str], learns: str) -> Reading:
    """Return the reading of parallel files, whose names are those of the fields."""
    roles = {name: role for role, name in fields.items()}
    patterns = {
        role: _side(name) if learns == "Texts" else name.replace("train", "*", 1) for role, name in fields.items()
    }
    reading = Reading(name, learns, roles, facts)  # type: ignore[arg-type]
    reading.complete = partial(_summarise_parallel, file, patterns)
    return reading


def _slots(file: DataFile, facts: Facts, files: dict[str, Field]) -> Iterator[Reading]:
    """Yield seq.in with seq.out, or with label, or with both."""
    if "seq.in" not in files:
        return
    words, tags, label = files["seq.in"], files.get("seq.out"), files.get("label")
    fields = {}
    if tags is not None:
        fields = {"words": "seq.in", "tags": "seq.out"}
        equal = sum(len(a.split()) == len(b.split()) for a, b in zip(words.cells, tags.cells, strict=True))
        if equal > 0.95 * len(words.cells):
            more = facts | {Fact("as many tags as words"): CAP, Fact("texts"): 10.0}
            if label:
                fields["label"] = "label"
            yield _parallel(file, "files of words, tags and labels", more, fields, "Entities")
    elif label and 1 < label.different < 0.5 * len(label.cells):
        more = facts | {Fact("few values"): repeats(label.size, label.different), Fact("texts"): 10.0}
        fields = {"text": "seq.in", "label": "label"}
        yield _parallel(file, "files of texts and labels", more, fields, "Labels")


def _pair(
    file: DataFile, facts: Facts, mine: Field, other: Field, path: Path, bits: float, number: int
) -> Iterator[Reading]:
    """Yield two files of as many lines: texts and labels, or texts and what is written for them."""
    text, target = (mine, other) if mine.is_a("texts", "repeated texts") else (other, mine)
    is_text = text.is_a("texts", "repeated texts")
    few = target.is_a("few values", "truth values", "ratings", "the same value in every row")
    if is_text and few and (target.different > 1 or _LABELS.fullmatch(target.name)):
        more = facts | {Fact("few values", (target.name,)): repeats(target.size, target.different)}
        fields = {"text": text.name, "label": target.name}
        yield _parallel(file, "files of texts and labels", more | {Fact("texts"): textual(text)}, fields, "Labels")
        return
    kinds = ("texts", "repeated texts", "names", "words")
    alike = similar_lengths(mine, other)
    is_pair = mine.is_a(*kinds) and other.is_a(*kinds)  # type: ignore[arg-type]
    if not is_pair or number > 3 or _is_polar(file.path, path) or (bits < 15 and alike < 8):
        return
    is_target = _TEXTS.fullmatch(other.name) and not _TEXTS.fullmatch(mine.name)
    source, target = (other, mine) if is_target else (mine, other)
    more = facts | {Fact("lengths go together"): alike, Fact("two texts"): 10.0}
    fields = {"text": source.name, "target": target.name}
    yield _parallel(file, "parallel files", more, fields, "Texts")


def _side(name: str) -> str:
    """Return the pattern of the files of one side, such as *.en and *.en.gz."""
    packed = next((ending for ending in PACKED if name.endswith(ending)), "")
    return f"*.{name.removesuffix(packed).rpartition('.')[2]}{packed}"


def _by_label(file: DataFile, near: dict[Path, list[str]], names: dict[Path, float]) -> Iterator[Reading]:
    """Yield a file of texts for each label, such as reviews.pos and reviews.neg."""
    stem = _bare(file.path).rpartition(".")[0]
    group = [path for path in near if names[path] == 15 and stem and _bare(path).rpartition(".")[0] == stem]
    labels = {_bare(path).rpartition(".")[2]: path for path in sorted([file.path, *group])}
    if len(labels) < 2 or labels.keys() & _OTHER_ENDINGS:
        return
    lines = Field("lines", spread(file.filled, EXAMINED_LINES))
    if all(map(_POLAR.fullmatch, labels)) and lines.is_a("texts", "repeated texts", "names"):
        facts = {Fact("files of one name"): 25.0, Fact("names of labels"): 25.0, Fact(BESIDE): 0.0}
        options = {label: path.name.replace("train", "*", 1) for label, path in labels.items()}
        names_of = " and ".join(path.name for path in labels.values())
        reading = Reading("a file of texts for each label", "Labels", {"lines": "text", "files": "label"}, facts)
        reading.complete = partial(_summarise_labelled_files, file, options, names_of)
        yield reading


def _summarise_labelled_files(file: DataFile, labels: dict[str, str], names: str, reading: Reading) -> DataSummary:
    summary = DataSummary("lines", {"labels": labels}, label_kind="Labels")
    summary.why = f"the files {names} have the texts of a label each"
    return count(summary, file.path)


def _summarise_parallel(file: DataFile, fields: dict[str, str], reading: Reading) -> DataSummary:
    """Summarise files that are parallel line by line."""
    summary = DataSummary("parallel", {"fields": fields}, label_kind="Labels" if "label" in fields else "Texts")
    summary.why = f"parallel files, line by line: {', '.join(f'{field} in {name}' for field, name in fields.items())}"
    if "tags" in fields:
        set_scheme(summary, file.path)
        summary.joint = summary.label_kind == "Entities" and "label" in fields
    count(summary, file.path)
    if "target" in fields:
        targets = [record["target"].strip() for record in islice(spread_records(summary, file.path), PAIRS)]
        summary.unspaced = summary.unspaced or sum(" " in target for target in targets) < len(targets) / 2
    return summary


def read_folder(file: DataFile) -> Iterator[Reading]:
    """Folders: brat's annotations, Dialogflow's intents, sounds with transcripts, texts by label, and others."""
    if not file.is_folder:
        return
    folder = file.path
    paths = [path for path in islice(folder.rglob("*"), 5_000) if path.is_file() and not path.name.startswith(".")]
    endings = Counter(path.suffix.lower() for path in paths)
    facts: Facts = {Fact("a form of folders"): CAP}
    if endings[".ann"]:
        yield Reading("brat's folder", "Entities", {}, facts, complete=partial(_summarise_brat, file))
    elif any(folder.rglob("*_usersays_*.json")):
        yield Reading("Dialogflow's folder", "Entities", {}, facts, complete=partial(_summarise_dialogflow, file))
    elif sum(endings[ending] for ending in _SOUNDS) and endings[".txt"]:
        yield Reading(
            "a folder of sounds and transcripts", "Texts", {}, facts, complete=partial(_summarise_sounds, file)
        )
    elif any(endings[ending] for ending in (*_SOUNDS, *_PICTURES)):
        fix = "write a table with the path of each file and its text or label in columns `file` and `label`"
        yield Reading("a folder of pictures or sounds", None, {}, facts, fix=fix)
    elif not endings[".arrow"]:
        children = Counter(path.parent for path in paths)
        if len(children) > 1 or folder not in children:
            reading = Reading(
                "a folder of texts for each label", "Labels", {"files": "text", "folders": "label"}, facts
            )
            reading.complete = partial(_summarise_labelled_folders, file)
            yield reading
        else:
            data = [
                path.name for path in paths if path.suffix in (".csv", ".tsv", ".json", ".jsonl", ".conll", ".conllu")
            ]
            fix = f"give one of its files, such as {folder / data[0]}" if data else _one_file(folder, endings)
            yield Reading("a folder of files without labels", None, {}, facts, fix=fix)


def _one_file(folder: Path, endings: Counter[str]) -> str:
    ((ending, _),) = endings.most_common(1) or [(".txt", 0)]
    join = f"`cat {folder}/*{ending} > {folder.name}.txt`"
    return f"for a language model join them: {join}; for labels, make a folder for each"


def _summarise_brat(file: DataFile, reading: Reading) -> DataSummary:
    summary = DataSummary("brat", saw="a folder of brat's texts and annotations")
    set_offsets(summary, file.path)
    return count(summary, file.path)


def _summarise_dialogflow(file: DataFile, reading: Reading) -> DataSummary:
    return summarise_annotations(
        DataSummary("dialogflow"), file.path, file.request.task.kinds if file.request.task else ()
    )


def _summarise_sounds(file: DataFile, reading: Reading) -> DataSummary:
    summary = DataSummary(
        "sounds", label_kind="Texts", media="sound", fields=["audio"], saw="a folder of sounds and their transcripts"
    )
    for record in spread_records(summary, file.path):
        summary.records += 1
        summary.written.append(record["target"])
    return summary


def _summarise_labelled_folders(file: DataFile, reading: Reading) -> DataSummary:
    """Summarise a folder with a folder of texts for each label."""
    data, summary = file.path, DataSummary("folders", label_kind="Labels")
    suffixes = Counter(path.suffix for path in data.glob("[!.]*/[!.]*") if path.is_file())
    if suffixes and ".txt" not in suffixes:
        ((suffix, _),) = suffixes.most_common(1)
        summary.options["pattern"] = f"*{suffix}"
    folders = sorted(path.name for path in data.glob("[!.]*") if path.is_dir())
    note = "a folder for each label, with a file for each text"
    if unlabelled := [name for name in folders if name in _UNLABELLED]:
        summary.options["labels"] = [name for name in folders if name not in unlabelled]
        note += f"; {', '.join(unlabelled)} has no labels and is left out"
    summary.notes.append(note)
    return count(summary, data)
