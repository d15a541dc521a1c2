"""`seqpipe distill-vectors`, and a pipeline with the embedding `static` that is trained from its file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gallery import train_settings, write_pipeline
from tiny_checkpoints import checkpoint, decoder, t5
from tiny_pipelines import fail_with, seqpipe, succeed, write_jsonl

from seqpipe.api.model import load
from seqpipe.features.checkpoint_tokenizer import pretrained_tokenizer
from seqpipe.features.vocabulary import vocabulary_of
from seqpipe.nn.pretrained import SIF, principal_components, zipf_weights
from seqpipe_plugins.embeddings.static import Static
from seqpipe_plugins.embeddings.vectors import entries

TEXTS = ["Ada met Bob in Oslo", "a teacher of mathematics", "hello, world!", "rain in Oslo", "mathematics in Rome"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("checkpoints") / "bert", "bert", TEXTS * 3)


def vectors_of(path: Path) -> tuple[list[str], np.ndarray]:
    listed = [*entries(path, lambda word: True, "auto", None)]
    return [entry.word for entry in listed], np.stack([entry.numbers for entry in listed])


def sentence_vectors(folder: Path, words: Sequence[str]) -> np.ndarray:
    """The mean of the last hidden states of each word as a text of its own, by `transformers` alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return np.stack([model(**tokenizer(word, return_tensors="pt")).last_hidden_state[0].mean(0) for word in words])


def similarities(rows: np.ndarray) -> np.ndarray:
    centred = rows - rows.mean(0)
    return np.asarray(centred @ centred.T)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_the_vectors_of_words_are_those_of_transformers_but_for_a_rotation(family: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / family, family, TEXTS * 3)
    words = [word for text in TEXTS for word in text.split() if word.isalpha()]
    words = [*dict.fromkeys([*words, *(word[:2] for word in words), *(word[::-1] for word in words)])]
    (tmp_path / "words.txt").write_text("\n".join(["", *words, "of", ""]))
    arguments = ["--vocabulary", "words.txt", "--dim", "16", "--weighting", "none", "-o", "words.vec"]
    succeed("distill-vectors", folder, *arguments, folder=tmp_path)
    listed, rows = vectors_of(tmp_path / "words.vec")
    assert listed == words
    assert rows.shape == (len(words), 16)
    assert similarities(rows) == pytest.approx(similarities(sentence_vectors(folder, words)), abs=1e-3)


def test_every_token_has_a_vector_the_same_in_both_formats_and_each_time(bert: Path, tmp_path: Path) -> None:
    for name, more in (("a.vec", []), ("b.vec", []), ("c.bin", ["--binary"])):
        done = succeed("distill-vectors", bert, "-o", tmp_path / name, "--dim", "8", *more)
        assert f"8 wide -> {tmp_path / name}" in done.err
        assert f"tokenizer: {{use: pretrained, checkpoint: {bert}}}" in done.err
    assert (tmp_path / "a.vec").read_bytes() == (tmp_path / "b.vec").read_bytes()
    (words, rows), (binary_words, binary_rows) = vectors_of(tmp_path / "a.vec"), vectors_of(tmp_path / "c.bin")
    assert words == binary_words
    assert np.array_equal(rows, binary_rows)
    vocabulary = vocabulary_of(pretrained_tokenizer(bert).tokenizer)
    assert words == [token for token in vocabulary if token[0] != "["]
    lengths = np.linalg.norm(rows, axis=1)
    assert lengths[:10].mean() < lengths[-10:].mean() / 2  # the most frequent are weighted down


def test_weights_follow_zipfs_law_and_components_are_those_of_the_covariance() -> None:
    weights = zipf_weights(3)[:, 0]
    probabilities = np.array([1 / 2, 1 / 3, 1 / 4]) / (1 / 2 + 1 / 3 + 1 / 4)
    assert weights == pytest.approx(SIF / (SIF + probabilities))
    rows = np.random.default_rng(1).normal(size=(50, 6)) * [1, 5, 2, 1, 3, 1] + 7
    projected = principal_components(rows, 2)
    assert projected.mean(0) == pytest.approx([0, 0], abs=1e-5)
    values = np.linalg.svd(rows - rows.mean(0), compute_uv=False)
    assert np.linalg.norm(projected, axis=0) == pytest.approx(values[:2], rel=1e-5)
    assert principal_components(rows[::-1], 2)[::-1] == pytest.approx(projected, abs=1e-4)


def labelled(count: int, seed: int) -> list[dict[str, Any]]:
    return [{"text": text, "label": "place" if "in" in text else "other"} for text in TEXTS * count]


def pipeline(folder: Path, **changes: Any) -> Path:
    content: dict[str, Any] = {
        "tokenizer": {"use": "words", "lowercase": True},
        "embedding": {"use": "static", "path": "tiny.vec"},
        "head": {"use": "label", "pool": "mean"},
        "train": train_settings(8, 0.05, 512),
    }
    return write_pipeline(folder, labelled, "tiny", (2, 2, 2), **content | changes)


