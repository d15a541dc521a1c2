"""Forms of data files: does `init` read what tools and data sets write, with the very texts, labels and spans?

    python benchmarks/forms.py                 # all forms
    python benchmarks/forms.py --only rasa kaggle --keep FOLDER   # some; the files stay in FOLDER

Each form has a writer here, which follows the tool's own writer or its documentation: 24 records of a known content.
`seqpipe init FILE` gets no option. A form is read if the records of the reader that the
YAML names have this content; a form that is not read counts if `init` prints a command, and what that command writes is
read. Figures are recorded in runs/results.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import common

from seqpipe.answers import tagging_schemes
from seqpipe.config import loader
from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import construct
from seqpipe.errors import SeqpipeError
from seqpipe.init import init_yaml

PEOPLE = ("Ida", "Tove", "Runar", "Silje", "Oskar", "Maja", "Elin", "Nils Berg")
TOWNS = ("Bodø", "Kiruna", "Oulu", "Visby", "Luleå", "Ribe", "New York")
INTENTS = ("sail", "dock", "load")
Row = Mapping[str, Any]
Content = dict[str, bytes]


def rows(
    joiner: str = " sails to ", end: str = " on day {}", people: Sequence[str] = PEOPLE, towns: Sequence[str] = TOWNS
) -> list[Row]:
    """Return 24 records: parts (text, label or None) of a sentence, and an intent."""
    result = []
    for i in range(24):
        person, town = people[i % len(people)], towns[i % len(towns)]
        parts = [(person, "person"), (joiner, None), (town, "town"), (end.format(i), None)]
        text = "".join(part for part, _ in parts)
        spans = [(0, len(person), "person"), (len(person + joiner), len(person + joiner + town), "town")]
        result.append({"parts": parts, "text": text, "spans": spans, "intent": INTENTS[i % 3], "number": i})
    return result


ROWS, EMOJI = rows(), rows(" 🚢 sails to ")
CHINESE = rows("坐船去", "第{}天", ("张伟", "李娜", "王小明", "赵敏"), ("上海", "天津", "重庆", "哈尔滨", "南京"))
QUESTIONS = [
    {**row, "question": f"Who sails to {row['parts'][2][0]}?", "start": 0, "answer": row["parts"][0][0]} for row in ROWS
]


def words(row: Row, scheme: str = "IOB2") -> list[tuple[str, str]]:
    """Return the words of a record with tags of a scheme."""
    result: list[tuple[str, str]] = []
    for part, label in row["parts"]:
        tokens = part.split()
        n = len(tokens)
        if label is None:
            result += [(word, "O") for word in tokens]
            continue
        prefixes = {
            "IOB2": ["B", *"I" * (n - 1)],
            "IOE2": [*"I" * (n - 1), "E"],
            "BIOES": ["S"] if n == 1 else ["B", *"I" * (n - 2), "E"],
            "BMES": ["S"] if n == 1 else ["B", *"M" * (n - 2), "E"],
            "BILOU": ["U"] if n == 1 else ["B", *"I" * (n - 2), "L"],
        }.get(scheme, [""] * n)
        result += [
            (word, f"{prefix}-{label}" if prefix else label) for word, prefix in zip(tokens, prefixes, strict=True)
        ]
    return result


def lines(items: Iterable[str], end: str = "\n") -> bytes:
    return "".join(f"{item}{end}" for item in items).encode()


def objects(items: Iterable[Any]) -> bytes:
    return lines(json.dumps(item, ensure_ascii=False) for item in items)


def whole(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def table(cells: Iterable[Sequence[Any]], delimiter: str = ",") -> bytes:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(cells)
    return file.getvalue().encode()


def columns(row_words: Iterable[Iterable[Sequence[str]]], separator: str = " ") -> bytes:
    return lines("".join(f"{separator.join(cells)}\n" for cells in sentence) for sentence in row_words)


def by_intent() -> dict[str, list[Row]]:
    return {intent: [row for row in ROWS if row["intent"] == intent] for intent in INTENTS}


def marked(row: Row, form: str) -> str:
    return "".join(form.format(text=part, label=label) if label else part for part, label in row["parts"])


LABELLED = [("text", "label"), *((row["text"], row["intent"]) for row in ROWS)]


def arrow(folder: bool) -> Content:
    """A table whose schema has the names of classes, as `datasets` writes it: Parquet, or a folder of save_to_disk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table_ = pa.table({"text": [row["text"] for row in ROWS], "label": [INTENTS.index(row["intent"]) for row in ROWS]})
    features = {
        "text": {"dtype": "string", "_type": "Value"},
        "label": {"names": list(INTENTS), "_type": "ClassLabel"},
    }
    table_ = table_.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file = io.BytesIO()
    if not folder:
        pq.write_table(table_, file)
        return {"train.parquet": file.getvalue()}
    with pa.ipc.new_stream(file, table_.schema) as writer:
        writer.write_table(table_)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": "train"}
    return {
        "ships/data-00000-of-00001.arrow": file.getvalue(),
        "ships/state.json": whole(state),
        "ships/dataset_info.json": whole({"features": features}),
    }


