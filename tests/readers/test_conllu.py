"""Universal Dependencies, good and bad, through the conllu reader."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from data_files import data_error

from seqpipe.features.document import locate_words
from seqpipe_plugins.readers.conllu import Conllu

NAMES = ("lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")


def row(number: object, form: str, upos: str = "X", **cells: str) -> str:
    cells = {"upos": upos, **cells}
    return "\t".join([str(number), form, *(cells.get(name, "_") for name in NAMES)]) + "\n"


GLUED = {"misc": "SpaceAfter=No"}
DONT = (
    "# newdoc\n# sent_id = a-1\n# text = I don't.\n"
    + row(1, "I", "PRON", deprel="nsubj")
    + row("2-3", "don't", "_", **GLUED)
    + row(2, "do", "AUX", deprel="aux")
    + row(3, "n't", "PART", feats="Polarity=Neg")
    + row("3.1", "run", "VERB")
    + row(4, ".", "PUNCT")
    + "\n"
)


def read(content: str, **options: Any) -> list[dict[str, Any]]:
    return list(Conllu(**options).records(content.splitlines(keepends=True), "x"))


def test_ranges_and_empty_nodes_are_not_words() -> None:
    (record,) = read(DONT)
    upos = ["PRON", "AUX", "PART", "PUNCT"]
    features, deprel = ["_", "_", "Polarity=Neg", "_"], ["nsubj", "aux", "_", "_"]
    columns = {**dict.fromkeys(("lemma", "xpos", "head"), ["_"] * 4), "upos": upos, "feats": features, "deprel": deprel}
    common = {"text": "I don't.", "words": ["I", "do", "n't", "."], "tags": upos, "where": "x:4"}
    assert record == common | columns | {"sent_id": "a-1"}
    assert locate_words(record["words"], record["text"]) == [(0, 1), (2, 4), (4, 7), (7, 8)]


@pytest.mark.parametrize(
    ("column", "tags"), [("upos", ["DET", "NOUN"]), ("feats", ["_", "N=1|C=2"]), ("deprel", ["det", "root"])]
)
def test_any_column_has_the_tags(column: str, tags: list[str]) -> None:
    text = row(1, "a", "DET", feats="_", deprel="det") + row(2, "b", "NOUN", feats="N=1|C=2", deprel="root")
    assert read(text, tags=column)[0]["tags"] == tags


def test_a_file_without_annotation_gives_words_alone() -> None:
    assert "tags" not in read(row(1, "a", "_"), tags=None)[0]


def test_without_the_comment_the_text_is_put_together() -> None:
    text = DONT.replace("# text = I don't.\n", "")
    assert read(text)[0]["text"] == "I don't."
    assert read(row(1, "(", **GLUED) + row(2, "a", misc="X=1|SpaceAfter=No") + row(3, ")"))[0]["text"] == "(a)"


def test_words_that_are_not_in_the_text_replace_it() -> None:
    text = "# text = Il va au lac\n" + row(1, "Il") + row(2, "va") + row("3-4", "au") + row(3, "à") + row(4, "le")
    record = read(text + row(5, "lac"))[0]
    assert (record["text"], record["words"]) == ("Il va à le lac", ["Il", "va", "à", "le", "lac"])


@pytest.mark.parametrize("change", [str, lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff\n" + text])
def test_line_ends_and_a_byte_order_mark_change_nothing(change: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.conllu.gz"
    path.write_bytes(gzip.compress(change(DONT + "\n\n" + row(1, "b")).encode()))
    assert [record["words"] for record in Conllu().read(path)] == [["I", "do", "n't", "."], ["b"]]


BAD = [
    (row(1, "a") + "\nb\n", {}, 3, "1 columns"),
    ("1\ta\tNOUN\n", {}, 1, "3 columns in this line; CoNLL-U has 10 separated by tabs; use the reader conll"),
    (row(1, "a") + row(3, "b"), {}, 2, "word 3 is where word 2 should be; number the words from 1"),
    (row(1, "a") + row(1, "b"), {}, 2, "end each sentence by an empty line"),
    (row("x", "a"), {}, 1, "'x' is not the number of a word; write 1, or a range"),
    (row(1, "a") + row("1-2", "ab"), {}, 2, "the range 1-2 is before word 2; correct the numbers"),
    (row("1-3", "ab") + row(1, "a") + row("2-3", "b"), {}, 3, "the range 2-3 is before word 2"),
    (row("1-3", "ab") + row(1, "a") + row(2, "b"), {}, 2, "a range ends at word 3, after the last"),
    (row(1, " "), {}, 1, "the word is empty"),
    (row(1, "a") + row(2, "b", "_"), {}, 2, "the word 'b' has '_' as upos; annotate it, choose another column"),
    (row(1, "a", deprel=""), {"tags": "deprel"}, 1, "the word 'a' has '' as deprel"),
    ("\n# text = a c\n" + row(1, "a") + row(2, "b"), {}, 2, "`# text` is 'a c', but the words spell 'a b'; correct"),
]


@pytest.mark.parametrize(("text", "options", "line", "message"), BAD)
def test_a_bad_line_is_an_error(text: str, options: dict, line: int, message: str) -> None:
    with data_error(f"x:{line}", message):
        read(text, **options)
