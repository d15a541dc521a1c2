"""Marian's SentencePiece tokenizers against the package `sentencepiece`."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tiny_checkpoints import change_json, marian, sentencepiece

from seqpipe.errors import DataError
from seqpipe.features.checkpoint_tokenizer import SIDES, pretrained_tokenizer
from seqpipe.features.vocabulary import SPECIALS, vocabulary_of

SOURCE = ["the owl saw a fox", "a fox saw the owl , the owl"]
TARGET = ["ein Fuchs sah die Eule", "die Eule sah größer aus"]
TEXTS = (
    "the owl",
    "  the  owl saw a fox, the hole ",
    "a wolf",
    "the ölfox 漢字 größer",
    "fox ü üß 漢 fox漢字fox Müller Straße",
    "sah die Eule",
    "x",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return marian(tmp_path_factory.mktemp("marian") / "marian", SOURCE, TARGET)


@pytest.mark.filterwarnings("ignore:Recommended")
@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_package_sentencepiece(folder: Path, text: str) -> None:
    original: Any = transformers.MarianTokenizer.from_pretrained(folder)
    for side, argument in zip(SIDES, ("text", "text_target"), strict=True):
        tokenizer, ids, _ = pretrained_tokenizer(folder, side)
        expected = original(**{argument: text}, add_special_tokens=False)["input_ids"]
        assert [ids[i] for i in tokenizer.encode(text).ids] == expected, side


@pytest.mark.filterwarnings("ignore:Recommended")
def test_letters_that_a_side_lacks_cost_more_than_pieces_that_compete(tmp_path: Path) -> None:
    """Two pieces at -16 together, and one piece with an unknown letter at -1 - 18: SentencePiece's penalty decides."""
    folder = marian(tmp_path / "marian", SOURCE, TARGET)
    sentencepiece(folder / "source.spm", [("▁x", -8.0), ("yz", -8.0), ("▁xy", -1.0), ("▁", -2.0)])
    sentencepiece(folder / "target.spm", [("▁", -2.0), ("z", -3.0)])  # the other side has the letter
    tokens = ["</s>", "<unk>", ">>fra<<", "▁x", "yz", "▁xy", "▁", "z", "<pad>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    change_json(folder / "config.json", vocab_size=len(tokens), pad_token_id=len(tokens) - 1)
    original: Any = transformers.MarianTokenizer.from_pretrained(folder)
    tokenizer, ids, _ = pretrained_tokenizer(folder, "source")
    for text, pieces in (("xyz", ["▁x", "yz"]), ("xy z", ["▁xy", "▁", "z"])):
        expected = [vocabulary[piece] for piece in pieces]
        assert [ids[i] for i in tokenizer.encode(text).ids] == expected
        assert original(text, add_special_tokens=False)["input_ids"] == expected


def test_both_sides_have_the_same_tokens_under_the_same_ids_and_decode_their_texts(folder: Path) -> None:
    (source, ids, _), (target, target_ids, _) = (pretrained_tokenizer(folder, side) for side in SIDES)
    assert ids == target_ids
    names = [[token.removeprefix(" ") for token in vocabulary_of(tokenizer)] for tokenizer in (source, target)]
    assert names[0] == names[1]
    assert tuple(names[0][:4]) == SPECIALS
    for tokenizer, text in ((source, "the owl saw a fox"), (target, "die Eule sah ein Fuchs")):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    fox = source.encode("fox").ids  # a model may write a word of its source
    assert target.decode(fox, skip_special_tokens=False) == "fox"


def test_a_target_language_is_one_token_at_the_beginning_of_a_text(folder: Path) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    tokenizer, ids, _ = pretrained_tokenizer(folder)
    tokens = [ids[i] for i in tokenizer.encode(">>fra<< the owl").ids]
    assert tokens == [vocabulary[">>fra<<"], vocabulary["▁the"], vocabulary["▁owl"]]


def replace_model(folder: Path) -> None:
    sentencepiece(folder / "target.spm", [("▁a", -1.0)], kind=2)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (replace_model, r"target\.spm is not a unigram model of SentencePiece; choose"),
        ({"separate_vocabs": True}, r"has separate_vocabs but no target_vocab\.json"),
        ({"pad_token": "<blank>"}, r"vocab\.json lacks the special token '<blank>'"),
    ],
)
def test_a_damaged_checkpoint_is_refused(damage: Any, message: str, tmp_path: Path) -> None:
    folder = marian(tmp_path / "marian", SOURCE, TARGET)
    if callable(damage):
        damage(folder)
    else:
        change_json(folder / "tokenizer_config.json", **damage)
    with pytest.raises(DataError, match=message):
        pretrained_tokenizer(folder)
