"""The toy bundle, opened and asked; and bundles whose hashes are right and whose contents are not."""

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gallery import gallery
from onnx import helper
from toy_bundles import changed_bundle

from seqpipe import Model, load
from seqpipe.errors import BundleError, DataError, UsageError
from seqpipe.runtime import bundle, graph_check, session
from seqpipe.runtime.opened import same_answer, verify_bundle


def words(answer: list[dict[str, Any]]) -> list[str]:
    return [span["word"] for span in answer]


def test_the_toy_answers_what_its_table_says(tiny: Model) -> None:
    assert tiny("Anna calls Zoe, in New  York.") == [
        {"entity_group": "person", "score": 0.97, "word": "Anna", "start": 0, "end": 4},
        {"entity_group": "person", "score": 0.85, "word": "Zoe", "start": 11, "end": 14},
        {"entity_group": "city", "score": 0.9409, "word": "New  York", "start": 19, "end": 28},
    ]


def test_the_form_of_the_input_is_that_of_the_answer(tiny: Model) -> None:
    anna, bern = tiny("Anna"), tiny("in Bern")
    assert tiny({"text": "Anna"}) == tiny({"words": ["Anna"]}) == anna
    assert tiny(["Anna", {"text": "in Bern"}]) == tiny(("Anna", "in Bern")) == [anna, bern]
    assert tiny([]) == tiny("") == tiny(" \n") == tiny({"words": []}) == []
    answers = tiny(text for text in ("Anna", "in Bern"))
    assert iter(answers) is answers
    assert list(answers) == [anna, bern]
    (span,) = tiny({"words": ["in", "Bern"], "text": "in\u3000Bern"})
    assert (span["start"], span["end"]) == (3, 7)


@pytest.fixture(scope="module")
def writer() -> Model:
    return load(gallery("text").bundle, "cpu", threads=1)


