"""Long jobs in stages: each stage has a folder, is resumed where it was stopped, and is not done twice."""
