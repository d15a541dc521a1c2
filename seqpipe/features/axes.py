"""What the rows of x may be, as the axes of a graph's inputs and outputs are named."""

TOKENS, WORDS, SENTENCES = AXES = ("sequence_length", "word_count", "sentence_count")
