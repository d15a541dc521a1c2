"""The versions of seqpipe and of its plugin API, read by the build without importing anything."""

VERSION = "0.1.0"
PLUGIN_API = 3  # raised by a change that breaks plugins, see docs/plugins/index.md
