"""The training loop: its steps, state, checkpoints and run folder; devices and processes."""
