"""The commands of `seqpipe`: what each takes, does and prints."""
