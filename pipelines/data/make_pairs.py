"""Questions and replies to `pairs`: does the reply say what was asked? The same bytes each time."""

import argparse
import csv
import io
import re
from pathlib import Path

from dice import Dice
from make_assistant import expand, tidy
from words_en import choices

SEED = 20_261_121
SIZES = {"train": 3000, "dev": 300, "test": 500, "test-new-templates": 500}

RULES: dict[str, list[str]] = {
    "event": choices("""
        meeting; concert; lecture; wedding; workshop; parade; auction; rehearsal; market; picnic; match; film; tour;
        exhibition; party; interview; ceremony; lesson; debate; festival"""),
    "thing": choices("""
        bicycle; lamp; ticket; carpet; kettle; guitar; jacket; tent; desk; camera; piano; boat; cake; clock; vase;
        ladder; scooter; painting; sofa; telescope"""),
    "name": choices("""
        Anna; Paul; Maria; Peter; Laura; Simon; Clara; Oscar; Nina; Felix; Hugo; Ruth; Leo; Grace; Owen; Hannah; Sophie;
        Daniel; Irene; Noah; Elena; Omar; Kenji; Ravi; Ingrid; Yuki; Olga; Kofi; Leila; Sven"""),
    "town": choices("""
        Oslo; Rome; Lisbon; Vienna; Prague; Dublin; Athens; Geneva; Turin; Naples; Munich; Leeds; Bristol; York; Cork;
        Boston; Denver; Austin; Ottawa; Quito"""),
    "spot": choices(
        "in the town hall; in the park; at the station; near the harbour; in <town>; at the old mill; in <town>"
    ),
    "day": choices("Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday"),
    "hour": choices("seven; eight; nine; ten; noon; half past two; three; a quarter to four; five; six"),
    "number": choices("two; three; four; five; six; eight; ten; twelve; fifteen; twenty; thirty; forty; ninety"),
    "coin": choices("euros; dollars; pounds; crowns; francs"),
    "span": choices("minutes; hours; days; weeks"),
    "cause": choices("""
        it rained; the bridge was closed; nobody had a key; the hall was too small; the train was late;
        the sound failed; everybody was ill; the permit was missing; the heating broke; the tickets were sold out"""),
    "of": ["the <event>", "the <event>", "our <event>", "this <event>", "the <event> in <town>"],
    "ask": choices("; ; hello,; excuse me,; say,; one more question:; a quick one:; and; but"),
    "well": choices("; ; ; well,; I think; as far as I know,; they say that; if I remember it right,"),
}
ASKED: dict[str, tuple[list[str], list[str]]] = {  # of each kind: the usual questions, those of the new templates
    "time": (
        choices("when is <of>; when does <of> begin; at what time is <of>; on which day is <of>; when did <of> start"),
        choices("do you know when <of> is; I wonder when <of> begins; tell me at what time they open <of>"),
    ),
    "place": (
        choices("where is <of>; where does <of> take place; where will <of> be held; where can I find <of>"),
        choices("do you know where <of> is; I wonder where they hold <of>; tell me where to go for <of>"),
    ),
    "person": (
        choices(
            "who leads <of>; who is in charge of <of>; who opened <of>; who paid for <of>; who told you about <of>"
        ),
        choices("do you know who leads <of>; I wonder who planned <of>; tell me who it was that opened <of>"),
    ),
    "price": (
        choices("how much is the <thing>; what does the <thing> cost; how much did you pay for the <thing>"),
        choices(
            "do you know how much the <thing> is; I wonder what the <thing> costs; tell me how much they want for it"
        ),
    ),
    "length": (
        choices("how long does <of> last; how long is <of>; how long did <of> take; how long must we wait for <of>"),
        choices(
            "do you know how long <of> is; I wonder how long they need for <of>; tell me how long to wait for <of>"
        ),
    ),
    "reason": (
        choices("why was <of> moved; why did <of> end so early; why is there no <event>; why did they cancel <of>"),
        choices("do you know why <of> was moved; I wonder why they put off <of>; tell me why we have no <event>"),
    ),
}
SAID: dict[str, tuple[list[str], list[str]]] = {
    "time": (
        choices(
            "it is on <day>; on <day> at <hour>; at <hour>; it begins at <hour>; <day> at <hour>; not before <hour>"
        ),
        choices("keep <day> free; the doors open at <hour>; <day>, and do not be late; some time after <hour>"),
    ),
    "place": (
        choices("it is <spot>; <spot>; they meet <spot>; you will find it <spot>; somewhere <spot>"),
        choices("go <spot> and ask there; this time <spot>; the signs lead you to it <spot>"),
    ),
    "person": (
        choices(
            "it is <name>; <name> does; <name> and <name>; that was <name>; <name> from <town>; a friend of <name>"
        ),
        choices("ask <name>; as always <name>; nobody but <name>; <name>, who did it last year too"),
    ),
    "price": (
        choices("<number> <coin>; it costs <number> <coin>; I paid <number> <coin>; less than <number> <coin>"),
        choices("they want <number> <coin>; it went for <number> <coin>; <number> <coin> and not one more"),
    ),
    "length": (
        choices("<number> <span>; it takes <number> <span>; about <number> <span>; no more than <number> <span>"),
        choices("it goes on for <number> <span>; you lose <number> <span>; <number> <span> with the break"),
    ),
    "reason": (
        choices("because <cause>; <cause>; since <cause>; they had to because <cause>; it was because <cause>"),
        choices("the trouble was that <cause>; blame it on this: <cause>; all because <cause>, sadly"),
    ),
}


def pair(right: bool, new: bool, dice: Dice) -> tuple[str, str]:
    """A question, and a reply of its kind or of another."""
    kind = dice.pick(list(ASKED))
    other = kind if right else dice.pick([one for one in ASKED if one != kind])
    asked, said = dice.pick(ASKED[kind][new]), dice.pick(SAID[other][new])
    question, reply = (tidy(expand(text, RULES, dice)) for text in (f"<ask> {asked}", f"<well> {said}"))
    return f"{question[0].upper()}{question[1:]}?", finish(reply, dice)


def finish(text: str, dice: Dice) -> str:
    """As a person writes it: most with a capital, some without a last mark."""
    if dice.chance(0.7):
        text = re.sub(r"^[a-z]", lambda found: found[0].upper(), text)
    return text + dice.pick(["", ".", ".", "!"])


def corpus() -> dict[str, list[tuple[str, str, str]]]:
    """The pairs of each file with their labels; none stands twice."""
    dice, used = Dice(SEED), set[tuple[str, str]]()
    files: dict[str, list[tuple[str, str, str]]] = {}
    for file, size in SIZES.items():
        rows: list[tuple[str, str, str]] = []
        while len(rows) < size:
            right = len(rows) % 2 == 0
            made = pair(right, file == "test-new-templates", dice)
            if made not in used:
                used.add(made)
                rows.append((*made, "answers" if right else "misses"))
        files[file] = dice.shuffled(rows)
    return files


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description="Write the pairs.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "pairs"
    folder.mkdir(parents=True, exist_ok=True)
    for file, rows in corpus().items():
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([("text", "text_pair", "label"), *rows])
        (folder / f"{file}.csv").write_text(text.getvalue(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
