"""Data in memory in place of files, and a classifier for scikit-learn."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqpipe
from seqpipe.api.memory import records_of
from seqpipe.errors import ConfigError, DataError, UsageError

pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
pa, sklearn = pytest.importorskip("pyarrow"), pytest.importorskip("sklearn")

WORDS = {"good": ["fine", "nice", "great"], "bad": ["poor", "awful", "sad"]}
ROWS = [
    {"text": f"a {word} day {i}", "label": label} for label, words in WORDS.items() for word in words for i in "1234"
]
YAML: dict[str, Any] = {
    "name": "memory",
    "tokenizer": {"use": "words"},
    "embedding": {"use": "lookup", "dim": 8},
    "encoder": {"use": "bag"},
    "head": {"use": "label"},
    "train": {"epochs": 4, "optimizer": {"use": "adamw", "lr": 0.1}},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEQPIPE_REPORT", "off")
    return tmp_path


def with_data(**data: Any) -> dict[str, Any]:
    return {**YAML, "data": data}


FORMS = [list, pd.DataFrame, pl.DataFrame, pa.Table.from_pylist]


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_data_in_memory_are_the_same_records(form: Any) -> None:
    assert records_of(form(ROWS)) == ROWS


def test_missing_cells_of_a_frame_are_none_and_numbers_are_plain() -> None:
    frame = pd.DataFrame({"text": ["a", None], "score": np.array([1.5, 2], dtype="float32"), "n": [1, 2]})
    assert records_of(frame) == [{"text": "a", "score": 1.5, "n": 1}, {"text": None, "score": 2.0, "n": 2}]


def test_rows_that_are_no_records_are_refused() -> None:
    with pytest.raises(UsageError, match="row 1: is str, not a record; give dicts"):
        records_of(["a text"])


def test_a_run_of_data_in_memory_resumes_and_is_refused_for_other_data(folder: Path) -> None:
    pipeline = seqpipe.Pipeline(with_data(train=ROWS, dev=pd.DataFrame(ROWS[::3]), test={"new": ROWS[1::5]}))
    run = pipeline.run()
    assert {*(run.scores or {})} == {"new"}
    finished = seqpipe.Pipeline(with_data(train=pl.DataFrame(ROWS), dev=ROWS[::3], test={"new": ROWS[1::5]})).run()
    assert finished.scores == run.scores  # the same records in another form: nothing is trained again
    with pytest.raises(UsageError, match=r"data\.train"):
        seqpipe.Pipeline(with_data(train=ROWS[1:], dev=ROWS[::3], test={"new": ROWS[1::5]})).run()


def test_a_run_takes_data_in_memory_in_place_of_files_of_a_yaml(folder: Path) -> None:
    pd.DataFrame(ROWS).rename(columns={"text": "message", "label": "mood"}).to_csv("rows.csv", index=False)
    reader = {"use": "csv", "text": "message", "label": "mood"}
    pipeline = seqpipe.Pipeline(with_data(reader=reader, train="rows.csv", dev="rows.csv"))
    renamed = pd.DataFrame(ROWS).rename(columns={"text": "message", "label": "mood"})
    with pytest.raises(UsageError, match="dev: the YAML has a file for the reader 'csv'; give it in memory too"):
        pipeline.run(train=renamed)
    run = pipeline.run(train=renamed, dev=renamed[::3], runs="others")
    assert run.config.data.reader.use == "jsonl"
    evaluation = run.bundle.load().evaluate(renamed)
    assert evaluation.scores == run.bundle.load().evaluate(ROWS).scores
    assert re.search(r"\naccuracy [\d.]+ \(95 % interval .*\); always 'good': 50.00$", str(evaluation))
    assert [row["record"]["text"] for row in evaluation.answers] == [row["text"] for row in ROWS]


def test_init_looks_at_data_in_memory(folder: Path) -> None:
    pipeline = seqpipe.Pipeline.init(ROWS)
    assert (pipeline.config.head[0].use, pipeline.config.file.name) == ("label", "pipeline.yaml")


def test_evaluate_counts_groups_and_needs_references(folder: Path) -> None:
    model = seqpipe.Pipeline(with_data(train=ROWS)).run().bundle.load()
    groups = model.evaluate([{**row, "side": row["label"]} for row in ROWS], by="side").groups
    assert {*groups} == {"side=good", "side=bad"}
    with pytest.raises(DataError, match="label"):
        model.evaluate([{"text": "a fine day"}])


def test_empty_data_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="no records"):
        seqpipe.Pipeline(with_data(train=pd.DataFrame(ROWS[:0])))
    with pytest.raises(ConfigError, match=r"data\.train"):
        seqpipe.Pipeline(with_data(train=[]))


TEXTS, LABELS = [row["text"] for row in ROWS], [row["label"] for row in ROWS]
SETTINGS = {key: value for key, value in YAML.items() if key != "name"}


def test_a_classifier_fits_predicts_clones_and_pickles(folder: Path) -> None:
    model = seqpipe.Classifier(SETTINGS).fit(TEXTS, LABELS)
    copy = pickle.loads(pickle.dumps(model))
    assert list(model.classes_) == ["bad", "good"]
    assert model.predict(["a great day", "a sad day"]).tolist() == ["good", "bad"]
    np.testing.assert_allclose(model.predict_proba(TEXTS).sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(copy.predict_proba(TEXTS), model.predict_proba(TEXTS))
    from sklearn.base import clone

    assert clone(model).get_params() == model.get_params()


def test_a_classifier_keeps_the_type_of_labels(folder: Path) -> None:
    numbers = [int(label == "good") for label in LABELS]
    model = seqpipe.Classifier(SETTINGS).fit(TEXTS, numbers)
    assert model.predict(["a great day"]).tolist() == [1]
    assert model.score(TEXTS, numbers) > 0.9


def test_a_classifier_works_in_searches_and_pipelines_of_scikit_learn(folder: Path) -> None:
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import Pipeline as Steps
    from sklearn.preprocessing import FunctionTransformer

    steps = Steps([("lower", FunctionTransformer(lambda texts: [text.lower() for text in texts]))])
    steps.steps.append(("model", seqpipe.Classifier(SETTINGS)))
    search = GridSearchCV(steps, {"model__train.epochs": [1, 6]}, cv=2).fit(TEXTS, LABELS)
    assert {*search.cv_results_["param_model__train.epochs"]} == {1, 6}
    assert cross_val_score(seqpipe.Classifier(SETTINGS), TEXTS, LABELS, cv=2).shape == (2,)


def test_a_classifier_needs_a_label_for_each_text(folder: Path) -> None:
    with pytest.raises(UsageError, match="24 texts, but 1 labels"):
        seqpipe.Classifier(SETTINGS).fit(TEXTS, ["good"])


def test_a_classifier_refuses_what_are_no_texts_or_labels(folder: Path) -> None:
    from sklearn.exceptions import NotFittedError

    model = seqpipe.Classifier(SETTINGS)
    with pytest.raises(NotFittedError):
        model.predict(TEXTS)
    for texts, labels in ((["a", None], ["x", "y"]), (["a", "b"], ["x", float("nan")]), ("ab", ["x", "y"])):
        with pytest.raises(UsageError):
            model.fit(texts, labels)
    model.fit(TEXTS, LABELS)
    with pytest.raises(UsageError, match="row 1: a text without words has no label"):
        model.predict(["a great day", " "])
    with pytest.raises(UsageError, match="not one text or a data frame"):
        model.predict(pd.DataFrame({"text": TEXTS}))


def test_no_records_have_no_score(folder: Path) -> None:
    model = seqpipe.Pipeline(with_data(train=ROWS)).run().bundle.load()
    with pytest.raises(UsageError, match="the data have no records"):
        model.evaluate([])
