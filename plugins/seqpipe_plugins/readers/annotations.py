"""Reader of the files of annotation tools, chatbots and data sets: a table of forms, and what walks it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from seqpipe.plugin import DataError, Offsets, StatedSpan, UsageError, did_you_mean, open_file, stated_span
from seqpipe.plugin import tagging_schemes as schemes

from . import Record, check_encoding, file_lines, number_lines
from .json_stream import JsonStream
from .objects import Spans

BILOU: schemes.Scheme = "BILOU"
SAMPLE = 50  # items that tell the form of a file
Found = tuple[Any, tuple[Any, ...], tuple[str, ...]]  # a value, the objects around it, and the keys on the way


@dataclass(frozen=True, kw_only=True)
class Form:
    """One form: paths to what a record holds.

    A path names keys and places in lists, separated by dots: `[]` stands for every item of a list, `*` for every key of
    an object, `^` for the object around, `{0}` for the first key that a `*` stood for, nothing for the value itself.
    Of alternatives, separated by a bar, the first that is there counts. Paths begin at a text: at `each` within an item
    of the list `lists`.

    Args:
        of: Origin of such files, for people.
        lists: Path of the list of items in the file; nothing: the file is the list, or a line is an item.
        each: Path of the texts' places in an item.
        text, chunks: Path of the text; or of its parts, some of which are spans.
        markup: How spans are marked in the text: a key of MARKUP.
        spans: Path of the spans, as `stated_span` reads them, or of objects with the paths `start`, `end` and `kind`.
        offsets: What their offsets count; "tokens": words and punctuation marks, the end inclusive.
        labels: Path of the labels, or of an object of a number for each, of which those from 0.5 on hold.
        words, tags: Paths of words and their tags in BILOU.
        target: Path of the text to write.
        question, answers: Paths of a question on the passage at `text`, and of answers, which may have no offsets.
        keep: Path and value that an item must have, such as `answer=accept`; others are left out.
        needs: Paths that most items have, by which the form is recognised beside the text.
    """

    of: str
    lists: str = ""
    each: str = ""
    text: str = ""
    chunks: str = ""
    markup: str = ""
    spans: str = ""
    start: str = ""
    end: str = ""
    kind: str = ""
    offsets: Offsets | str = "characters"
    labels: str = ""
    words: str = ""
    tags: str = ""
    target: str = ""
    question: str = ""
    answers: str = ""
    keep: str = ""
    needs: tuple[str, ...] = ()


# fmt: off
FORMS = {
    "rasa": Form(of="Rasa's nlu.yml or nlu.md", lists="nlu", each="examples.[]", text="text|", markup="rasa",
        labels="^.intent|^.^.intent", needs=("^.intent",)),
    "rasa-json": Form(of="Rasa's JSON", lists="rasa_nlu_data.common_examples", text="text", spans="entities.[]",
        labels="intent", needs=("intent|entities",)),
    "intents": Form(of="a chatbot's intents with examples", lists="intents|",
        each="patterns.[]|examples.[]|utterances.[]|training_phrases.[]|questions.[]", text="text|",
        labels="^.tag|^.intent|^.name|^.label", needs=("^.tag|^.intent|^.name|^.label",)),
    "snips": Form(of="Snips' JSON of intents", lists="intents.*.utterances|*", chunks="data.[]",
        kind="slot_name|entity|alias|meta", labels="{0}", needs=("data.[].text",)),
    "dialogflow": Form(of="Dialogflow's JSON of what users say", chunks="data.[]", kind="alias|meta",
        needs=("data.[].userDefined",)),
    "luis": Form(of="LUIS' JSON", lists="utterances", text="text", spans="entities.[]|entityLabels.[]",
        start="startPos|startCharIndex", end="endPos|endCharIndex", kind="entity|entityName", offsets="inclusive",
        labels="intent|intentName", needs=("intent|intentName", "entities|entityLabels")),
    "nlu-evaluation": Form(of="JSON of the NLU evaluation corpora", lists="sentences", text="text",
        spans="entities.[]", start="start", end="stop", kind="entity", offsets="tokens", labels="intent",
        needs=("intent", "entities")),
    "massive": Form(of="MASSIVE's JSON", text="annot_utt", markup="massive", labels="intent",
        needs=("utt", "annot_utt")),
    "label-studio": Form(of="Label Studio's JSON", text="data.text|data.*",
        spans="annotations.0.result.[].value|completions.0.result.[].value", start="start", end="end",
        kind="labels.[]|hypertextlabels.[]",
        labels="annotations.0.result.[].value.choices.[]|completions.0.result.[].value.choices.[]",
        keep="annotations.0.result|completions.0.result",
        needs=("data", "annotations.0.result|completions.0.result")),
    "prodigy": Form(of="Prodigy's JSON Lines", text="text", spans="spans.[]", labels="accept.[]",
        keep="answer=accept", needs=("answer", "_input_hash|_task_hash|_view_id|tokens|options", "spans|accept")),
    "spacy": Form(of="spaCy's pairs of text and annotations", lists="annotations|", text="0", spans="1.entities.[]",
        labels="1.cats", keep="1", needs=("1.entities|1.cats",)),
    "spacy-cats": Form(of="texts with spaCy's cats", text="text", spans="ents.[]|entities.[]|spans.[]", labels="cats",
        needs=("cats.*",)),
    "spacy-json": Form(of="spaCy's JSON of documents", each="paragraphs.[].sentences.[]", words="tokens.[].orth",
        tags="tokens.[].ner", needs=("tokens.[].ner",)),
    "dataturks": Form(of="DataTurks' JSON Lines", text="content", spans="annotation.[].points.[]", start="start",
        end="end", kind="^.label.[]", offsets="inclusive", labels="annotation.labels.[]", needs=("annotation",)),
    "doccano": Form(of="doccano's older JSON Lines", text="text|data", spans="annotations.[]", start="start_offset",
        end="end_offset", kind="label", needs=("annotations.[].start_offset",)),
    "cluener": Form(of="CLUENER's JSON Lines", text="text", spans="label.*.*.[]", start="0", end="1", kind="{0}",
        offsets="inclusive", needs=("label.*.*.[].1",)),
    "questions": Form(of="questions on passages, such as CMRC's", lists="data|", each="qas.[]",
        text="^.context_text|^.context|^.passage", question="query_text|question|query",
        answers="answers.[]|answer|detected_answers.[]",
        needs=("query_text|question|query", "^.context_text|^.context|^.passage")),
    "text-to-sql": Form(of="questions with their SQL, as in text2sql-data", each="sentences.[]", text="text",
        target="^.sql.0", needs=("^.sql.0",)),
    "pairs": Form(of="lists of a text and its label", lists="data|", text="0", labels="1.[]|1", needs=("1",)),
    "lists": Form(of="lists of texts by their labels", lists="intents.*|*", labels="{0}"),
}
# fmt: on

# A marked span in a text: its own text, and the pattern's group of its label.
MARKUP: Mapping[str, re.Pattern[str]] = {
    "rasa": re.compile(
        r'\[(?P<text>[^][]+)\](?:\((?P<kind>[^():]+)(?::[^()]*)?\)|\{[^{}]*?"entity": *"(?P<json>[^"]+)"[^{}]*\})'
    ),
    "massive": re.compile(r"\[(?P<kind>\w+) : (?P<text>[^][]+)\]"),
}
_COLUMNS = {"text", "texts", "label", "labels", "target", "id", "sentence", "words", "tags", "train", "data"}  # names
_TOKEN = re.compile(r"\w+|[^\w\s]")
_EXAMPLE = re.compile(r"\s*[-*+] ?(.*)")
_BRAT = re.compile(r"T\d+\t(?P<label>\S+) (?P<start>\d+) (?P<end>\d+)(?P<more>(;\d+ \d+)*)\t(?P<text>.*)")
_SECTION = re.compile(r"##\s*(\w+):\s*(.*)")


def find(place: Found, path: str) -> Iterator[Found]:
    """Yield the values at a path from a place."""
    for alternative in path.split("|"):
        values = _walk(place, alternative.split(".") if alternative else [])
        if first := next(values, None):
            yield first
            yield from values
            return


def _walk(place: Found, steps: Sequence[str]) -> Iterator[Found]:
    value, around, keys = place
    if not steps:
        if value is not None:
            yield place
        return
    step, rest = steps[0], steps[1:]
    if step == "^" and around:
        yield from _walk((around[-1], around[:-1], keys), rest)
    elif step == "{0}" and keys:
        yield from _walk((keys[0], around, keys), rest)
    elif step == "*" and isinstance(value, dict):
        for key, part in value.items():
            yield from _walk((part, (*around, value), (*keys, key)), rest)
    elif step == "[]" and isinstance(value, list):
        for part in value:
            yield from _walk((part, around, keys), rest)
    elif isinstance(value, dict) and step in value:
        yield from _walk((value[step], (*around, value), keys), rest)
    elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
        yield from _walk((value[int(step)], around, keys), rest)


def _first(place: Found, path: str) -> Any:
    """Return the first value at a path; None without a path, or if nothing stands there."""
    return next((value for value, _, _ in find(place, path)), None) if path else None


class Annotations(Spans):
    """Reads the files of annotation tools, chatbots and data sets in the form that they have.

    A record has what its form has: `text` with `spans`, `labels` and, where there is one alone, `label`; `words` and
    `tags`; a `target` to write; or `question`, `context` and `answers`. What was rejected is left out.

    Args:
        form: Name of the form.
        encoding: Encoding of the file.
        offsets: What the offsets of spans count; null: what those of the form do. `data.offsets` sets it.
    """

    fields = ("text", "words", "tags", "spans", "label", "labels", "where")

    def __init__(self, *, form: str, encoding: str = "utf-8", offsets: Offsets | None = None):
        if form not in FORMS:
            there = f"there is: {', '.join(FORMS)}"
            raise UsageError(f"annotations.form: no form is named {form!r}{did_you_mean(form, FORMS)}; {there}")
        self.form, self.encoding, self.omitted = FORMS[form], check_encoding(encoding), 0
        stated: Any = "characters" if self.form.offsets == "tokens" else self.form.offsets
        self.offsets = offsets or stated

    @staticmethod
    def recognise(path: Path, encoding: str = "utf-8") -> str | None:
        """Return the name of the form of a file, by its first texts; None if it has none of the forms."""
        keys, root = {"", "*", "nlu"}, dict[str, Any]()
        try:  # a large object is parsed once for its keys, and not by every form in vain
            with open_file(path) as file:
                content = file.read().decode(encoding).removeprefix("\ufeff").lstrip()
            if content.startswith("{"):
                root = json.loads(content)
                keys = {"*", *root}
        except (DataError, ValueError, RecursionError):
            pass  # lines, or damaged JSON, which is an error when it is read
        for name, form in FORMS.items():
            if keys.isdisjoint(steps.split(".")[0] for steps in form.lists.split("|")):
                continue
            reader = Annotations(form=name, encoding=encoding)
            try:
                places = [place for place, _ in islice(reader.places(path, SAMPLE), 10 * SAMPLE)]
            except (DataError, RecursionError):
                continue
            texts = [text for place in places if (text := reader.text_of(place)) is not None]
            needs = [sum(_first(place, need) is not None for place in places) for need in form.needs]
            if not texts or len(texts) < 0.9 * len(places) or min(needs, default=len(places)) < len(places) / 3:
                continue
            if name == "lists":
                holder = root.get("intents", root)
                lists = list(holder.values()) if isinstance(holder, dict) else []
                if len(lists) < 2 or not all(part and isinstance(part, list) for part in lists):
                    continue
            if name in ("lists", "pairs"):
                labels = {str(_first(place, form.labels)) for place in places}
                is_columns = not {label.lower() for label in labels}.isdisjoint(_COLUMNS)
                named = all(0 < len(label) < 60 for label in labels) and len({*texts}) >= 0.9 * len(texts)
                written = sum(" " in text or not text.isascii() for text in texts) >= len(texts) / 2
                if is_columns or not (named and written):
                    continue
            return name
        return None

    def text_of(self, place: Found) -> str | None:
        """Return the text at a place; None if there is none."""
        form = self.form
        if form.words:
            words = [word for word, _, _ in find(place, form.words)]
            return " ".join(words) if words and all(isinstance(word, str) for word in words) else None
        if form.chunks:
            parts = [_first(part, "text") for part in find(place, form.chunks)]
            return "".join(parts) if parts and all(isinstance(part, str) for part in parts) else None
        if form.question and not isinstance(_first(place, form.question), str):
            return None
        text = next((value for value, _, _ in find(place, form.text) if isinstance(value, str)), None)
        return text if text and text.strip() else None

    def places(self, path: Path, most: int | None = None) -> Iterator[tuple[Found, int]]:
        """Yield the places of texts in a file or its first items, and the line of each or of the item that holds it."""
        items = self._sections(path) if self.form.lists == "nlu" else self._items(path)
        for value, keys, line in islice(items, most):
            yield from ((place, line) for place in find((value, (), keys), self.form.each))

    def _items(self, path: Path) -> Iterator[tuple[Any, tuple[str, ...], int]]:
        """Yield the items of JSON: of a list, of lists below keys, or one a line."""
        lists = [steps.split(".") for steps in self.form.lists.split("|") if steps]
        is_list, filled = "" in self.form.lists.split("|"), self._filled(path)
        try:
            first, second = next(filled, ("", 1)), next(filled, None)
            is_lines = bool(second or (first[0].startswith("{") and not lists)) and json.loads(first[0]) is not None
        except (DataError, ValueError, RecursionError):  # one long line, or the first of several of a JSON text
            is_lines = False
        if is_lines:
            for line, number in self._filled(path) if is_list else ():
                try:
                    yield json.loads(line), (), number
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{path}:{number}: this is not JSON ({error}); correct the line") from error
            return
        with open_file(path) as file:
            stream = JsonStream(file, str(path), f"JSON of {self.form.of}", "correct the file", self.encoding)
            if stream.next() == "{":
                yield from self._below(stream, lists, ())
            elif is_list:
                yield from ((value, (), line) for value, line in stream.items())

    def _filled(self, path: Path) -> Iterator[tuple[str, int]]:
        """Yield the lines that are not blank, with their numbers."""
        lines = number_lines(file_lines(path, self.encoding), str(path))
        return ((line, number) for number, line in lines if line.strip())

    def _below(
        self, stream: JsonStream, lists: list[list[str]], before: tuple[str, ...]
    ) -> Iterator[tuple[Any, tuple[str, ...], int]]:
        """Yield the items of the lists below the keys of the object that begins here."""
        for key in stream.keys():  # noqa: SIM118 (not a dict)
            named = [steps[1:] for steps in lists if steps[0] == key]
            steps, keys = named or [steps[1:] for steps in lists if steps[0] == "*"], before
            if not named:
                keys = (*before, str(key))
            sign = stream.next()
            if steps and sign == "[" and [] in steps:
                yield from ((value, keys, line) for value, line in stream.items())
            elif any(steps) and sign == "{":
                yield from self._below(stream, [rest for rest in steps if rest], keys)
            else:
                stream.value()

    def _sections(self, path: Path) -> Iterator[tuple[Any, tuple[str, ...], int]]:
        """Yield Rasa's intents, each with a list of examples, of YAML or Markdown."""
        source = number_lines(file_lines(path, self.encoding), str(path))
        head = list(islice(source, 1))
        if head and head[0][1].startswith(("{", "[")):
            return  # JSON
        lines = [*head, *source]
        if any(_SECTION.match(line) for _, line in lines):
            intent: dict[str, Any] | None = None
            start = 0
            for number, line in [*lines, (0, "## end: ")]:
                if match := _SECTION.match(line):
                    if intent:
                        yield intent, (), start
                    intent, start = (
                        ({"intent": match[2].strip(), "examples": []} if match[1] == "intent" else None),
                        number,
                    )
                elif intent and (example := _EXAMPLE.match(line)):
                    intent["examples"].append(example[1].strip())
            return
        if not any(line.startswith("nlu:") for _, line in lines):
            return
        try:
            loader = yaml.BaseLoader("\n".join(line for _, line in lines))
            root = loader.get_single_node()
            for key, section in getattr(root, "value", ()):
                for node in section.value if getattr(key, "value", "") == "nlu" else ():
                    intent = loader.construct_document(node)
                    examples = intent.get("examples") if isinstance(intent, dict) and "intent" in intent else None
                    if isinstance(examples, str):
                        matches = map(_EXAMPLE.match, examples.splitlines())
                        intent["examples"] = [match[1].strip() for match in matches if match]
                    elif isinstance(examples, list):
                        for example in examples:
                            if isinstance(example, dict) and isinstance(example.get("text"), str):
                                match = _EXAMPLE.match(example["text"])
                                example["text"] = (match[1] if match else example["text"]).strip()
                    if examples:
                        yield intent, (), node.start_mark.line + 1
        except (yaml.YAMLError, ValueError, AttributeError, TypeError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{path}:{mark.line + 1}" if mark else str(path)
            raise DataError(
                f"{where}: this is not YAML of Rasa ({' '.join(str(error).split())}); correct it"
            ) from error

    def items(self, path: Path) -> Iterator[Record]:
        number, before, empty = 0, 0, True
        for place, line in self.places(path):
            number = number + 1 if line == before else 1
            before = line
            where = f"{path}:{line}" + (f" (text {number})" if number > 1 else "")
            try:
                record = self._record(place, where)
            except DataError as error:
                self.leave_out(error)
                continue
            self.omitted += record is None
            if record is not None:
                empty = False
                yield {**record, "where": where}
        if empty:
            raise DataError(f"{path}: there is no text in this file in the form of {self.form.of}")

    def _record(self, place: Found, where: str) -> Record | None:
        """The record at a place; None if it is to be left out."""
        form = self.form
        path, _, wanted = form.keep.partition("=")
        kept = _first(place, path) if path else True
        if kept is None or (wanted and kept != wanted):
            return None
        text = self.text_of(place)
        if text is None:
            if form.words:
                return None
            raise DataError(f"{where}: no text stands here in the form of {form.of}; write one, or remove this")
        if form.question:
            return self._question(place, text, where)
        record: Record = {"text": text}
        if form.words:
            words, tags = ([str(value) for value, _, _ in find(place, path)] for path in (form.words, form.tags))
            if len(words) != len(tags) or "-" in tags:  # a sentence in which not all is annotated
                return None
            wrong = [tag for tag in tags if not schemes.belongs(tag, BILOU)] or schemes.strict_problem(tags, BILOU)
            if wrong:
                raise DataError(f"{where}: the tags are not well-formed BILOU ({wrong}); correct them")
            tags = schemes.to_tags(schemes.from_scheme(tags, BILOU), len(tags), "IOB2")
            return {**record, "words": words, "tags": tags}
        if form.markup:
            record = self._marked(text)
        elif form.spans or form.chunks:
            record["spans"] = self.spans_of(self._stated(place, text, where), text, where)
        if form.target:
            target = _first(place, form.target)
            if not isinstance(target, str) or not target.strip():
                raise DataError(f"{where}: there is no text to write at {form.target!r}; write one, or remove this")
            record["target"] = target
        if form.labels:
            labels: list[str] = []
            for value, _, _ in find(place, form.labels):
                if isinstance(value, dict):
                    labels += [key for key, part in value.items() if isinstance(part, (int, float)) and part >= 0.5]
                else:
                    labels.append(str(value))
            record["labels"] = list(dict.fromkeys(label for label in labels if label.strip()))
            if len(record["labels"]) == 1:
                record["label"] = record["labels"][0]
        return record

    def _stated(self, place: Found, text: str, where: str) -> Iterator[StatedSpan]:
        """Yield the spans of a text as the file states them."""
        form, at = self.form, 0
        for part in find(place, form.chunks):
            if form.chunks:
                end = at + len(_first(part, "text"))
                if (kind := _first(part, form.kind)) is not None and text[at:end].strip():
                    blank = len(text[at:end]) - len(text[at:end].lstrip())
                    yield StatedSpan(at + blank, len(text[:end].rstrip()), (str(kind),))
                at = end
        tokens = [match.span() for match in _TOKEN.finditer(text)] if form.offsets == "tokens" else []
        for part in find(place, form.spans) if form.spans else ():
            if not form.start:
                span = stated_span(part[0])
                if span is None:
                    raise DataError(
                        f"{where}: here is no span in the form of {form.of}: {str(part[0])[:80]}; correct it"
                    )
                yield span
                continue
            start, end, stated = _first(part, form.start), _first(part, form.end), _first(part, "text")
            if tokens and isinstance(start, int) and isinstance(end, int) and 0 <= start <= end < len(tokens):
                start, end = tokens[start][0], tokens[end][1]
            if start is not None:  # a label of the whole text has no place
                kinds = tuple(str(kind) for kind, _, _ in find(part, form.kind))
                yield StatedSpan(start, end, kinds or (None,), stated if isinstance(stated, str) else None)

    def _marked(self, text: str) -> Record:
        """The text without its marks, and the spans that they mark."""
        parts: list[str] = []
        spans, at, size = [], 0, 0
        for match in MARKUP[self.form.markup].finditer(text):
            parts += [text[at : match.start()], match["text"]]
            start = size + match.start() - at
            size, at = start + len(match["text"]), match.end()
            kind = match["kind"] or match["json"]
            spans.append({"start": start, "end": size, "label": kind.strip()})
        return {"text": "".join([*parts, text[at:]]), "spans": spans}

    def _question(self, place: Found, context: str, where: str) -> Record:
        """The record of a question; an answer without offsets stands where it occurs first in the passage."""
        texts, starts = [], []
        for value, _, _ in find(place, self.form.answers):
            is_object = isinstance(value, dict)
            text = value.get("text") if is_object else value
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"{where}: here is no answer: {str(value)[:80]}; write its text")
            start = stated_span({"end": 0, **value}).start if is_object else context.find(text)  # type: ignore[union-attr]
            start = context.find(text) if start is None else start
            if not isinstance(start, int) or context[start : start + len(text)] != text or start < 0:
                at = context.find(text)
                fix = f"it stands at {at}: correct its start" if at >= 0 else "correct it, or remove the question"
                raise DataError(f"{where}: the answer {text[:40]!r} does not stand at its place in the passage; {fix}")
            texts.append(text)
            starts.append(start)
        question = str(_first(place, self.form.question))
        return {"question": question, "context": context, "answers": {"text": texts, "answer_start": starts}}


