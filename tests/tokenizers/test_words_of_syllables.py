"""Vietnamese words of several syllables, such as Việt Nam: one unit with one tag, whatever the tokenizer."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from gallery import train_settings
from tiny_pipelines import seqpipe, succeed, write_tagger

from seqpipe import load
from seqpipe.config.signature import construct
from seqpipe.features.sources import TextSource
from seqpipe_plugins.readers.conllu import Conllu
from seqpipe_plugins.readers.segmented import Segmented
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.lexicon import Lexicon
from seqpipe_plugins.tokenizers.unigram import Unigram
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import WordsTokenizer

SUBJECTS = (("Tôi", "PRON"), ("Sinh viên", "NOUN"), ("Chúng tôi", "PRON"))
VERBS = (("sống ở", "VERB"), ("đến", "VERB"), ("nghiên cứu", "VERB"))
OBJECTS = (("Việt Nam", "PROPN"), ("Hà Nội", "PROPN"), ("lịch sử", "NOUN"), ("Huế", "PROPN"))


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vietnamese") / "vi.conllu"
    blocks = []
    for tagged in itertools.product(SUBJECTS, VERBS, OBJECTS, ((".", "PUNCT"),)):
        rows = [f"{i}\t{form}\t_\t{tag}" + "\t_" * 5 for i, (form, tag) in enumerate(tagged, 1)]
        ends = ["\t_", "\t_", "\tSpaceAfter=No", "\t_"]
        text = " ".join(form for form, _ in tagged[:-1])
        blocks.append(f"# text = {text}.\n" + "".join(f"{r}{e}\n" for r, e in zip(rows, ends, strict=True)) + "\n")
    path.write_text("".join(blocks), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        *((WordsTokenizer, {}), (Lexicon, {"joiner": " "}), (Unigram, {"max_size": 80})),
        *((cls, {"max_size": 120}) for cls in (WordPiece, BPE)),
        (BPE, {"byte_level": True, "max_size": 300}),
    ],
)
def test_a_word_of_several_syllables_has_the_offsets_of_all(treebank: Path, cls: type, options: dict[str, Any]) -> None:
    records = list(Conllu().read(treebank))
    source = TextSource(construct(cls, **options).train([record["words"] for record in records]), {})
    for record, doc in zip(records, source.docs(records), strict=True):
        assert [doc.text[start:end] for start, end in doc.word_offsets] == record["words"]
        assert len(doc.word_offsets) == len(record["tags"])
        assert doc.text == record["text"]
        assert 1 not in doc.ids


@pytest.fixture(scope="module")
def run(treebank: Path) -> Path:
    """The run of a tagger whose words may hold blanks."""
    content = {
        "data": {"reader": "conllu", **dict.fromkeys(("train", "dev", "test"), treebank.name)},
        "tokenizer": {"use": "lexicon", "joiner": " "},
        "embedding": {"use": "lookup", "dim": 16},
        "encoder": {"use": "conv", "layers": 1},
        "head": {"use": "tags", "scheme": "none"},
        "train": train_settings(12, 0.03, 64),
    }
    succeed("run", write_tagger(treebank.parent, content), "--device", "cpu", folder=treebank.parent)
    return treebank.parent / "runs/tiny"


def test_raw_text_is_split_and_tagged_like_words(run: Path) -> None:
    model = load(run / "bundle", "cpu")
    words, text = ["Chúng tôi", "đến", "Hà Nội", "."], "Chúng tôi đến Hà Nội."
    places = [(text.index(word), text.index(word) + len(word)) for word in words]
    tags = ["PRON", "VERB", "PROPN", "PUNCT"]
    for record in (text, {"text": text, "words": words}):
        answer = model(record)
        assert [(part["word"], part["entity"]) for part in answer] == [*zip(words, tags, strict=True)]
        assert [(part["start"], part["end"]) for part in answer] == places
    stdin = "Sinh viên\nđến\nViệt Nam\n.\n".encode()  # a word a line
    result = seqpipe("predict", run / "bundle", "--format", "conll", stdin=stdin)
    assert result.out == "Sinh viên\tNOUN\nđến\tVERB\nViệt Nam\tPROPN\n.\tPUNCT\n\n"


def test_a_segmenter_tags_the_syllables_of_text_without_marks(tmp_path: Path) -> None:
    path = tmp_path / "vi.txt"
    path.write_text("Sinh_viên đến Việt_Nam .\n", encoding="utf-8")
    (record,) = Segmented(joiner=" ", syllables="_").read(path)
    (doc,) = TextSource(WordsTokenizer().train([record["text"]]), {}).docs([record])
    assert doc.words == ["Sinh", "viên", "đến", "Việt", "Nam", "."]
    words = [record["text"][span["start"] : span["end"]] for span in record["spans"]]
    assert words == ["Sinh viên", "đến", "Việt Nam", "."]