def zipped(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, data)
    return file.getvalue()


def zstd(data: bytes) -> bytes:
    import zstandard

    return bytes(zstandard.compress(data))


def excel() -> bytes:
    import openpyxl

    book, file = openpyxl.Workbook(), io.BytesIO()
    for cells in LABELLED:
        book.active.append(cells)
    book.save(file)
    return file.getvalue()


def conllu() -> bytes:
    sentences = []
    for row in ROWS:
        cells = [(word, tag.replace("O", "_") if tag == "O" else tag) for word, tag in words(row)]
        pos = ["PROPN" if tag != "_" else "VERB" if word == "sails" else "NOUN" for word, tag in cells]
        body = [
            f"{i}\t{word}\t{word}\t{tag}\t_\t_\t0\troot\t_\t_"
            for i, ((word, _), tag) in enumerate(zip(cells, pos, strict=True), 1)
        ]
        sentences.append("\n".join([f"# text = {row['text']}", *body, ""]))
    return lines(sentences)


def rasa_md() -> bytes:
    blocks = [
        [f"## intent:{name}", *(f"- {marked(row, '[{text}]({label})')}" for row in records), ""]
        for name, records in by_intent().items()
    ]
    return lines(line for block in blocks for line in block)


def rasa_yml() -> bytes:
    examples = [
        [f"- intent: {name}", "  examples: |", *(f"    - {marked(row, '[{text}]({label})')}" for row in records)]
        for name, records in by_intent().items()
    ]
    return lines(['version: "3.1"', "nlu:", *(line for block in examples for line in block)])


def spans_json(row: Row, start: str = "start", end: str = "end", label: str = "label", shift: int = 0) -> list[Row]:
    return [{start: first, end: last + shift, label: name} for first, last, name in row["spans"]]


def utf16(row: Row) -> list[list[Any]]:
    def units(index: int) -> int:
        return len(row["text"][:index].encode("utf-16-le")) // 2

    return [[units(start), units(end), label] for start, end, label in row["spans"]]


def in_bytes(row: Row) -> list[list[Any]]:
    return [
        [len(row["text"][:start].encode()), len(row["text"][:end].encode()), label]
        for start, end, label in row["spans"]
    ]


def brat() -> Content:
    content: Content = {}
    for i, row in enumerate(ROWS):
        notes = [
            f"T{n}\t{label} {start} {end}\t{row['text'][start:end]}"
            for n, (start, end, label) in enumerate(row["spans"], 1)
        ]
        content |= {f"ships/{i:02}.txt": row["text"].encode(), f"ships/{i:02}.ann": lines(notes)}
    return content


def kaggle() -> bytes:
    cells: list[Sequence[Any]] = [("Sentence #", "Word", "POS", "Tag")]
    for i, row in enumerate(ROWS, 1):
        for n, (word, tag) in enumerate(words(row)):
            cells.append((f"Sentence: {i}" if n == 0 else "", word, "NNP" if tag != "O" else "VB", tag))
    return table(cells)


def squad(version: str) -> bytes:
    data = []
    for row in QUESTIONS:
        answers = [{"text": row["answer"], "answer_start": 0}]
        qas = [{"id": str(row["number"]), "question": row["question"], "answers": answers}]
        if version == "v2.0":
            qas[0]["is_impossible"] = False
            qas.append({"id": f"{row['number']}-no", "question": "Who swims?", "answers": [], "is_impossible": True})
        data.append({"title": "ships", "paragraphs": [{"context": row["text"], "qas": qas}]})
    return whole({"version": version, "data": data})


