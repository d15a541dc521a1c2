"""The forms of annotation tools, chatbots and data sets through the reader annotations; the files are init's corpus."""

import json
from pathlib import Path
from typing import Any

import pytest

from seqpipe.config.signature import construct
from seqpipe.errors import DataError, UsageError
from seqpipe.init import init_yaml
from seqpipe_plugins.readers.annotations import FORMS, Annotations, Brat, Dialogflow

CORPUS = Path(__file__).parents[1] / "corpus" / "init" / "forms"
SPANS = [{"start": 0, "end": 3, "label": "person"}, {"start": 13, "end": 17, "label": "town"}]
TEXT = "Ida sails to Bodø on day 0"
IDA = {"text": ["Ida"], "answer_start": [0]}
TAGS = ["B-person", "O", "O", "B-town", "O", "O", "O"]
SQL = "SELECT name FROM ship WHERE town = 'town0' ;"
LABELLED: dict[str, Any] = {"text": TEXT, "labels": ["sail"], "label": "sail"}
SPANNED: dict[str, Any] = {"text": TEXT, "spans": SPANS}
NUMBERED = [{**span, "label": str(len(span["label"]))} for span in SPANS]  # type: ignore[arg-type]
FIRST: dict[str, tuple[str, dict[str, Any]]] = {
    "watson.json": ("intents", LABELLED),
    "tags-of-patterns.json": ("intents", LABELLED),
    "texts-by-label.json": ("lists", LABELLED),
    "intents-by-name.json": ("lists", LABELLED),
    "nlu.yml": ("rasa", {**SPANNED, **LABELLED}),
    "nlu.md": ("rasa", {**SPANNED, **LABELLED}),
    "nlu-objects.yml": ("rasa", {**LABELLED, "spans": []}),
    "rasa.json": ("rasa-json", {**SPANNED, **LABELLED}),
    "spacy-pairs.jsonl": ("spacy", {**SPANNED, "labels": []}),
    "spacy-annotator.json": ("spacy", {**SPANNED, "labels": []}),
    "spacy-cat-pairs.json": ("spacy", {**LABELLED, "spans": []}),
    "spacy-cats.jsonl": ("spacy-cats", {**LABELLED, "spans": []}),
    "prodigy.jsonl": ("prodigy", {**SPANNED, "labels": []}),
    "prodigy-choice.jsonl": ("prodigy", {**LABELLED, "spans": []}),
    "label-studio.json": ("label-studio", {**SPANNED, "labels": []}),
    "label-studio-choices.json": ("label-studio", {**LABELLED, "spans": []}),
    "doccano-1.jsonl": ("doccano", {**SPANNED, "spans": NUMBERED}),
    "dataturks.json": ("dataturks", {**SPANNED, "labels": []}),
    "dataturks-labels.json": ("dataturks", {**LABELLED, "spans": []}),
    "dialogflow_usersays_en.json": ("dialogflow", SPANNED),
    "snips-benchmark.json": ("snips", {**SPANNED, "labels": ["Sail"], "label": "Sail"}),
    "snips.json": ("snips", {**SPANNED, **LABELLED}),
    "luis.json": ("luis", {**SPANNED, **LABELLED}),
    "nlu-evaluation.json": ("nlu-evaluation", {**SPANNED, **LABELLED}),
    "massive.jsonl": ("massive", {**SPANNED, **LABELLED}),
    "pairs.json": ("pairs", LABELLED),
    "text-to-sql.json": ("text-to-sql", {"text": "which ships lie in town0", "target": SQL}),
    "mrqa.jsonl": ("questions", {"question": "Who sails?", "context": TEXT, "answers": IDA}),
    "cluener.json": ("cluener", {"text": "张伟住在上海第0天", "spans": [{"start": 0, "end": 2, "label": "name"}]}),
    "chats.jsonl": ("chats", {"text": "You help sailors.\nWhen does boat 0 sail?", "target": "Boat 0 sails at noon."}),
    "spacy-train.json": ("spacy-json", {"text": TEXT, "words": TEXT.split(), "tags": TAGS}),
}


