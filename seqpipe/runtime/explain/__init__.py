"""Attention weights and answers as figures."""