def label_studio(kind: str) -> bytes:
    tasks = []
    for row in ROWS:
        if kind == "choices":
            result = [{"value": {"choices": [row["intent"]]}, "from_name": "c", "to_name": "t", "type": "choices"}]
        else:
            result = [
                {
                    "value": {"start": start, "end": end, "text": row["text"][start:end], "labels": [label]},
                    "type": "labels",
                }
                for start, end, label in row["spans"]
            ]
        tasks.append(
            {
                "id": row["number"],
                "data": {"text": row["text"]},
                "annotations": [{"id": 1, "was_cancelled": False, "result": result}],
            }
        )
    return whole(tasks)


def pieces(row: Row, text: str, label: str, **more: Any) -> list[Row]:
    return [{text: part, **({label: name} if name else {})} for part, name in row["parts"]]


def spacy_binary() -> Content:
    import spacy
    from spacy.tokens import DocBin

    language, stored = spacy.blank("xx"), DocBin()
    for row in ROWS:
        doc = language(row["text"])
        doc.ents = [doc.char_span(start, end, label) for start, end, label in row["spans"]]
        stored.add(doc)
    return {"train.spacy": stored.to_bytes()}


M2 = [
    (f"She sail to {town} .", f"She sails to {town} .", "A 1 2|||R:VERB:SVA|||sails|||REQUIRED|||-NONE-|||0")
    for town in TOWNS * 4
]
SOUNDS = [
    ("".join(word), " ".join(f"{c.upper()}1" for c in word))
    for word in (a.lower() + b.lower() for a in PEOPLE[:7] for b in ("na", "mo", "ti", "ko"))
]
PAIRS = [(row["text"], f"{row['parts'][0][0]} seiler til {row['parts'][2][0]} den {row['number']}.") for row in ROWS]
SCORES = [(f"{i % 5 + i / 100:.2f}", row["text"], PAIRS[i][1]) for i, row in enumerate(ROWS)]

