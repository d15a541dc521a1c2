"""Chinese sentences split into words to `segments`, a blank between two words, the same bytes each time.

Names, dishes, nouns and verbs are dealt out: most of those of dev and of the test sets stand in no other file. Many
sentences can be split in two ways, and only the rest tells which is right: 他 从 小学 毕业, 他 从 小 学 琴.
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from dice import Dice
from make_assistant import expand
from words_zh import DEALT, phrases

SEED = 20_261_126
SIZES = {"train": 2000, "dev": 250, "test": 400, "test-new-templates": 400}
PARTS = ("train", "dev", "test")  # of the words; test-new-templates draws from those of test
KNOWN = 0.3  # share of the dealt words of dev and test that are drawn from train's

WORDS: dict[str, list[str]] = {
    "family": DEALT["family"],
    "given": DEALT["given"],
    "town": DEALT["town"],
    "dish": DEALT["dish"],
    "noun": phrases("""
        老师 学校 问题 办法 电影 音乐 窗户 桌子 雨伞 钥匙 报纸 照片 衣服 手机 电脑 自行车 汽车 火车 飞机 公园
        医院 图书馆 银行 邮局 超市 办公室 会议 计划 报告 文章 小说 故事 消息 新闻 经济 社会 历史 文化 艺术 科学
        技术 语言 汉语 数学 物理 地图 票据 合同 机会 经验 能力 关系 环境 空气 天气 河流 森林 山峰 海洋 沙漠 草原
        动物 植物 水果 蔬菜 牛奶 面包 蛋糕 饼干 邻居 朋友 同事 客人 司机 警察 医生 护士 律师 记者 作家 画家 演员
        歌手 球员 教练 队长 国家 城市 农村 街道 桥梁 房间 厨房 花园 屋顶 楼梯 电梯 礼物 玩具 气球 风筝 蜡烛 镜子
        梳子 毛巾 肥皂 牙刷 枕头 被子"""),
    "verb": phrases("""
        学习 研究 讨论 介绍 解决 发现 了解 分析 检查 准备 参观 欣赏 喜欢 讨厌 保护 修理 打扫 整理 购买 出售 寻找
        忘记 记住 描写 翻译 比较 选择 关心 注意 怀疑 相信 支持 反对 批评 表扬 感谢 邀请 拒绝 接受 等待 推荐 改变
        管理 建设 设计 制造 收集 收拾 借用 归还 观察 测量 记录 拍摄 播放 宣传 展示 出版 阅读"""),
    "adjective": phrases("""
        漂亮 重要 复杂 简单 有趣 无聊 安静 热闹 干净 便宜 昂贵 新鲜 古老 现代 传统 美丽 奇怪 普通 特别 严重 轻松
        困难 危险 安全 温暖 寒冷 明亮 黑暗 结实 柔软"""),
    "adverb": phrases("""
        已经 正在 常常 总是 偶尔 终于 忽然 马上 慢慢 仔细 认真 悄悄 再次 一直 刚刚 将要 从来 也许"""),
}
RULES: dict[str, list[str]] = {
    "person": ["{family}{given}", "{family}{given}", "小{family}", "{family} 老师", "我", "他", "她", "我们"],
    "when": ["今天", "昨天", "明天", "去年", "[三|五|七|十二] 月", "[2019|2024] 年", "[8|9|15] 月 [3|21] 日",
             "早上", "晚上"],
    "count": ["一", "两", "三", "几", "十", "一百", "25"],
    "measure": ["个", "本", "张", "件", "种", "条"],
    "thing": ["{noun}", "{noun}", "{adjective} 的 {noun}", "<count> <measure> {noun}", "{town} 的 {noun}", "{dish}",
              "这 <measure> {noun}", "<latin>"],
    "latin": ["iPhone", "WiFi", "USB", "App", "T恤", "卡拉OK", "Linux"],
    "end": ["。", "。", "。", "！", "", " 了 。"],
}  # fmt: skip
TEMPLATES: dict[str, list[str]] = {
    "train": [
        "<person> {adverb} {verb} <thing> <end>", "<when> <person> 在 {town} {verb} <thing> <end>",
        "<person> 的 {noun} 很 {adjective} <end>", "<person> 和 <person> {verb} 了 <thing> <end>",
        "因为 {noun} {adjective} ， 所以 <person> {verb} {noun} <end>", "<person> 把 {noun} 放 在 {noun} 里 <end>",
        "{noun} 对 {noun} 的 {verb} 非常 {adjective} <end>",
        "<person> 给 <person> 买 了 <count> <measure> {noun} <end>",
        "你 {verb} 过 {town} 的 {dish} 吗 ？", "<person> 说 ： “ <thing> 比 <thing> {adjective} 。 ”",
        "如果 <when> {verb} {noun} ， <person> 就 不 去 {town} <end>",
        "<person> 从 {town} 到 {town} 去 {verb} {noun} <end>",
        # to be split in one way here, in another there
        "<person> 从 小学 毕业 以后 去 了 {town} <end>", "<person> 从 小 学 {noun} <end>",
        "<person> 在 研究 生命 的 {noun} <end>", "研究生 <person> 在 {verb} {noun} <end>",
        "学生会 主席 {verb} 了 {noun} <end>", "这些 学生 会 {verb} {noun} <end>",
        "<person> 将来 想 {verb} {noun} <end>", "<person> 将 来 {town} {verb} {noun} <end>",
        "只有 这样 才 能 {verb} {noun} <end>", "<person> 的 才能 很 {adjective} <end>",
        "{noun} 的 把手 坏 了 <end>", "<person> 把 手 放 在 {noun} 上 <end>",
        "这 是 <person> 个人 的 {noun} <end>", "有 三 个 人 {verb} {noun} <end>",
        "{town} 和平 的 {noun} 很 {adjective} <end>", "{noun} 和 平常 的 {noun} 一样 {adjective} <end>",
        "<person> 马上 {verb} {noun} <end>", "<person> 从 马 上 下来 {verb} {noun} <end>",
    ],
    "new": [
        "听说 {town} 的 <thing> {adverb} {adjective} 了 <end>", "<person> 为什么 不 {verb} <thing> ？",
        "关于 {noun} ， <person> {adverb} {verb} 了 <thing> <end>",
        "<when> ， {town} 举行 了 {noun} {verb} 大会 <end>",
        "被 <person> {verb} 的 {noun} 都 {adjective} <end>",
        "虽然 <thing> {adjective} ， 但是 没有 人 {verb} 它 <end>",
        "请 <person> 帮 <person> {verb} <count> <measure> {noun} <end>", "<person> 以为 自己 会 {verb} {dish} <end>",
        "我 从 小 学 过 {noun} ， <person> 却 没有 <end>", "{town} 的 小学 只 有 两 个 人 {verb} {noun} <end>",
    ],
}  # fmt: skip
Hand = Mapping[str, list[str]]


def deal(dice: Dice) -> dict[str, Hand]:
    """The words of each part: 60 % to train, 10 % to dev, 30 % to test."""
    hands: dict[str, dict[str, list[str]]] = {part: {} for part in PARTS}
    for kind, words in WORDS.items():
        cards = dice.shuffled(list(dict.fromkeys(words)))
        first, second = round(len(cards) * 0.6), round(len(cards) * 0.7)
        for part, hand in zip(PARTS, (cards[:first], cards[first:second], cards[second:]), strict=True):
            hands[part][kind] = hand
    return hands


def sentence(templates: list[str], own: Hand, train: Hand, dice: Dice) -> str:
    """One sentence, its words separated by blanks."""

    def word(slot: re.Match[str]) -> str:
        return dice.pick((train if dice.chance(KNOWN) else own)[slot[1]])

    text = re.sub(r"\{(\w+)\}", word, expand(dice.pick(templates), RULES, dice))
    return " ".join(text.split())


def corpus() -> dict[str, list[str]]:
    """The sentences of each file; none stands twice."""
    dice = Dice(SEED)
    hands = deal(dice)
    used: set[str] = set()
    files: dict[str, list[str]] = {}
    for file, size in SIZES.items():
        new = file == "test-new-templates"
        lines: list[str] = []
        while len(lines) < size:
            line = sentence(TEMPLATES["new" if new else "train"], hands["test" if new else file], hands["train"], dice)
            if (key := line.replace(" ", "")) not in used:
                used.add(key)
                lines.append(line)
        files[file] = lines
    return files


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description="Write Chinese sentences split into words.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "segments"
    folder.mkdir(parents=True, exist_ok=True)
    for file, lines in corpus().items():
        (folder / f"{file}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
