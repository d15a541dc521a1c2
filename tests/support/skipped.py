"""The tests that a run of pytest skipped, and why; pytest keeps both in its cache.

`python tests/support/skipped.py list CACHE` prints their node ids, a line each: arguments for pytest in a file.
`python tests/support/skipped.py check CACHE` fails if one was skipped though it needs nothing from outside pip.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

FROM_OUTSIDE = "needs "  # how the reason begins where a program or a right of this machine is missing

DISTRIBUTIONS = {"piplicenses": "pip-licenses"}  # of modules that have another name


def lacking_packages(reasons: Iterable[str]) -> list[str]:
    """Return the packages that `pytest.importorskip` has not found, by the names that pip takes."""
    matches = [re.match(r"could not import '(\w+)", reason) for reason in reasons]
    return sorted({DISTRIBUTIONS.get(match[1], match[1]).replace("_", "-") for match in matches if match})


def main(action: str, cache: str) -> int:
    reasons = json.loads(Path(cache, "v", "seqpipe", "skipped").read_text(encoding="utf-8"))
    if action == "list":
        sys.stdout.writelines(f"{test}\n" for test in reasons)
        return 0
    for test, reason in reasons.items():
        print(f"ran nowhere: {test}: {reason}")
    return int(any(not reason.startswith(FROM_OUTSIDE) for reason in reasons.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
