"""Candidates raced against each other with successive elimination."""
