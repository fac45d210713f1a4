"""Selection under limits, and Pareto fronts."""
