"""Reader of the files of annotation tools, chatbots and data sets, by a table of their forms; and of brat's folders."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import yaml

from seqpipe.plugin import DataError, Offsets, StatedSpan, UsageError, did_you_mean, open_file, stated_span
from seqpipe.plugin import tagging_schemes as schemes

from . import Record, check_encoding, file_lines, number_lines
from .json import Item, json_items, parse_json
from .objects import SpanError, SpansReader

USER_SAYS = "_usersays_"  # in the names of Dialogflow's files, after the intent
USERS = {"user", "human", "system", "prompter", "tool", "customer"}  # speakers whose turns are not learned
SAMPLE_ITEMS = 50  # items by which the form of a file is recognised
Place = tuple[Any, tuple[Any, ...], tuple[str, ...]]  # a value, objects around it, keys that a `*` stood for
_RASA = re.compile(
    r'\[(?P<text>[^][]+)\](?:\((?P<kind>[^():]+)(?::[^()]*)?\)|\{[^{}]*?"entity": *"(?P<json>[^"]+)"[^{}]*\})'
)
_MASSIVE = re.compile(r"\[(?P<kind>\w+) : (?P<text>[^][]+)\]")


@dataclass(frozen=True, kw_only=True)
class Form:
    """One form: paths to what a record consists of.

    A path is keys and positions in lists, separated by dots: `[]` is every item of a list, `*` every key of an object,
    `chosen` the annotation of a list that counts, `^` the object around, `{0}` the first key that a `*` stood for; an
    empty path is the value itself. Of alternatives, separated by a bar, the first that leads to a value counts. Paths
    begin at a text: at `each` within an item of the list `lists`.
    """

    of: str  # origin of such files, for people
    lists: str = ""  # path of the list of items in the file; empty: the file is the list, or a line is an item
    each: str = ""  # path of the places of texts in an item
    text: str = ""  # path of the text
    chunks: str = ""  # or path of its parts, some of which are spans
    markup: re.Pattern[str] | None = None  # pattern of a marked span: its `text`, its label `kind` or `json`
    spans: str = ""  # path of the spans, as `stated_span` reads them
    kind: str = ""  # path from a span or part to its label, if `stated_span` does not read it
    offsets: Offsets = "characters"
    by_token: bool = False  # whether offsets count words and punctuation marks, the end inclusive
    labels: str = ""  # path of the labels, or of an object with a number for each, which is 0.5 at least if it is one
    words: str = ""
    tags: str = ""  # path of the tags of words, in BILOU
    target: str = ""  # path of the text to write
    turns: bool = False  # whether places are turns of a chat; one of an assistant is the target for those before it
    question: str = ""  # path of a question on the passage at `text`
    answers: str = ""  # path of its answers, which may have no offsets
    keep: str = ""  # path and value that an item must have, such as `answer=accept`; others are left out
    needs: tuple[str, ...] = ()  # paths that most items have, by which the form is recognised beside the text
    several: str = ""  # path of the list of a text's annotations, of which `chosen` counts
    plain: bool = False  # whether nothing but few short labels of different texts tells the form from other lists


# fmt: off
FORMS = {
    "rasa": Form(of="Rasa's nlu.yml or nlu.md", lists="nlu", each="examples.[]", markup=_RASA, labels="^.intent",
        needs=("^.intent",)),
    "rasa-json": Form(of="Rasa's JSON", lists="rasa_nlu_data.common_examples", text="text", spans="entities.[]",
        labels="intent", needs=("intent|entities",)),
    "intents": Form(of="a chatbot's intents with examples", lists="intents|",
        each="patterns.[]|examples.[]|utterances.[]|training_phrases.[]|questions.[]", text="text|",
        labels="^.tag|^.intent|^.name|^.label", needs=("^.tag|^.intent|^.name|^.label",)),
    "snips": Form(of="Snips' JSON of intents", lists="intents.*.utterances|*", chunks="data.[]",
        kind="slot_name|entity|alias|meta", labels="{0}", needs=("data.[].text",)),
    "dialogflow": Form(of="Dialogflow's JSON of what users say", chunks="data.[]", kind="alias|meta",
        needs=("data.[].userDefined|data.[].alias|data.[].meta",)),
    "luis": Form(of="LUIS' JSON", lists="utterances", text="text", spans="entities.[]|entityLabels.[]",
        kind="entity|entityName", offsets="inclusive", labels="intent|intentName",
        needs=("intent|intentName", "entities|entityLabels")),
    "nlu-evaluation": Form(of="JSON of the NLU evaluation corpora", lists="sentences", text="text",
        spans="entities.[]", kind="entity", by_token=True, labels="intent", needs=("intent", "entities")),
    "massive": Form(of="MASSIVE's JSON", text="annot_utt", markup=_MASSIVE, labels="intent",
        needs=("utt", "annot_utt")),
    "label-studio": Form(of="Label Studio's JSON", text="data.text|data.*",
        spans="annotations.chosen.result.[].value.start.^|completions.chosen.result.[].value.start.^",
        kind="labels.[]|hypertextlabels.[]",
        labels="annotations.chosen.result.[].value.choices.[]|completions.chosen.result.[].value.choices.[]",
        keep="annotations.chosen.result|completions.chosen.result",
        several="annotations|completions", needs=("data", "annotations.chosen.result|completions.chosen.result")),
    "prodigy": Form(of="Prodigy's JSON Lines", text="text", spans="spans.[]", labels="accept.[]",
        keep="answer=accept", needs=("answer", "_input_hash|_task_hash|_view_id|tokens|options", "spans|accept")),
    "spacy": Form(of="spaCy's pairs of text and annotations", lists="annotations|", text="0", spans="1.entities.[]",
        labels="1.cats", keep="1", needs=("1.entities|1.cats",)),
    "spacy-cats": Form(of="texts with spaCy's cats", text="text", spans="ents.[]|entities.[]|spans.[]", labels="cats",
        needs=("cats.*",)),
    "spacy-json": Form(of="spaCy's JSON of documents", each="paragraphs.[].sentences.[]", words="tokens.[].orth",
        tags="tokens.[].ner", needs=("tokens.[].ner",)),
    "dataturks": Form(of="DataTurks' JSON Lines", text="content", spans="annotation.[].points.[]", kind="^.label.[]",
        offsets="inclusive", labels="annotation.labels.[]", needs=("annotation",)),
    "doccano": Form(of="doccano's older JSON Lines", text="text|data", spans="annotations.[]", kind="label",
        needs=("annotations.[].start_offset",)),
    "cluener": Form(of="CLUENER's JSON Lines", text="text", spans="label.*.*.[]", kind="{0}", offsets="inclusive",
        needs=("label.*.*.[].1",)),
    "questions": Form(of="questions on passages, such as CMRC's", lists="data|", each="qas.[]",
        text="^.context_text|^.context|^.passage", question="query_text|question|query",
        answers="answers.[]|answer|detected_answers.[]",
        needs=("query_text|question|query", "^.context_text|^.context|^.passage")),
    "text-to-sql": Form(of="questions with their SQL, as in text2sql-data", each="sentences.[]", text="text",
        target="^.sql.0", needs=("^.sql.0",)),
    "chats": Form(of="chats", each="messages.[]|conversations.[]|conversation.[]|dialogue.[]|dialog.[]|chat.[]",
        text="content|value|text|utterance", turns=True, needs=("role|from|speaker|author|user",)),
    "pairs": Form(of="lists of a text and its label", lists="data|", text="0", labels="1.[]|1", needs=("1",),
        plain=True),
    "lists": Form(of="lists of texts by their labels", lists="intents.*|*", labels="{0}", plain=True),
}
# fmt: on
_COLUMNS = {"text", "texts", "label", "labels", "target", "id", "sentence", "words", "tags", "train", "data"}  # names
_TOKEN = re.compile(r"\w+|[^\w\s]")
_EXAMPLE = re.compile(r"\s*[-*+] ?(.*)")
_BRAT = re.compile(r"T\d+\t(?P<label>\S+) (?P<start>\d+) (?P<end>\d+)(?P<more>(;\d+ \d+)*)\t(?P<text>.*)")
_SECTION = re.compile(r"##\s*(\w+):\s*(.*)")


def find(place: Place, path: str) -> list[Place]:
    """Return the places at a path from a place."""
    for alternative in path.split("|"):
        places = [place]
        for step in alternative.split(".") if alternative else ():
            places = [part for place in places for part in _step(place, step)]
        if places := [place for place in places if place[0] is not None]:
            return places
    return []


def _step(place: Place, step: str) -> list[Place]:
    value, around, keys = place
    if step == "^":
        return [(around[-1], around[:-1], keys)] if around else []
    if step == "{0}":
        return [(keys[0], around, keys)] if keys else []
    if isinstance(value, dict):
        if step == "*":
            return [(part, (*around, value), (*keys, key)) for key, part in value.items()]
        return [(value[step], (*around, value), keys)] if step in value else []
    if isinstance(value, list):
        if step == "chosen":
            chosen = _chosen(value)
            return [] if chosen is None else [(chosen, around, keys)]
        parts = value if step == "[]" else value[int(step) :][:1] if step.isdigit() else []
        return [(part, around, keys) for part in parts]
    return []


def _chosen(annotations: list[Any]) -> dict[str, Any] | None:
    """Return the annotation of a text that counts: the ground truth, or the last that was not cancelled."""
    kept = [item for item in annotations if isinstance(item, dict) and not item.get("was_cancelled")]
    return next((item for item in kept if item.get("ground_truth")), kept[-1] if kept else None)


def _differ(annotations: list[Any]) -> bool:
    """Return whether annotators of a text differ, those of cancelled annotations aside."""
    kept = [item for item in annotations if isinstance(item, dict) and not item.get("was_cancelled")]
    values = [[part.get("value") for part in item.get("result") or [] if isinstance(part, dict)] for item in kept]
    return any(value != values[0] for value in values)


def _values(place: Place, path: str) -> list[Any]:
    return [value for value, _, _ in find(place, path)]


def _first(place: Place, path: str) -> Any:
    """Return the first value at a path; None if there is none."""
    return next(iter(_values(place, path)), None)


class _NumberedLoader(yaml.BaseLoader):
    """Loader of YAML whose objects have the key "line"."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        return {**super().construct_mapping(node, deep), "line": node.start_mark.line + 1}


