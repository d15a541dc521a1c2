"""Look at a data file and write a first YAML for it."""

from seqpipe.init.yaml import init_yaml

__all__ = ["init_yaml"]
