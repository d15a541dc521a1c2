"""Chinese sentences with classifiers, aspect, selection, reference and word order, and minimal pairs of them."""

from collections.abc import Callable
from typing import Any

from dice import Combinations
from minimal_pairs_en import pair
from words_en import choices

NOUNS_OF = {
    "本": choices("书; 词典; 小说; 杂志; 日记"),
    "条": choices("鱼; 裤子; 毛巾; 围巾; 裙子"),
    "张": choices("桌子; 地图; 照片; 床; 邮票"),
    "只": choices("猫; 鸟; 兔子; 鸡; 羊"),
    "件": choices("衣服; 毛衣; 大衣; 衬衫; 外套"),
    "把": choices("椅子; 雨伞; 钥匙; 剪刀; 扇子"),
}
CLASSIFIER = {noun: classifier for classifier, nouns in NOUNS_OF.items() for noun in nouns}
NOUNS = [*CLASSIFIER]
MEN = choices("爸爸; 爷爷; 哥哥; 弟弟; 叔叔; 舅舅; 国王; 王子")
WOMEN = choices("妈妈; 奶奶; 姐姐; 妹妹; 阿姨; 姑姑; 王后; 公主")
OTHERS = choices("老师; 医生; 司机; 客人")
PEOPLE = MEN + WOMEN + OTHERS
NUMBERS = choices("一; 两; 三; 四; 这; 那; 几")
QUALITIES = choices("; 白色的; 黑色的; 漂亮的; 便宜的")
PAST, FUTURE = choices("昨天; 上周; 去年; 刚才"), choices("明天; 下周; 明年; 以后")
ACQUIRES = choices("买; 看; 找; 画; 选")
STATES = choices("累了; 饿了; 病了; 忙; 高兴; 迟到了")
SURFACES = choices("沙发; 柜子; 地板; 箱子; 架子; 窗台")
PLACES = choices("学校; 公园; 家里; 图书馆; 河边; 饭店")
ACTIVITIES = choices("学习; 散步; 休息; 唱歌; 跳舞; 聊天; 工作; 吃饭")

SUBJECTS_OF = {  # verbs that select their subject: these nouns, and no others of this list
    "治国; 下令; 登基; 退位": "国王; 女王; 皇帝; 总统",
    "写字; 画线; 掉色; 漏墨": "钢笔; 铅笔; 毛笔; 粉笔",
    "吃草; 奔跑; 嘶叫; 拉车": "小马; 山羊; 黄牛; 毛驴",
    "响起; 震动; 停响; 误报": "闹钟; 电话; 手机; 门铃",
}
SELECTION = [(choices(verbs), choices(nouns)) for verbs, nouns in SUBJECTS_OF.items()]
EATERS, FOODS = choices("小猫; 小狗; 小鸟; 小鸡; 小熊; 小猪"), choices("小鱼; 小虾; 小饼; 小枣; 小瓜; 小梨")
OF_EATERS, OF_FOODS = choices("饱了; 困了; 病了; 累了"), choices("臭了; 凉了; 酸了; 坏了")


def sentence(draw: Combinations) -> str:
    """A sentence of one of eight forms."""
    dice, person = draw.dice, draw.dice.pick(PEOPLE)
    past, future = ((draw.pair(PEOPLE, times)) for times in (PAST, FUTURE))
    forms: list[Callable[[], str]] = [
        lambda: f"{person}{dice.pick(ACQUIRES)}了{some(draw)}。",
        lambda: f"{past[0]}{past[1]}{dice.pick(ACQUIRES)}了{some(draw)}。",
        lambda: f"{future[0]}{future[1]}要{dice.pick(ACQUIRES)}{some(draw)}。",
        lambda: says(draw),
        lambda: "{}把{}放在{}上。".format(person, *draw.pair(NOUNS, SURFACES)),
        lambda: "{}在{}{}。".format(person, *draw.pair(PLACES, ACTIVITIES)),
        lambda: selection(draw)["sentence_good"],
        lambda: reference(draw)[1],
    ]
    return dice.pick(forms)()


def some(draw: Combinations) -> str:
    """A number or demonstrative, the classifier of a noun, and the noun, perhaps with a quality between them."""
    noun, number = draw.pair(NOUNS, NUMBERS)
    return f"{number}{CLASSIFIER[noun]}{draw.dice.pick(QUALITIES)}{noun}"


def says(draw: Combinations) -> str:
    """Somebody says something of himself or herself."""
    person, state = draw.pair(PEOPLE, STATES)
    he = person in MEN or (person in OTHERS and draw.dice.chance(0.5))
    return f"{draw.dice.pick(['', *PAST])}{person}说{'他' if he else '她'}{state}。"


