"""Search over tables of probabilities, in PyTorch and in onnxruntime: against every sequence there is, and more.

Each row of a table is a random model and its input. Of `MODELS` of them, every text that they could write is laid out.
"""

import itertools
import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from exported_graphs import ExportedGraph, export
from torch import Tensor, nn

from seqpipe.features.automaton import TextTrie
from seqpipe.nn.layers import BOS_ID, EOS_ID, LOG_ZERO, PAD_ID
from seqpipe.nn.loops import State
from seqpipe.nn.search import Decoder, RowsDecoder, SearchOptions, beam_search, top_n

N, S, V = 5, 3, 6  # the most tokens, source positions, vocabulary; [PAD] and [BOS] are never written
H = 3  # what a model remembers of all tokens before the last: one of so many states
ALL = 4 * 3 ** (N - 1)  # beams that leave nothing out: 4 tokens can be written, and a text goes on behind 3 of them
Tokens = tuple[int, ...]


class Table(nn.Module):
    """A decoder whose next token depends on the row, how many were written, the last one, and those before by a state.

    It counts its steps.
    """

    log_p: Tensor
    attention: Tensor
    mask: Tensor

    def __init__(self, rows: int, seed: int = 0, most: int = N, ending: float = 0.0):
        super().__init__()
        noise = torch.Generator().manual_seed(seed)
        logits = torch.randn(rows, most, H, V, V, generator=noise) * 2
        logits[..., EOS_ID] += ending
        logits[..., [PAD_ID, BOS_ID]] = LOG_ZERO
        self.register_buffer("log_p", logits.log_softmax(4))
        real = torch.arange(S) < torch.randint(1, S + 1, (rows, 1), generator=noise)  # (rows, S)
        weights = torch.randn(rows, most, H, V, S, generator=noise).masked_fill(~real[:, None, None, None], -math.inf)
        self.register_buffer("attention", weights.softmax(4))
        self.register_buffer("mask", real)
        self.steps = 0

    def decoder(self, rows: list[int] | Tensor) -> RowsDecoder:
        return RowsDecoder(self.step, self.mask[rows], self.mask[rows])  # its steps read the number of rows

    def begin(self, rows: list[int]) -> tuple[RowsDecoder, State]:
        chosen = torch.tensor(rows)
        return self.decoder(rows), (chosen, torch.zeros_like(chosen), torch.zeros_like(chosen))

    def step(self, mask: Tensor, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor]:
        row, t, h = state
        if not torch.compiler.is_exporting():
            self.steps += 1
        at = ((row * self.log_p.shape[1] + t) * H + h) * V + tokens
        log_p, attention = (one.flatten(0, 3)[at] for one in (self.log_p, self.attention))
        return log_p, (row, t + 1, (2 * h + tokens).remainder(H)), attention.unflatten(0, (mask.shape[0], -1))

    def row(self, row: int) -> tuple[Any, Any]:
        return self.log_p[row].double().numpy(), self.attention[row].double().numpy()


class MinimalDecoder(NamedTuple):
    """Decoder with the members that the documentation asks for, and no others."""

    table: Table
    mask: Tensor

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor]:
        return self.table.step(self.mask, tokens, state)


