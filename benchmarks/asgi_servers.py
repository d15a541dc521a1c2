"""Three ASGI servers with the documented settings of each, around an application that refuses every request.

    python benchmarks/asgi_servers.py --python ENVIRONMENT/bin/python

The environment has granian[uvloop], uvicorn, h11 and hypercorn. A row a server: requests a second of wrk's 64 clients;
MB by which its memory grows while one client sends 60 MB of pipelined requests and reads nothing; what it answers to
headers of 1 MB, and after how many seconds it closes a connection whose headers never end. Server and load generator
have a core each.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Table
from server_process import cores, on_core

APPLICATION = """
async def app(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": b"no"})
"""
HYPERCORN = "keep_alive_timeout = 5\nread_timeout = 5\nh11_max_incomplete_size = 32768\n"
SERVERS = {
    "granian": "granian --interface asgi --http 1 --loop uvloop --no-ws --backpressure 1000 "
    "--http1-header-read-timeout 5000 --http1-buffer-size 32768 --port {port} bare:app",
    "uvicorn, h11": "uvicorn --http h11 --loop uvloop --ws none --limit-concurrency 1000 --timeout-keep-alive 5 "
    "--h11-max-incomplete-event-size 32768 --no-access-log --log-level critical --port {port} bare:app",
    "hypercorn": "hypercorn --worker-class uvloop -c hypercorn.toml -b 127.0.0.1:{port} bare:app",
}
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def resident(process: int) -> float:
    """MB of a process and those that it started."""
    listing = subprocess.run(["ps", "-o", "rss=", "--ppid", str(process), "-p", str(process)], capture_output=True)
    return sum(map(int, listing.stdout.split())) / 1024


def pipelined(port: int, size: int) -> None:
    """Send so many bytes of requests, or as many as the server takes in ten seconds, and read nothing."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(10)
        block, end = REQUEST * 4096, time.monotonic() + 10
        try:
            while size > 0 and time.monotonic() < end:
                size -= client.send(block)
        except OSError:
            return  # it closed the connection, or takes no more
        time.sleep(1)


def answer(port: int, sent: bytes, seconds: float) -> str:
    """The first line of what a server answers to these bytes, and when it closed the connection."""
    began, got = time.monotonic(), b""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(seconds)
        try:
            client.sendall(sent)
            while part := client.recv(65536):
                got += part
            end = f"closed after {time.monotonic() - began:.1f} s"
        except TimeoutError:
            end = f"open after {seconds:.0f} s"
        except OSError:
            end = f"reset after {time.monotonic() - began:.1f} s"
    return f"{got.split(bytes([13]))[0].decode(errors='replace') or 'nothing'}, {end}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of an environment with the servers")
    parser.add_argument("--seconds", type=int, default=5, help="of wrk's load")
    options = parser.parse_args()
    server_core, load_core = cores()
    columns = ("MB more after 60 MB of pipelined requests", "headers of 1 MB", "headers that never end")
    table = Table("serve", "asgi", "server", "requests/s", *columns)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "bare.py").write_text(APPLICATION)
        Path(folder, "hypercorn.toml").write_text(HYPERCORN)
        for port, (name, command) in enumerate(SERVERS.items(), 8400):
            words = command.format(port=port).split()
            with on_core(server_core):
                process = subprocess.Popen(
                    [options.python.absolute().with_name(words[0]), *words[1:]], cwd=folder, stderr=subprocess.DEVNULL
                )
            try:
                while socket.socket().connect_ex(("127.0.0.1", port)):
                    time.sleep(0.1)
                with on_core(load_core):
                    wrk = ["wrk", "-t1", "-c64", f"-d{options.seconds}s", f"http://127.0.0.1:{port}/"]
                    said = subprocess.run(wrk, capture_output=True, text=True, check=True).stdout
                    before = resident(process.pid)
                    pipelined(port, 60 << 20)
                    more = resident(process.pid) - before
                large = answer(port, REQUEST[:-2] + b"X: " + b"x" * (1 << 20) + b"\r\n\r\n", 5)
                endless = answer(port, REQUEST[:-2], 15)
            finally:
                process.terminate()
                process.wait()
            rate = re.search(r"Requests/sec: +([\d.]+)", said)
            table.row(name, f"{float(rate[1]):,.0f}" if rate else said, f"{more:.0f}", large, endless)


if __name__ == "__main__":
    main()
