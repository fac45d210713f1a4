"""From a torch module to a chain of blocks: capture, canonicalisation, cut points, diagnostics."""
