"""Names that people give to columns and keys, by role: evidence for a role, never a condition."""

from __future__ import annotations

from typing import Literal

Role = Literal["label", "score", "text", "text_pair", "source", "target", "words", "tags", "ignored", "unlearned"]

# The first name of a role is its usual one.
_NAMES: dict[Role, str] = {
    "label": """label labels intent intents class category categories sentiment topic topics target polarity emotion
        gold gold_label stance answer is_ overall tag tags subject type genre domain act relation verdict status group
        label_text y correct hate spam toxic offensive 标签 类别 etiqueta categoria kategorie classe 라벨 оценка метка
        тема тональность""",
    "score": """score scores rating ratings stars grade price similarity value overall points relevance amount valence
        arousal star complexity quality""",
    "text": """text texts sentence review comment comments utterance tweet message content body document sentence1
        premise text_a text1 question1 input query utt reviewtext review_text review_body comment_text headline question
        passage abstract abst post article title lyrics phrase token description 文本 内容 评论 texto satz текст отзыв
        本文 문장""",
    "text_pair": """text_pair sentence2 hypothesis question2 text2 text_b sentence_b context passage qtext query title
        reply summary""",
    "source": """text source src input question document article body lemma prompt instruction context dialogue dialog
        query q mr data meaning code latin original passage utterance abstract content nl user human""",
    "target": """target tgt output answer answers response summary translation headline form inflected completion reply
        highlights a ref reference description sql parse reversed logical_form paraphrase correction corrected title
        tldr assistant phonemes pronunciation simple""",
    "words": "word words token tokens form text sentence utterance passage",
    "tags": "tag tags ner ner_tags labels pos pos_tags label slots slot seq_label entities bio ne iob upos chunk",
    "ignored": """id uid guid index idx date time timestamp url uri user author split fold lang language locale
        source_id created_at created link username name file filename num number no version dataset corpus license
        licence annotator annotator_id worker worker_id reviewerid asin user_id item_id #""",
    "unlearned": """role ended age count year month pages source dataset split fold lang language locale verified season
        episode speaker gender annotator airline country method length num_words""",
}
NAMES: dict[Role, list[str]] = {role: names.split() for role, names in _NAMES.items()}
ALL_NAMES = {name for names in NAMES.values() for name in names}

# Names that serve several roles say little about one of them; others say more.
_WEAK: dict[Role, str] = {
    "label": "target y type subject group act answer genre topic domain relation status",
    "text": "title description token",
    "score": "value",
    "target": "form title description",
    "source": "body",
}
WEAK_NAMES: dict[Role, list[str]] = {role: names.split() for role, names in _WEAK.items()}
_WRITTEN = """input instruction response prompt completion highlights dialogue dialog summary translation source target
    output reversed"""
_STRONG: dict[Role, str] = {
    "label": "gold_label labels intent sentiment category class",
    "source": _WRITTEN,
    "target": _WRITTEN,
}
STRONG_NAMES: dict[Role, list[str]] = {role: names.split() for role, names in _STRONG.items()}
DEV_SPLITS = {"dev", "val", "valid", "validation", "development"}
TEST_SPLITS = {"test", "testing", "tst", "eval"}
SPLITS = {"train", "training", "trn", *DEV_SPLITS, *TEST_SPLITS}  # values that say which rows are for what
PLURALS = {"labels", "tags", "topics", "categories", "genres", "classes", "intents"}  # of columns of several labels
