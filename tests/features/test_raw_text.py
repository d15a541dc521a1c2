"""Raw text as the tokenizer splits it, compared with the words of the data, and the advice of a warning."""

from typing import Any

from seqpipe.config.signature import construct
from seqpipe.features.raw_text import RawText, compare_raw_text, with_raw_text
from seqpipe.features.sources import TextSource
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.chars import CharsTokenizer
from seqpipe_plugins.tokenizers.words import WordsTokenizer


def of(tokenizer: Any, *records: dict[str, Any]) -> RawText:
    return compare_raw_text(TextSource(tokenizer.train([record["words"] for record in records]), {}), records)


def words(split: str, **fields: Any) -> dict[str, Any]:
    return {"words": split.split(), **fields}


def test_words_that_stand_alike_in_the_text_are_the_same() -> None:
    raw = of(WordsTokenizer(), words("Anna calls Ben ."), words("in Bern ?", text="in Bern?"))
    assert (raw.words, raw.otherwise, raw.same, raw.is_large) == (7, 0, True, False)


def test_a_word_that_is_cut_counts_once_and_is_the_example() -> None:
    raw = of(WordsTokenizer(), words("Anna-Lena calls Ben ."), words("a b c"))
    assert (raw.words, raw.otherwise, raw.same, raw.is_large) == (7, 1, False, True)
    assert raw.summary() == "14.3 % of 7 words are split differently by the tokenizer in the words joined by spaces"
    assert raw.suggestion() == (
        "for example 'Anna-Lena' as ['Anna', '-', 'Lena']; with `tokenizer: {use: words, "
        r"""pattern: "\\w+(?:[-'’.]\\w+)*|[^\\w\\s]"}` it is 0.0 %"""
    )
    dropped, long = of(WordsTokenizer(pattern="[a-z]+"), words("a 7")), of(WordsTokenizer(), words("http://a.b/c"))
    assert dropped.suggestion().startswith("for example '7', which is left out")
    assert long.suggestion().startswith("for example 'http://a.b/c' as ['http', ':', '/', '/', 'a']…; ")


def test_splitting_at_blanks_is_advised_only_where_the_data_has_raw_text() -> None:
    given = words("(a+b) c!d", text="  (a+b) c!d")
    assert r'pattern: "\\S+"}` it is 0.0 %' in of(WordsTokenizer(), given).suggestion()
    joined = of(WordsTokenizer(), words("(a+b) c!d"))
    assert (joined.joined, "segmenter" in joined.suggestion()) == (True, True)
    assert of(WordsTokenizer(pattern=r"\S+"), words("(a+b) c!d")).otherwise == 0


def test_chinese_words_are_joined_without_blanks_and_characters_advised() -> None:
    joined = {"播 放 iPhone 里 的 歌": "播放iPhone里的歌", "New York 。": "New York。", "한국 음악": "한국 음악"}
    assert [with_raw_text(words(split))["text"] for split in joined] == [*joined.values()]
    spans = {"text": "播 放", "words": ["播", "放"], "spans": []}
    assert with_raw_text(spans) is spans  # the spans count in this text
    raw = of(WordsTokenizer(), *[words("播 放 周 杰 伦 的 歌")] * 3)
    assert (raw.otherwise, raw.words) == (21, 21)
    assert raw.suggestion().endswith("with `tokenizer: {use: chars, keep_spaces: false}` it is 0.0 %")
    assert of(CharsTokenizer(), words("播 放 周 杰 伦 的 歌")).same


def test_subwords_are_compared_by_their_words_and_records_without_words_count_nothing() -> None:
    raw = of(construct(BPE, max_size=60), words("don't stop", text="don't  stop"))
    assert (raw.words, raw.otherwise) == (2, 1)
    assert compare_raw_text(TextSource(WordsTokenizer().train(["a b"]), {}), [{"text": "a b"}]).words == 0
