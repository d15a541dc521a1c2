"""The objects of the Python interface, `Pipeline`, `Run`, `Bundle` and `Model`: thin, and imported by nothing below."""
