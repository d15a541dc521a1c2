"""What the encoders made in, a loss and a decision out: one file a component."""
