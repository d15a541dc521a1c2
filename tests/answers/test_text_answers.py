"""A bundle that writes text, as its users meet it: options, what they get wrong, and what was looked at.

It was trained to write strings of the letters a to f backward, so that a person knows the answer, and the attention.
"""

import json
from pathlib import Path
from typing import Any

import forged
import numpy as np
import onnxruntime
import pytest
from factory import Done, reversals, seqpipe, write_jsonl, writing

from seqpipe import Model, load
from seqpipe.errors import DataError, UsageError
from seqpipe.runtime import bundle
from seqpipe.runtime.decode_options import resolve_options

CHANGES = {
    "embedding": {"use": "lookup", "dim": 16},
    "encoder": {"use": "lstm", "hidden": 24},
    "head": {"use": "seq2seq", "hidden": 32, "target": "reversed", "target_tokenizer": "same"},
    "train": {
        "epochs": 7,
        "batch_tokens": 256,
        "threads": 1,
        "optimizer": {"use": "adamw", "lr": 0.015},
        "schedule": {"use": "cosine"},
    },
    "export": {"explain": True},
}
TEXTS = ["abcde", "ffa", "", "c", "bad", " "]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("writing")
    writing(folder, CHANGES)
    write_jsonl(folder / "train.jsonl", reversals(1000, 1))
    done = seqpipe("run", "backward.yaml", "-q", folder=folder)
    assert done.code == 0, done.err
    return folder / "runs/backward"


@pytest.fixture(scope="module")
def path(run: Path) -> Path:
    return run / "bundle"


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load(path, "cpu", threads=1)


def predict(path: Path, *arguments: str | Path, text: str = "abc\n") -> Done:
    return seqpipe("predict", path, "--device", "cpu", *arguments, stdin=text.encode())


def lines(done: Done) -> list[Any]:
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_it_writes_backward_with_as_many_beams_and_answers_as_are_asked_for(path: Path, model: Model) -> None:
    assert [one["generated_text"] for one in model(["abc", "fade", "b"])] == ["cba", "edaf", "b"]
    (found,) = lines(predict(path, "--beams", "5", "--n-best", "3"))
    assert found == model("abc", beams=5, n_best=3)
    assert [set(one) for one in found] == [{"generated_text", "score"}] * 3
    assert found[0]["generated_text"] == "cba"
    assert found[0]["score"] > found[1]["score"] > found[2]["score"]


def test_the_bundle_has_the_scores_of_its_run(run: Path) -> None:
    scores = [json.loads(seqpipe("evaluate", place, "--json").out) for place in (run, run / "bundle")]
    assert scores[0] == scores[1]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"beams": 0}, "beams: 0 is not between 1 and 100"),
    ({"beams": -2}, "beams: -2 is not between 1 and 100"),
    ({"beams": 1.5}, "beams: must be int, not 1.5"),
    ({"n_best": 3}, "n_best: 3 answers need as many beams; beams is 1: give beams=3"),
    ({"n_best": 5, "beams": 4}, "n_best: 5 answers need as many beams; beams is 4: give beams=5"),
    ({"max_length": 0}, "max_length: 0 is not between 1 and 200"),
    ({"min_length": -1}, "min_length: -1 is not at least 0"),
    ({"min_length": 9, "max_length": 4}, "min_length: 9 tokens and an end exceed max_length 4: give max_len"),
    ({"min_length": 100}, "min_length: 100 tokens and an end exceed max_length 100: give max_length=101"),
    ({"length_penalty": -0.5}, "length_penalty: -0.5 is not at least 0"),
    ({"prefix": "fez"}, "prefix: 'z' is not a token of the target vocabulary, which has 10; choose others"),
    ({"prefix": [4, 10]}, "prefix: 10 is not a token of the target vocabulary"),
    ({"prefix": "fed", "max_length": 3}, "prefix: 3 tokens leave nothing to generate of max_length 3: give a greater"),
    ({"prefix": [3]}, "prefix: 3 cannot occur in a text; leave it out"),
    ({"forbidden": ["a", ""]}, "forbidden: must be a text or a list of non-empty texts, not ['a', '']"),
    ({"forbidden": [3]}, "forbidden: must be a text or a list of non-empty texts, not [3]"),
    ({"temperature": 0.7}, "temperature: it has an effect only with sampling: give seed too, a whole number"),
    ({"temperature": -1, "seed": 1}, "temperature: -1 is not at least 0"),
    ({"top_p": 0, "seed": 1}, "top_p: 0 is not above 0 and at most 1"),
    ({"top_p": 1.01, "seed": 1}, "top_p: 1.01 is not above 0 and at most 1"),
    ({"top_k": 0, "seed": 1}, "top_k: 0 is not between 1 and 100"),
    ({"seed": -1}, "seed: must be a whole number from 0, not -1"),
    ({"seed": 0.5}, "seed: must be a whole number from 0, not 0.5"),
    ({"uniform": 1}, "uniform: samples are generated from a seed; give a whole number as seed"),
    ({"beam_size": 2}, "no decode option 'beam_size'; did you mean 'beams'?"),
]


