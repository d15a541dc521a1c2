"""`seqpipe bench`: how fast a bundle answers in this process, and how fast a server answers under load."""