class Brat(Spans):
    """Reads a folder of brat's texts and annotations (Stenetorp et al. 2012): of 17.txt the spans are in 17.ann.

    A record is a line of a text with its spans; lines that share a span are one record. Relations, events, attributes
    and notes are left out, and spans of several parts.

    Args:
        encoding: Encoding of the texts.
        offsets: What the offsets of spans count. `data.offsets` sets it.
    """

    fields = ("text", "spans", "where")
    folder = True

    def __init__(self, *, encoding: str = "utf-8", offsets: Offsets = "characters"):
        self.encoding, self.offsets = check_encoding(encoding), offsets

    def files(self, path: Path) -> list[Path]:
        """Every file that is read; DataError if there is none."""
        annotations = sorted(Path(path).rglob("*.ann")) if Path(path).is_dir() else []
        if not annotations:
            raise DataError(
                f"{path}: there is no file *.ann in this folder; give the folder of brat's .txt and .ann files"
            )
        return [file for annotation in annotations for file in (annotation.with_suffix(".txt"), annotation)]

    def items(self, path: Path) -> Iterator[Record]:
        for file in self.files(path):
            if file.suffix == ".txt":
                yield from self._lines(file)

    def _lines(self, file: Path) -> Iterator[Record]:
        lines = list(file_lines(file, self.encoding))
        text, spans = "".join(lines), []
        annotations = file.with_suffix(".ann")
        for number, line in number_lines(file_lines(annotations, self.encoding), str(annotations)):
            if not line.startswith("T"):
                continue
            match = _BRAT.fullmatch(line)
            if match is None:
                raise DataError(f"{annotations}:{number}: not a span of brat's; write T1<TAB>label 0 5<TAB>text")
            if match["more"]:
                continue
            stated = StatedSpan(int(match["start"]), int(match["end"]), (match["label"],), match["text"])
            try:
                spans += self.spans_of([stated], text, f"{annotations}:{number}")
            except DataError as error:
                self.leave_out(error)
        spans.sort(key=lambda span: (span["start"], span["end"]))
        start = 0
        parts: list[tuple[int, int, int]] = []  # start, end and line of each record
        for number, line in enumerate(lines, 1):
            end = start + len(line.rstrip("\r\n"))
            if parts and any(span["start"] < start < span["end"] for span in spans):
                parts[-1] = (parts[-1][0], end, parts[-1][2])
            else:
                parts.append((start, end, number))
            start += len(line)
        for start, end, number in parts:
            if text[start:end].strip():
                inside = [span for span in spans if start <= span["start"] and span["end"] <= end]
                moved = [{**span, "start": span["start"] - start, "end": span["end"] - start} for span in inside]
                yield {"text": text[start:end], "spans": moved, "where": f"{file}:{number}"}