class Annotations(SpansReader):
    """Reads the files of annotation tools, chatbots and data sets in the form that they have.

    A record has what its form has: `text` with `spans`, `labels` and, where there is one alone, `label`; `words` and
    `tags`; a `target` to write; or `question`, `context` and `answers`. What was rejected is left out.

    Args:
        form: Name of the form.
        encoding: Encoding of the file.
        offsets: What the offsets of spans count; null: what those of the form do. `data.offsets` sets it.
    """

    fields: tuple[str, ...] = ("text", "words", "tags", "spans", "label", "labels", "where")

    def __init__(self, *, form: str, encoding: str = "utf-8", offsets: Offsets | None = None):
        if form not in FORMS:
            there = f"there is: {', '.join(FORMS)}"
            raise UsageError(f"annotations.form: no form is named {form!r}{did_you_mean(form, FORMS)}; {there}")
        self.form, self.encoding, self.omitted = FORMS[form], check_encoding(encoding), 0
        self.differing = 0  # texts on which annotators differ
        self.offsets = offsets or self.form.offsets
        self.empty_message = f"there is no text in this file in the form of {self.form.of}"

    @staticmethod
    def recognise(path: Path, encoding: str = "utf-8") -> str | None:
        """Return the name of the form of a file, by its first texts; None if it has none of the forms."""
        root: Any = None
        # A large object is parsed once for its keys, not once for each form. Errors are those of reading.
        with contextlib.suppress(DataError, ValueError, RecursionError), open_file(path) as file:
            root = json.loads(file.read().decode(encoding).removeprefix("\ufeff"))
        keys = {"*", *root} if isinstance(root, dict) else {"", "*", "nlu"}
        for name, form in FORMS.items():
            if not keys.isdisjoint(steps.split(".")[0] for steps in form.lists.split("|")):
                reader = Annotations(form=name, encoding=encoding)
                with contextlib.suppress(DataError, RecursionError):
                    places = [place for place, _ in islice(reader.places(path, SAMPLE_ITEMS), 10 * SAMPLE_ITEMS)]
                    if reader.fits(places, root):
                        return name
        return None

    def fits(self, places: Sequence[Place], root: Any) -> bool:
        """Return whether the form fits the first places of a file, with this object in it."""
        form = self.form
        texts = [text for place in places if (text := self.text_of(place)[0])]
        needs = [sum(_first(place, need) is not None for place in places) for need in form.needs]
        if not texts or len(texts) < 0.9 * len(places) or min(needs, default=len(places)) < len(places) / 3:
            return False
        if not form.plain:
            return True
        if form.labels == "{0}":
            holder = root.get("intents", root) if isinstance(root, dict) else None
            lists = [*holder.values()] if isinstance(holder, dict) else []
            if len(lists) < 2 or not all(part and isinstance(part, list) for part in lists):
                return False
        labels = {str(_first(place, form.labels)) for place in places}
        is_columns = not {label.lower() for label in labels}.isdisjoint(_COLUMNS)
        named = all(0 < len(label) < 60 for label in labels) and len({*texts}) >= 0.9 * len(texts)
        written = sum(" " in text or not text.isascii() for text in texts) >= len(texts) / 2
        return named and written and not is_columns

    def text_of(self, place: Place) -> tuple[str, list[Record]]:
        """Return the text at a place, empty if there is none, and the spans that are marked in it."""
        form = self.form
        if form.words:
            words = _values(place, form.words)
            return (" ".join(words) if all(isinstance(word, str) for word in words) else ""), []
        if form.question and not isinstance(_first(place, form.question), str):
            return "", []
        pieces: list[tuple[Any, Any]] = []
        if form.chunks:
            pieces = [(_first(part, "text"), _first(part, form.kind)) for part in find(place, form.chunks)]
        else:
            at, marked = 0, next((value for value in _values(place, form.text) if isinstance(value, str)), "")
            for match in form.markup.finditer(marked) if form.markup else ():
                pieces += [(marked[at : match.start()], None), (match["text"], match["kind"] or match["json"])]
                at = match.end()
            pieces.append((marked[at:], None))
        if not all(isinstance(piece, str) for piece, _ in pieces):
            return "", []
        text, spans = "", []
        for piece, kind in pieces:
            if kind is not None and piece.strip():
                start = len(text) + len(piece) - len(piece.lstrip())
                spans.append({"start": start, "end": start + len(piece.strip()), "label": str(kind).strip()})
            text += piece
        return text if text.strip() else "", spans

    def places(self, path: Path, most: int | None = None) -> Iterator[tuple[Place, str]]:
        """Yield the places of texts in a file, or in its first items, and file and line of each or of its item."""
        items = self._intents(path) if self.form.lists == "nlu" else self._items(path)
        for value, keys, where in islice(items, most):
            for number, place in enumerate(find((value, (), keys), self.form.each), 1):
                yield place, where + (f" (text {number})" if number > 1 else "")

    def _items(self, path: Path) -> Iterator[Item]:
        """Yield the items of JSON: of a list, of lists below keys, or one a line."""
        paths = [steps.split(".") if steps else [] for steps in self.form.lists.split("|")]
        lines = ((number, line) for number, line in self._lines(path) if line.strip())
        try:
            (_, first), second = next(lines, (1, "")), next(lines, None)
            is_lines = bool(second or (first.startswith("{") and not any(paths))) and json.loads(first) is not None
        except (DataError, ValueError, RecursionError):  # one long line, or the first of several of a JSON text
            is_lines = False
        if not is_lines:
            yield from json_items(path, paths, self.encoding, f"JSON of {self.form.of}", "correct the file")
        elif [] in paths:
            for number, line in self._lines(path):
                if line.strip():
                    yield parse_json(line, f"{path}:{number}"), (), f"{path}:{number}"

    def _lines(self, path: Path) -> Iterator[tuple[int, str]]:
        return number_lines(file_lines(path, self.encoding), str(path))

    def _intents(self, path: Path) -> Iterator[Item]:
        """Yield Rasa's intents with their examples, of YAML, or of Markdown, where each example is an item."""
        lines, intent = [*self._lines(path)], ""
        for number, line in lines:
            if section := _SECTION.match(line):
                intent = section[2].strip() if section[1] == "intent" else ""
            elif intent and (example := _EXAMPLE.match(line)):
                yield {"intent": intent, "examples": [example[1].strip()]}, (), f"{path}:{number}"
        if not any(line.startswith("nlu:") for _, line in lines):
            return
        try:
            for item in _NumberedLoader("\n".join(line for _, line in lines)).get_single_data()["nlu"]:
                examples = item.get("examples") if isinstance(item, dict) and "intent" in item else None
                if isinstance(examples, str):
                    matches = map(_EXAMPLE.match, examples.splitlines())
                    examples = [match[1].strip() for match in matches if match]
                elif isinstance(examples, list):
                    texts = [example.get("text") if isinstance(example, dict) else example for example in examples]
                    examples = [str(text).strip().removeprefix("- ") for text in texts]
                if examples:
                    yield {**item, "examples": examples}, (), f"{path}:{item['line']}"
        except (yaml.YAMLError, ValueError, AttributeError, LookupError, TypeError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{path}:{mark.line + 1}" if mark else str(path)
            problem = f"this is not YAML of Rasa ({' '.join(str(error).split())})"
            raise DataError(f"{where}: {problem}; correct it") from error

    def items(self, path: Path) -> Iterator[Record]:
        for place, where in self.places(path):
            if self.form.several and any(map(_differ, _values(place, self.form.several))):
                self.differing += 1
            if self._is_rejected(place):
                self.omitted += 1
            else:
                yield from self.read_item(self._record, place, where)

    def _is_rejected(self, place: Place) -> bool:
        """Return whether an annotator rejected a text, or did not annotate all its words; or a turn is no answer."""
        form = self.form
        if form.turns:
            _, before = self._turns(place)
            return not before or str(_first(place, form.needs[0])).lower() in USERS
        path, _, wanted = form.keep.partition("=")
        kept = _first(place, path)
        words, tags = _values(place, form.words), _values(place, form.tags)
        is_partial = bool(form.words) and (not words or len(words) != len(tags) or "-" in tags)
        return is_partial or kept is None or bool(wanted and kept != wanted)

    def _record(self, place: Place, where: str) -> Record:
        form = self.form
        text, spans = self.text_of(place)
        if not text:
            raise DataError(f"{where}: there is no text here in the form of {form.of}; write one, or remove this")
        if form.question:
            answers = self.answers_of([*self._answers(place, text, where)], text, where)
            return {"question": _first(place, form.question), "context": text, "answers": answers}
        if form.turns:
            return {"text": "\n".join(self._turns(place)[1]), "target": text}
        record: Record = {"text": text}
        if form.words:
            tags = [str(tag) for tag in _values(place, form.tags)]
            wrong = [tag for tag in tags if not schemes.belongs(tag, "BILOU")] or schemes.strict_problem(tags, "BILOU")
            if wrong:
                raise DataError(f"{where}: the tags are not well-formed BILOU ({wrong}); correct them")
            tags = schemes.to_tags(schemes.from_scheme(tags, "BILOU"), len(tags), "IOB2")
            return {**record, "words": _values(place, form.words), "tags": tags}
        if form.spans:
            spans = self.spans_of(self._stated_spans(place, text, where), text, where)
        if form.spans or form.chunks or form.markup:
            record["spans"] = spans
        if form.target:
            record["target"] = _first(place, form.target)
            if not isinstance(record["target"], str) or not record["target"].strip():
                raise DataError(f"{where}: there is no text to write at {form.target!r}; write one, or remove this")
        if form.labels:
            labels: list[str] = []
            for value in _values(place, form.labels):
                if isinstance(value, dict):
                    labels += [key for key, part in value.items() if isinstance(part, (int, float)) and part >= 0.5]
                else:
                    labels.append(str(value))
            record["labels"] = list(dict.fromkeys(label for label in labels if label.strip()))
            if len(record["labels"]) == 1:
                record["label"] = record["labels"][0]
        return record

    def _turns(self, place: Place) -> tuple[str, list[str]]:
        """Return the text of a turn, and those of the turns before it in its chat."""
        turn, around, keys = place
        chat = find((around[-1], around[:-1], keys), self.form.each)
        before = takewhile(lambda part: part[0] is not turn, chat)
        return self.text_of(place)[0], [text for part in before if (text := self.text_of(part)[0])]

    def _stated_spans(self, place: Place, text: str, where: str) -> Iterator[Any]:
        """Yield the spans of a text as the file states them, and items that state none as they are."""
        form = self.form
        tokens = [match.span() for match in _TOKEN.finditer(text)]
        for part in find(place, form.spans):
            span = stated_span(part[0])
            if span and form.kind:
                span = replace(span, labels=tuple(map(str, _values(part, form.kind))) or (None,))
            if span and form.by_token and type(span.start) is type(span.end) is int:
                if not 0 <= span.start <= span.end < len(tokens):
                    problem = f"the words {span.start} to {span.end} are not within the text's {len(tokens)} from 0 on"
                    raise SpanError(f"{where}: {problem}; correct the offsets")
                span = replace(span, start=tokens[span.start][0], end=tokens[span.end][1])
            yield span or part[0]

    def _answers(self, place: Place, passage: str, where: str) -> Iterator[tuple[str, int]]:
        """Yield the answers and their starts; one without a start is where it occurs first in the passage."""
        for value in _values(place, self.form.answers):
            text = value.get("text") if isinstance(value, dict) else value
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"{where}: here is no answer: {str(value)[:80]}; write its text")
            span = stated_span(value)
            yield text, span.start if span and isinstance(span.start, int) else max(passage.find(text), 0)


