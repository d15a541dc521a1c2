"""Run a YAML from Python or a command: check, train, evaluate, export; the folder of a run and its lock."""

import os

# PyTorch's OpenMP reads these once, when torch is imported. By default its threads spin for milliseconds after each
# operation, which takes several times the processor time where cores are shared; asleep at once, they wake up too late.
# The first is for all OpenMP libraries, the second, 0.1 ms, for GNU's, which ignores the first then.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