def test_each_record_is_answered_with_its_own_options_in_batches_by_options(
    writer: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed and the prefix of a record go before those of all; without the key, or with null, these count."""
    dice = random.Random(3)
    texts = ["".join(dice.choices("abcdf", k=dice.randint(0, 6))) for _ in range(60)]
    options = [{"prefix": prefix, "seed": seed} for prefix in ("ab", ["d"], None) for seed in (1, None)]
    own = [dice.choice(options) for _ in texts]
    usual: dict[str, Any] = {"prefix": "f", "min_length": 2}
    expected = [
        writer(text, **usual | {name: value for name, value in chosen.items() if value is not None})
        for text, chosen in zip(texts, own, strict=True)
    ]
    fields = {"prefix": "start", "seed": "seed"}
    rows = [
        {"text": text, "id": 5} | {fields[name]: value for name, value in chosen.items() if value is not None or i % 2}
        for i, (text, chosen) in enumerate(zip(texts, own, strict=True))
    ]
    sizes, run = [], writer.predictor.run
    monkeypatch.setattr(writer.predictor, "run", lambda inputs: (sizes.append(len(inputs["ids"])), run(inputs))[1])
    assert writer(rows, option_fields=fields, **usual) == expected
    assert len(sizes) == len({repr(chosen) for text, chosen in zip(texts, own, strict=True) if text})
    assert [writer(row, option_fields=fields, **usual) for row in rows[:5]] == expected[:5]


def test_an_option_of_a_record_that_is_wrong_or_not_asked_for_costs_only_its_answer(writer: Model) -> None:
    good, wrong = {"text": "ab", "prefix": "d"}, {"text": "ab", "prefix": "z"}
    first, second = writer([good, wrong], option_fields=["prefix"], on_error="skip")
    assert first == writer("ab", prefix="d")
    assert second["error"].startswith("record 2: prefix: 'z' is not a token of the target vocabulary")
    with pytest.raises(UsageError, match="no decode option 'prefx'; did you mean 'prefix'"):
        writer([good], option_fields=["prefx"])
    for key in ("prefix", "seed"):
        message = f"{key!r} is a decode option and no field .* set the option for all .* --option-field {key}"
        with pytest.raises(DataError, match=f"^x:3: {message}"):
            writer({"text": "ab", key: 1, "where": "x:3"})
        assert re.search(message, writer([{"text": "ab", key: 1}], option_fields={}, on_error="skip")[0]["error"])


WRONG_INPUTS = [
    (5, UsageError, r"a text, a record .* not int"),
    (None, UsageError, "not NoneType"),
    ([5], UsageError, r"an input is a text or a record \(dict with 'text' or 'words'\), not int"),
    (b"Anna", UsageError, "not bytes"),
    ({"title": "x"}, DataError, "no field 'text'; the record has: title; rename the field that contains the text"),
    ({"words": "Anna"}, DataError, "record: 'words' must be a list of strings"),
    ({"words": ["Anna", 5], "where": "x:3"}, DataError, "x:3: 'words' must be a list of strings"),
    ({"words": ["Anna"], "text": "Ben"}, DataError, "word 'Anna' is not in the text 'Ben'"),
]


@pytest.mark.parametrize(("value", "error", "message"), WRONG_INPUTS)
def test_other_values_than_texts_and_records_are_refused(
    value: Any, error: type[Exception], message: str, tiny: Model
) -> None:
    with pytest.raises(error, match=message):
        tiny(value)


def test_a_golden_example_with_another_answer_is_shown(tiny: Model, tiny_bundle: Path, tmp_path: Path) -> None:
    assert (len(tiny.manifest.golden), tiny.verify()) == (1, [])
    path = changed_bundle(tiny_bundle, tmp_path / "forged", golden=[{"record": {"text": "Anna"}, "answer": []}])
    (wrong,) = load(path, "cpu", threads=1).verify()
    assert wrong.startswith("golden example 1: {'text': 'Anna'}: got [{'entity_group': 'person'")


PAIRS_OF_ANSWERS = [
    ([{"word": "a", "score": 0.5}], [{"word": "a", "score": 0.50009}], True),
    ([{"word": "a", "score": 0.5}], [{"word": "a", "score": 0.5002}], False),
    ([{"word": "a", "score": 0.5}], [{"word": "b", "score": 0.5}], False),
    ([{"word": "a"}], [{"word": "a", "score": 0.5}], False),
    ([{"start": 1}], [{"start": 1.0}], False),
    ([], [{}], False),
    ("a", ["a"], False),
    (1, True, False),
]


@pytest.mark.parametrize(("one", "other", "same"), PAIRS_OF_ANSWERS)
def test_answers_are_the_same_if_all_that_was_decided_is(one: Any, other: Any, same: bool) -> None:
    assert same_answer(one, other) is same


def test_the_device_is_cpu_or_cuda_with_a_number(tiny_bundle: Path) -> None:
    assert load(str(tiny_bundle), "cpu", threads=1).device == "cpu"
    for device in ("gpu", "cuda:x", "cpu:1", "auto:0", ""):
        with pytest.raises(UsageError, match="must be auto, cpu, cuda or cuda:N"):
            load(tiny_bundle, device)


def test_a_text_by_itself_is_answered_on_all_cores_by_a_large_graph(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened_sessions: list[int]
) -> None:
    monkeypatch.setattr(session, "LARGE_MODEL_WEIGHTS", 0)
    folder = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    model, text = load(folder, "cpu", threads=3), "Anna calls Ben"
    expected = model([text] * 40)  # on one core each
    assert opened_sessions == [1]
    assert model(text) == expected[0]
    assert model(text, bias=10.0) == []
    assert opened_sessions == [1, 3]
    single = load(folder, "cpu", threads=3)
    assert single(text) == expected[0]
    shutil.rmtree(folder)  # the other session can no longer be opened
    assert single([text] * 40) == expected
    assert opened_sessions == [1, 3, 1, 3]
    small = load(tiny_bundle, "cpu", threads=1)
    assert small(text) == expected[0]
    assert opened_sessions == [1, 3, 1, 3, 1]
    # A bundle that is not written yet answers too, as an export to int8 does before the folder exists.
    unwritten = Model(replace(bundle.read(tiny_bundle), sha256=""), "cpu", threads=3)
    assert unwritten(text) == expected[0]


def test_weights_of_products_are_counted_and_those_in_loops_apart() -> None:
    graph = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[B, 4] x, int64[B] i, int64 n, bool go) => (float[B, 4] y) {
        rows = Gather(table, i)
        sum = Add(x, rows)
        p = MatMul(sum, w)
        y = Loop(n, go, p) <body = b (int64 k, bool c, float[B, 4] h) => (bool d, float[B, 4] z) {
            d = Identity(c)
            z = MatMul(h, inner)
        }>
    }"""
    model = onnx.parser.parse_model(graph)
    for name, rows in (("table", 9), ("w", 5), ("inner", 4)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((rows, 4), np.float32), name))
    assert graph_check.product_sizes(model.SerializeToString()) == (5 * 4, 4 * 4 * 4)


# Forged bundles: every hash is right