# What the records must have: "label", "spans" (also as words with tags), "both", "question", "target", "score", "pair",
# "tags" (one a word, no entities), "words" (segmented), with the rows that were written.
Form = tuple[str, Callable[[], Content | bytes], str]
FORMS: dict[str, Form] = {
    "CSV": ("ships.csv", lambda: table(LABELLED), "label"),
    "CSV, semicolons": ("ships.csv", lambda: table(LABELLED, ";"), "label"),
    "TSV": ("ships.tsv", lambda: table(LABELLED, "\t"), "label"),
    "CSV in cp1252": ("ships.csv", lambda: table(LABELLED).decode().encode("cp1252"), "label"),
    "TSV in UTF-16": ("ships.tsv", lambda: table(LABELLED, "\t").decode().encode("utf-16"), "label"),
    "CSV, gzip": ("ships.csv.gz", lambda: gzip.compress(table(LABELLED)), "label"),
    "CSV, zip": ("ships.csv.zip", lambda: zipped("ships.csv", table(LABELLED)), "label"),
    "JSON Lines, zstd": (
        "ships.jsonl.zst",
        lambda: zstd(objects({"text": r["text"], "label": r["intent"]} for r in ROWS)),
        "label",
    ),
    "Excel": ("ships.xlsx", excel, "label"),
    "Parquet with class names": ("train.parquet", lambda: arrow(False), "label"),
    "datasets, save_to_disk": ("ships", lambda: arrow(True), "label"),
    "JSON Lines": ("ships.jsonl", lambda: objects({"text": r["text"], "label": r["intent"]} for r in ROWS), "label"),
    "JSON list": ("ships.json", lambda: whole([{"sentence": r["text"], "intent": r["intent"]} for r in ROWS]), "label"),
    "JSON list below keys": (
        "ships.json",
        lambda: whole({"v": 1, "data": {"items": [{"q": {"text": r["text"]}, "intent": r["intent"]} for r in ROWS]}}),
        "label",
    ),
    "fastText": ("ships.txt", lambda: lines(f"__label__{r['intent']} {r['text']}" for r in ROWS), "label"),
    "folders by label": (
        "ships",
        lambda: {f"ships/{r['intent']}/{r['number']}.txt": r["text"].encode() for r in ROWS},
        "label",
    ),
    "TREC": ("ships.label", lambda: lines(f"{r['intent'].upper()}:any {r['text']}" for r in ROWS), "label"),
    "SST, a number and a text": (
        "stsa.train",
        lambda: lines(f"{INTENTS.index(r['intent'])} {r['text']}" for r in ROWS),
        "label",
    ),
    "a file a label": (
        "ships.pos",
        lambda: {
            f"ships.{ending}": lines(row["text"] for row in records)
            for ending, records in zip(("pos", "neg", "neu"), by_intent().values(), strict=True)
        },
        "label",
    ),
    "tweeteval": (
        "train_text.txt",
        lambda: {
            "train_text.txt": lines(r["text"] for r in ROWS),
            "train_labels.txt": lines(str(INTENTS.index(r["intent"])) for r in ROWS),
        },
        "label",
    ),
    "intents.json": (
        "intents.json",
        lambda: whole(
            {
                "intents": [
                    {"tag": k, "patterns": [r["text"] for r in v], "responses": ["Aye!"]}
                    for k, v in by_intent().items()
                ]
            }
        ),
        "label",
    ),
    "Watson": (
        "skill.json",
        lambda: whole(
            {
                "name": "w",
                "intents": [
                    {"intent": k, "examples": [{"text": r["text"]} for r in v]} for k, v in by_intent().items()
                ],
            }
        ),
        "label",
    ),
    "lists by label": (
        "ships.json",
        lambda: whole({k: [r["text"] for r in v] for k, v in by_intent().items()}),
        "label",
    ),
    "pairs in a list": ("ships.json", lambda: whole([[r["text"], r["intent"]] for r in ROWS]), "label"),
    "CLINC150": (
        "data_full.json",
        lambda: whole(
            {
                part: [[r["text"], r["intent"]] for r in ROWS[:size]]
                for part, size in (("train", 24), ("val", 6), ("test", 9))
            }
        ),
        "command: label",
    ),
    "spaCy, cats": (
        "ships.jsonl",
        lambda: objects(
            {"text": r["text"], "cats": {name: float(name == r["intent"]) for name in INTENTS}} for r in ROWS
        ),
        "label",
    ),
    "Prodigy, choice": (
        "ships.jsonl",
        lambda: objects(
            {
                "text": r["text"],
                "options": [{"id": n, "text": n} for n in INTENTS],
                "accept": [r["intent"]],
                "answer": "accept",
            }
            for r in ROWS
        ),
        "label",
    ),
    "doccano, classification": (
        "ships.jsonl",
        lambda: objects({"id": r["number"], "text": r["text"], "label": [r["intent"]]} for r in ROWS),
        "label",
    ),
    "Label Studio, choices": ("project-1.json", lambda: label_studio("choices"), "label"),
    "indicator columns": (
        "ships.csv",
        lambda: table(
            [
                ("id", "comment_text", *INTENTS),
                *((r["number"], r["text"], *(int(n == r["intent"]) for n in INTENTS)) for r in ROWS),
            ]
        ),
        "label",
    ),
    "Rasa, nlu.yml": ("nlu.yml", rasa_yml, "both"),
    "Rasa, nlu.md": ("nlu.md", rasa_md, "both"),
    "Rasa, JSON": (
        "nlu.json",
        lambda: whole(
            {
                "rasa_nlu_data": {
                    "common_examples": [
                        {
                            "text": r["text"],
                            "intent": r["intent"],
                            "entities": [
                                {"start": s, "end": e, "entity": n, "value": r["text"][s:e]} for s, e, n in r["spans"]
                            ],
                        }
                        for r in ROWS
                    ]
                }
            }
        ),
        "both",
    ),
    "Snips": (
        "dataset.json",
        lambda: whole(
            {
                "language": "en",
                "intents": {
                    k: {"utterances": [{"data": pieces(r, "text", "slot_name")} for r in v]}
                    for k, v in by_intent().items()
                },
            }
        ),
        "both",
    ),
    "Dialogflow": (
        "sail_usersays_en.json",
        lambda: whole(
            [
                {"id": str(r["number"]), "data": pieces(r, "text", "alias"), "isTemplate": False, "count": 0}
                for r in ROWS
            ]
        ),
        "spans",
    ),
    "LUIS": (
        "luis.json",
        lambda: whole(
            {
                "luis_schema_version": "3.2.0",
                "intents": [{"name": n} for n in INTENTS],
                "utterances": [
                    {
                        "text": r["text"],
                        "intent": r["intent"],
                        "entities": spans_json(r, "startPos", "endPos", "entity", -1),
                    }
                    for r in ROWS
                ],
            }
        ),
        "both",
    ),
    "MASSIVE": (
        "en-US.jsonl",
        lambda: objects(
            {
                "id": str(r["number"]),
                "locale": "en-US",
                "utt": r["text"],
                "annot_utt": marked(r, "[{label} : {text}]"),
                "intent": r["intent"],
            }
            for r in ROWS
        ),
        "both",
    ),
    "CoNLL 2003": (
        "eng.train",
        lambda: b"-DOCSTART- -X- -X- O\n\n" + columns([[(w, "NNP", "B-NP", t) for w, t in words(r)] for r in ROWS]),
        "spans",
    ),
    "CoNLL, two columns, tabs": ("wnut.conll", lambda: columns([words(r) for r in ROWS], "\t"), "spans"),
    "CoNLL, BIOES": ("ships.txt", lambda: columns([words(r, "BIOES") for r in ROWS]), "spans"),
    "CoNLL, BILOU": ("ships.txt", lambda: columns([words(r, "BILOU") for r in ROWS]), "spans"),
    "CoNLL, IO": ("ships.txt", lambda: columns([words(r, "IO") for r in ROWS]), "spans"),
    "CoNLL, IOE2": ("ships.txt", lambda: columns([words(r, "IOE2") for r in ROWS]), "spans"),
    "MSRA, BMES": (
        "msra.txt",
        lambda: columns(
            [
                [(w, t) for part, label in r["parts"] for w, t in words({"parts": [(" ".join(part), label)]}, "BMES")]
                for r in CHINESE
            ]
        ),
        "chinese",
    ),
    "Kaggle, a word a row": ("ner_dataset.csv", kaggle, "spans"),
    "brat": ("ships", brat, "spans"),
    "spaCy, pairs": (
        "train.json",
        lambda: whole([[r["text"], {"entities": [list(s) for s in r["spans"]]}] for r in ROWS]),
        "spans",
    ),
    "spaCy 2, JSON": (
        "train.json",
        lambda: whole(
            [
                {
                    "id": r["number"],
                    "paragraphs": [
                        {
                            "raw": r["text"],
                            "sentences": [
                                {
                                    "tokens": [
                                        {"id": i, "orth": w, "ner": t} for i, (w, t) in enumerate(words(r, "BILOU"))
                                    ]
                                }
                            ],
                        }
                    ],
                }
                for r in ROWS
            ]
        ),
        "spans",
    ),
    "Prodigy, spans": (
        "ner.jsonl",
        lambda: objects(
            {"text": r["text"], "spans": spans_json(r), "answer": "accept", "tokens": [], "_input_hash": 1}
            for r in ROWS
        ),
        "spans",
    ),
    "Label Studio, spans": ("project-2.json", lambda: label_studio("labels"), "spans"),
    "doccano, sequences": (
        "admin.jsonl",
        lambda: objects({"id": r["number"], "text": r["text"], "label": [list(s) for s in r["spans"]]} for r in ROWS),
        "spans",
    ),
    "doccano, entities": (
        "all.jsonl",
        lambda: objects(
            {
                "id": r["number"],
                "text": r["text"],
                "entities": spans_json(r, "start_offset", "end_offset"),
                "relations": [],
            }
            for r in ROWS
        ),
        "spans",
    ),
    "CLUENER": (
        "train.json",
        lambda: objects(
            {"text": r["text"], "label": {n: {r["text"][s:e]: [[s, e - 1]]} for s, e, n in r["spans"]}} for r in CHINESE
        ),
        "chinese",
    ),
    "DataTurks": (
        "ships.json",
        lambda: objects(
            {
                "content": r["text"],
                "annotation": [
                    {"label": [n], "points": [{"start": s, "end": e - 1, "text": r["text"][s:e]}]}
                    for s, e, n in r["spans"]
                ],
            }
            for r in ROWS
        ),
        "spans",
    ),
    "JavaScript's offsets": (
        "ships.jsonl",
        lambda: objects({"text": r["text"], "spans": utf16(r)} for r in EMOJI),
        "emoji",
    ),
    "offsets in bytes": (
        "ships.jsonl",
        lambda: objects({"text": r["text"], "spans": in_bytes(r)} for r in EMOJI),
        "emoji",
    ),
    "words with tags, glued": (
        "ships.txt",
        lambda: lines(" ".join(f"{w}/{t}" for w, t in words(r, "BIOES")) for r in ROWS),
        "glued",
    ),
    "seq.in, seq.out, label": (
        "train/seq.in",
        lambda: {
            "train/seq.in": lines(r["text"] for r in ROWS),
            "train/seq.out": lines(" ".join(t for _, t in words(r)) for r in ROWS),
            "train/label": lines(r["intent"] for r in ROWS),
        },
        "both",
    ),
    "CoNLL-U": ("ships.conllu", conllu, "tags"),
    "SQuAD 1.1": ("train-v1.1.json", lambda: squad("1.1"), "question"),
    "SQuAD 2.0": ("train-v2.0.json", lambda: squad("v2.0"), "question"),
    "CMRC": (
        "cmrc.json",
        lambda: whole(
            [
                {
                    "context_id": str(r["number"]),
                    "context_text": r["text"],
                    "title": "t",
                    "qas": [{"query_id": "1", "query_text": r["question"], "answers": [r["answer"]] * 3}],
                }
                for r in QUESTIONS
            ]
        ),
        "question",
    ),
    "MRQA": (
        "ships.jsonl",
        lambda: objects(
            {
                "context": r["text"],
                "qas": [
                    {
                        "qid": str(r["number"]),
                        "question": r["question"],
                        "answers": [r["answer"]],
                        "detected_answers": [{"text": r["answer"], "char_spans": [[0, len(r["answer"]) - 1]]}],
                    }
                ],
            }
            for r in QUESTIONS
        ),
        "question",
    ),
    "Tatoeba": (
        "nob.txt",
        lambda: lines(f"{a}\t{b}\tCC-BY 2.0 (France) Attribution: tatoeba.org #{i}" for i, (a, b) in enumerate(PAIRS)),
        "target",
    ),
    "train.en, train.nb in gzip": (
        "train.en.gz",
        lambda: {
            "train.en.gz": gzip.compress(lines(a for a, _ in PAIRS)),
            "train.nb.gz": gzip.compress(lines(b for _, b in PAIRS)),
        },
        "target",
    ),
    "a pronouncing dictionary": ("ships.dict", lambda: lines(f"{word}  {sounds}" for word, sounds in SOUNDS), "sounds"),
    "STS, a score and two texts": (
        "sts.tsv",
        lambda: table([("score", "sentence1", "sentence2"), *SCORES], "\t"),
        "pair",
    ),
    "SIGHAN": ("pku_training.utf8", lambda: lines("  ".join(part for part, _ in r["parts"]) for r in CHINESE), "words"),
    "spaCy's DocBin": ("train.spacy", spacy_binary, "command: spans"),
    "M2": ("train.m2", lambda: lines(f"S {source}\n{edit}\n" for source, _, edit in M2), "command: m2"),
}


