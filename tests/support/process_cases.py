"""Ways in which programs answer in several processes, each a program: `process_cases.py CASE BUNDLE TRIES [large]`.

With `large` any graph counts as a large one, whose runs of one text use several threads.

It prints how many of the tries went wrong: a process that did not answer in half a minute, or not as the parent did.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import seqpipe
from seqpipe.runtime import session

SECONDS = 30.0  # for an answer in another process; of a busy machine
TEXTS = [f"Anna calls Ben in New York . {'Bern ' * (i % 9)}" for i in range(200)]  # several batches; split on all cores


def forked(answers: Callable[[], bool], leave: Callable[[int], None] = os._exit) -> bool:
    """Return whether a fork of this process answers, and ends."""
    number = os.fork()
    if number == 0:
        leave(0 if answers() else 1)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(number, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.002)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    return False


def tries_of(model: seqpipe.Model, inputs: Any, tries: int, leave: Callable[[int], None] = os._exit) -> int:
    expected = model(inputs)
    return sum(not forked(lambda: bool(model(inputs) == expected), leave) for _ in range(tries))


def single(path: str, tries: int) -> int:
    return tries_of(seqpipe.load(path, "cpu", 2), TEXTS[8], tries)


def several(path: str, tries: int) -> int:
    return tries_of(seqpipe.load(path, "cpu", 2), TEXTS, tries)


def single_without_limit(path: str, tries: int) -> int:
    return tries_of(seqpipe.load(path, "cpu", 2, timeout=None), TEXTS[8], tries)


def several_without_limit(path: str, tries: int) -> int:
    return tries_of(seqpipe.load(path, "cpu", 2, timeout=None), TEXTS, tries)


def grandchild(path: str, tries: int) -> int:
    """A fork of a fork, where the one between has not answered."""
    model = seqpipe.load(path, "cpu", 2)
    expected = model(TEXTS)
    return sum(not forked(lambda: forked(lambda: bool(model(TEXTS) == expected))) for _ in range(tries))


def sys_exit(path: str, tries: int) -> int:
    """A fork that ends as a program does, and so frees what it inherited."""
    return tries_of(seqpipe.load(path, "cpu", 2), TEXTS, tries, sys.exit)


def locks_of(root: Any) -> Iterator[Any]:
    """Every lock in an object and in what it holds, as far as seqpipe has made it."""
    seen, rest = set[int](), [root]
    while rest:
        holder = rest.pop()
        if id(holder) not in seen:
            seen.add(id(holder))
            for value in vars(holder).values():
                if hasattr(value, "acquire") and hasattr(value, "release"):
                    yield value
                elif type(value).__module__.startswith("seqpipe.runtime"):
                    rest.append(value)


def locked(path: str, tries: int) -> int:
    """Another thread holds all locks of the model at the fork."""
    model = seqpipe.load(path, "cpu", 2)
    expected, locks = model(TEXTS), [*locks_of(model)]
    assert len(locks) >= 2
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        done.wait()
        for lock in locks:
            lock.release()

    wrong = 0
    for _ in range(tries):
        held.clear()
        done.clear()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        wrong += not forked(lambda: bool(model(TEXTS[8]) == expected[8] and model(TEXTS) == expected))
        done.set()
        thread.join()
    return wrong


def busy(path: str, tries: int) -> int:
    """Other threads answer at the fork, and onnxruntime's own locks may be held."""
    model = seqpipe.load(path, "cpu", 2, timeout=None)
    expected = [model(text) for text in TEXTS]
    running = True

    def work() -> None:
        while running:
            model(TEXTS[8])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    wrong = sum(not forked(lambda: bool(model(TEXTS) == expected), sys.exit) for _ in range(tries))
    running = False
    for thread in threads:
        thread.join()
    return wrong


def amid_answers(path: str, tries: int) -> int:
    """A fork cannot go on with answers that its parent began, and can begin others."""
    model, wrong = seqpipe.load(path, "cpu", 2), 0

    def refused(answers: Iterator[Any]) -> bool:
        try:
            list(answers)
        except seqpipe.UsageError as error:
            return "forked in the middle of these answers" in str(error) and model(TEXTS) == expected
        return False

    expected = model(TEXTS)
    for _ in range(tries):
        answers = model(iter(TEXTS), chunk=40)
        next(answers)
        wrong += not forked(lambda answers=answers: refused(answers))  # type: ignore[misc]
        wrong += len([*answers]) != len(TEXTS) - 1
    return wrong


MODEL: seqpipe.Model  # of the process; forks inherit it


def answer_inherited(texts: list[str]) -> Any:
    return MODEL(texts)


def answer_with(model: seqpipe.Model, texts: list[str]) -> Any:
    return model(texts)


def _open(path: str) -> Any:
    global MODEL
    MODEL = seqpipe.load(path, "cpu", 2)
    return MODEL(TEXTS)


def pool_by_fork(path: str, tries: int) -> int:
    expected, wrong = _open(path), 0
    for _ in range(tries):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            wrong += pool.map_async(answer_inherited, [TEXTS] * 4).get(SECONDS) != [expected] * 4
    return wrong


