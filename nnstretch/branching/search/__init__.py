"""The search for designs: search space, pruning, dynamic programming, and measurement-guided refinement."""
