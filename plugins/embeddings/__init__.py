"""Features in, x (B, T, D) out: one file a component."""