def spans_of(record: Row) -> list[tuple[str, str]]:
    """Return the entities of a record as (label, text without white space)."""
    if "spans" in record:
        return sorted((s["label"], re.sub(r"\s", "", record["text"][s["start"] : s["end"]])) for s in record["spans"])
    tags = [str(tag) for tag in record["tags"]]
    if not any("-" in tag for tag in tags):  # names without prefixes: neighbours of one name are one entity
        tags = [tag if tag == "O" else f"I-{tag}" for tag in tags]
    return sorted((label, "".join(record["words"][start:end])) for label, start, end in tagging_schemes.spans(tags))


def expected(what: str) -> list[Any]:
    source = {"chinese": CHINESE, "emoji": EMOJI}.get(what, ROWS)
    spans = [sorted((n, re.sub(r"\s", "", r["text"][s:e])) for s, e, n in r["spans"]) for r in source]
    match what:
        case "label":
            return sorted((r["text"], INTENTS.index(r["intent"])) for r in ROWS)
        case "both":
            return sorted(zip(spans, (r["intent"] for r in ROWS), strict=True))
        case "spans" | "chinese" | "emoji" | "glued":
            return sorted(spans)
        case "question":
            return sorted((r["text"], r["question"], r["answer"]) for r in QUESTIONS)
        case "target":
            return sorted(PAIRS)
        case "sounds":
            return sorted(SOUNDS)
        case "pair":
            return sorted((float(score), *texts) for score, *texts in SCORES)
        case "words":
            return sorted([part for part, _ in r["parts"]] for r in CHINESE)
        case "tags":
            return sorted([w for w, _ in words(r)] for r in ROWS)
        case "m2":
            return sorted((source, target) for source, target, _ in M2)
    raise ValueError(what)


