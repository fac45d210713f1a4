"""What runs where and when: profiling, selection, sub-graphs, memory, plans and their execution."""
