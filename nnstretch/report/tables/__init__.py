"""Tables and sentences for terminals."""
