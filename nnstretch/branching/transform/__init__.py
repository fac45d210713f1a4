"""From a design to a branched torch module with inherited weights."""