def find(decoder: Decoder, start: State, lengths: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    return beam_search(decoder, start, SearchOptions(**options), lengths=lengths)[:2]


def places(sequences: list[Tokens]) -> tuple[Any, Any]:
    """Return the place of each token of each sequence in a row's table, (4, sequences, N), and which are real."""
    found, real = np.zeros((4, len(sequences), max(map(len, sequences), default=1)), int), []
    for n, tokens in enumerate(sequences):
        h = 0
        for t, (before, token) in enumerate(zip((BOS_ID, *tokens), tokens, strict=False)):
            found[:, n, t] = t, h, before, token
            h = (2 * h + before) % H
        real.append(len(tokens))
    return found, np.arange(found.shape[2]) < np.array(real).reshape(-1, 1)


def scores(table: Table, row: int, sequences: list[Tokens]) -> Any:
    """The log-probability of each sequence."""
    at, real = places(sequences)
    return np.where(real, table.row(row)[0][*at], 0).sum(1)


def gains(table: Table, row: int, before: list[int]) -> Any:
    """The log-probabilities of the token behind these, (V,)."""
    (t, h, last, _), _ = places([(*before, PAD_ID)])
    return table.row(row)[0][t[0, -1], h[0, -1], last[0, -1]]


def ranks(table: Table, row: int, sequences: list[Tokens], options: dict[str, Any]) -> Any:
    """Return the numbers by which sequences are ordered, worked out from the papers."""
    (t, h, before, _), real = places(sequences)
    made = scores(table, row, sequences) / ((5 + real.sum(1)) / 6) ** options.get("length_penalty", 0)
    got = (table.row(row)[1][t, h, before] * real[..., None]).sum(1)  # (sequences, S)
    covered = np.log(np.clip(got, 1e-6, 1))[:, table.mask[row].numpy()].sum(1)
    return made + options.get("coverage_penalty", 0) * covered


def best_of(table: Table, row: int, sequences: list[Tokens], options: dict[str, Any]) -> list[Tokens]:
    """The sequences, best first; of equal ones the first."""
    order = np.argsort(-ranks(table, row, sequences, options), kind="stable")
    return [sequences[i] for i in order.tolist()]


def may_follow(before: Tokens, token: int, options: dict[str, Any]) -> bool:
    """Return whether a token may be written behind these."""
    prefix, n = options.get("prefix", ()), options.get("no_repeat_ngram_size", 0)
    if len(before) == options.get("length"):
        return token == EOS_ID
    if len(before) < len(prefix):
        return bool(token == prefix[len(before)])
    texts = [(*text, EOS_ID) for text in options.get("allowed", ())]
    if texts and (*before, token) not in {text[: len(before) + 1] for text in texts}:
        return False
    if token in (PAD_ID, BOS_ID) or not accepted((*before, token), options.get("forbidden", ())):
        return False
    if token == EOS_ID and len(before) < max(options.get("min_length", 0), options.get("length", 0)):
        return False
    tokens = (*before, token)
    grams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    return not n or len(tokens) < n or grams[-1] not in grams[:-1]


def accepted(tokens: Tokens, arcs: tuple[tuple[int, int, int], ...]) -> bool:
    """Return whether an automaton accepts these tokens."""
    state = max(0, arcs[0][0]) if arcs else 0
    for token in tokens:
        arcs_here = [(piece, after) for begin, piece, after in arcs if begin in (-1, state)]
        after = [after for piece, after in arcs_here if piece == token]
        if -1 in after:
            return False
        state = max(after, default=0)
    return True


def every(options: dict[str, Any]) -> list[Tokens]:
    """All sequences that end, or are as long as they may be."""
    found: list[Tokens] = []
    for length in range(1, N + 1):
        for tokens in itertools.product(range(V), repeat=length):
            is_whole = (tokens[-1] == EOS_ID or length == N) and EOS_ID not in tokens[:-1]
            if is_whole and all(may_follow(tokens[:t], tokens[t], options) for t in range(length)):
                found.append(tokens)
    return found


def beams_of(table: Table, row: int, beams: int, options: dict[str, Any], most: int = N) -> list[Tokens]:
    """Beam search of one row in plain Python."""
    alive: list[Tokens] = [()]
    ended: list[Tokens] = []
    for t in range(most):
        following = [(*one, token) for one in alive for token in range(V) if may_follow(one, token, options)]
        following = best_of(table, row, following, options)[: 2 * beams]
        last = t + 1 == most
        fresh = [one for one in following[:beams] if last or one[-1] == EOS_ID]
        ended = best_of(table, row, [*ended, *fresh], options)[:beams]
        alive = [one for one in following if not last and one[-1] != EOS_ID][:beams]
        if not alive or (len(ended) == beams and (options.get("early_stopping") or beams == 1)):
            break
    return ended


def written(tokens: Tensor | np.ndarray) -> list[Tokens]:
    """Rows without their padding."""
    rows = tokens.reshape(-1, tokens.shape[-1]).tolist()
    rows = [row[: row.index(EOS_ID) + 1] if EOS_ID in row else row for row in rows]
    return [tuple(token for token in row if token) for row in rows]


def tensors(options: dict[str, Any], rows: int) -> dict[str, Any]:
    """Options as search takes them, for so many rows."""
    made = dict(options)
    if "length" in made:
        made["lengths"] = torch.full((rows,), made.pop("length"))
    if "prefix" in made:
        made["prefix"] = torch.tensor([made["prefix"]], dtype=torch.int64).reshape(1, -1)
    if "allowed" in made:
        texts = made["allowed"]
        made["allowed"] = torch.from_numpy(TextTrie(texts, EOS_ID).inputs(0) if texts else np.zeros((0, 3), int))[None]
    if "forbidden" in made:
        made["forbidden"] = torch.tensor([made["forbidden"]], dtype=torch.int64).reshape(1, -1, 3)
    return made


SIZES = ("beams", "n_best", "max_length", "top_k")
AXES: Any = {name: ("n_" + name,) for name in SIZES} | {"rows": ("b",), "lengths": ("b",)}
AXES |= {"prefix": ("op", "p"), "forbidden": ("of", "f"), "allowed": ("oa", "a")}
NUMBERS: dict[str, Any] = {
    "min_length": 0,
    "length_penalty": 0.0,
    "coverage_penalty": 0.0,
    "early_stopping": False,
    "no_repeat_ngram_size": 0,
    "temperature": 1.0,
    "top_p": 1.0,
    "token_scores": False,
}


def inputs(rows: list[int], beams: int, n: int, options: dict[str, Any]) -> dict[str, Tensor]:
    made = {name: torch.tensor(options.get(name, value)) for name, value in NUMBERS.items()}
    sizes = {"beams": beams, "n_best": n, "max_length": N, "top_k": options.get("top_k", 50)}
    made |= {name: torch.zeros(size) for name, size in sizes.items()}
    lists = tensors({"prefix": (), "forbidden": (), "allowed": (), **options}, len(rows))
    uniform = options.get("uniform", torch.zeros(1, 1, 0))
    made["lengths"] = torch.full((len(rows),), options.get("length", -1))
    made |= {name: lists[name] for name in ("prefix", "forbidden", "allowed")}
    return made | {"rows": torch.tensor(rows), "uniform": uniform}


def never(*tokens: int) -> tuple[tuple[int, int, int], ...]:
    """Arcs that forbid tokens in every state."""
    return tuple((-1, token, -1) for token in tokens)


# Every second token is 4: a text begins in state 2, in which all others are forbidden as in state 0.
OTHERS = (1, 3, 5)
ALTERNATING = (*((2, i, -1) for i in OTHERS), *((0, i, -1) for i in OTHERS), (-1, 4, 1), (1, 4, -1))
OPTIONS: list[dict[str, Any]] = [
    {},
    {"length_penalty": 0.6},
    {"length_penalty": 2.0, "min_length": 2},
    {"coverage_penalty": 0.7},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2, "length_penalty": 1.0},
    {"prefix": (4, 1)},
    {"forbidden": never(1, 5), "coverage_penalty": 0.2, "length_penalty": 0.5},
    {"forbidden": ALTERNATING},
    {"forbidden": ((0, 4, 2), (-1, 5, 1), (1, 4, -1), (2, 5, -1), (2, 1, 2)), "length_penalty": 1.0},
    {"min_length": 4, "no_repeat_ngram_size": 3},
    {"length": 2},
    {"length": 3, "prefix": (4,), "length_penalty": 1.0},
    {"allowed": ((4,), (4, 5), (5, 1, 4), (5, 1, 1))},
    {"allowed": ((4, 4, 4), (1,), (5, 5)), "length_penalty": 1.0, "coverage_penalty": 0.2},
]
MODELS = 40 * len(OPTIONS)