@pytest.mark.parametrize(("options", "told"), WRONG, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_a_wrong_option_is_named_with_its_cure_on_the_command_line_and_in_python(
    path: Path, model: Model, options: dict[str, Any], told: str
) -> None:
    for ask in (
        lambda: model("abc", **options),
        lambda: model(TEXTS, **options),
        lambda: model.explain("a", **options),
    ):
        with pytest.raises(UsageError) as caught:
            ask()
        assert str(caught.value).startswith(told)
    plain = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    given = [f"--option={name}={value}" for name, value in plain.items()]
    done = predict(path, *given)
    assert (done.code, done.out, done.err.startswith(told)) == (2, "", True), done.err


def test_other_ways_to_say_it_are_refused_alike(path: Path) -> None:
    huge = f"min_length={2**70}"
    for wrong, told in (
        (["--beams", "0"], "beams: 0 is not"),
        (["--n-best", "2"], "n_best: 2 answers need as many"),
        (["--option", huge], f"--option {huge}: this number is too large"),
    ):
        assert (predict(path, *wrong).code, predict(path, *wrong, text="").err[: len(told)]) == (2, told)


def test_evaluate_scores_the_answers_under_the_options_given(run: Path, path: Path, model: Model) -> None:
    test = run.parent.parent / "test.jsonl"
    records = [json.loads(line) for line in test.read_text().splitlines()]
    answers = model([record["text"] for record in records], beams=5, max_length=4)
    right = [one["generated_text"] == record["reversed"] for one, record in zip(answers, records, strict=True)]
    flags = ["--beams", "5", "--option", "max_length=4", "--data", test, "--device", "cpu", "--json", "-q"]
    scores = [json.loads(seqpipe("evaluate", target, *flags).out)["test.jsonl"] for target in (path, run)]
    assert scores[0] == scores[1]
    assert scores[0]["exact_match"] == pytest.approx(sum(right) / len(records))
    usual = json.loads(seqpipe("evaluate", path, *flags[4:]).out)["test.jsonl"]
    assert usual["exact_match"] > scores[0]["exact_match"]  # a text of more than three letters does not fit into 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--beams", "0"], "beams: 0 is not"),
        (["--option", "beem=2"], "no decode option 'beem'"),
        (["--option", "n_best=2", "--beams", "2"], "n_best: only the best answer is scored; leave it out"),
        (["--option", "beams"], "--option beams: must be KEY=VALUE"),
    ],
)
def test_evaluate_refuses_an_option_by_name(run: Path, path: Path, arguments: list[str], told: str) -> None:
    for target in (path, run):
        done = seqpipe("evaluate", target, "--data", run.parent.parent / "test.jsonl", "-q", *arguments)
        assert (done.code, done.out, done.err.startswith(told)) == (2, "", True), done.err


def test_bounds_of_the_manifest_are_what_is_refused_and_what_is_not(path: Path) -> None:
    known = json.loads((path / "bundle.json").read_bytes())["options"]
    for name, option in known.items():
        beside = {name: option, "uniform": known["uniform"]}
        for side, step in (("minimum", -1), ("maximum", 1)):
            if (bound := option.get(side)) is not None:
                resolve_options(beside, {name: bound, "seed": 1})
                with pytest.raises(UsageError, match=f"{name}: "):
                    resolve_options(beside, {name: bound + step, "seed": 1})
    bounded = {name for name, option in known.items() if option.get("minimum") is not None}
    assert {"beams", "n_best", "max_length", "min_length", "temperature", "top_k", "top_p"} <= bounded


