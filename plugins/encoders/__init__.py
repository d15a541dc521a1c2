"""x and mask in, x of another width out: one file a component."""