@pytest.fixture(scope="module")
def table() -> Table:
    """Random models, each with its input."""
    return Table(MODELS, seed=2)


@pytest.fixture(scope="module")
def graph(table: Table, tmp_path_factory: pytest.TempPathFactory) -> ExportedGraph:
    """Search on that table, with every option: which rows is an input."""
    given = {"prefix": (4, 1), "forbidden": never(5, 4, 1), "allowed": ((4, 5), (5,)), "uniform": torch.rand(6, 4, 5)}
    axes: Any = AXES | {"uniform": ("ub", "uk", "un")} | dict.fromkeys(NUMBERS, ())
    example = inputs([3, 1, 2, 4, 5, 7], 4, 3, given)
    return export(tmp_path_factory.mktemp("search") / "search.onnx", table, partial(decide, table), axes, **example)


def decide(table: Table, rows: Tensor, **given: Any) -> dict[str, Tensor]:
    for name in SIZES:
        given[name] = given[name].shape[0]
    start = (rows, torch.zeros_like(rows), torch.zeros_like(rows))
    lengths = given.pop("lengths")
    return beam_search(table.decoder(rows), start, SearchOptions(**given), lengths=lengths)._asdict()


@pytest.mark.parametrize("group", range(len(OPTIONS)), ids=lambda group: str(OPTIONS[group]))
def test_a_beam_as_wide_as_there_are_prefixes_finds_the_best_of_all(
    table: Table, graph: ExportedGraph, group: int
) -> None:
    options, rows = OPTIONS[group], list(range(group, MODELS, len(OPTIONS)))
    given = inputs(rows, ALL, 5, options)
    made, found, sequences = graph(**given), decide(table, **given), every(options)
    for i, row in enumerate(rows):
        expected = best_of(table, row, sequences, options)[:5]
        assert written(found["tokens"][i])[: len(expected)] == expected
        assert written(made["tokens"][i])[: len(expected)] == expected
        log_p = [*scores(table, row, expected), *[LOG_ZERO] * (5 - len(expected))]
        assert found["scores"][i].tolist() == pytest.approx(log_p, abs=1e-4)
        assert made["scores"][i].tolist() == pytest.approx(log_p, abs=1e-4)


