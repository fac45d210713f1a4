"""Learning from a teacher: its logits, its feature maps, and segments that learn by themselves."""
