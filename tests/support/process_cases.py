"""Programs that answer in several processes: `process_cases.py CASE BUNDLE TRIES [large]`.

With `large` any graph counts as a large one, whose runs of one text use several threads.

It prints the number of failed tries: a process that did not answer in half a minute, or not as the parent did.
"""

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

Case = Callable[[str, int], int]  # from a bundle and a number of tries to the number of failed ones
SECONDS = 30.0  # for an answer in another process; of a busy machine
FORK = multiprocessing.get_context("fork")
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


def failed_tries(model: seqpipe.Model, inputs: Any, tries: int, leave: Callable[[int], None] = os._exit) -> int:
    expected = model(inputs)
    return sum(not forked(lambda: bool(model(inputs) == expected), leave) for _ in range(tries))


def fork_case(name: str, inputs: Any, leave: Callable[[int], None] = os._exit, **settings: Any) -> Case:
    """A case of this name, in which forks answer the inputs; they end as `leave` does."""

    def case(path: str, tries: int) -> int:
        return failed_tries(seqpipe.load(path, "cpu", 2, **settings), inputs, tries, leave)

    case.__name__ = name
    return case


def grandchild(path: str, tries: int) -> int:
    """A fork of a fork, where the one between has not answered."""
    model = seqpipe.load(path, "cpu", 2)
    expected = model(TEXTS)
    return sum(not forked(lambda: forked(lambda: bool(model(TEXTS) == expected))) for _ in range(tries))


def locks_of(root: Any) -> Iterator[Any]:
    """Every lock of an object and of the objects of the runtime that it holds."""
    seen, holders = set[int](), [root]
    while holders:
        holder = holders.pop()
        if id(holder) not in seen:
            seen.add(id(holder))
            for value in vars(holder).values():
                if hasattr(value, "acquire") and hasattr(value, "release"):
                    yield value
                elif type(value).__module__.startswith("seqpipe.runtime"):
                    holders.append(value)


def locked(path: str, tries: int) -> int:
    """At the fork, another thread holds all locks of the model."""
    model = seqpipe.load(path, "cpu", 2)
    expected, locks, wrong = model(TEXTS), [*locks_of(model)], 0
    assert len(locks) >= 2
    with ThreadPoolExecutor(1) as other_thread:
        for _ in range(tries):
            other_thread.submit(lambda: [lock.acquire() for lock in locks]).result()
            wrong += not forked(lambda: bool(model(TEXTS[8]) == expected[8] and model(TEXTS) == expected))
            other_thread.submit(lambda: [lock.release() for lock in locks]).result()
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
    """Open the model that forks inherit, and return its answers."""
    global MODEL
    MODEL = seqpipe.load(path, "cpu", 2)
    return MODEL(TEXTS)


def pools_by_fork(path: str, tries: int) -> int:
    """A pool and an executor."""
    expected, wrong = _open(path), 0
    for _ in range(tries):
        with FORK.Pool(2) as pool:
            wrong += pool.map_async(answer_inherited, [TEXTS] * 4).get(SECONDS) != [expected] * 4
        with ProcessPoolExecutor(2, FORK) as executor:
            wrong += [*executor.map(answer_inherited, [TEXTS] * 4, timeout=SECONDS)] != [expected] * 4
    return wrong


def executors_of_new_processes(path: str, tries: int) -> int:
    """The model is pickled for processes by spawn and by a fork server."""
    model, wrong = seqpipe.load(path, "cpu", 1), 0
    for method in ("spawn", "forkserver"):
        with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
            answers = [*pool.map(answer_with, [model] * 2, [TEXTS] * 2, timeout=60)]
        wrong += answers != [model(TEXTS)] * 2
    return wrong


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
        tasks, answers = FORK.SimpleQueue(), FORK.SimpleQueue()
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
        with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(2, FORK) as forks:
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
        settings: dict[str, Any] = {"collate_fn": list, "timeout": SECONDS, "multiprocessing_context": FORK}
        loader = DataLoader(Answered(), 8, num_workers=2, **settings)
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


FORKS: tuple[Case, ...] = (
    fork_case("single", TEXTS[8]),
    fork_case("several", TEXTS),
    fork_case("single_without_limit", TEXTS[8], timeout=None),
    fork_case("several_without_limit", TEXTS, timeout=None),
    fork_case("sys_exit", TEXTS, sys.exit),  # the fork frees the objects that it inherited
)
FORKS += (grandchild, locked, busy, amid_answers, pools_by_fork, prefork, asyncio_executors, data_loader)
FORKS += (thread_counts, cuda)
NEW_PROCESSES = (executors_of_new_processes, joblib)

if __name__ == "__main__":
    # Python from 3.12 on warns of what these cases are about: a fork in a process with threads.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
    if sys.argv[4:] == ["large"]:
        session.LARGE_MODEL_WEIGHTS = 0
    case = {function.__name__: function for function in (*FORKS, *NEW_PROCESSES)}[sys.argv[1]]
    print(case(sys.argv[2], int(sys.argv[3])))
