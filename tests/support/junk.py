from serving import malformed_statuses as refusals  # noqa: F401