def test_tokens_of_the_command_line_are_a_text_as_it_stands_or_a_list(path: Path, model: Model) -> None:
    expected = model("abc", prefix="fe")
    assert expected["generated_text"][:2] == "fe"
    ids = [model.predictor.kind.tokenizer.token_to_id(token) for token in "fe"]  # type: ignore[attr-defined]
    for given in ("prefix=fe", 'prefix="fe"', "prefix=[f, e]", f"prefix={ids}"):
        assert lines(predict(path, "--option", given)) == [expected]
    for given, told in (("prefix=7", "prefix: '7' is not a token"), ("prefix=007", "prefix: '0' is not a token")):
        assert predict(path, "--option", given).err.startswith(told)


def test_an_empty_source_is_an_empty_text_in_its_line_and_changes_no_other(path: Path, model: Model) -> None:
    nothing = {"generated_text": "", "score": 1.0}
    answers = model(TEXTS)
    assert answers[2] == nothing
    assert answers[5] == nothing  # nothing is seen of a blank
    assert answers == [model(text) for text in TEXTS]
    assert lines(predict(path, text="".join(f"{text}\n" for text in TEXTS))) == answers
    assert lines(predict(path, text="\n\n")) == [nothing, nothing]
    assert model("", beams=3, n_best=2, prefix="f", min_length=2) == [nothing]
    assert model("", seed=3) == nothing
    assert model.explain("").answer == nothing


def test_a_row_without_a_token_hurts_no_other_row_of_the_graph(path: Path, model: Model) -> None:
    session = onnxruntime.InferenceSession(path / "model.onnx", providers=["CPUExecutionProvider"])
    feeds = model.predictor.featurizer.collate(model.predictor.docs([{"text": text} for text in ("abcde", "", "ffa")]))
    tokens, scores = session.run(["tokens", "scores"], feeds | {"beams": np.zeros(3, np.int64)})
    for row in (0, 2):
        alone = {name: array[[row]] for name, array in feeds.items()} | {"beams": np.zeros(3, np.int64)}
        own, score = session.run(["tokens", "scores"], alone)
        assert np.array_equal(own[0], tokens[row])
        assert score[0] == pytest.approx(scores[row], abs=1e-5)


def test_a_source_over_the_limit_is_refused_with_its_place_and_never_cut(path: Path, tmp_path: Path) -> None:
    whole = bundle.read(path)
    forged.write(
        tmp_path / "short", whole.files, forged.plain(whole.manifest) | {"limits": {"tokens": 6}, "golden": []}
    )
    short = load(tmp_path / "short", "cpu", threads=1)
    assert short("abcdef") == load(path, "cpu", threads=1)("abcdef")
    told = "7 tokens exceed the limit of 6; split the text"
    with pytest.raises(DataError, match=f"^record 2: {told}$"):
        short(["abc", "abcdefa"])
    (tmp_path / "in.txt").write_text("abc\nfed\nabcdefa\n")
    done = predict(tmp_path / "short", "-i", tmp_path / "in.txt", "-o", tmp_path / "out.jsonl")
    assert (done.code, done.err) == (3, f"{tmp_path / 'in.txt'}:3: {told}\n")
    assert not (tmp_path / "out.jsonl").exists()


def test_what_was_looked_at_goes_backward_too_and_is_drawn(path: Path, model: Model, tmp_path: Path) -> None:
    found = model.explain("facbed", beams=3)
    assert found.answer["generated_text"] == "debcaf"
    (looked,) = found.attentions
    assert (looked.name, looked.over, looked.written) == ("head.attention", "written", tuple("debcaf"))
    assert looked.weights.shape == (1, 6, 6)
    assert looked.weights.sum(2) == pytest.approx(1, abs=1e-5)
    middles = looked.weights[0] @ np.arange(6)  # where each token that was written looked, in the mean
    assert (np.diff(middles) < 0).all()
    assert np.abs(middles - np.arange(6)[::-1]).max() < 1.5
    for name in ("a.html", "a.json"):
        done = seqpipe("explain", path, "facbed", "-o", tmp_path / name, "--option", "beams=3")
        assert (done.code, done.err) == (0, f"wrote {tmp_path / name}\n")
    page = (tmp_path / "a.html").read_text()
    for m, n in np.ndindex(6, 6):
        assert f'title="{"debcaf"[m]} → {"facbed"[n]}: {looked.weights[0, m, n]:.3f}"' in page
    told = json.loads((tmp_path / "a.json").read_text())["attentions"]["head.attention"]
    assert told["written"] == [*"debcaf"]
    assert np.array(told["weights"]) == pytest.approx(looked.weights[0], abs=1e-6)