def test_narrow_beams_miss_what_wide_ones_find(table: Table, graph: ExportedGraph) -> None:
    rows = list(range(MODELS))
    best = [graph(**inputs(rows, beams, 1, {}))["tokens"] for beams in (1, 3, ALL)]
    missed = [int((narrow != best[-1]).any((1, 2)).sum()) for narrow in best[:-1]]
    assert MODELS / 2 > missed[0] > missed[1] > 5


@pytest.mark.parametrize(
    "options", [*OPTIONS, {"early_stopping": True}, {"early_stopping": True, "min_length": 1}], ids=str
)
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_any_beam_finds_what_a_search_in_plain_python_finds(beams: int, options: dict[str, Any]) -> None:
    table, rows = Table(40, seed=beams), list(range(40))
    found, log_p = find(*table.begin(rows), beams=beams, n_best=beams, max_length=N, **tensors(options, len(rows)))
    for row in rows:
        expected = beams_of(table, row, beams, options)
        got = written(found[row])[: len(expected)]
        assert got == expected
        assert log_p[row, : len(expected)].tolist() == pytest.approx(scores(table, row, expected).tolist(), abs=1e-4)
        assert (log_p[row, len(expected) :] == LOG_ZERO).all()


def test_a_decoder_needs_a_mask_and_steps_only(table: Table) -> None:
    decoder, start = table.begin([3, 1, 2])
    found = find(MinimalDecoder(table, table.mask[[3, 1, 2]]), start, beams=3, n_best=3, max_length=N)
    expected = find(decoder, start, beams=3, n_best=3, max_length=N)
    assert all(map(torch.equal, found, expected))


