"""Encoders: x and mask to x of another width; one file per component."""
