"""The regular expression of forward maximum matching: a trie of words, and what else is a unit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# Scripts without blanks between words: Thai, Lao, Tibetan, Burmese, Khmer, kana, Bopomofo, Han.
UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
SPACED = rf"[^\W{UNSPACED}]"  # a letter, digit or mark of all other scripts
END = rf"(?!\p{{M}}|(?<={SPACED}){SPACED})"  # what a word does not stop before: a mark, or the rest of a spaced word
GROUP = 64  # branches at the root between two looks at the range of their characters


def longest_match(words: Iterable[str]) -> str:
    """A pattern (Oniguruma) whose matches are the units of a text; each branch of the trie tries longer words first."""
    trie: dict[str, Any] = {}
    for word in words:
        if len(word) > 1 and not re.fullmatch(SPACED + "+", word):  # those are units anyway
            node = trie
            for character in word:
                node = node.setdefault(character, {})
            node[""] = {}
    units = rf"{SPACED}+|\S\p{{M}}*"
    return f"(?:{_root(trie)}){END}|{units}" if trie else units


def _root(trie: dict[str, Any]) -> str:
    """The branches in groups: a look at the next character decides whether any of a group's is tried."""
    branches = sorted(trie.items())
    groups = []
    for start in range(0, len(branches), GROUP):
        group = branches[start : start + GROUP]
        first, last = _escaped(group[0][0]), _escaped(group[-1][0])
        groups.append(f"(?=[{first}-{last}])(?:{'|'.join(_branch(*branch) for branch in group)})")
    return "|".join(groups)


def _branch(character: str, node: dict[str, Any]) -> str:
    branches = [_branch(*branch) for branch in sorted(node.items()) if branch[0]]
    if not branches:
        return _escaped(character)
    inner = branches[0] if len(branches) == 1 and "" not in node else f"(?:{'|'.join(branches)})"
    return f"{_escaped(character)}{inner}{'?' if '' in node else ''}"


def _escaped(character: str) -> str:
    """A character as a pattern and a range in brackets have it."""
    return f"\\{character}" if character in r"\^$.|?*+()[]{}-" else character