class Dialogflow(Annotations):
    """Reads the folder of an agent of Dialogflow: the texts and entities of `intents/NAME_usersays_en.json`.

    A record is a text with its spans, and the name of its intent as the label.

    Args:
        encoding: Encoding of the files.
        offsets: What the offsets of spans count. `data.offsets` sets it.
    """

    fields = ("text", "spans", "label", "labels", "where")
    folder = True

    def __init__(self, *, encoding: str = "utf-8", offsets: Offsets = "characters"):
        super().__init__(form="dialogflow", encoding=encoding, offsets=offsets)

    def files(self, path: Path) -> list[Path]:
        """Every file that is read; DataError if there is none."""
        files = sorted(Path(path).rglob(f"*{USER_SAYS}*.json"))
        if not files:
            problem = f"there is no file *{USER_SAYS}*.json in this folder"
            raise DataError(f"{path}: {problem}; give that of Dialogflow's agent")
        return files

    def items(self, path: Path) -> Iterator[Record]:
        for file in self.files(path):
            label = file.name.rpartition(USER_SAYS)[0]
            for record in super().items(file):
                yield record | {"label": label, "labels": [label]}


class Brat(SpansReader):
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
            problem = "there is no file *.ann in this folder"
            raise DataError(f"{path}: {problem}; give the folder of brat's .txt and .ann files")
        return [file for annotation in annotations for file in (annotation.with_suffix(".txt"), annotation)]

    def items(self, path: Path) -> Iterator[Record]:
        for file in self.files(path)[::2]:
            lines = list(file_lines(file, self.encoding))
            text, spans = "".join(lines), []
            annotations = file.with_suffix(".ann")
            for number, line in number_lines(file_lines(annotations, self.encoding), str(annotations)):
                match = _BRAT.fullmatch(line)
                if line.startswith("T") and match is None:
                    raise DataError(f"{annotations}:{number}: not a span of brat's; write T1<TAB>label 0 5<TAB>text")
                if match and not match["more"]:
                    stated = StatedSpan(int(match["start"]), int(match["end"]), (match["label"],), match["text"])
                    try:
                        spans += self.spans_of([stated], text, f"{annotations}:{number}")
                    except DataError as error:
                        self.leave_out(error)
            spans.sort(key=lambda span: (span["start"], span["end"]))
            start = end = 0
            first = 1  # line of the record
            for number, line in enumerate(lines, 1):
                end += len(line)
                if number < len(lines) and any(span["start"] < end < span["end"] for span in spans):
                    continue
                part = text[start:end].rstrip("\r\n")
                if part.strip():
                    inside = [span for span in spans if start <= span["start"] and span["end"] <= start + len(part)]
                    moved = [{**span, "start": span["start"] - start, "end": span["end"] - start} for span in inside]
                    yield {"text": part, "spans": moved, "where": f"{file}:{first}"}
                start, first = end, number + 1
