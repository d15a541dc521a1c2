"""A server of bundles over HTTP: batching, limits, protocols, health; only `seqpipe serve` imports it."""
