"""The native engine: its C sources, how they are built, and its Python binding."""
