"""A bundle that writes text: decode options, errors, and attention weights.

It was trained to write strings of the letters a to f backward, so that a person knows the answer, and the attention.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_bundles
from gallery import gallery
from tiny_pipelines import CommandResult, seqpipe

from seqpipe import Model, load
from seqpipe.errors import DataError, UsageError
from seqpipe.runtime import bundle

TEXTS = ["abcde", "ffa", "", "c", "bad", " "]


@pytest.fixture(scope="module")
def run() -> Path:
    return gallery("text").run


@pytest.fixture(scope="module")
def path(run: Path) -> Path:
    return run / "bundle"


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load(path, "cpu", threads=1)


def predict(path: Path, *arguments: str | Path, text: str = "abc\n") -> CommandResult:
    return seqpipe("predict", path, "--device", "cpu", *arguments, stdin=text.encode())


def lines(result: CommandResult) -> list[Any]:
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def test_it_writes_backward_with_the_beams_and_alternatives_of_the_options(path: Path, model: Model) -> None:
    assert [answer["generated_text"] for answer in model(["abc", "fade", "b"])] == ["cba", "edaf", "b"]
    (answers,) = lines(predict(path, "--beams", "5", "--n-best", "3"))
    assert answers == model("abc", beams=5, n_best=3)
    assert [set(answer) for answer in answers] == [{"generated_text", "score", "log_score"}] * 3
    assert answers[0]["generated_text"] == "cba"
    assert answers[0]["score"] > answers[1]["score"] > answers[2]["score"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"n_best": 3}, "n_best: 3 answers need as many beams; beams is 1: give beams=3"),
    ({"min_length": 100}, "min_length: 100 tokens and an end exceed max_length 100: lower it, or give max_length=101"),
    ({"prefix": "fez"}, "prefix: 'z' is not a token of the target vocabulary, which has 10; choose others"),
    ({"forbidden": ["a", ""]}, "forbidden: must be a text or a list of non-empty texts, not ['a', '']"),
    ({"beam_size": 2}, "no decode option 'beam_size'; did you mean 'beams'?"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=str)
def test_a_wrong_option_is_named_with_its_fix(path: Path, model: Model, options: dict[str, Any], message: str) -> None:
    for call, argument in ((model, "abc"), (model, TEXTS), (model.explain, "a")):
        with pytest.raises(UsageError) as caught:
            call(argument, **options)
        assert str(caught.value).startswith(message)
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    result = predict(path, *(f"--option={name}={text}" for name, text in texts.items()))
    assert (result.code, result.out, result.err.startswith(message)) == (2, "", True), result.err


def test_evaluate_scores_the_answers_under_the_options(run: Path, path: Path, model: Model) -> None:
    test = run.parent.parent / "test.jsonl"
    records = [json.loads(line) for line in test.read_text().splitlines()]
    answers = model([record["text"] for record in records], beams=5, max_length=4)
    right = [answer["generated_text"] == record["reversed"] for answer, record in zip(answers, records, strict=True)]
    options = ["--beams", "5", "--option", "max_length=4"]
    flags = ["--data", test, "--device", "cpu", "--json", "-q"]
    limited, usual = (
        [json.loads(seqpipe("evaluate", target, *given, *flags).out)["test.jsonl"] for target in (path, run)]
        for given in (options, [])
    )
    assert limited[0] == limited[1]
    assert usual[0] == usual[1]
    assert limited[0]["exact_match"] == pytest.approx(sum(right) / len(records))
    assert usual[0]["exact_match"] > limited[0]["exact_match"]  # a text of more than three letters does not fit into 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--beams", "0"], "beams: 0 is not"),
        (["--option", "n_best=2", "--beams", "2"], "n_best: only the best answer is scored; leave it out"),
        (["--option", "beams"], "--option beams: must be KEY=VALUE"),
    ],
)
def test_evaluate_refuses_an_option_by_name(run: Path, path: Path, arguments: list[str], message: str) -> None:
    for target in (path, run):
        result = seqpipe("evaluate", target, "--data", run.parent.parent / "test.jsonl", "-q", *arguments)
        assert (result.code, result.out, result.err.startswith(message)) == (2, "", True), result.err


def test_tokens_of_the_command_line_are_a_text_or_a_list(path: Path, model: Model) -> None:
    expected = model("abc", prefix="fe")
    assert expected["generated_text"][:2] == "fe"
    ids = [model.predictor.kind.tokenizer.token_to_id(token) for token in "fe"]  # type: ignore[attr-defined]
    for option in ("prefix=fe", 'prefix="fe"', "prefix=[f, e]", f"prefix={ids}"):
        assert lines(predict(path, "--option", option)) == [expected]
    for option, message in (("prefix=7", "prefix: '7' is not a token"), ("prefix=007", "prefix: '0' is not a token")):
        assert predict(path, "--option", option).err.startswith(message)


def test_an_empty_source_is_an_empty_text_in_its_line_and_changes_no_other(path: Path, model: Model) -> None:
    empty = {"generated_text": "", "score": 1.0, "log_score": 0.0}
    answers = model(TEXTS)
    assert answers[2] == answers[5] == empty  # a blank is an empty source, too
    assert answers == [model(text) for text in TEXTS]
    assert lines(predict(path, text="".join(f"{text}\n" for text in TEXTS))) == answers
    assert lines(predict(path, text="\n\n")) == [empty, empty]
    assert model("", beams=3, n_best=2, prefix="f", min_length=2) == [empty]
    assert model("", seed=3) == model.explain("").answer == empty


def test_a_source_over_the_limit_is_refused_with_its_place(path: Path, model: Model, tmp_path: Path) -> None:
    whole, short = bundle.read(path), tmp_path / "short"
    toy_bundles.write_bundle(
        short, whole.files, toy_bundles.manifest_content(whole.manifest) | {"limits": {"tokens": 6}, "golden": []}
    )
    limited = load(short, "cpu", threads=1)
    assert limited("abcdef") == model("abcdef")
    message = "7 tokens exceed the limit of 6; split the text"
    with pytest.raises(DataError, match=f"^record 2: {message}$"):
        limited(["abc", "abcdefa"])
    (tmp_path / "in.txt").write_text("abc\nfed\nabcdefa\n")
    result = predict(short, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.jsonl")
    assert (result.code, result.err) == (3, f"{tmp_path / 'in.txt'}:3: {message}\n")
    assert not (tmp_path / "out.jsonl").exists()


def test_attention_weights_run_backward_and_are_drawn(path: Path, model: Model, tmp_path: Path) -> None:
    explanation = model.explain("facbed", beams=3)
    assert explanation.answer["generated_text"] == "debcaf"
    (attention,) = explanation.attentions
    assert (attention.name, attention.over, attention.written) == ("head.attention", "written", tuple("debcaf"))
    weights = attention.weights[0]
    assert attention.weights.shape == (1, 6, 6)
    assert weights.sum(1) == pytest.approx(1, abs=1e-5)
    means = weights @ np.arange(6)  # the mean source position of each token that was written
    assert (np.diff(means) < 0).all()
    assert np.abs(means - np.arange(6)[::-1]).max() < 1.5
    for name in ("a.html", "a.json"):
        result = seqpipe("explain", path, "facbed", "-o", tmp_path / name, "--option", "beams=3")
        assert (result.code, result.err) == (0, f"wrote {tmp_path / name}\n")
    page = (tmp_path / "a.html").read_text()
    for m, n in np.ndindex(6, 6):
        assert f'title="{"debcaf"[m]} → {"facbed"[n]}: {weights[m, n]:.3f}"' in page
    stored = json.loads((tmp_path / "a.json").read_text())["attentions"]["head.attention"]
    assert stored["written"] == [*"debcaf"]
    assert np.array(stored["weights"]) == pytest.approx(weights, abs=1e-6)
