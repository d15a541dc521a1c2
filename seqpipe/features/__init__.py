"""Turn records into the arrays that a graph takes: tokenization, vocabularies, feature kinds. Never imports PyTorch."""
