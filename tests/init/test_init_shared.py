"""The data sets of ../shared/data through `init`, where they are: a head for each file, or a refusal."""

from pathlib import Path

import pytest

from seqpipe.config import loader as config
from seqpipe.errors import DataError
from seqpipe.init import init_yaml

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
HEADS = {
    "banking77/train.csv": ("label", "label: category"),
    "bc5cdr/dev.tsv": ("crf", "{use: conll}"),
    "movie_reviews/dev.jsonl.gz": ("label", "neg 100, pos 100"),
    "ncbi_disease/dev.tsv": ("crf", "Disease 787"),
    "pointer_nets/tsp_5_test.txt": ("pointer", "task: tour"),
    "pointer_nets/convex_hull_5_test.txt": ("pointer", "task: hull"),
    "sentence_polarity/train.tsv": ("label", "columns: [label, text]"),
    "sib200_zho/dev.tsv": ("label", "label: category"),
    "subjectivity/train.tsv": ("label", "columns: [label, text]"),
    "sentence_polarity/rt-polarity.neg": ("label", "{use: lines, labels: {neg: rt-polarity.neg, pos: rt-polarity.pos}"),
    "snips/train/seq.in": ("crf", "{words: seq.in, tags: seq.out, label: label}"),
    "snips/train/seq.out": ("crf", "{words: seq.in, tags: seq.out, label: label}"),
    "tinyshakespeare/input.txt": ("lm", "use: text"),
    "ud_english_ewt/en_ewt-ud-dev.conllu.gz": ("crf", "use: conllu"),
    "weibo_ner/weiboNER_2nd_conll.dev": ("crf", "pattern: ^(.), joiner: ''"),
    "wnut17/dev.conll": ("crf", "person 470"),
    "wnut17/shared_task_submissions/arcada.conll": ("crf", "{use: conll"),
}
REFUSED = {
    "banking77/categories.json": "a JSON list, but not of objects",
    "clinc150/data_full.json": "without a list of objects",
    "clinc150/domains.json": "without a list of objects",
    "scan/simple/test.txt.gz": "pairs of texts after IN: and OUT:",
    "scan/length/train.txt.gz": "pairs of texts after IN: and OUT:",
    "scitldr_a/dev.jsonl.gz": r"\(lists of texts\) is not used",
    "crosswoz_intent/dev.jsonl": "key 'acts' \\(lists of objects\\) is not used",
    "sib200_zho/labels.txt": "a list of 7 words",
    "tang_poems/dev.jsonl": r"\(lists of texts\) is not used",
    "word_vectors_tiny/glove.840B.300d.head100.txt": "is a file of word vectors",
    "word_vectors_tiny/wiki.en.head100.vec": "is a file of word vectors",
}
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared data sets")


@pytest.mark.parametrize("name", HEADS)
def test_a_shared_data_set_gets_the_head_that_it_is_for(name: str, tmp_path: Path) -> None:
    head, contains = HEADS[name]
    yaml = init_yaml(SHARED / name, tmp_path / "init.yaml")
    assert config.load_config(yaml).head[0].use == head
    assert contains in yaml.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REFUSED)
def test_a_shared_file_that_is_no_data_for_one_head_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=REFUSED[name]):
        init_yaml(SHARED / name, tmp_path / "init.yaml")
    assert not (tmp_path / "init.yaml").exists()