@pytest.mark.parametrize("name", FIRST)
def test_the_form_of_a_file_is_recognised_and_read(name: str) -> None:
    form, expected = FIRST[name]
    assert Annotations.recognise(CORPUS / name) == form
    record = next(Annotations(form=form).read(CORPUS / name))
    assert record.pop("where").startswith(f"{CORPUS / name}:")
    assert record == expected


def test_every_form_has_a_file() -> None:
    assert {form for form, _ in FIRST.values()} == FORMS.keys()


def test_rejected_texts_and_texts_without_annotation_are_left_out() -> None:
    for name, left_out in (("prodigy.jsonl", 4), ("label-studio.json", 1)):
        reader = Annotations(form=FIRST[name][0])
        texts = {record["text"] for record in reader.read(CORPUS / name)}
        assert (len(texts), reader.omitted) == (24 - (4 if "prodigy" in name else 0), left_out)


def test_the_option_offsets_overrides_the_offsets_of_the_form(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    names = {"Ida": 3, "Tove": 4, "Runar": 5}
    points = [{"start": 0, "end": end, "text": name} for name, end in names.items()]
    lines = [
        {"content": f"{name}, sails", "annotation": [{"label": ["person"], "points": [point]}]}
        for name, point in zip(names, points, strict=True)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError, match=r"3 of 3 spans do not fit .*; set data\.reader\.offsets: characters"):
        list(Annotations(form="dataturks").read(path))
    records = construct(Annotations, form="dataturks", offsets="characters").read(path)
    expected = [[{"start": 0, "end": end, "label": "person"}] for end in (3, 4, 5)]
    assert [record["spans"] for record in records] == expected


FAULTS = [
    ("rasa", "nlu:\n- intent: [\n", r"data:\d+: this is not YAML of Rasa"),
    ("rasa", "nlu:\n- intent: a\n", "there is no text in this file in the form of Rasa's"),
    ("rasa", "nothing\n", "there is no text in this file"),
    ("prodigy", '{"text": "a", "answer": "accept", "spans": [[0, 9, "x"]]}', "0 to 9 is empty"),
    ("prodigy", '{"text": "a b", "answer": "accept", "spans": [{"label": "x"}]}', "span 1 is an object; write"),
    ("luis", '{"utterances": [{"intent": "a"}]}', "there is no text here in the form of LUIS"),
    ("questions", '[{"context": "a", "qas": [{"question": "b", "answers": ["c"]}]}]', "'c' is not at 0"),
    ("questions", '[{"context": "a", "qas": [{"question": "b", "answers": [{}]}]}]', "here is no answer"),
    ("spacy", '["a", {"entities": []}]\n{', "data:2:2: this is not JSON"),
    ("spacy", '[["a", {"entities": []}]', "this is not JSON"),
    ("text-to-sql", '[{"sentences": [{"text": "a"}], "sql": []}]', "there is no text to write"),
]


@pytest.mark.parametrize(("form", "content", "message"), FAULTS)
def test_a_fault_is_reported_with_its_place(form: str, content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        list(Annotations(form=form).read(path))
    assert str(caught.value).startswith(str(path))


def test_an_unknown_form_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no form is named 'label-studoi'; did you mean 'label-studio'"):
        Annotations(form="label-studoi")


def brat(folder: Path, annotations: str) -> list[dict[str, Any]]:
    (folder / "1.txt").write_text("Ida sails\nto Bodø. New\nYork\n\n", encoding="utf-8")
    (folder / "1.ann").write_text(annotations, encoding="utf-8")
    return list(Brat().read(folder))


def test_a_folder_of_brat_gives_lines_and_those_that_share_a_span_as_one(tmp_path: Path) -> None:
    relations = "R1\tx Arg1:T1 Arg2:T2\nT4\tpair 0 3;4 9\tIda sails\n#1\tNote T1\tsure\n"
    first, second = brat(tmp_path, f"T1\tperson 0 3\tIda\nT2\ttown 13 17\tBodø\nT3\ttown 19 27\tNew York\n{relations}")
    assert first == {"text": "Ida sails", "spans": SPANS[:1], "where": f"{tmp_path}/1.txt:1"}
    assert (second["text"], second["where"]) == ("to Bodø. New\nYork", f"{tmp_path}/1.txt:2")
    assert [second["text"][span["start"] : span["end"]] for span in second["spans"]] == ["Bodø", "New\nYork"]


def test_faults_of_a_folder_of_brat_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file \*.ann in this folder"):
        list(Brat().read(tmp_path))
    for line, message in (("T1 person", "1.ann:1: not a span"), ("T1\tperson 4 9\tIda", "'sails', not 'Ida'")):
        with pytest.raises(DataError, match=message):
            brat(tmp_path, f"{line}\n")
    (tmp_path / "1.txt").unlink()
    with pytest.raises(DataError, match="no such file"):
        list(Brat().read(tmp_path))


def test_a_list_on_one_long_line_is_read(tmp_path: Path) -> None:
    value = {"start": 0, "end": 3, "labels": ["PER"]}
    task = {"data": {"text": "Ida sails " + 2_000 * "far "}, "annotations": [{"result": [{"value": value}]}]}
    path = tmp_path / "data.json"
    path.write_text(json.dumps(1_500 * [task]))
    assert path.stat().st_size > 10_000_000
    assert Annotations.recognise(path) == "label-studio"
    assert sum(1 for _ in Annotations(form="label-studio").read(path)) == 1_500


def test_one_list_of_objects_is_no_list_of_texts_by_label(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    rows = [{"text": f"Ida sails on day {n}", "label": "ab"[n % 2]} for n in range(30)]
    for value in ({"version": 1, "rows": rows}, {"rows": rows}, {"days": [row["text"] for row in rows]}):
        path.write_text(json.dumps(value))
        assert Annotations.recognise(path) is None


WRONG_STOPS = [
    (9, r"the words 3 to 9 are not within the text's 7 from 0 on; correct the offsets"),
    (None, "span 1 has null or missing as `end`; it must be a whole number"),
    ("5", "span 1 has a string as `end`; it must be a whole number"),
]


@pytest.mark.parametrize(("stop", "message"), WRONG_STOPS)
def test_offsets_in_words_beyond_the_text_are_errors(stop: Any, message: str, tmp_path: Path) -> None:
    entity = {"entity": "town", "start": 3, "stop": stop}
    sentence = {"text": "Ida sails to Oslo on day 0", "intent": "sail", "entities": [entity]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"sentences": [sentence]}))
    with pytest.raises(DataError, match=message):
        [*Annotations(form="nlu-evaluation").read(path)]


def test_a_folder_of_dialogflow_has_the_intents_in_the_names_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "agent/intents"
    folder.mkdir(parents=True)
    for intent in ("Book a room", "sail"):
        parts = [{"data": [{"text": f"{intent} in "}, {"text": f"Oslo {n}", "alias": "town"}]} for n in range(9)]
        (folder / f"{intent}_usersays_pt-br.json").write_text(json.dumps(parts))
        (folder / f"{intent}.json").write_text("{}")
    records = list(Dialogflow().read(tmp_path / "agent"))
    assert [record["label"] for record in records[::9]] == ["Book a room", "sail"]
    assert records[0]["spans"] == [{"start": 15, "end": 21, "label": "town"}]
    yaml = init_yaml(tmp_path / "agent", tmp_path / "agent.yaml").read_text()
    assert "use: label" in yaml
    assert "use: crf" in yaml
    with pytest.raises(DataError, match=r"there is no file \*_usersays_\*\.json in this folder"):
        Dialogflow().files(tmp_path / "agent/none")
