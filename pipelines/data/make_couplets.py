"""Chinese couplets to `couplets`: a line, and the one that answers it word by word, the same bytes each time."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from dice import Dice
from words_en import choices

SEED = 20_261_123
SIZES = {"train": 6000, "dev": 300, "test": 500, "test-new-templates": 500}

# Of each kind: words that answer each other, both ways.
PAIRS: dict[str, str] = {
    "season": "春秋 夏冬 晨暮 朝夕 昼夜",
    "sky": "风月 云霞 日星 雨雪 雷电 霜露",
    "land": "山水 江湖 岭溪 峰谷 桥亭 石泉 沙洲",
    "plant": "花柳 松竹 梅兰 荷菊 桃李 草木 枫桂",
    "beast": "莺燕 龙虎 鹤鹿 蝉蝶 马牛 鱼雁",
    "house": "门窗 楼阁 庭院 灯帘 床席 墙阶",
    "art": "诗画 琴棋 书剑 歌舞 笔墨 酒茶",
    "shade": "红绿 青黄 白紫 浓淡 明暗 深浅",
    "worth": "新旧 清幽 长短 高低 冷暖 轻重 远近",
    "number": "一双 三九 千万 百六 半两",
    "does": "吹照 映临 穿绕 催送 迎留 含带 动摇 敲听",
    "goes": "来去 升落 飞鸣 开谢 起归 浮沉",
    "place": "前后 上下 里外 东西 南北",
    "person": "客僧 友邻 父母 渔樵 君臣",
}
# Kinds that stand side by side, in twos: a line is two or three of these, and a last word of any kind.
USUAL = choices("""
    season sky; sky does; shade plant; plant goes; worth land; land goes; number beast; beast goes; house place;
    person goes; season land; art person; person does; does house; place land; worth art; number land; does shade""")
NEW = choices("""
    land sky; season plant; sky goes; beast does; shade house; worth person; number art; art goes; place plant""")


def answers() -> dict[str, str]:
    """What answers each word."""
    found: dict[str, str] = {}
    for words in PAIRS.values():
        for first, second in words.split():
            found |= {first: second, second: first}
    return found


def line(dice: Dice, twos: Sequence[str]) -> str:
    """A line of five words or of seven, in which no word stands twice, nor the answer to one."""
    while True:
        kinds = [*" ".join(dice.pick(twos) for _ in range(2 + dice.below(2))).split(), dice.pick([*PAIRS])]
        words = [dice.pick(dice.pick(PAIRS[kind].split())) for kind in kinds]
        if len({frozenset((word, ANSWERS[word])) for word in words}) == len(words):
            return "".join(words)


ANSWERS = answers()


def corpus() -> dict[str, list[str]]:
    """The first lines of each file; none is drawn twice."""
    dice = Dice(SEED)
    used: dict[str, None] = {}
    found: dict[str, list[str]] = {}
    for file, size in SIZES.items():
        lines = found[file] = []
        while len(lines) < size:
            made = line(dice, NEW if file == "test-new-templates" else USUAL)
            if made not in used:
                used[made] = None
                lines.append(made)
    return found


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description="Write couplets.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "couplets"
    folder.mkdir(parents=True, exist_ok=True)
    for file, lines in corpus().items():
        pairs = ({"text": first, "target": "".join(ANSWERS[word] for word in first)} for first in lines)
        rows = "".join(f"{json.dumps(pair, ensure_ascii=False)}\n" for pair in pairs)
        (folder / f"{file}.jsonl").write_text(rows, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
