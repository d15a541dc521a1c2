"""Templates and word lists to `assistant-en` (CoNLL) and `assistant-zh` (JSONL), the same bytes each time."""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import templates_en
import templates_zh
import words_en
import words_zh
from dice import Dice

SEED = 20_240_501
SIZES = {"train": 3000, "dev": 400, "test": 500, "test-new-templates": 500}
PARTS = ("train", "dev", "test")  # of the names; test-new-templates draws from those of test
KNOWN = 0.2  # share of the open-class names of dev and test that are drawn from train's
RESERVED = {"wake me at seven in lausanne", "播放周杰伦的稻香"}  # the README's own sentences are in no file

Rules = dict[str, list[str]]
Pools = dict[str, dict[str, list[str]]]  # part -> label -> names
Span = tuple[int, int, str]  # start, end in code points, label


@dataclass(frozen=True)
class Language:
    """Everything one corpus is made of."""

    rules: Rules
    dealt: Rules
    sizes: dict[str, tuple[int, int, int]]  # open class -> names in train, dev, test
    held: dict[str, str]  # name -> open class, in test only
    templates: dict[str, Rules]  # train or new -> intent -> templates
    finish: Callable[[str, Dice], str]  # case and final punctuation


@dataclass(frozen=True)
class Utterance:
    """One sentence with its spans."""

    text: str
    spans: tuple[Span, ...]
    intent: str

    @property
    def key(self) -> str:
        """What sentences share that differ in case or punctuation only."""
        return " ".join(re.sub(r"[^\w\s]", "", self.text.lower()).split())

    @property
    def skeleton(self) -> str:
        """The sentence with its labels in place of its names, without case or punctuation."""
        text = self.text.lower()
        for start, end, label in reversed(self.spans):
            text = f"{text[:start]} {label.upper()} {text[end:]}"
        return " ".join(re.findall(r"\w+", text))

    def names(self) -> list[str]:
        """The texts of the spans."""
        return [self.text[start:end] for start, end, _ in self.spans]


def expand(text: str, rules: Rules, dice: Dice) -> str:
    """Replace each [choice|choice] and <rule> by one of its alternatives; {slots} stay."""
    while found := re.search(r"\[([^\[\]]*)\]|<(\w+)>", text):
        options = rules[found[2]] if found[2] else found[1].split("|")
        text = text[: found.start()] + dice.pick(options) + text[found.end() :]
    return text


def tidy(text: str) -> str:
    """Single blanks, none before a comma, colon or question mark, no comma at either end; `an` before a vowel."""
    text = re.sub(r"\s+([,:?])", r"\1", re.sub(r"\s+", " ", text))
    return re.sub(r",+", ",", re.sub(r"\ba (?=[aeiou](?!ne))", "an ", text)).strip(" ,，")


def deal(language: Language, dice: Dice) -> dict[str, Rules]:
    """The dealt lists, 60 % of each to train, 10 % to dev, 30 % to test."""
    hands: dict[str, Rules] = {part: {} for part in PARTS}
    for rule, words in language.dealt.items():
        cards = dice.shuffled([word for word in words if word not in language.held])
        first, second = round(len(cards) * 0.6), round(len(cards) * 0.7)
        for part, hand in zip(PARTS, (cards[:first], cards[first:second], cards[second:]), strict=True):
            hands[part][rule] = hand
    return hands


def name_pools(language: Language, dice: Dice) -> Pools:
    """The names of each open class; dev's and test's are none of train's."""
    hands = deal(language, dice)
    pools: Pools = {part: {} for part in PARTS}
    for label, sizes in language.sizes.items():
        seen = {name.lower() for name in language.held}
        for part, size in zip(PARTS, sizes, strict=True):
            pool = [name for name, of in language.held.items() if (part, label) == ("test", of)]
            for _ in range(size * 50):
                name = expand(f"<{label}>", language.rules | hands[part], dice)
                if name.lower() not in seen and len(pool) < size:
                    seen.add(name.lower())
                    pool.append(name)
            pools[part][label] = pool
    return pools