def test_options_change_what_is_found() -> None:
    (reading, start), search = Table(40).begin(list(range(40))), {"beams": 4, "n_best": 1, "max_length": N}
    plain, _ = find(reading, start, **search)
    for options in OPTIONS[1:]:
        assert not torch.equal(find(reading, start, **search, **tensors(options, 40))[0], plain)


@pytest.mark.parametrize("beams", [1, 2, 5])
@pytest.mark.parametrize("options", [{}, {"length_penalty": 1.0}, {"early_stopping": True}, {"uniform": True}], ids=str)
def test_neighbours_never_change_a_row(beams: int, options: dict[str, Any]) -> None:
    table, rows = Table(12, most=20, ending=1.0), list(range(12))
    uniform = torch.rand(12, beams, 20) if options.get("uniform") else torch.zeros(12, 1, 0)
    given: dict[str, Any] = {**options, "beams": beams, "n_best": beams, "max_length": 20}
    together, scores = find(*table.begin(rows), **given | {"uniform": uniform})
    for row in rows:
        alone, score = find(*table.begin([row]), **given | {"uniform": uniform[[row]]})
        assert torch.equal(alone[0], together[row])
        assert torch.allclose(score[0], scores[row])


@pytest.mark.parametrize("alpha", [0.0, 1.0, 4.0])
def test_being_settled_never_changes_an_answer(alpha: float) -> None:
    table, rows = Table(60, most=20), list(range(60))
    late = find(*table.begin(rows), beams=4, n_best=4, max_length=20, length_penalty=alpha)
    for row, n_best in itertools.product(rows, (1, 2)):
        early = find(*table.begin([row]), beams=4, n_best=n_best, max_length=20, length_penalty=alpha)
        assert torch.equal(early[0][0], late[0][row, :n_best])
        assert torch.allclose(early[1][0], late[1][row, :n_best])


def test_search_stops_once_nothing_can_catch_up() -> None:
    table = Table(1, most=20)
    table.log_p[:] = torch.tensor([LOG_ZERO, -8.0, LOG_ZERO, -0.001, -8.0, -8.0])
    find(*table.begin([0]), beams=3, n_best=1, max_length=20)
    assert table.steps == 1


def test_sequences_that_do_not_exist_are_marked() -> None:
    table = Table(2)
    tokens, scores = find(*table.begin([0, 1]), beams=9, n_best=9, max_length=1)
    assert (scores[:, :4] > -100).all()  # 1, 3, 4 and 5 can be written
    assert (scores[:, 4:] == LOG_ZERO).all()
    assert not tokens[scores == LOG_ZERO].any()
    tokens, scores = find(*table.begin([0, 1]), beams=2, n_best=7, max_length=5)
    assert (tokens.shape, scores.shape) == ((2, 2, 5), (2, 2))  # no more answers than beams


def drawn(table: Table, row: int, numbers: Any, temperature: float, top_k: int, top_p: float) -> Tokens:
    """A sequence that is drawn, in double precision."""
    tokens: list[int] = []
    for number in numbers:
        log_p = gains(table, row, tokens)
        order = np.argsort(-log_p, kind="stable")[:top_k]
        p = np.exp((log_p[order] - log_p[order[0]]) / temperature) if temperature else (order == order[0]) + 0.0
        p /= p.sum()
        kept = p[: max(1, int(((np.cumsum(p) - p) < top_p).sum()))]
        tokens.append(int(order[np.searchsorted(np.cumsum(kept) / kept.sum(), number, side="right")]))
        if tokens[-1] == EOS_ID:
            break
    return tuple(tokens)


SAMPLED = [(1.0, 50, 1.0), (0.7, 50, 1.0), (1.5, 3, 1.0), (1.0, 50, 0.8), (2.0, 4, 0.6), (0.0, 50, 1.0), (1.0, 1, 1.0)]


