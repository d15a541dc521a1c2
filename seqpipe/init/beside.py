"""Readings of several files: parallel files, a file for each label, and folders."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
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
from seqpipe.init.lines import count_lines
from seqpipe.init.objects import set_offsets, summarise_annotations
from seqpipe.init.summary import DataSummary, LabelKind, count, spread_records
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
    is_one_name = "." in first and first.rpartition(".")[0] == second.rpartition(".")[0]
    if is_one_name or (_WORDS.search(first) and _WORDS.sub("", first) == _WORDS.sub("", second)):
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
    same = {path: _field(path, lines) for path, lines in near.items() if len(lines) == len(mine)}
    facts: Facts = {Fact(BESIDE): math.log2(len(mine)) + 5}
    facts[Fact("names belong together")] = max((names[path] for path in same), default=0.0)
    if data.name in SLOT_FILES:
        fields = {path.name: field for path, field in same.items()}
        yield from _slots(file, facts, fields | {data.name: _field(data, mine)})
        return
    for path, field in same.items():
        yield from _pair(file, facts, _field(data, mine), field, path, names[path], len(same))
    yield from _by_label(file, near, names)
    for path, lines in near.items():
        is_parallel = not same and names[path] > 1 and lines and not _is_polar(data, path)
        if is_parallel and abs(len(lines) - len(mine)) <= max(2, 0.1 * len(mine)):
            problem = f"has {len(mine):,} lines, and {path.name} beside it {len(lines):,}"
            fix = f"{problem}; if they are parallel, give both the same number of lines"
            facts = {Fact("nearly as many lines"): 27.0, Fact("names belong together"): names[path]}
            yield Reading("a file of parallel lines", None, {}, facts, fix=fix)
            return


def _field(path: Path, lines: list[str]) -> Field:
    return Field(path.name, spread(lines, EXAMINED_LINES))


def _is_polar(data: Path, path: Path) -> bool:
    return all(_POLAR.fullmatch(_bare(file).rpartition(".")[2]) for file in (data, path))


def _parallel(file: DataFile, name: str, facts: Facts, fields: dict[str, str], learns: LabelKind) -> Reading:
    """Return the reading of parallel files, whose names are those of the fields."""
    patterns = {
        role: _side(name) if learns == "Texts" else name.replace("train", "*", 1) for role, name in fields.items()
    }
    roles = {name: role for role, name in fields.items()}
    return Reading(name, learns, roles, facts, complete=partial(_summarise_parallel, file, patterns))


def _slots(file: DataFile, facts: Facts, files: dict[str, Field]) -> Iterator[Reading]:
    """Yield seq.in with seq.out, or with label, or with both."""
    if "seq.in" not in files:
        return
    tags, label = files.get("seq.out"), files.get("label")
    if tags is not None:
        fields = {"words": "seq.in", "tags": "seq.out"} | ({"label": "label"} if label else {})
        facts |= {Fact("as many tags as words"): CAP, Fact("texts"): 10.0}
        yield _parallel(file, "files of words, tags and labels", facts, fields, "Entities")
    elif label:
        facts |= {Fact("few values"): repeats(label.size, label.different), Fact("texts"): 10.0}
        fields = {"text": "seq.in", "label": "label"}
        yield _parallel(file, "files of texts and labels", facts, fields, "Labels")


def _pair(
    file: DataFile, facts: Facts, mine: Field, other: Field, path: Path, bits: float, number: int
) -> Iterator[Reading]:
    """Yield two files of as many lines: texts and labels, or texts and what is written for them."""
    text, target = (mine, other) if mine.is_a("texts", "repeated texts") else (other, mine)
    few = target.is_a("few values", "truth values", "ratings", "the same value in every row")
    if text.is_a("texts", "repeated texts") and few and (target.different > 1 or _LABELS.fullmatch(target.name)):
        facts = facts | {Fact("few values", (target.name,)): repeats(target.size, target.different)}
        facts[Fact("texts")] = textual(text)
        fields = {"text": text.name, "label": target.name}
        yield _parallel(file, "files of texts and labels", facts, fields, "Labels")
        return
    alike = similar_lengths(mine, other)
    is_pair = all(field.is_a("texts", "repeated texts", "names", "words") for field in (mine, other))
    if not is_pair or number > 3 or _is_polar(file.path, path) or (bits < 15 and alike < 8):
        return
    is_target = _TEXTS.fullmatch(other.name) and not _TEXTS.fullmatch(mine.name)
    source, target = (other, mine) if is_target else (mine, other)
    facts = facts | {Fact("lengths go together"): alike, Fact("two texts"): 10.0}
    yield _parallel(file, "parallel files", facts, {"text": source.name, "target": target.name}, "Texts")


def _side(name: str) -> str:
    """Return the pattern of the files of one side, such as *.en and *.en.gz."""
    packed = next((ending for ending in PACKED if name.endswith(ending)), "")
    return f"*.{name.removesuffix(packed).rpartition('.')[2]}{packed}"


def _by_label(file: DataFile, near: dict[Path, list[str]], names: dict[Path, float]) -> Iterator[Reading]:
    """Yield a file of texts for each label, such as reviews.pos and reviews.neg."""
    stem = _bare(file.path).rpartition(".")[0]
    group = [path for path in near if names[path] == 15 and stem and _bare(path).rpartition(".")[0] == stem]
    labels = {_bare(path).rpartition(".")[2]: path.name for path in sorted([file.path, *group])}
    lines = Field("lines", spread(file.filled, EXAMINED_LINES))
    is_polar = len(labels) > 1 and all(map(_POLAR.fullmatch, labels))
    if is_polar and lines.is_a("texts", "repeated texts", "names"):
        facts = {Fact("files of one name"): 25.0, Fact("names of labels"): 25.0, Fact(BESIDE): 0.0}
        summary = DataSummary("lines", label_kind="Labels")
        summary.options["labels"] = {label: name.replace("train", "*", 1) for label, name in labels.items()}
        summary.why = f"the files {' and '.join(labels.values())} have the texts of a label each"
        roles = {"lines": "text", "files": "label"}
        complete = partial(count_lines, file, summary)
        yield Reading("a file of texts for each label", "Labels", roles, facts, complete=complete)


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
    form: tuple[str, LabelKind, Callable[[DataFile, Reading], DataSummary]] | None = None
    roles = {}
    if endings[".ann"]:
        form = "brat's folder", "Entities", _summarise_brat
    elif any(folder.rglob("*_usersays_*.json")):
        form = "Dialogflow's folder", "Entities", _summarise_dialogflow
    elif any(endings[ending] for ending in _SOUNDS) and endings[".txt"]:
        form = "a folder of sounds and transcripts", "Texts", _summarise_sounds
    elif any(endings[ending] for ending in (*_SOUNDS, *_PICTURES)):
        fix = "write a table with the path of each file and its text or label in columns `file` and `label`"
        yield Reading("a folder of pictures or sounds", None, {}, facts, fix=fix)
    elif any(path.parent != folder for path in paths) and not endings[".arrow"]:
        form = "a folder of texts for each label", "Labels", _summarise_labelled_folders
        roles = {"files": "text", "folders": "label"}
    elif not endings[".arrow"]:
        data = [str(path) for path in paths if path.suffix in (".csv", ".tsv", ".json", ".jsonl", ".conll", ".conllu")]
        join = f"`cat {folder}/*{max(endings, key=endings.__getitem__, default='.txt')} > {folder.name}.txt`"
        fix = f"for a language model join them: {join}; for labels, make a folder for each"
        if data:
            fix = f"give one of its files, such as {data[0]}"
        yield Reading("a folder of files without labels", None, {}, facts, fix=fix)
    if form:
        name, learns, complete = form
        yield Reading(name, learns, roles, facts, complete=partial(complete, file))


def _summarise_brat(file: DataFile, reading: Reading) -> DataSummary:
    summary = DataSummary("brat", saw="a folder of brat's texts and annotations")
    set_offsets(summary, file.path)
    return count(summary, file.path)


def _summarise_dialogflow(file: DataFile, reading: Reading) -> DataSummary:
    kinds = file.request.task.kinds if file.request.task else ()
    return summarise_annotations(DataSummary("dialogflow"), file.path, kinds)


def _summarise_sounds(file: DataFile, reading: Reading) -> DataSummary:
    saw = "a folder of sounds and their transcripts"
    summary = DataSummary("sounds", label_kind="Texts", media="sound", fields=["audio"], saw=saw)
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
