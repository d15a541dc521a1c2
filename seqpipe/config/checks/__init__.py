"""The checks of a pipeline: keys, components, and what passes between the stages."""