def speak(intent: str, template: str, language: Language, pools: Pools, part: str, dice: Dice) -> Utterance:
    """One template to one utterance with names of the part."""
    pieces = re.split(r"\{([\w:]+)\}", tidy(expand(template, language.rules, dice)))
    text, spans = pieces[0], []
    for slot, after in zip(pieces[1::2], pieces[2::2], strict=True):
        label, _, rule = slot.partition(":")
        if label in language.sizes:
            name = dice.pick(pools["train" if dice.chance(KNOWN) else part][label])
        else:
            name = expand(f"<{rule or label}>", language.rules, dice)
        text = re.sub(r"\ba $", "an ", text) if re.match("(?!one)[aeiou]", name.lower()) else text
        spans.append((len(text), len(text) + len(name), label))
        text += name + (after.replace("'s", "'", 1) if name.endswith("s") and after.startswith("'s") else after)
    return Utterance(language.finish(text, dice), tuple(spans), intent)


def corpus(language: Language) -> dict[str, list[Utterance]]:
    """All files of one language; no sentence is in two, no sentence frame of train in test-new-templates."""
    dice = Dice(SEED)
    pools = name_pools(language, dice)
    used = set(RESERVED)
    files: dict[str, list[Utterance]] = {}
    for file, size in SIZES.items():
        new = file == "test-new-templates"
        rows = [(intent, t) for intent, ts in language.templates["new" if new else "train"].items() for t in ts]
        closed = {u.skeleton for u in files["train"]} if new else set()
        said: list[Utterance] = []
        while len(said) < size:
            one = speak(*dice.pick(rows), language, pools, "test" if new else file, dice)
            names = one.names()
            if one.key not in used and one.skeleton not in closed and len(set(names)) == len(names):
                used.add(one.key)
                said.append(one)
        files[file] = said
    return files


def finish_en(text: str, dice: Dice) -> str:
    """A written sentence, or the lower-case one of a speech recogniser; with or without its last mark."""
    asks = text.endswith("?") or re.match(r"(hey, |um, )?(can|could|would) ", text)
    text = text.removesuffix("?")
    if dice.chance(0.55):
        text += "?" if asks else "!" if dice.chance(0.1) else "."
    return text.lower() if dice.chance(0.2) else text[0].upper() + text[1:]


def finish_zh(text: str, dice: Dice) -> str:
    """A sentence with or without its last mark."""
    asks = text.endswith("？") or re.search(r"能不能|可以帮|吗$|好不好$", text)
    text = text.removesuffix("？")
    return text + ("？" if asks else "！" if dice.chance(0.1) else "。") if dice.chance(0.5) else text


def conll(said: list[Utterance]) -> Iterator[str]:
    """One word and its IOB2 tag a line, a comment with the intent before, a blank line after each sentence."""
    for one in said:
        yield f"# intent = {one.intent}"
        for word in re.finditer(r"\w+|[^\w\s]", one.text):
            inside = [(start, label) for start, end, label in one.spans if start <= word.start() < end]
            tag = "".join(("B-" if start == word.start() else "I-") + label for start, label in inside) or "O"
            yield f"{word[0]}\t{tag}"
        yield ""


def jsonl(said: list[Utterance]) -> Iterator[str]:
    """One object a line: the text, its spans, the intent."""
    for one in said:
        spans = [{"start": start, "end": end, "label": label} for start, end, label in one.spans]
        yield json.dumps({"text": one.text, "spans": spans, "intent": one.intent}, ensure_ascii=False)


ENGLISH = Language(words_en.RULES, words_en.DEALT, words_en.OPEN, words_en.HELD,
                   {"train": templates_en.TRAIN, "new": templates_en.NEW}, finish_en)  # fmt: skip
CHINESE = Language(words_zh.RULES, words_zh.DEALT, words_zh.OPEN, words_zh.HELD,
                   {"train": templates_zh.TRAIN, "new": templates_zh.NEW}, finish_zh)  # fmt: skip


def write(folder: Path, language: Language, suffix: str, lines: Callable[[list[Utterance]], Iterator[str]]) -> None:
    """One corpus to the files of its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, said in corpus(language).items():
        text = "".join(line + "\n" for line in lines(said))
        (folder / f"{file}.{suffix}").write_text(text, encoding="utf-8", newline="\n")


def main() -> None:
    """Write both corpora."""
    parser = argparse.ArgumentParser(description="Write the assistant corpora.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    out: Path = parser.parse_args().out
    write(out / "assistant-en", ENGLISH, "conll", conll)
    write(out / "assistant-zh", CHINESE, "jsonl", jsonl)


if __name__ == "__main__":
    main()