def test_a_bundle_without_golden_examples_is_refused_unless_it_says_why(tiny_bundle: Path, tmp_path: Path) -> None:
    bare = changed_bundle(tiny_bundle, tmp_path / "forged", golden=[])
    with pytest.raises(BundleError, match=r"it has no golden examples, .*; export it again"):
        verify_bundle(bare)
    explained = changed_bundle(tiny_bundle, tmp_path / "forged", golden=[], no_golden="every answer ties")
    assert verify_bundle(explained)["no_golden"] == "every answer ties"


def test_a_golden_example_that_cannot_be_answered_is_an_error_of_the_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    golden = [{"record": {"text": "Anna calls Zoe"}, "answer": []}]
    path = changed_bundle(tiny_bundle, tmp_path / "forged", golden=golden, limits={"tokens": 2})
    with pytest.raises(BundleError, match=r"forged: a golden example cannot be answered here: .* limit of 2"):
        verify_bundle(path)


Files = Callable[[Mapping[str, bytes]], dict[str, bytes]]


def graph(change: Callable[[onnx.GraphProto], Any], version: int = 18) -> Files:
    """The model with a changed graph, of this version of the operators."""

    def files(content: Mapping[str, bytes]) -> dict[str, bytes]:
        model = onnx.load_from_string(content["model.onnx"])
        change(model.graph)
        model.opset_import[0].version = version
        return {"model.onnx": model.SerializeToString()}

    return files


def external(location: str) -> Files:
    """The model whose table is read from a file."""

    def change(graph: onnx.GraphProto) -> None:
        tensor = next(t for t in graph.initializer if t.name == "table")
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return graph(change)


def tokenizer(change: Callable[[dict[str, Any]], Any]) -> Files:
    def files(content: Mapping[str, bytes]) -> dict[str, bytes]:
        tokenizer = json.loads(content["tokenizer.json"])
        change(tokenizer)
        return {"tokenizer.json": json.dumps(tokenizer).encode()}

    return files


