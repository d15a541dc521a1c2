"""`python -m seqpipe` is `seqpipe`."""

from seqpipe.cli import main

if __name__ == "__main__":
    main()
