"""Runs the server in one process or in several that share a port; one that dies is started again, with a message."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

from seqpipe.console import Console
from seqpipe.errors import SeqpipeError, UsageError
from seqpipe.runtime.serve.auth import exposure
from seqpipe.runtime.serve.listeners import address, allow_connections, listening
from seqpipe.runtime.serve.metrics import shared as shared_metrics
from seqpipe.runtime.serve.server import SIGNALS, run
from seqpipe.runtime.serve.settings import Settings
from seqpipe.runtime.serve.systemd import READY, STOPPING, Heartbeat, notify

_OFTEN = 0.2  # seconds between two looks at whether a signal came
_SPAWN = multiprocessing.get_context("spawn")


def serve(settings: Settings, console: Console) -> None:
    """Answers requests until SIGTERM or SIGINT, then what was accepted.

    Raises:
        UsageError: if the address cannot be listened at.
        BundleError: if a bundle is refused.
    """
    if settings.repository is not None and settings.processes > 1:
        raise UsageError("--repository needs one process, which loads and unloads for all; leave out --processes")
    allow_connections(settings)
    with listening(settings) as sockets:
        if warning := exposure(sockets[0], settings.token):
            console.result(f"warning: {warning}")
        if settings.processes == 1:
            run(settings, sockets, partial(_say_ready, console, sockets))
        else:
            with shared_metrics():
                Processes(settings, sockets, console).run()


def _say_ready(console: Console, sockets: Sequence[socket.socket], names: Sequence[str]) -> None:
    notify(READY)
    console.say(f"{address(sockets[0])}: ready: {', '.join(names)}")


class Processes:
    """The processes of one server, each with a socket of its own.

    Args:
        settings: Of the server.
        sockets: As many as there are to be processes.
        console: For messages.
    """

    def __init__(self, settings: Settings, sockets: Sequence[socket.socket], console: Console):
        self._settings, self._sockets, self._console = settings, sockets, console
        self._running: dict[int, tuple[Any, Connection]] = {}  # by the number of the socket
        self._ready: set[int] = set()
        self._ends = self._told = False
        self._heartbeat = Heartbeat()

    def run(self) -> None:
        """Until a signal; raises what a process raised that never became ready."""
        before = {number: signal.signal(number, self._end) for number in SIGNALS}
        try:
            for number in range(len(self._sockets)):
                self._start(number)
            while not self._ends:
                self._watch()
        finally:
            self._stop()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ends = True

    def _start(self, number: int) -> None:
        ours, theirs = _SPAWN.Pipe()
        arguments = (self._settings, self._sockets[number], theirs)
        process = _SPAWN.Process(target=_run_one, args=arguments, name=f"seqpipe serve {number + 1}")
        process.start()
        theirs.close()
        self._running[number] = process, ours

    def _watch(self) -> None:
        self._heartbeat.beat()
        numbers = {pipe: number for number, (_, pipe) in self._running.items()}
        for pipe in wait([*numbers], _OFTEN):
            number = numbers[pipe]  # type: ignore[index]
            process, ours = self._running[number]
            try:
                message = ours.recv()
            except EOFError:
                self._died(number, process)
                continue
            if isinstance(message, Exception):
                raise message
            self._ready.add(number)
            if len(self._ready) == len(self._sockets) and not self._told:
                self._told = True
                _say_ready(self._console, self._sockets, message)

    def _died(self, number: int, process: Any) -> None:
        process.join()
        mark_process_dead(process.pid)  # its queues are gone, its counts stay
        if self._ends:
            return
        how = f"process {process.pid} of the server has ended ({process.exitcode})"
        if number not in self._ready:
            raise SeqpipeError(f"{how} before it was ready")
        self._console.result(f"{how}; another one takes its place")
        self._ready.discard(number)
        self._running[number][1].close()
        self._start(number)

    def _stop(self) -> None:
        notify(STOPPING)
        for listener in self._sockets:  # else clients would connect, and wait for nobody
            listener.close()
        for process, _ in self._running.values():
            if process.is_alive():
                process.terminate()
        for process, pipe in self._running.values():
            process.join()
            pipe.close()


def _run_one(settings: Settings, listener: socket.socket, parent: Connection) -> None:
    """What each process does; it ends when its parent does, however that was."""
    for number in SIGNALS:  # until the server has its own handlers: an end at once is a good one
        signal.signal(number, lambda *_: os._exit(0))
    allow_connections(settings)

    def follow() -> None:
        wait([parent])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    try:
        run(settings, [listener], parent.send)
    except Exception as error:
        parent.send(error if isinstance(error, SeqpipeError) else SeqpipeError(f"{type(error).__name__}: {error}"))