# -- the pairs


def classifier(draw: Combinations) -> dict[str, Any]:
    person, verb, quality = draw.dice.pick(PEOPLE), draw.dice.pick(ACQUIRES), draw.dice.pick(QUALITIES)
    noun, number = draw.pair(NOUNS, NUMBERS)
    right, start = CLASSIFIER[noun], f"{person}{verb}了{number}"
    wrong = draw.dice.pick([other for other in NOUNS_OF if other != right])
    return pair(f"{start}{right}{quality}{noun}。", f"{start}{wrong}{quality}{noun}。")


def classifier_choice(draw: Combinations) -> dict[str, Any]:
    person, verb, quality = draw.dice.pick(PEOPLE), draw.dice.pick(ACQUIRES), draw.dice.pick(QUALITIES)
    noun, number = draw.pair(NOUNS, NUMBERS)
    classifiers = [*NOUNS_OF]
    text = f"{person}{verb}了{number}[MASK]{quality}{noun}。"
    return {"text": text, "alternatives": classifiers, "answer": classifiers.index(CLASSIFIER[noun])}


def aspect(draw: Combinations) -> dict[str, Any]:
    """What is over has 了, what is to come has 要."""
    verb, is_past = draw.dice.pick(ACQUIRES), draw.dice.chance(0.5)
    person, time = draw.pair(PEOPLE, PAST if is_past else FUTURE)
    rest, start = some(draw), f"{person}{time}"
    over, to_come = f"{start}{verb}了{rest}。", f"{start}要{verb}{rest}。"
    return pair(over, to_come) if is_past else pair(to_come, over)


def pronoun_gender(draw: Combinations) -> dict[str, Any]:
    person, state = draw.pair(MEN, STATES, PEOPLE) if draw.dice.chance(0.5) else draw.pair(WOMEN, STATES, PEOPLE)
    right, wrong = ("他", "她") if person in MEN else ("她", "他")
    start = f"{draw.dice.pick(['', *PAST])}{person}说"
    return pair(f"{start}{right}{state}。", f"{start}{wrong}{state}。")


def order_of_ba(draw: Combinations) -> dict[str, Any]:
    """The object with 把 stands before the verb."""
    person = draw.dice.pick(PEOPLE)
    noun, surface = draw.pair(NOUNS, SURFACES)
    return pair(f"{person}把{noun}放在{surface}上。", f"{person}放在{surface}上把{noun}。")


def order_of_place(draw: Combinations) -> dict[str, Any]:
    """The place of an activity stands before it."""
    person = draw.dice.pick(PEOPLE)
    place, activity = draw.pair(PLACES, ACTIVITIES)
    return pair(f"{person}在{place}{activity}。", f"{person}{activity}在{place}。")


def selection(draw: Combinations) -> dict[str, Any]:
    """A verb and a subject that it selects, beside that verb with a subject, or that subject with a verb, of others."""
    dice = draw.dice
    verbs, nouns = dice.pick(SELECTION)
    other_verbs, other_nouns = dice.pick([entry for entry in SELECTION if entry[0] != verbs])
    noun, verb = draw.pair(nouns, verbs)
    wrong = (noun, dice.pick(other_verbs)) if dice.chance(0.5) else (dice.pick(other_nouns), verb)
    start = dice.pick(["", *PAST, "听说"])
    return pair(f"{start}{noun}{verb}。", f"{start}{wrong[0]}{wrong[1]}。")


def reference(draw: Combinations) -> tuple[dict[str, Any], str]:
    """A question for the meaning of 它, which the reason tells, and the text with its answer."""
    dice, nouns = draw.dice, draw.pair(EATERS, FOODS)
    meant = dice.below(2)
    reason = dice.pick((OF_EATERS, OF_FOODS)[meant])
    text = f"{nouns[0]}没吃{nouns[1]}，因为它{reason}。它是小[MASK]。"
    alternatives = sorted(noun[1] for noun in nouns)
    question = {"text": text, "alternatives": alternatives, "answer": alternatives.index(nouns[meant][1])}
    return question, text.replace("[MASK]", nouns[meant][1])


PHENOMENA = {
    "classifier_noun_agreement": ("agreement", classifier),
    "classifier_choice": ("agreement", classifier_choice),
    "aspect": ("aspect", aspect),
    "pronoun_gender": ("reference", pronoun_gender),
    "selection": ("selection", selection),
    "pronoun_reference": ("reference", lambda draw: reference(draw)[0]),
    "word_order_ba": ("word_order", order_of_ba),
    "word_order_place": ("word_order", order_of_place),
}
