"""Builds the native engine: toolchains, instruction sets, libraries."""
