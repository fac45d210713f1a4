"""Public functions: compile, stretch, and the torch.compile backend."""
