"""`seqpipe serve` beside calls from Python and beside other servers; each row of the table is a subcommand.

    python benchmarks/serve.py cpu --bundles runs          processor time a request beyond the batched call
    python benchmarks/serve.py latency --bundles runs      one client's latency beyond the call in Python
    python benchmarks/serve.py minilm --checkpoint FOLDER --data FOLDER    throughput beside `predict` in batches
    python benchmarks/serve.py peers --bundles runs        throughput beside BentoML, LitServe and plain FastAPI
    python benchmarks/serve.py overload --bundles runs     five times as many requests as it can answer
    python benchmarks/serve.py soak --bundles runs         disconnects, malformed requests, kills and reloads
    python benchmarks/serve.py cold --bundles runs         from the start of the process to ready

`--bundles FOLDER` holds NAME/bundle for each of `--names`, as `seqpipe run pipelines/NAME.yaml` writes them. The server
has one core, the load generator another; both sides of a ratio are measured in turn, in one run. The defaults take some
seconds, to try it out; `--full` measures as for RESULTS.md, on an otherwise idle machine. Rows are printed as Markdown
and recorded in runs/results.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import common
from common import HERE, ROOT

sys.path.insert(0, str(ROOT))


from common import Table
from server_process import Process, called, cores, median, on_core, served, spread, texts_of

from seqpipe.commands.bench import latencies

CLIENTS = 64
SHOWN = {"fastapi": "FastAPI", "litserve": "LitServe", "bentoml": "BentoML"}
PEERS = ROOT / ".peers-serve"
CONNECTIONS = 4000  # in an overload: with few, arrivals wait for one in the load generator and never reach the server
WAITING_SECONDS = 0.3  # how long a request may wait in an overload: the bound of the queue is set by the capacity


def cpu(bundles: Path, names: list[str], rounds: int, seconds: float) -> None:
    """Milliseconds of processor time a request: of the server with 64 clients, and of the batched call."""
    columns = ("batched call, CPU ms a text", "server, CPU ms a request", "difference, ms", "requests/s")
    table = Table("serve", "cpu", "bundle", *columns)
    for name in names:
        bundle = bundles / name / "bundle"
        texts = texts_of(bundle, name)
        batched, server, rates = [], [], []
        with called(bundle, texts) as call, served({name: bundle}, name) as process:
            process.closed_loop(texts, CLIENTS, 1)
            for _ in range(rounds):
                times = [call.ask("batched")["cpu"] for _ in range(5)]
                batched.append(1000 * sum(times) / len(times) / len(texts))
                before = process.cpu()
                load = process.closed_loop(texts, CLIENTS, seconds)
                server.append(1000 * (process.cpu() - before) / load["total"])
                rates.append(load["per_second"])
        more = [a - b for a, b in zip(server, batched, strict=True)]
        table.row(name, spread(batched, ".3f"), spread(server, ".3f"), spread(more, ".3f"), f"{median(rates):,.0f}")


def latency(bundles: Path, names: list[str], rounds: int, seconds: float) -> None:
    """Latency of one client, and of the call in Python."""
    columns = ("call, median / p99 ms", "server, median / p99 ms", "added, median / p99 ms")
    table = Table("serve", "latency", "bundle", *columns)
    for name in names:
        bundle = bundles / name / "bundle"
        texts = texts_of(bundle, name)
        pairs = []
        with called(bundle, texts) as call, served({name: bundle}, name) as process:
            process.closed_loop(texts, 1, 1)
            for _ in range(rounds):
                alone = latencies(call.ask("singly")["latencies"])
                load = process.closed_loop(texts, 1, seconds)["codes"]["200"]
                pairs.append((alone["p50_ms"], load["p50_ms"], alone["p99_ms"], load["p99_ms"]))
        a, b, c, d = zip(*pairs, strict=True)
        added = [median([y - x for x, y in zip(*both, strict=True)]) for both in ((a, b), (c, d))]
        cells = [f"{median(x):.2f} / {median(y):.2f}" for x, y in ((a, c), (b, d))]
        table.row(name, *cells, f"{added[0]:.2f} / {added[1]:.2f}")


def minilm(checkpoint: Path, data: Path | None, run: Path, rounds: int, seconds: float) -> None:
    """Texts a second of a MiniLM classifier: served to 64 clients, and in a batched call on the same core."""
    import bert

    bert.train(run, checkpoint, data)
    texts = bert.test_texts(data)[:1000]
    rates, batched = [], []
    with called(run / "bundle", texts) as call, served({"minilm": run / "bundle"}, "minilm") as process:
        process.closed_loop(texts, CLIENTS, 2)
        for _ in range(rounds):
            batched.append(len(texts) / call.ask("batched")["wall"])
            rates.append(process.closed_loop(texts, CLIENTS, seconds)["per_second"])
    ratios = [a / b for a, b in zip(rates, batched, strict=True)]
    columns = ("predict in batches, texts/s", "64 clients, requests/s", "ratio, least to most")
    table = Table("serve", "minilm", "what", *columns)
    figures = (spread(batched, ",.0f"), spread(rates, ",.0f"), spread(ratios))
    table.row("MiniLM", *figures, ratio=round(median(ratios), 2))


def peers(bundles: Path, names: list[str], environment: Path, rounds: int, seconds: float) -> None:
    """Requests a second with 64 clients, the p99 no higher than the peer's."""
    python = common.peer_python(environment, "requirements-serve.txt")
    columns = ("seqpipe requests/s", "p99 ms", "peer's requests/s", "peer's p99 ms", "clients")
    versions = common.peer_versions(python, *SHOWN)
    table = Table("serve", "peers", "bundle", *columns, versions=versions)
    for name in names:
        bundle = bundles / name / "bundle"
        texts = texts_of(bundle, name)
        for peer, shown in SHOWN.items():
            pairs = []
            with _peer(python, peer, bundle) as peer_server, served({name: bundle}, name) as ours:
                peer_server.closed_loop(texts, CLIENTS, 1)
                ours.closed_loop(texts, CLIENTS, 1)
                for _ in range(rounds):
                    ours.pause()
                    peer_server.resume()
                    theirs = _answered(peer_server, texts, CLIENTS, seconds)
                    peer_server.pause()
                    ours.resume()
                    pairs.append((theirs, _no_later(ours, texts, theirs[1], seconds)))
            pairs.sort(key=lambda pair: pair[1][0] / pair[0][0])
            (rate, p99), (our_rate, our_p99, clients) = pairs[len(pairs) // 2]
            figures = (f"{our_rate:,.0f}", f"{our_p99:.1f}", f"{rate:,.0f}", f"{p99:.1f}", clients)
            table.row(f"{name}, beside {shown}", *figures, peer=shown, ratio=round(our_rate / rate, 2))


def _no_later(ours: Process, texts: list[str], p99: float, seconds: float) -> tuple[float, float, int]:
    """Our rate and p99 with as many of 64 clients as keep it no higher than this."""
    for clients in (CLIENTS, 48, 32, 24, 16, 8, 4, 2, 1):
        rate, our_p99 = _answered(ours, texts, clients, seconds)
        if our_p99 <= p99:
            break
    return rate, our_p99, clients


def _answered(process: Process, texts: list[str], clients: int, seconds: float) -> tuple[float, float]:
    load = process.closed_loop(texts, clients, seconds)
    if {*load["codes"]} != {"200"} or load["failures"]:
        raise SystemExit(f"{process.command}: {load['codes']}, {load['failures']}\n{process.log()}")
    return load["per_second"], load["codes"]["200"]["p99_ms"]


def _peer(python: Path, peer: str, bundle: Path) -> Process:
    """Another server of a bundle, with its own form of batching; FastAPI has none."""
    command = [python, HERE / "peers" / f"{peer}_server.py", bundle, "{port}"]
    if peer == "bentoml":
        return Process(command, cores()[0], "/readyz", "/answer", lambda text: {"texts": [text]})
    return Process(command, cores()[0], "/health", "/predict")


def overload(bundles: Path, names: list[str], rounds: int, seconds: float) -> None:
    """Five times as many arrivals as 64 clients get answers."""
    columns = ("capacity, /s", "goodput at 5 ×, /s", "share", "shed, p50 / p99 / max ms", "codes", "generator")
    table = Table("serve", "overload", "bundle", *columns)
    for name in names:
        bundle = bundles / name / "bundle"
        texts = texts_of(bundle, name)
        for _ in range(rounds):
            with served({name: bundle}, name) as process:
                process.closed_loop(texts, CLIENTS, 1)
                capacity = process.closed_loop(texts, CLIENTS, max(2.0, seconds / 6))["per_second"]
            size = sum(len(text) // 4 + 1 for text in texts) / len(texts)  # as the server estimates tokens
            waiting = max(1, int(WAITING_SECONDS * capacity * size))
            limits = ["--max-waiting-tokens", waiting, "--max-connections", 2 * CONNECTIONS]
            with served({name: bundle}, name, *limits) as process:
                process.closed_loop(texts, CLIENTS, 1)
                load = process.open_loop(texts, 5 * capacity, seconds, deadline=1.0, most=CONNECTIONS)
            good, shed = load["in_time_per_second"], load["codes"].get("429")
            times = (
                "none was" if shed is None else f"{shed['p50_ms']:.1f} / {shed['p99_ms']:.1f} / {shed['max_ms']:.1f}"
            )
            counts = {code: value["count"] for code, value in load["codes"].items()} | load["failures"]
            share = f"{100 * good / capacity:.0f} %"
            table.row(
                name,
                f"{capacity:,.0f}",
                f"{good:,.0f}",
                share,
                times,
                counts,
                f"{load['generator_busy']:.0%} of a core",
            )


def cold(bundles: Path, names: list[str], rounds: int) -> None:
    """Seconds from the start of `seqpipe serve` until it is ready, on all cores."""
    table = Table("serve", "cold", "bundle", "cold start to ready, s", "exit codes after SIGTERM")
    for name in names:
        taken, exits = [], set()
        process = Process(served({name: bundles / name / "bundle"}, name).command, None)
        with on_core(cores()[1]), process:
            exits.add(process.stop())
        for _ in range(rounds):
            with process:
                taken.append(process.started)
                exits.add(process.stop())
        table.row(name, spread(taken), exits)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("what", choices=("cpu", "latency", "minilm", "peers", "overload", "soak", "cold"))
    parser.add_argument("--bundles", type=Path, default=ROOT / "runs")
    parser.add_argument("--names", default="", help="bundles, separated by commas; default: those of the table")
    parser.add_argument("--full", action="store_true", help="measure for RESULTS.md")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each load")
    parser.add_argument("--requests", type=int, help="of soak")
    parser.add_argument("--checkpoint", type=Path, help="of minilm: all-MiniLM-L6-v2")
    parser.add_argument("--run", type=Path, default=ROOT / "runs" / "bench-bert", help="of minilm")
    parser.add_argument("--peers", type=Path, default=PEERS, help="the peers' environment")
    common.add_data_option(parser)
    run(parser.parse_args(), parser)


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    usual = {"cpu": "ner,intent-bert,dates", "latency": "ner,intent-bert,dates", "peers": "ner,intent-bert,dates"}
    usual["overload"] = "bench-bert"  # of minilm: what is shed must cost less than what is answered
    names = (options.names or usual.get(options.what, "ner")).split(",")
    rounds = options.rounds or (5 if options.full else 1)
    seconds = options.seconds or (10.0 if options.full else 2.0)
    match options.what:
        case "cpu":
            cpu(options.bundles, names, rounds, seconds)
        case "latency":
            latency(options.bundles, names, rounds, seconds)
        case "minilm" if options.checkpoint is None:
            parser.error("minilm needs --checkpoint FOLDER")
        case "minilm":
            minilm(options.checkpoint.absolute(), options.data, options.run, rounds, seconds)
        case "peers":
            peers(options.bundles, names, options.peers, rounds, seconds)
        case "overload":
            overload(options.bundles, names, options.rounds or 1, options.seconds or (60.0 if options.full else 5.0))
        case "cold":
            cold(options.bundles, names, options.rounds or (10 if options.full else 2))
        case "soak":
            import soak

            soak.main(options.bundles, names[0], options.requests or (100_000 if options.full else 2_000))


if __name__ == "__main__":
    main()