SECRET = helper.make_tensor_value_info("secret", onnx.TensorProto.INT64, [])
LOCATIONS = ("table.bin", "../table.bin", "/etc/passwd", "/dev/null/nowhere/../table.bin")
TABLE_BYTES = 4 * 16 * 4  # float32, the toy's 15 tokens and a row more, 4 labels
CONTENTS: dict[str, tuple[Files, str]] = {
    "no graph": (lambda _: {"model.onnx": b"\x00" * 100}, "model.onnx: the model has the field 0, which is not"),
    "an empty graph": (lambda _: {"model.onnx": b""}, "model.onnx: onnxruntime .* refuses it"),
    "half a graph": (lambda files: {"model.onnx": files["model.onnx"][:900]}, "are not those of an ONNX graph"),
    "a future opset": (graph(lambda graph: None, version=999), "refuses it"),
    "one more input": (graph(lambda graph: graph.input.append(SECRET)), "bundle.json disagree about secret"),
    "an output missing": (graph(lambda graph: graph.output.pop()), "model.onnx and bundle.json disagree about closes"),
    "no tokenizer": (lambda _: {"tokenizer.json": b"{}"}, "tokenizer.json: not a tokenizer this version reads"),
    "a tokenizer of bytes": (lambda _: {"tokenizer.json": b"\xff\xfe"}, "not a tokenizer this version reads"),
    "no special tokens": (tokenizer(lambda c: c["model"]["vocab"].pop("[EOS]")), r"has no token \[EOS\]"),
    "a tokenizer of the future": (tokenizer(lambda c: c["model"].update(type="Oracle")), "not a tokenizer"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_contents_that_cannot_be_used_are_refused_with_their_file(name: str, tiny_bundle: Path, tmp_path: Path) -> None:
    change, message = CONTENTS[name]
    path = changed_bundle(tiny_bundle, tmp_path / "forged", change(bundle.read(tiny_bundle).files))
    with pytest.raises(BundleError, match=message):
        load(path, "cpu", threads=1)


@pytest.mark.parametrize("location", LOCATIONS)
def test_no_tensor_is_read_from_another_file_not_even_by_onnxruntime_itself(
    location: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = changed_bundle(tiny_bundle, tmp_path / "forged", external(location)(bundle.read(tiny_bundle).files))
    monkeypatch.chdir(path)
    for folder in (tmp_path, path):  # what the graph would like to read is there
        (folder / "table.bin").write_bytes(bytes(TABLE_BYTES))
    with pytest.raises(BundleError, match="it reads a tensor from another file"):
        load(path, "cpu", threads=1)
    monkeypatch.setattr("seqpipe.runtime.graph_check.refusal_reason", lambda model: "")
    with pytest.raises(BundleError, match="refuses it"):
        load(path, "cpu", threads=1)


INPUTS: dict[str, dict[str, Any]] = {"ids": {}, "mask": {}}
MANIFESTS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown feature": ({"inputs": {**INPUTS, "chars": {"kind": "x"}}}, "unknown feature kind 'x'; update seqpipe"),
    "a feature without alphabet": ({"inputs": {**INPUTS, "chars": {"kind": "chars"}}}, "lacks or misstates 'longest'"),
    "inputs of another kind": ({"inputs": {"ids": 5}}, "inputs.ids: must be an object, not 5"),
    "fewer inputs": ({"inputs": INPUTS}, "disagree about chars"),
    "an unknown answer": ({"answer": {"kind": "x"}}, "unknown answer kind 'x'; update seqpipe"),
    "an answer without labels": ({"answer": {"kind": "spans"}}, "lacks or misstates 'labels'"),
    "labels without O": ({"answer": {"kind": "spans", "labels": ["B-x"]}}, "lacks or misstates"),
    "text without its tokenizer": ({"answer": {"kind": "text"}}, "lacks its target tokenizer; export it again"),
    "no limit": ({"limits": {}}, "limits.tokens: missing"),
    "an odd limit": ({"limits": {"tokens": "many"}}, "limits.tokens: must be a whole number"),
    "an unknown option type": ({"options": {"bias": {"type": "x", "default": 0}}}, "its `type` is 'x'"),
    "an option out of its range": (
        {"options": {"bias": {"type": "float", "default": 9.0, "maximum": 1}}},
        "lacks or misstates bias: 9.0 is not at most 1",
    ),
    "an option of another kind": ({"options": {"bias": 5}}, "options.bias: must be an object"),
    "an option of no graph": ({"options": {"beams": {"type": "size", "default": 1}}}, "disagree about beams, bias"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_makes_no_sense_is_refused(name: str, tiny_bundle: Path, tmp_path: Path) -> None:
    changes, message = MANIFESTS[name]
    with pytest.raises(BundleError, match=message):
        load(changed_bundle(tiny_bundle, tmp_path / "forged", **changes), "cpu", threads=1)


def test_a_run_takes_features_and_another_input_field_is_taken_from_records_and_texts_alike(
    tiny: Model, tiny_bundle: Path, tmp_path: Path
) -> None:
    featurizer = tiny.predictor.featurizer
    feeds = featurizer.collate(featurizer.docs([{"text": "Anna in"}]))
    assert tiny.run(feeds)["tags"].tolist() == [[1, 0]]  # an option not given has its default
    assert np.allclose(tiny.run(feeds)["scores"], 0.97)
    model = load(changed_bundle(tiny_bundle, tmp_path / "forged", field="question", golden=[]), "cpu", threads=1)
    assert words(model("in Bern")) == words(model({"question": "in Bern", "text": "Anna"})) == ["Bern"]
    assert words(model({"question": "a. Bern"}, documents=True)) == ["Bern"]


MEMORY = """
import sys
from pathlib import Path
from seqpipe import load

model = load(sys.argv[1], "cpu", threads=1)
for text in ("Anna", "in " * 300_000, *["Anna"] * 5):
    model(text)
    print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc, to read memory")
def test_the_memory_of_a_huge_text_is_given_back(tiny_bundle: Path, tmp_path: Path) -> None:
    path = changed_bundle(tiny_bundle, tmp_path / "forged", limits={"tokens": 1_000_000})
    done = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True)
    before, huge, *_, after = map(float, done.stdout.split())
    assert huge > before + 50, done.stdout
    assert after < before + (huge - before) / 2, done.stdout


def test_an_input_without_an_answer_has_its_error_in_its_place(tiny: Model) -> None:
    inputs = ["Anna", {"title": "x"}, "a " * 1001, 5, "in Bern"]
    answers = tiny(inputs, on_error="skip")
    assert [answers[0], answers[4]] == tiny(["Anna", "in Bern"])
    for answer, message in zip(answers[1:4], ("no field 'text'", "1,001 tokens exceed", "not int"), strict=True):
        assert message in answer["error"]
    assert list(tiny(iter(inputs), on_error="skip", chunk=2)) == answers
    documents = tiny(inputs, documents=True, on_error="skip")
    assert "no field" in documents[1]["error"]
    assert set(tiny({"title": "x"}, on_error="skip")) == {"error"}
    with pytest.raises(UsageError, match="on_error='ignore': must be one of stop, skip"):
        tiny("Anna", on_error="ignore")
