"""How long commands that only look around take: `python benchmarks/start.py`, on an idle machine.

Prints the median of wall-clock seconds of fresh processes, and of a Python that does nothing, in the same run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOOK = (
    "from seqpipe import hookimpl\n\n@hookimpl\ndef register_encoders():\n    return {'acme-%d': 'acme_%d.conv:Conv'}\n"
)


def install(site: Path, count: int) -> None:
    """`count` distributions with a plugin each, as pip would have laid them."""
    for i in range(count):
        info = site / f"acme_{i}-1.0.dist-info"
        info.mkdir()
        (site / f"acme_{i}.py").write_text(HOOK % (i, i))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-{i}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[seqpipe]\nacme = acme_{i}\n")


def seconds(command: list[str], site: Path, times: int) -> float:
    """The median over `times` processes."""
    taken = []
    for _ in range(times):
        clock = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(site)})
        taken.append(time.perf_counter() - clock)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugins", type=int, default=20)
    parser.add_argument("--times", type=int, default=11)
    given = parser.parse_args()
    seqpipe = str(Path(sys.executable).with_name("seqpipe"))
    with tempfile.TemporaryDirectory() as site:
        install(Path(site), given.plugins)
        listed = subprocess.run(
            [seqpipe, "plugins"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": site}
        )
        found = sum(" acme-" in line for line in listed.stdout.splitlines())
        assert found == given.plugins, listed.stdout
        commands = {"python -c pass": [sys.executable, "-c", "pass"]}
        commands |= {f"seqpipe {name}": [seqpipe, name] for name in ("--help", "plugins")}
        for name, command in commands.items():
            print(f"{name}: {seconds(command, Path(site), given.times):.3f} s ({given.plugins} plugins installed)")


if __name__ == "__main__":
    main()