def test_a_bundle_trained_from_the_file_needs_neither_it_nor_the_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "bert", "bert", TEXTS * 3)
    succeed("distill-vectors", folder, "-o", tmp_path / "tiny.vec", "--dim", "12")
    embedding = [{"use": "static", "path": "tiny.vec"}, {"use": "lookup", "dim": 4}]
    pipeline(tmp_path, tokenizer={"use": "pretrained", "checkpoint": str(folder)}, embedding=embedding)
    succeed("run", "tiny.yaml", "--device", "cpu", folder=tmp_path)
    folder.rename(tmp_path / "elsewhere")
    (tmp_path / "tiny.vec").unlink()
    model = load(tmp_path / "runs/tiny/bundle", "cpu")
    assert [model(text)["label"] for text in ("rain in Oslo", "hello, world!")] == ["place", "other"]


def test_the_words_are_those_of_a_pipelines_training_and_unlabelled_texts(bert: Path, tmp_path: Path) -> None:
    succeed("distill-vectors", bert, "--pipeline", pipeline(tmp_path), "-o", tmp_path / "tiny.vec", "--dim", "8")
    words, _ = vectors_of(tmp_path / "tiny.vec")
    assert words[0] == "in"
    assert {*words} == {word for text in TEXTS for word in text.lower().replace(",", " ,").replace("!", " !").split()}
    vocabulary = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *words]
    embedding = Static([*vocabulary, "unseen"], path=tmp_path / "tiny.vec")
    x = embedding(torch.tensor([[1, 4, len(words) + 4]]))["x"][0]
    assert [bool(row.any()) for row in x] == [False, True, False]
    assert len([*embedding.parameters()]) == 1
    assert [*Static(vocabulary, path=tmp_path / "tiny.vec", train=False).parameters()] == []
    write_jsonl(tmp_path / "more.jsonl", [{"text": "rainin"}])
    file = pipeline(tmp_path, data={"unlabelled": "more.jsonl"}, train={"self_training": {"rounds": 1}})
    succeed("distill-vectors", bert, "--pipeline", file, "-o", tmp_path / "tiny.vec", "--dim", "8")
    assert {"in", "rainin"} < {*vectors_of(tmp_path / "tiny.vec")[0]}


def test_words_that_the_tokenizer_does_not_know_have_no_vector(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("hello\n数学\nworld\nteacher\n")
    arguments = ("--vocabulary", "words.txt", "-o", "words.vec", "--dim", "2")
    done = succeed("distill-vectors", bert, *arguments, folder=tmp_path)
    assert f"1 of 4 words are unknown to the tokenizer of {bert} and have no vector" in done.err
    assert vectors_of(tmp_path / "words.vec")[0] == ["hello", "world", "teacher"]


def without(folder: Path, files: str) -> Path:
    """A checkpoint that lacks these files."""
    for path in checkpoint(folder, "bert", TEXTS * 3).glob(files):
        path.unlink()
    return folder


BAD = {
    "decoder": (lambda folder: decoder(folder, "gpt2", TEXTS), 3, "gpt2 is not a BERT-family encoder; the encoder"),
    "seq2seq": (lambda folder: t5(folder, "1.0", TEXTS), 3, "t5 has an encoder and a decoder"),
    "no weights": (lambda folder: without(folder, "*.safetensors"), 3, "has no weights (model.safetensors)"),
    "no tokenizer": (lambda folder: without(folder, "token*"), 3, "has no tokenizer (tokenizer.json)"),
    "empty": (lambda folder: without(folder, "*"), 3, "no config.json; a checkpoint is a folder that save_pretrained"),
    "hub": (lambda folder: "no-such/model", 7, "HF_HUB_OFFLINE is set: unset it, or name a folder"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_unusable_checkpoint_leaves_no_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make, code, message = BAD[name]
    fail_with(code, message, "distill-vectors", make(tmp_path / "checkpoint"), "-o", tmp_path / "out.vec")
    assert [path.name for path in tmp_path.iterdir() if path.name != "checkpoint"] == []


@pytest.mark.parametrize(
    ("words", "arguments", "message"),
    [
        ("a\nhello world\n", [], "words.txt:2: 'hello world' contains white space; write one word per line"),
        ("\n", [], "words.txt: has no words"),
        ("a\nhello\n", [], "--dim 256: 2 vectors of the encoder's width 16 have at most 1 principal components"),
        ("a\n", ["--pipeline", "tiny.yaml"], "--vocabulary and --pipeline both select the words"),
        ("a\n", ["-o", "nowhere/a.vec"], "nowhere/a.vec: there is no folder nowhere; create it first"),
        ("", ["--pipeline", "tiny.yaml"], "its tokenizer splits words into subwords; omit --pipeline"),
    ],
)
def test_bad_options_are_errors(words: str, arguments: list[str], message: str, bert: Path, tmp_path: Path) -> None:
    pipeline(tmp_path, tokenizer="wordpiece")
    (tmp_path / "words.txt").write_text(words)
    files = sorted(tmp_path.iterdir())
    vocabulary = ["--vocabulary", "words.txt"] if words else []
    done = seqpipe("distill-vectors", bert, *vocabulary, "-o", "out.vec", *arguments, folder=tmp_path)
    assert (done.code in (2, 3), message in done.err) == (True, True), done.err
    assert sorted(tmp_path.iterdir()) == files
