"""Vietnamese words of several syllables, such as Việt Nam: one unit with one tag, whatever the tokenizer."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from factory import seqpipe

from seqpipe import load
from seqpipe.config.signature import construct
from seqpipe.features.sources import TextSource
from seqpipe_plugins.readers.conllu import Conllu
from seqpipe_plugins.readers.segmented import Segmented
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.lexicon import Lexicon
from seqpipe_plugins.tokenizers.unigram import Unigram
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import Words

SUBJECTS = (("Tôi", "PRON"), ("Sinh viên", "NOUN"), ("Chúng tôi", "PRON"))
VERBS = (("sống ở", "VERB"), ("đến", "VERB"), ("nghiên cứu", "VERB"))
OBJECTS = (("Việt Nam", "PROPN"), ("Hà Nội", "PROPN"), ("lịch sử", "NOUN"), ("Huế", "PROPN"))


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vietnamese") / "vi.conllu"
    blocks = []
    for tagged in itertools.product(SUBJECTS, VERBS, OBJECTS):
        rows = [
            f"{i}\t{form}\t_\t{tag}\t_\t_\t_\t_\t_\t_" for i, (form, tag) in enumerate((*tagged, (".", "PUNCT")), 1)
        ]
        rows[-2] = rows[-2][:-1] + "SpaceAfter=No"
        blocks.append(f"# text = {' '.join(form for form, _ in tagged)}.\n" + "\n".join(rows) + "\n\n")
    path.write_text("".join(blocks), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "tokenizer",
    [
        Words(),
        Lexicon(joiner=" "),
        construct(WordPiece, max_size=120),
        construct(BPE, max_size=120),
        construct(BPE, byte_level=True, max_size=300),
        construct(Unigram, max_size=80),
    ],
    ids=lambda tokenizer: type(tokenizer).__name__,
)
def test_a_word_of_several_syllables_is_one_word_with_the_offsets_of_all(treebank: Path, tokenizer: Any) -> None:
    records = list(Conllu().read(treebank))
    source = TextSource(tokenizer.train([record["words"] for record in records]), {})
    for record, doc in zip(records, source.docs(records), strict=True):
        assert [doc.text[start:end] for start, end in doc.word_offsets] == record["words"]
        assert len(doc.word_offsets) == len(record["tags"])
        assert doc.text == record["text"]
        assert 1 not in doc.ids


@pytest.fixture(scope="module")
def run(treebank: Path) -> Path:
    """The run of a tagger whose words may hold blanks."""
    content = {
        "name": "vi",
        "data": {"reader": "conllu", "train": treebank.name, "dev": treebank.name, "test": treebank.name},
        "tokenizer": {"use": "lexicon", "joiner": " "},
        "embedding": {"use": "lookup", "dim": 16},
        "encoder": {"use": "conv", "layers": 1},
        "head": {"use": "tags", "scheme": "none"},
        "train": {"epochs": 12, "batch_tokens": 64, "optimizer": {"use": "adamw", "lr": 0.03}, "threads": 1},
    }
    (treebank.parent / "vi.yaml").write_text(json.dumps(content), encoding="utf-8")
    done = seqpipe("run", "vi.yaml", "--device", "cpu", folder=treebank.parent)
    assert done.code == 0, done.err
    return treebank.parent / "runs" / "vi"


def test_raw_text_is_split_and_tagged_like_words_through_training_export_and_answer(run: Path) -> None:
    model = load(run / "bundle", "cpu")
    words, text = ["Chúng tôi", "đến", "Hà Nội", "."], "Chúng tôi đến Hà Nội."
    expected = [(word, text.index(word), text.index(word) + len(word)) for word in words]
    for record in (text, {"text": text, "words": words}):
        answer = model(record)
        assert [(part["word"], part["start"], part["end"]) for part in answer] == expected
        assert [part["entity"] for part in answer] == ["PRON", "VERB", "PROPN", "PUNCT"]


def test_predict_reads_words_with_blanks_a_line_each(run: Path) -> None:
    stdin = "Sinh viên\nđến\nViệt Nam\n.\n".encode()
    done = seqpipe("predict", run / "bundle", "--format", "conll", stdin=stdin)
    assert done.out == "Sinh viên\tNOUN\nđến\tVERB\nViệt Nam\tPROPN\n.\tPUNCT\n\n"


def test_a_segmenter_tags_the_syllables_of_text_without_marks(tmp_path: Path) -> None:
    path = tmp_path / "vi.txt"
    path.write_text("Sinh_viên đến Việt_Nam .\n", encoding="utf-8")
    (record,) = Segmented(joiner=" ", syllables="_").read(path)
    (doc,) = TextSource(Words().train([record["text"]]), {}).docs([record])
    assert doc.words == ["Sinh", "viên", "đến", "Việt", "Nam", "."]
    words = [record["text"][span["start"] : span["end"]] for span in record["spans"]]
    assert words == ["Sinh viên", "đến", "Việt Nam", "."]
