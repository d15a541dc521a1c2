"""The version of seqpipe, read by the build without importing anything."""

VERSION = "0.1.0"
