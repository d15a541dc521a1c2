"""Recognise tags of entities in a column or list of tags: their spelling, their scheme, and tags that do not fit."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqpipe.answers.tagging_schemes import FileScheme, belongs, canonical, parts, strict_problem, tag_pattern
from seqpipe.init.summary import DataSummary, tag_sentences

NEARLY = 0.5  # of the tags of words in entities: plain tags, and a doubt
OUTSIDE_TAGS = ("O", "o", "OTHER", "Other", "other", "0", "_", "-", "NONE", "None", "none")
LONE_OUTSIDE_TAGS = OUTSIDE_TAGS[:6]  # tags besides which labels need no prefix
# The most usual scheme and spelling first: of several that fit as well, the first is chosen.
FILE_SCHEMES: tuple[FileScheme, ...] = ("IOB2", "BIOES", "BILOU", "BMES", "IOB1", "IOE2", "IOE1")
FORMATS = [
    form.replace("-", sign)
    for sign in ("-", "_", ":", ".", "/", "|", "#", "+")
    for form in ("B-PER", "b-PER", "PER-B", "PER-b")
]


@dataclass(frozen=True)
class TagStyle:
    """The spelling of tags of entities."""

    tag_format: str  # the tag that begins an entity PER; "" for labels without a prefix
    outside: str  # the tag of words outside of entities
    share: float  # of the other tags that are spelled so
    entities: int  # their number, approximately; without a prefix, that of their words

    @property
    def fits(self) -> bool:
        """True if the tags are those of entities."""
        return self.share >= 0.95  # the others are faults of the file


def find_tagging(tags: Counter[str]) -> TagStyle | None:
    """Return the spelling of most tags; None if they are not tags of entities."""
    outside = max(OUTSIDE_TAGS, key=lambda tag: tags[tag])
    inside = Counter({tag: number for tag, number in tags.items() if tag != outside})
    if not tags[outside] or not (inside or outside == "O") or len(inside) > 1_000:  # a column of words
        return None
    if not inside:
        return TagStyle(FORMATS[0], outside, 1.0, 0)
    styles: list[TagStyle] = []
    for form in FORMATS:
        pattern, letters = tag_pattern(form), Counter[str]()
        for tag, number in inside.items():
            match = pattern.fullmatch(tag) if pattern else None
            if match:
                letters[match["prefix"].upper()] += number
        # A scheme has at least two letters, and one of them begins or ends an entity; other letters begin plain tags.
        begin = sum(letters[letter] for letter in "BSU")
        is_scheme = len(letters) > 1 and (begin or letters["E"]) and letters["B"] + letters["I"]
        if is_scheme or form == FORMATS[0]:
            share = letters.total() / inside.total()
            styles.append(TagStyle(form, outside, share, begin or letters["E"] or letters["I"]))
    best, usual = max(styles, key=lambda style: style.share), styles[0]
    is_plain = all(tag[:1].isalpha() for tag in inside) and 2 * tags[outside] >= tags.total() and len(inside) <= 50
    if best.share < NEARLY and outside in LONE_OUTSIDE_TAGS and is_plain:
        return TagStyle("", outside, 1.0, inside.total())
    if best.share < NEARLY:
        return usual if usual.share else None
    return best


def set_scheme(summary: DataSummary, data: Path) -> None:
    """Set the reader's options for tags, and what is learned: entities or plain tags."""
    sentences = tag_sentences(summary, data)
    choose_scheme(summary, sentences, Counter(itertools.chain.from_iterable(sentences)))


def choose_scheme(
    summary: DataSummary,
    sentences: Sequence[Sequence[str]],
    counts: Counter[str],
    head: str | None = None,
    locate: Callable[[str], str] | None = None,
) -> int:
    """Set the scheme and the spelling of tags, those of entities if they fit; return how many sentences are ill-formed.

    `sentences` are those of pieces of a large file; `locate` returns the file and the first line of a tag. For the head
    `crf`, tags that nearly fit are those of entities too; for `tags`, all tags are plain.
    """
    tagging = None if head == "tags" else find_tagging(counts)
    if tagging and not (tagging.fits or head == "crf"):
        share = f"{tagging.share:.0%} of the tags other than {tagging.outside} are like {tagging.tag_format}"
        fix = "correct the others to learn entities"
        summary.doubt(f"{share}, tags of entities; all are read as plain tags, one for each word; {fix}")
        tagging = None
    if tagging is None:
        summary.options["scheme"], summary.label_kind = "none", "Tags"
        return 0
    summary.label_kind = "Entities"
    if tagging.outside != "O":
        summary.options["outside"] = tagging.outside
    if not tagging.tag_format:
        summary.options["scheme"] = "IO"
        share = f"{counts[tagging.outside] / counts.total():.0%} of the words are {tagging.outside}"
        problem = f"no tag begins with B- or I-, and {share}: equal tags in a row are one entity. For plain tags"
        summary.doubt(problem, "--task", "tags")
        return 0
    if tagging.tag_format != "B-PER":
        summary.options["tag_format"] = tagging.tag_format
    usual = [[canonical(tag, tagging.tag_format, tagging.outside) for tag in tags] for tags in sentences]
    faults = {scheme: sum(_is_ill_formed(tags, scheme) for tags in usual) for scheme in FILE_SCHEMES}
    best = min(FILE_SCHEMES, key=lambda scheme: faults[scheme])
    if best != "IOB2":
        summary.options["scheme"] = best
    known = {tag for tag in {*itertools.chain.from_iterable(usual)} if belongs(tag, best)}
    # The reader refuses sentences with tags of another spelling; only the others can be repaired.
    ill_formed = sum(_is_ill_formed(tags, best) for tags in usual if known.issuperset(tags))
    if ill_formed:
        summary.options["ill_formed"] = "repair"
        sentences_break = "1 sentence breaks" if ill_formed == 1 else f"{ill_formed:,} sentences break"
        summary.notes.append(f"{sentences_break} {best}'s rules; they are repaired as conlleval reads them")
    # Labels that differ by case and signs only, such as `PER.` and `PER`, are probably typing errors.
    spellings: dict[str, Counter[str]] = defaultdict(Counter)
    first_tags: dict[str, str] = {}
    for tag, number in counts.items():
        prefix, label = parts(canonical(tag, tagging.tag_format, tagging.outside))
        if prefix not in ("", "O"):
            first_tags.setdefault(label, tag)
            spellings["".join(filter(str.isalnum, label)).casefold()][label] += number
    for labels in spellings.values():
        (frequent, most), *others = labels.most_common()
        for label, number in others:
            times = "once" if number == 1 else f"{number:,} times"
            place = f" ({locate(first_tags[label])})" if locate else ""
            problem = f"the label {label!r} occurs {times}{place}, and {frequent!r} {most:,} times; correct it"
            summary.doubt(f"{problem}. For plain tags", "--task", "tags")
    return ill_formed


def _is_ill_formed(tags: Sequence[str], scheme: FileScheme) -> bool:
    if scheme == "IOE1" or scheme == "IOE2":
        # From the last tag to the first, E begins a span.
        mirrored = ["B" + tag[1:] if tag[:1] == "E" else tag for tag in reversed(tags)]
        mirror: FileScheme = "IOB1" if scheme == "IOE1" else "IOB2"
        return not all(belongs(tag, scheme) for tag in tags) or _is_ill_formed(mirrored, mirror)
    return strict_problem(tags, scheme) is not None
