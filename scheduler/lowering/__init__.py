"""From an optimised graph to steps: units, candidates, views, sub-graphs."""
