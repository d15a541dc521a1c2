"""`seqpipe plugins`: the installed components, and packages of new ones."""
