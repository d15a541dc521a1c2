"""`seqpipe deploy`: a bundle as the files that another server, or a machine, runs it from."""