def content(what: str, records: Sequence[Row], config: Any) -> list[Any]:
    """Return what a reader's records say, in the shape of `expected`."""
    head = config.head[0]
    match what:
        case "label":
            order = {name: i for i, name in enumerate(INTENTS)}
            order |= {f"{name.upper()}:any": i for name, i in order.items()} | {str(i): i for i in range(3)}
            order |= {"pos": 0, "neg": 1, "neu": 2}
            labels = [r["labels"][0] if r.get("labels") else r["label"] for r in records]
            return sorted((r["text"], order[label]) for r, label in zip(records, labels, strict=True))
        case "both":
            return sorted((spans_of(r), r["label"]) for r in records)
        case "spans" | "chinese" | "emoji" | "glued":
            return sorted(map(spans_of, records))
        case "question":
            answered = [r for r in records if r["answers"]["text"]]
            return sorted((r["context"], r["question"], r["answers"]["text"][0]) for r in answered)
        case "target" | "sounds" | "m2":
            return sorted((r["text"], r[head.common_keys["target"]]) for r in records)
        case "pair":
            first, second = config.inputs[0].tokenizer.common_keys["field"]
            return sorted((float(r[head.common_keys["target"]]), r[first], r[second]) for r in records)
        case "words":
            return sorted([r["text"][s["start"] : s["end"]] for s in r["spans"]] for r in records)
        case "tags":
            return sorted(r["words"] for r in records)
    raise ValueError(what)


