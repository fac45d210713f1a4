"""Models on targets: compiled here, measured there."""
