"""The profile store: finished measurements in one SQLite file."""
