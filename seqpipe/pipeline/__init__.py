"""Run a YAML from Python or a command: check, train, evaluate, export; the folder of a run and its lock."""
