"""The files of the cases in ../shared through `init`, where they are: whether each is read, and with which roles."""

from pathlib import Path

import pytest

from seqpipe.errors import DataError, OpenChoiceError
from seqpipe.init.look import summarise
from seqpipe.init.summary import head_for

SHARED = Path(__file__).parents[2].parent / "shared" / "cases"
CASES = """
files-annotation-tools/dataturks.json: read crf
files-annotation-tools/doccano.jsonl: read crf spans=entities text=text
files-annotation-tools/label-studio-min.json: read crf spans=label text=text
files-annotation-tools/label-studio.json: read crf
files-annotation-tools/other-key.jsonl: read crf spans=annot text=sent
files-bmes-entities/train.char.bmes: read crf words=1 tags=2
files-conll-double-hash/dev.tsv: read crf words=1 tags=2
files-detokenized-target/train.tsv: read seq2seq text=1 target=2
files-fasttext-numbers/train.txt: read score
files-header-with-empty-names/spam.csv: read label label=v1 text=v2
files-indicator-columns/toxic.csv: read label text=comment_text labels=insult labels=obscene labels=threat
files-intents-json/intents.json: read label
files-io-tags/corpus.txt: read crf words=1 tags=2
files-label-then-blank/TREC.train: read label label=the_first_word text=the_rest
files-language-prefix-wikiann/train: read crf words=1 tags=2
files-latin1-and-lone-cr/spam.csv: read label label=label text=text
files-nested-label-objects/cluener.json: read crf
files-nested-label-objects/spacy-cats.jsonl: read label
files-one-word-source/train.tsv: read seq2seq text=1 target=2
files-pair-with-repeated-question/train.csv: read label text=atext label=label text_pair=qtext
files-ragged-tsv/sts-train.csv: ask score
files-rasa-yml/nlu.md: read crf
files-rasa-yml/nlu.yml: read crf
files-repeated-source/devset.csv: read seq2seq text=mr target=ref
files-segmented/msr_training.utf8: read crf words=lines
files-squad-one-bad-offset/train.json: read answer-span
files-text-and-labels-files/train_text.txt: read label label=train_labels.txt text=train_text.txt
files-two-tag-columns/train.tsv: read crf words=2 tags=3
reports-contradict/many.csv: read label label=label text=text
reports-contradict/train.csv: read label label=label text=text
reports-encoding/cp1252.csv: read label label=label text=text
reports-encoding/index.csv: read label label=label text=text
reports-encoding/nlcell.csv: read label label=label text=text
reports-encoding/pipe.csv: read label label=label text=text
reports-encoding/quote.csv: read label label=label text=text
reports-encoding/semi.csv: read label label=label text=text
reports-label-blanks/bom.csv: read label label=label text=text
reports-label-blanks/commalabels.csv: read label label=label text=text
reports-label-blanks/train.csv: read label label=label text=text
reports-lm/train.txt: read lm text=lines
reports-multilabel/bar.csv: read label labels=labels text=text
reports-multilabel/missing.jsonl: read label labels=labels text=text
reports-multilabel/null.jsonl: read label labels=labels text=text
reports-multilabel/ok.jsonl: read label labels=labels text=text
reports-multilabel/onehot.csv: read label labels=media labels=money labels=sport text=text
reports-one-typo/BUP.conll: read crf words=1 tags=2
reports-one-typo/X.conll: read crf words=1 tags=2
reports-one-typo/dash.conll: read crf words=1 tags=2
reports-parallel/crlf.en: read seq2seq target=crlf.de text=crlf.en
reports-parallel/ok.de: read seq2seq text=ok.de target=ok.en
reports-spans/doccano.jsonl: read crf spans=label text=text
reports-spans/emoji_bytes.jsonl: read crf spans=spans text=text
reports-spans/hf.jsonl: refuse
reports-spans/ok.jsonl: read crf spans=spans text=text
reports-spans/rasa.jsonl: read crf spans=entities text=text
reports-spans/spacy.jsonl: read crf
reports-training/imb.csv: read label label=label text=text
reports-training/train.csv: read label label=label text=text
t4-files-01-conll-2003-read-as-labelled-lines/train.txt: read crf words=1 tags=4
t4-files-02-header-name-that-is-also-a-value/train.tsv: read label text=comments label=hate
t4-files-03-two-word-columns-taken-for-slots/tweets.csv: read label label=sentiment text=text
t4-files-04-lists-as-text-in-cells/train.csv: ask crf
t4-files-05-audio-path-and-transcript/metadata.csv: refuse
t4-files-05-audio-path-and-transcript/train_filelist.txt: refuse
t4-files-06-alpaca-instruction-and-input/alpaca.json: read seq2seq text_pair=input text=instruction target=output
t4-files-07-preferences/dpo.json: refuse
t4-files-08-chats/messages.jsonl: read seq2seq
t4-files-08-chats/sharegpt.json: read seq2seq
t4-files-09-texts-alone/corpus.jsonl: read lm text=text
t4-files-09-texts-alone/names.txt: read lm text=lines
t4-files-10-seq-in-and-label-alone/seq.in: read label label=label text=seq.in
t4-files-11-word-colon-tag-and-intent/train: read crf label=intent tags=tags words=words
t4-files-12-lists-that-are-left-out/choices.jsonl: refuse
t4-files-12-lists-that-are-left-out/keywords.jsonl: ask label
t4-files-13-unimorph-paradigms/own: read seq2seq text=1 target=2 text_pair=3
t4-files-14-printed-command-fails/hipe.tsv: ask crf
t4-files-14-printed-command-fails/reviews.jsonl: read score score=overall text=reviewText text_pair=summary
t4-files-15-retrieval-triples/pairs.jsonl: refuse
t4-files-15-retrieval-triples/triples.tsv: refuse
t4-files-16-numbers-crash/qrels.tsv: refuse
t4-files-17-few-bad-bytes-in-chinese/weibo.train: refuse
t4-files-18-latin-bytes-taken-for-japanese/spam.csv: read label label=v1 text=v2
t4-files-19-numbers-are-not-texts/city.tsp: refuse
t4-files-19-numbers-are-not-texts/flowers.csv: refuse
t4-files-19-numbers-are-not-texts/passengers.csv: refuse
t4-files-19-numbers-are-not-texts/pixels.csv: refuse
t4-files-20-labels-that-some-records-lack/fold.json: read label labels=intents text=text
t4-files-21-annotations-beside-a-text/ner.txt: refuse
t4-files-21-annotations-beside-a-text/news.spans: refuse
t4-files-21-annotations-beside-a-text/text: refuse
t4-files-22-stars-as-floats/yelp.jsonl: read score score=stars text=text
t4-files-23-docstart-in-tsv/NER_training.tsv: read crf words=1 tags=2
t4-reports-03-formatted-numbers-become-translation/c_currency.csv: read score score=price text=text
t4-reports-03-formatted-numbers-become-translation/c_date.csv: ask lm
t4-reports-03-formatted-numbers-become-translation/c_euro.csv: read score score=price text=text
t4-reports-03-formatted-numbers-become-translation/c_pct.csv: read score score=price text=text
t4-reports-03-formatted-numbers-become-translation/c_space.csv: read score score=price text=text
t4-reports-03-formatted-numbers-become-translation/c_thousand.csv: read score score=price text=text
t4-reports-03-formatted-numbers-become-translation/c_unit.csv: read score score=price text=text
t4-reports-03-formatted-numbers-become-translation/c_usd.csv: read score score=price text=text
t4-reports-07-label-studio-annotations/first_cancelled_second_good.json: read crf
t4-reports-07-label-studio-annotations/two_annotators_disagree.json: read crf
t4-reports-08-split-column/split.csv: read label label=label split=split text=text
t4-reports-09-labels-1-and-1.0/mixed.csv: read label label=label text=text
t4-reports-10-crlf-offsets/crlf_one.json: read crf
t4-reports-10-crlf-offsets/crlf_varied.json: read crf
t4-reports-13-one-empty-number/b_NaN.csv: read score score=price text=text
t4-reports-13-one-empty-number/b_big.csv: read score score=price text=text
t4-reports-13-one-empty-number/b_dash.csv: read score score=price text=text
t4-reports-13-one-empty-number/b_empty.csv: read score score=price text=text
t4-reports-13-one-empty-number/b_hex.csv: read score score=price text=text
t4-reports-13-one-empty-number/b_inf.csv: read score score=price text=text
t4-reports-13-one-empty-number/b_na.csv: read score score=price text=text
t4-reports-19-one-nul-byte/nul.csv: refuse
"""
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared cases")


def result(path: Path) -> str:
    """Outcome for a file: read with its head and roles, asked about with the likelier head first, or refused."""
    try:
        summary = summarise(path, None, None, (), None)
    except OpenChoiceError as error:
        return f"ask {error.readings[0][1]}"
    except DataError:
        return "refuse"
    roles = sorted((name.replace(" ", "_"), role) for name, role in summary.decision.best.roles.items())
    return " ".join(["read", head_for(summary.label_kind), *(f"{role}={name}" for name, role in roles)])


@pytest.mark.parametrize("case", CASES.strip().splitlines(), ids=lambda case: case.partition(": ")[0])
def test_a_case_is_read_as_what_it_is(case: str) -> None:
    name, _, expected = case.partition(": ")
    assert result(SHARED / name) == expected
