"""The drawing of `seqpipe explain`: attention weights and answers as an HTML page."""