def executor_by_fork(path: str, tries: int) -> int:
    expected, wrong = _open(path), 0
    for _ in range(tries):
        with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
            wrong += [*pool.map(answer_inherited, [TEXTS] * 4, timeout=SECONDS)] != [expected] * 4
    return wrong


def _pickled(path: str, method: str) -> int:
    model = seqpipe.load(path, "cpu", 1)
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
        answers = [*pool.map(answer_with, [model] * 2, [TEXTS] * 2, timeout=60)]
    return int(answers != [model(TEXTS)] * 2)


def executor_by_spawn(path: str, tries: int) -> int:
    return _pickled(path, "spawn")


def executor_by_forkserver(path: str, tries: int) -> int:
    return _pickled(path, "forkserver")


def joblib(path: str, tries: int) -> int:
    import joblib

    model = seqpipe.load(path, "cpu", 1)
    expected, wrong = model(TEXTS), 0
    for backend in ("loky", "multiprocessing", "threading"):
        parallel = joblib.Parallel(2, backend=backend, timeout=60)
        wrong += parallel(joblib.delayed(answer_with)(model, TEXTS) for _ in range(4)) != [expected] * 4
    return wrong


def prefork(path: str, tries: int) -> int:
    """A master that loads and answers once, and forks workers that take tasks until SIGTERM (Celery, gunicorn)."""
    model = seqpipe.load(path, "cpu", 2)
    expected, wrong = model(TEXTS), 0
    for _ in range(tries):
        tasks, answers = (
            multiprocessing.get_context("fork").SimpleQueue(),
            multiprocessing.get_context("fork").SimpleQueue(),
        )
        workers = []
        for _ in range(3):
            number = os.fork()
            if number == 0:
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
                answers.put("ready")
                while True:
                    answers.put(model(tasks.get()))
            workers.append(number)
        signal.alarm(60)  # ends this program, should no worker answer
        wrong += sum(answers.get() != "ready" for _ in workers)  # SIGTERM ends without a word who is not
        for _ in range(6):
            tasks.put(TEXTS)
        wrong += sum(answers.get() != expected for _ in range(6))
        for number in workers:
            os.kill(number, signal.SIGTERM)
        wrong += sum(os.waitpid(number, 0)[1] != 0 for number in workers)
        signal.alarm(0)
    return wrong


def asyncio_executors(path: str, tries: int) -> int:
    expected = _open(path)

    async def answers() -> list[Any]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as forks:
            calls = [loop.run_in_executor(pool, answer_inherited, TEXTS) for pool in (threads, forks) * 2]
            return await asyncio.wait_for(asyncio.gather(*calls), 60)

    return sum(asyncio.run(answers()) != [expected] * 4 for _ in range(tries))


def data_loader(path: str, tries: int) -> int:
    from torch.utils.data import DataLoader, Dataset

    model = seqpipe.load(path, "cpu", 2)
    expected = model(TEXTS)

    class Answered(Dataset[Any]):
        def __len__(self) -> int:
            return len(TEXTS)

        def __getitem__(self, i: int) -> Any:
            return model(TEXTS[i])

    wrong = 0
    for _ in range(tries):
        loader = DataLoader(
            Answered(), 8, num_workers=2, collate_fn=list, timeout=SECONDS, multiprocessing_context="fork"
        )
        wrong += [answer for batch in loader for answer in batch] != expected
    return wrong


def thread_counts(path: str, tries: int) -> int:
    """The threads of a fork that answers lists are the caller's, the watchdog's and as many as it was loaded with."""
    model, wrong = seqpipe.load(path, "cpu", 3), 0

    def are_few() -> bool:
        model(TEXTS)
        end = time.monotonic() + SECONDS / 3  # a watchdog that ends may still be there beside the next one
        while (threads := len(os.listdir("/proc/self/task"))) > 2 + 3 and time.monotonic() < end:
            time.sleep(0.01)
        return threads <= 2 + 3

    for _ in range(tries):
        wrong += not forked(are_few)
    return wrong


def cuda(path: str, tries: int) -> int:
    """A fork of a process that uses CUDA gets an error with the cure: the driver of NVIDIA supports none."""
    model = seqpipe.load(path, "cpu", 2)
    expected = model(TEXTS[8])
    model.graph.device = "cuda"  # as far as the fork can tell

    def is_refused() -> bool:
        try:
            model(TEXTS[8])
        except seqpipe.EnvError as error:
            return "start processes by spawn" in str(error)
        return False

    return sum(not forked(is_refused) for _ in range(tries)) + (model(TEXTS[8]) != expected)


FORKS = (single, several, single_without_limit, several_without_limit, grandchild, sys_exit, locked, busy, amid_answers)
FORKS += (pool_by_fork, executor_by_fork, prefork, asyncio_executors, data_loader, thread_counts, cuda)
ONCE = (executor_by_spawn, executor_by_forkserver, joblib)

if __name__ == "__main__":
    # Python from 3.12 on warns of what these cases are about: a fork in a process with threads.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
    if sys.argv[4:] == ["large"]:
        session.LARGE = 0
    case = {function.__name__: function for function in (*FORKS, *ONCE)}[sys.argv[1]]
    print(case(sys.argv[2], int(sys.argv[3])))
