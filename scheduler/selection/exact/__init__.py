"""What the product selects with: exact elimination, and beyond its limits best-first search and PBQP reduction."""
