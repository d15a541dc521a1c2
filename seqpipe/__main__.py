"""`python -m seqpipe` is `seqpipe`."""

from seqpipe.commands.app import main

if __name__ == "__main__":
    main()