def read(path: Path, yaml: Path, what: str) -> str:
    """Let `init` write a YAML for a file and compare the records; return "" or the difference."""
    init_yaml(path, yaml)
    config = loader.load_config(yaml)
    use = config.data.reader
    reader: Any = construct(Plugins().find("reader", use.use).load(), **use.options)
    values, wanted = content(what, [*reader.read(path)], config), expected(what)
    if values == wanted:
        return ""
    first = next((pair for pair in zip(values, wanted, strict=False) if pair[0] != pair[1]), (len(values), len(wanted)))
    return f"{first[0]!r:.150} in place of {first[1]!r:.150}"


def outcome(name: str, folder: Path) -> str:
    """Return "read", "a command", or the reason of neither."""
    file, write, what = FORMS[name]
    written = write()
    for path, data in (written if isinstance(written, dict) else {file: written}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    try:
        if not what.startswith("command: "):
            return read(folder / file, folder / "form.yaml", what) or "read"
        init_yaml(folder / file, folder / "form.yaml")
    except SeqpipeError as error:
        command = re.search(r"((python3 -c|jq -c) '[^`]*)", str(error))
        if not (what.startswith("command: ") and command):
            return str(error)
        script = command[1].replace("python3", sys.executable, 1).replace(" FILE ", f" {file} ")
        subprocess.run(script, shell=True, check=True, cwd=folder)
        (result,) = (path for path in folder.iterdir() if path.name not in (file, "form.yaml"))
        return read(result, folder / "form.yaml", what.removeprefix("command: ")) or "a command"
    return "read, though a command was expected"


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    results: dict[str, str] = {}
    for name in FORMS:
        if any(part.lower() in name.lower() for part in arguments.only):
            folder = (arguments.keep or Path(tempfile.mkdtemp())) / re.sub(r"\W+", "-", name)
            folder.mkdir(parents=True)
            try:
                results[name] = outcome(name, folder)
            except ImportError as error:
                results[name] = f"not tried: {error}"
            except Exception as error:  # the reader, or this script, is wrong: the others go on
                results[name] = f"{type(error).__name__}: {error}"
            print(f"{name}: {results[name]}", flush=True)
    tried = {name: result for name, result in results.items() if not result.startswith("not tried")}
    counts = {kind: sum(result == kind for result in tried.values()) for kind in ("read", "a command")}
    figures = {"forms": len(tried), "read": counts["read"], "a working command": counts["a command"]}
    print(figures)
    wrong = [name for name, result in tried.items() if result not in counts]
    note = {"note": f"neither: {', '.join(wrong)}"} if wrong else {}
    common.record(
        "forms", "forms", [{"row": "files as tools write them", "figures": figures, "met": not wrong, **note}]
    )


if __name__ == "__main__":
    main()
