"""Clauses and word lists to `reviews`: short reviews of which one clause decides, the same bytes each time."""

import argparse
import csv
import io
import re
from pathlib import Path

from dice import Dice
from make_assistant import expand, tidy
from words_en import choices

SEED = 20_240_503
SIZES = {"train": 2500, "dev": 400, "test": 500, "test-new-templates": 500}
RESERVED = {"the soup was not bad at all"}  # the README's own sentence is in no file

RULES: dict[str, list[str]] = {
    "good": choices("""
        good; good; great; lovely; excellent; delicious; wonderful; fresh; charming; superb; pleasant; delightful;
        fine; perfect; splendid; memorable; generous; friendly; spotless; brilliant; impressive; heavenly;
        worth every penny"""),
    "bad": choices("""
        bad; bad; awful; terrible; bland; dreadful; horrible; stale; disappointing; poor; unpleasant; miserable;
        rude; dull; dirty; overpriced; tasteless; forgettable; sloppy; shabby; mediocre; a waste of money;
        lukewarm"""),
    "thing": choices("""
        soup; food; service; room; view; waiter; dessert; music; breakfast; coffee; staff; garden; terrace; pool; bed;
        bread; menu; wine; film; story; ending; acting; plot; book; hotel; show; guide; tour; steak; fish; salad;
        cake; bathroom; lobby; beach; museum; concert; band; singer; camera; screen; battery; sound; chair; lamp;
        bar; pasta"""),
    "the": ["the", "the", "our", "their", "this", "that"],
    "very": ["", "", "", "very", "really", "so", "quite", "truly", "rather"],
    "was": ["was", "was", "was", "is", "seemed", "turned out", "looked"],
    "not": ["was not", "wasn't", "was never", "was hardly", "was far from", "was anything but", "isn't"],
    "all": ["", "", "at all", "in any way"],
    "start": choices("; ; ; ; ; honestly,; well,; to be fair,; last week; on monday; in the end; we found that"),
    "neutral": choices("""
        we came with friends; it was our second visit; my sister had booked; we stayed for two nights;
        it rained all day; the place is near the station; I read about it in the paper; there were twelve of us;
        it opened last year; we ordered the usual; my father paid; the owner is from the north; we sat outside;
        it was a birthday present"""),
    "plus": choices("""
        <the> <thing> <was> <very> <good>; <the> <thing> <was> <very> <good>; <the> <thing> <not> <bad> <all>;
        I [loved|enjoyed|liked|adored] <the> <thing>; I did not [hate|regret|mind] <the> <thing>;
        nothing about <the> <thing> was <bad>; <the> <thing> could not have been [better|nicer];
        I [would|will] [come|go] back for <the> <thing>; I never had a <good> <thing> like this"""),
    "minus": choices("""
        <the> <thing> <was> <very> <bad>; <the> <thing> <was> <very> <bad>; <the> <thing> <not> <good> <all>;
        I [hated|regretted|disliked|could not stand] <the> <thing>; I did not [love|enjoy|like] <the> <thing>;
        nothing about <the> <thing> was <good>; <the> <thing> could not have been [worse|nastier];
        I [would not|will never] [come|go] back for <the> <thing>; I never had a <bad> <thing> like this"""),
}
# `{}` is the clause that decides, `<yes>` one of its side, `<no>` one of the other.
FRAMES = {
    "train": choices("""
        <start> {}; <start> {}; <start> {}; {}, and <yes>; <no>, but {}; <no>, but {}; <no>, yet {};
        although <no>, {}; even though <no>, {}; {}, even though <no>; {}, although <no>; <neutral>, and {};
        <neutral>. {}; {}. <neutral>; they said that <no>, but {}; the reviews claim that <no>. we found that {}"""),
    "new": choices("""
        <no>. still, {}; while <no>, {}; despite what they say, {}; my wife thought that <no>. however, {};
        I know that <no>, but <neutral>, and {}; {}, and that although <no>; sure, <no>. nevertheless {};
        {}, <yes>, and <neutral>; I was told that <no>, which is wrong: {}"""),
}
OTHER = {"plus": "minus", "minus": "plus"}
LABELS = {"plus": "positive", "minus": "negative"}


def review(side: str, frame: str, dice: Dice) -> str:
    """One review whose deciding clause is of the side."""
    text = frame.replace("{}", f"<{side}>").replace("<yes>", f"<{side}>").replace("<no>", f"<{OTHER[side]}>")
    return finish(tidy(expand(text, RULES, dice)), dice)


def finish(text: str, dice: Dice) -> str:
    """As a person writes it: some in capitals, some without a last mark."""
    text = re.sub(r"\s+([.,])", r"\1", text)
    if dice.chance(0.6):
        text = re.sub(r"(^|\. )([a-z])", lambda found: found[1] + found[2].upper(), text)
    return text + dice.pick(["", ".", ".", "!"])


def key(text: str) -> str:
    """What reviews share that differ in case or marks only."""
    return " ".join(re.findall(r"\w+", text.lower()))


def corpus() -> dict[str, list[tuple[str, str]]]:
    """The reviews of each file with their labels; none stands twice."""
    dice = Dice(SEED)
    used = {key(text) for text in RESERVED}
    files: dict[str, list[tuple[str, str]]] = {}
    for file, size in SIZES.items():
        frames = FRAMES["new" if file == "test-new-templates" else "train"]
        rows: list[tuple[str, str]] = []
        while len(rows) < size:
            side = dice.pick(("plus", "minus"))
            text = review(side, dice.pick(frames), dice)
            if key(text) not in used:
                used.add(key(text))
                rows.append((text, LABELS[side]))
        files[file] = rows
    return files


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description="Write the reviews.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "reviews"
    folder.mkdir(parents=True, exist_ok=True)
    for file, rows in corpus().items():
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([("text", "label"), *rows])
        (folder / f"{file}.csv").write_text(text.getvalue(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