@pytest.mark.parametrize("options", SAMPLED)
def test_a_sampled_text_follows_from_the_uniform_samples(options: tuple[float, int, float]) -> None:
    table, rows, most = Table(50, seed=3, most=9), list(range(50)), 9
    uniform = torch.rand(50, 2, most, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).float()
    chosen = dict(zip(("temperature", "top_k", "top_p"), options, strict=True))
    found, log_p = find(*table.begin(rows), beams=2, n_best=2, max_length=most, uniform=uniform, **chosen)
    for row in rows:
        expected = [drawn(table, row, uniform[row, k].double().numpy(), *options) for k in range(2)]
        assert sorted(written(found[row])) == sorted(expected)
        assert log_p[row].tolist() == pytest.approx(sorted(scores(table, row, expected), reverse=True), abs=1e-4)


def test_a_text_that_is_drawn_is_no_longer_than_there_are_numbers() -> None:
    table = Table(4, most=20, ending=-50)
    found, _ = find(*table.begin([0, 1, 2, 3]), beams=1, n_best=1, max_length=20, uniform=torch.rand(4, 1, 6))
    assert [len(one) for one in written(found)] == [6] * 4


def test_the_graph_finds_the_same_with_every_option(table: Table, graph: ExportedGraph) -> None:
    rows, cases = list(range(40)), [*OPTIONS, {"early_stopping": True}]
    cases += [{"uniform": torch.rand(40, K, N), "K": K, "temperature": 0.8, "top_p": 0.9, "top_k": 4} for K in (1, 3)]
    cases += [{**options, "token_scores": True} for options in (*OPTIONS, *cases[-2:])]
    for options, K in itertools.product(cases, (1, 2, 5)):
        given = inputs(rows, options.get("K", K), min(2, options.get("K", K)), options)
        made, expected = graph(**given), decide(table, **given)
        assert np.array_equal(made["tokens"], expected["tokens"].numpy())
        assert np.abs(made["scores"] - expected["scores"].numpy()).max() < 1e-4
        assert made["token_log_p"].shape == expected["token_log_p"].shape
        assert np.abs(made["token_log_p"] - expected["token_log_p"].numpy()).max(initial=0.0) < 1e-4


@pytest.mark.parametrize("options", [*OPTIONS, {"uniform": torch.rand(20, 3, N)}], ids=lambda one: " ".join(one))
def test_the_score_of_a_token_is_its_entry_in_the_table_and_they_sum_to_that_of_the_text(
    table: Table, options: dict[str, Any]
) -> None:
    rows = list(range(20))
    found = decide(table, **inputs(rows, 3, 3, {**options, "token_scores": True}))
    for row in rows:
        real = found["scores"][row] > LOG_ZERO
        sequences = written(found["tokens"][row])
        assert len(sequences) == int(real.sum()) > 0
        at, is_token = places(sequences)
        expected = np.zeros((len(sequences), N))
        expected[:, : at.shape[2]] = np.where(is_token, table.row(row)[0][*at], 0.0)
        assert found["token_log_p"][row][real].numpy() == pytest.approx(expected, abs=1e-5)
        assert found["scores"][row][real].numpy() == pytest.approx(expected.sum(1), abs=1e-4)
        assert not found["token_log_p"][row][~real].any()


@pytest.mark.parametrize("largest", [True, False])
def test_of_equal_values_the_first_are_the_best(largest: bool) -> None:
    torch.manual_seed(0)
    for size, n in ((5, 5), (9, 3), (400, 7), (3000, 20)):
        values = torch.randint(0, 4, (6, size)).float()
        found, places = top_n(values, n, largest)
        ordered, expected = values.sort(dim=1, descending=largest, stable=True)
        assert torch.equal(found, ordered[:, :n])
        assert torch.equal(places, expected[:, :n])
