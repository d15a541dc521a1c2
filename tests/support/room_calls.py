"""Count the calls from one subpackage of seqpipe to another."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import seqpipe

PACKAGE = Path(seqpipe.__file__).parent


def room_of(frame: FrameType) -> str:
    """The subpackage of seqpipe that a frame runs in; "" for other code and for the modules that all share."""
    file = Path(frame.f_code.co_filename)
    inside = file.relative_to(PACKAGE).parts if file.is_relative_to(PACKAGE) else ()
    return inside[0] if len(inside) > 1 else ""


def calls_between_rooms(function: Callable[[], object]) -> dict[tuple[str, str], int]:
    """Call a function; return the calls of each function from another subpackage, by that one and the function's name.

    A generator is called each time that it goes on. The caller is the nearest frame in a subpackage.
    """
    counts, rooms = dict[tuple[str, str], int](), dict[Any, str]()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        if frame.f_code not in rooms:
            rooms[frame.f_code] = room_of(frame)
        if not (room := rooms[frame.f_code]):
            return
        caller = frame.f_back
        while caller and not rooms.get(caller.f_code):
            caller = caller.f_back
        if caller and (origin := rooms[caller.f_code]) != room:
            key = origin, f"{room}: {frame.f_code.co_qualname}"
            counts[key] = counts.get(key, 0) + 1

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counts
