"""Answers to a text that is read in pieces: each part of an answer as soon as no later piece can change it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from seqpipe.answers.types import Answer
from seqpipe.features.document import Arrays, Doc

if TYPE_CHECKING:
    from seqpipe.answers.base import AnswerKind


class PieceReader(ABC):
    """Turns the decisions about the pieces of one text, in order, into parts of its answer.

    Attributes:
        tags: Of a kind that tags words, the tag of each word of the last piece (of spans in the scheme IOB2).
    """

    outputs: ClassVar[tuple[str, ...]] = ()  # of the graph, which it reads besides those of its kind

    def __init__(self) -> None:
        self.tags: list[str] = []

    @abstractmethod
    def read(self, doc: Doc, decision: Arrays, answer: Answer) -> Answer:
        """What is known after one more piece.

        Args:
            doc: The piece, which begins where the one before ended.
            decision: About the piece, one row.
            answer: What the decision would mean if the piece were the whole text.
        """

    @abstractmethod
    def finish(self) -> Answer:
        """What is known in addition once the text has ended."""


class WholeSoFar(PieceReader):
    """The answer to the text so far, of kinds that answer for a text as a whole."""

    def __init__(self, kind: AnswerKind):
        super().__init__()
        self.answer = kind.empty(False)

    def read(self, doc: Doc, decision: Arrays, answer: Answer) -> Answer:
        self.answer = answer
        return answer

    def finish(self) -> Answer:
        return self.answer


class TagPieces(PieceReader):
    """The tag of each word, with its place in the whole text."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0  # code points of the pieces before

    def read(self, doc: Doc, decision: Arrays, answer: Answer) -> list[dict[str, Any]]:
        shift, self.length = self.length, self.length + len(doc.text)
        self.tags = [word["entity"] for word in answer]
        return [{**word, "start": word["start"] + shift, "end": word["end"] + shift} for word in answer]

    def finish(self) -> list[dict[str, Any]]:
        return []
