"""Builds branched torch modules with inherited weights from designs."""
