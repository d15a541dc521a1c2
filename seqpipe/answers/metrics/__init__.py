"""Metrics of answers, counted record by record."""
